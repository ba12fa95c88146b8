//! Numbers as people read them.

/// Bytes in the largest unit that leaves a number over 1: `7.4 MiB`.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// A count of things, such as parameters: `7.3 M`.
pub fn count(n: u64) -> String {
    scaled(n as f64, 1000.0, &["", "K", "M", "B", "T", "Q"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    let whole = value < step;
    // From 999.95 on, one decimal would print as 1000.0.
    while value >= step - 0.05 {
        match units.next() {
            Some(next) => (value, unit) = (value / step, next),
            None => break,
        }
    }
    let number = if whole { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{number} {unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn units_change_where_they_should() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB")];
        for (n, text) in cases {
            assert_eq!(super::bytes(n), text);
        }
        assert_eq!(super::bytes(u64::MAX), "16.0 EiB");
        assert_eq!(super::count(999), "999");
        assert_eq!(super::count(7_300_000), "7.3 M");
        assert_eq!(super::count(999_999), "1.0 M");
    }
}
