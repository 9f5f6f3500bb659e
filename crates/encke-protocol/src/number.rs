//! Numbers in requests.

/// A whole number in plain decimal notation: digits only, no leading zeros.
pub(crate) fn decimal(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = digits == "0" || !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain && canonical)
}
