//! JSON of requests, read strictly: an object with the same key twice is rejected, because its readers disagree about
//! the meaning. Nesting is limited to 128 by `serde_json`, which also rejects `NaN` and numbers out of range.

use std::fmt;

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};
use crate::strict::Strict;

/// Parses an object.
///
/// # Errors
/// 400 with the place of the fault.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>> {
    match parse(bytes)? {
        Value::Object(map) => Ok(map),
        other => Err(ApiError::bad_request(format!("the body must be a JSON object, not {}", kind(&other)))),
    }
}

fn parse(bytes: &[u8]) -> Result<Value> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| ApiError::bad_request(format!("the body is not UTF-8 from byte {}", e.valid_up_to())))?;
    let value = serde_json::from_str::<Strict>(text);
    value.map(|strict| strict.0).map_err(|e| ApiError::bad_request(format!("the body is not valid JSON: {e}")))
}

/// A value's type, for messages.
pub fn kind(value: &Value) -> impl fmt::Display {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faulty_bodies_are_rejected_with_the_place() {
        let deep = "[".repeat(200_000);
        let cases: [(&[u8], &str); 9] = [
            (b"", "the body is not valid JSON: EOF while parsing a value at line 1 column 0"),
            (b"{\"a\": \xff}", "the body is not UTF-8 from byte 6"),
            (b"[1]", "the body must be a JSON object, not a list"),
            (b"{\"a\": NaN}", "the body is not valid JSON: expected value at line 1 column 7"),
            (b"{\"a\": 1e400}", "number out of range"),
            (b"{\"a\": \"\\ud800\"}", "the body is not valid JSON: "),
            (b"{\"a\": 1} x", "trailing characters"),
            (b"{\"a\": {\"b\": 1, \"b\": 2}}", "the key \"b\" occurs twice"),
            (deep.as_bytes(), "recursion limit exceeded"),
        ];
        for (body, want) in cases {
            let error = object(body).unwrap_err();
            assert!(error.message.contains(want), "{}", error.message);
            assert_eq!(error.status, 400);
        }
        let fine = object(br#"{"a": [1, -2, 0.5, true, null, "x"], "b": {}}"#).unwrap();
        assert_eq!(Value::from(fine), serde_json::json!({"a": [1, -2, 0.5, true, null, "x"], "b": {}}));
    }
}
