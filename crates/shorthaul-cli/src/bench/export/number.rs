//! Numbers as people read them.

/// Three digits that count, thousands apart: `19 267`, `12.5`, `0.123`.
pub(in crate::bench) fn pretty(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    let decimals = (2.0 - magnitude).clamp(0.0, 6.0) as usize;
    grouped(&format!("{value:.decimals$}"))
}

/// A value that marks an axis: no digit that says nothing.
pub(in crate::bench) fn tick(value: f64) -> String {
    grouped(&format!("{}", (value * 1e6).round() / 1e6))
}

/// A whole number, thousands apart.
pub(in crate::bench) fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// `12.5 %`, of 0.125.
pub(in crate::bench) fn share(value: f64) -> String {
    format!("{:.1}\u{a0}%", value * 100.0)
}

/// How many per cent more, with its sign: `+12.5 %`, of 1.125.
pub(in crate::bench) fn change(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    let decimals = if percent.abs() < 99.95 { 1 } else { 0 };
    let sign = if percent < 0.0 { '−' } else { '+' };
    format!("{sign}{:.decimals$}\u{a0}%", percent.abs())
}

/// Thousands apart, by a narrow space that doesn't break; what is after a point stays together.
fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let cases = [(19_267.4, "19\u{202f}267"), (999.6, "1\u{202f}000"), (12.46, "12.5")];
        for (value, expected) in cases {
            assert_eq!(pretty(value), expected);
        }
        assert_eq!(
            (pretty(1.0), pretty(0.0), pretty(0.012_34)),
            ("1.00".into(), "0".into(), "0.0123".into())
        );
        assert_eq!((tick(0.1 + 0.2), tick(50_000.0)), ("0.3".into(), "50\u{202f}000".into()));
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(grouped("-123"), "-123");
    }

    #[test]
    fn changes_have_signs() {
        assert_eq!((change(1.125), change(0.9)), ("+12.5\u{a0}%".into(), "−10.0\u{a0}%".into()));
        assert_eq!(change(3.0), "+200\u{a0}%");
        assert_eq!(share(0.125), "12.5\u{a0}%");
    }
}
