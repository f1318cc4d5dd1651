//! Typed access to the keys of a JSON object.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{LlmError, Result};
use crate::models::config::Keys;

/// A JSON object, or a nested one whose keys are shown with a prefix.
pub(crate) struct JsonKeys<'a> {
    pub path: &'a Path,
    pub prefix: &'static str,
    pub object: &'a Map<String, Value>,
}

impl<'a> JsonKeys<'a> {
    /// A value; null counts as missing.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    fn wrong<T>(&self, key: &str, value: &Value, expected: &str) -> Result<T> {
        let kind = match value {
            Value::Number(number) => &number.to_string(),
            Value::Null => "null",
            Value::Bool(_) => "a bool",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        Err(self.bad(key, format!("is {kind}, but must be {expected}")))
    }

    /// A number that `f32` can hold.
    fn fits(&self, key: &str, number: f64) -> Result<f64> {
        match (number as f32).is_finite() {
            true => Ok(number),
            false => Err(self.bad(key, format!("is {number:e}, which does not fit in f32"))),
        }
    }

    /// A string; `None` where the key is missing.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    /// A bool; `None` where the key is missing.
    pub fn truth(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    /// The strings of a list; `None` where the key is missing.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => {
                let strings: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
                strings.map(Some).ok_or_else(|| self.bad(key, "must be a list of strings".into()))
            }
            Some(other) => self.wrong(key, other, "a list"),
        }
    }

    /// The numbers of a list; `None` where the key is missing.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => {
                let numbers: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
                let numbers = numbers.ok_or_else(|| self.bad(key, "must be a list of numbers".into()))?;
                numbers.into_iter().map(|v| self.fits(key, v).map(|v| v as f32)).collect::<Result<_>>().map(Some)
            }
            Some(other) => self.wrong(key, other, "a list"),
        }
    }

    /// An object; `None` where the key is missing.
    pub fn object(&self, key: &'static str) -> Result<Option<JsonKeys<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(JsonKeys { path: self.path, prefix: key, object })),
            Some(other) => self.wrong(key, other, "an object"),
        }
    }

    /// Token ids: a number or a list of numbers.
    pub fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let id = |v: &Value| match v.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(id) => Ok(id),
            None => self.wrong(key, v, "a token id"),
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(one) => Ok(vec![id(one)?]),
        }
    }
}

impl Keys for JsonKeys<'_> {
    fn full(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.into() } else { format!("{}.{key}", self.prefix) }
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            // One number for each layer.
            Some(Value::Array(list)) if list.first().is_some_and(|first| list.iter().all(|n| n == first)) => {
                list[0].as_u64().map(Some).ok_or_else(|| self.bad(key, "must be a whole number, 0 or more".into()))
            }
            Some(value) => match value.as_u64() {
                Some(n) => Ok(Some(n)),
                // Some writers store all numbers as floats.
                None => match value.as_f64().filter(|f| (0.0..1e15).contains(f) && f.fract() == 0.0) {
                    Some(f) => Ok(Some(f as u64)),
                    None => self.wrong(key, value, "a whole number, 0 or more"),
                },
            },
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(f) => self.fits(key, f).map(Some),
                None => self.wrong(key, value, "a number"),
            },
        }
    }

    fn missing(&self, key: &str) -> LlmError {
        LlmError::MissingKey { path: self.path.into(), key: self.full(key) }
    }

    fn bad(&self, key: &str, reason: String) -> LlmError {
        LlmError::BadKey { path: self.path.into(), key: self.full(key), reason }
    }
}
