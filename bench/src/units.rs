//! Formats numbers: grouped, rounded, with their unit.

/// A whole number in groups of three digits.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A rate per second.
pub fn per_second(rate: f64) -> String {
    per_second_beside(rate, rate)
}

/// A rate per second, as exact as suits another one.
pub fn per_second_beside(rate: f64, most: f64) -> String {
    if most < 10.0 {
        format!("{rate:.2}/s")
    } else {
        format!("{}/s", count(rate.round() as u64))
    }
}

/// A time that is given in microseconds, in the unit that suits it.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e5 => format!("{:.2} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// A time that is given in nanoseconds, in the unit that suits it.
pub fn nanos(ns: f64) -> String {
    match ns {
        ns if ns < 10.0 => format!("{ns:.1} ns"),
        ns if ns < 10_000.0 => format!("{} ns", count(ns.round() as u64)),
        ns => micros(ns / 1e3),
    }
}

/// A time in seconds, in the unit that suits it.
pub fn length_of_time(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 600.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3_600.0),
    }
}

/// A number of bytes, in the unit that suits it.
pub fn bytes(bytes: u64) -> String {
    bytes_beside(bytes, bytes)
}

/// A number of bytes, in the unit that suits another one: numbers that are compared have one unit.
pub fn bytes_beside(bytes: u64, most: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if most < 10_000 {
        return format!("{} B", count(bytes));
    }
    let (mut value, mut most) = (bytes as f64 / 1024.0, most as f64 / 1024.0);
    let mut unit = 0;
    while most >= 10_000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        most /= 1024.0;
        unit += 1;
    }
    if most < 100.0 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{} {}", count(value.round() as u64), UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_have_fitting_units() {
        assert_eq!(
            [count(0), count(999), count(1_000), count(12_345_678)].join(" "),
            "0 999 1,000 12,345,678"
        );
        assert_eq!(
            [
                micros(4.56),
                micros(180.4),
                micros(1_500.0),
                micros(110_000.0),
                micros(11e6)
            ]
            .join(" "),
            "4.6 µs 180 µs 1.50 ms 110 ms 11.00 s"
        );
        assert_eq!(
            [bytes(102), bytes(9_999), bytes(20_000), bytes(1 << 30)].join(" "),
            "102 B 9,999 B 19.5 KiB 1,024 MiB"
        );
        // The steps of an axis.
        let steps = [0, 10_000_000, 20_000_000].map(|step| bytes_beside(step, 20_000_000));
        assert_eq!(steps.join(" "), "0.0 MiB 9.5 MiB 19.1 MiB");
        let steps = [0, 500, 9_000].map(|step| bytes_beside(step, 9_000));
        assert_eq!(steps.join(" "), "0 B 500 B 9,000 B");
        assert_eq!(
            [per_second(0.5), per_second(999.7)].join(" "),
            "0.50/s 1,000/s"
        );
    }
}
