//! `keep_alive`: how long a model stays loaded after a request.

use std::time::Duration;

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::registry::Keep;

/// Takes `keep_alive`: a number of seconds or a text such as `5m` or `1h30m`; less than 0 is forever.
///
/// # Errors
/// When it is anything else.
pub fn take(fields: &mut Fields) -> Result<Option<Keep>> {
    let Some(value) = fields.take("keep_alive") else { return Ok(None) };
    let keep = match &value {
        Value::String(text) => seconds(text),
        other => other.as_f64(),
    };
    let invalid = || {
        let message = "keep_alive must be a number of seconds or a text such as \"5m\", below 0 for ever";
        ApiError::invalid("keep_alive", message)
    };
    keep.map(of_seconds).map(Some).ok_or_else(invalid)
}

fn of_seconds(seconds: f64) -> Keep {
    // More than a time can be is forever, too.
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) => Keep::For(time),
        Err(_) => Keep::Forever,
    }
}

/// The seconds of a duration as Go writes them; without a unit a number of seconds.
fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    if !rest.is_empty() && rest.chars().all(is_digit) {
        return rest.parse::<f64>().ok().map(|n| sign * n);
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_digit(c))?);
        let (unit, after) = after.split_at(after.find(is_digit).unwrap_or(after.len()));
        let unit = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    (!text.is_empty() && text != "-" && text != "+").then_some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, want) in [
            ("0", Some(0.0)),
            ("0s", Some(0.0)),
            ("-1", Some(-1.0)),
            ("-1m", Some(-60.0)),
            ("300", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("1.5h", Some(5400.0)),
            ("250ms", Some(0.25)),
            ("2m0.5s", Some(120.5)),
            ("", None),
            ("-", None),
            ("m", None),
            ("5 m", None),
            ("5d", None),
            ("5m5", None),
            ("1.2.3s", None),
            ("soon", None),
        ] {
            assert_eq!(seconds(text), want, "{text:?}");
        }
        assert_eq!(of_seconds(-0.0), Keep::For(Duration::ZERO));
        assert_eq!([of_seconds(-1.0), of_seconds(1e300)], [Keep::Forever; 2]);
    }
}
