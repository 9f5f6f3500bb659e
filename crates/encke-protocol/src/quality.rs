//! How much a client prefers one of several forms of a response (RFC 9110, section 12.4.2).

/// The thousandths of a parameter such as `q=0.5`. `None`: it is another parameter.
pub(crate) fn weight(parameter: &[u8]) -> Option<u16> {
    let (name, value) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let (whole, fraction) = match value {
        [whole] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let digits = fraction.iter().chain(b"000").take(3);
    let thousandths = digits.into_iter().try_fold(0, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        Some(number * 10 + digit)
    })?;
    match (whole, thousandths) {
        (b'0', thousandths) => Some(thousandths),
        (b'1', 0) => Some(1000),
        _ => None,
    }
}
