//! The members of a request's object, taken one by one. What nobody takes is not supported and rejects the request:
//! no parameter is dropped silently.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};
use crate::json::kind;
use crate::openapi::{self, Members};

/// The members of an object that were not taken yet.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    /// The object's own name with a dot, empty for the body.
    prefix: String,
    /// The members that its schema names: others are not read. `None`: it has no schema.
    known: Option<&'static Members>,
}

impl Fields {
    /// The members of a body.
    pub fn new(map: Map<String, Value>) -> Fields {
        Fields { map, prefix: String::new(), known: None }
    }

    /// Reads only what the schema of this name has, if there is one.
    #[must_use]
    pub fn known_as(self, schema: &str) -> Fields {
        Fields { known: openapi::members(schema), ..self }
    }

    fn knows(&self, field: &str) -> bool {
        self.known.is_none_or(|known| known.contains_key(field))
    }

    /// The members of a value within a body, which must be an object. `name` is the value's name.
    ///
    /// # Errors
    /// When it is not an object.
    pub fn of(value: Value, name: &str) -> Result<Fields> {
        match value {
            Value::Object(map) => Ok(Fields { map, prefix: format!("{name}."), known: None }),
            other => Err(wrong(name, "an object", &other)),
        }
    }

    /// A member's name for messages.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// Takes a member. `null` counts as absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        if !self.knows(field) {
            return None;
        }
        self.map.shift_remove(field).filter(|value| !value.is_null())
    }

    /// A member that stays. `null` counts as absent.
    pub fn peek(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null() && self.knows(field))
    }

    /// Takes a boolean.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn boolean(&mut self, field: &str) -> Result<Option<bool>> {
        self.typed(field, "a boolean", |value| value.as_bool())
    }

    /// Takes a text.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn text(&mut self, field: &str) -> Result<Option<String>> {
        self.typed(field, "a string", |value| value.as_str().map(String::from))
    }

    /// Takes a list.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn list(&mut self, field: &str) -> Result<Option<Vec<Value>>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.name(field), "a list", &other)),
        }
    }

    /// Takes an object.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let known = self.known.and_then(|known| openapi::members_within(known, field));
        Ok(Some(Fields { known, ..Fields::of(value, &self.name(field))? }))
    }

    /// Takes an object as it is.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn map(&mut self, field: &str) -> Result<Option<Map<String, Value>>> {
        Ok(self.object(field)?.map(|fields| fields.map))
    }

    /// Takes a number in a range.
    ///
    /// # Errors
    /// When it is out of range or anything else.
    pub fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let number = self.typed(field, "a number", |value| value.as_f64())?;
        match number.filter(|n| !range.contains(n)) {
            Some(n) => Err(outside(&self.name(field), short(n), range)),
            None => Ok(number),
        }
    }

    /// Takes a whole number in a range.
    ///
    /// # Errors
    /// When it is out of range or anything else.
    pub fn integer(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        integer(&value, &self.name(field), range).map(Some)
    }

    /// Takes one of these words.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn one_of(&mut self, field: &str, words: &[&'static str]) -> Result<Option<&'static str>> {
        let Some(text) = self.text(field)? else { return Ok(None) };
        let known = words.iter().find(|word| **word == text).copied();
        known.map(Some).ok_or_else(|| ApiError::none_of(self.name(field), words))
    }

    /// Drops members that request nothing from the model, such as labels.
    pub fn ignore(&mut self, fields: &[&str]) {
        for field in fields {
            self.take(field);
        }
    }

    /// Accepts a member only with one of these values.
    ///
    /// # Errors
    /// When it has another one.
    pub fn only(&mut self, field: &str, values: &[Value]) -> Result<()> {
        match self.take(field) {
            Some(value) if !values.contains(&value) => {
                let name = self.name(field);
                let listed = values.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ");
                Err(ApiError::unsupported(name.clone(), format!("{name} is supported only as {listed}")))
            }
            _ => Ok(()),
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When a member is left; the error names the first.
    pub fn finish(self) -> Result<()> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((field, _)) => {
                let field: String = field.chars().take(100).collect();
                let name = self.name(&field);
                Err(ApiError::unsupported(name.clone(), format!("the parameter {name} is not supported")))
            }
        }
    }

    fn typed<T>(&mut self, field: &str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(&self.name(field), what, &value))
    }
}

/// The error that a value has another type.
pub fn wrong(name: &str, what: &str, value: &Value) -> ApiError {
    ApiError::invalid(name, format!("{name} must be {what}, not {}", kind(value)))
}

/// A number with an exponent where it would have hundreds of digits otherwise.
pub fn short(number: f64) -> String {
    let (plain, scientific) = (number.to_string(), format!("{number:e}"));
    if plain.len() > 20 { scientific } else { plain }
}

/// A whole number in a range; `1.0` is one.
///
/// # Errors
/// When it is out of range or anything else.
pub fn integer(value: &Value, name: &str, range: RangeInclusive<i64>) -> Result<i64> {
    let Some(number) = value.as_f64() else { return Err(wrong(name, "a whole number", value)) };
    if number.fract() != 0.0 {
        return Err(ApiError::invalid(name, format!("{name} must be a whole number, not {}", short(number))));
    }
    // Beyond 2^53 only the exact reading counts.
    let exact = value.as_i64().or_else(|| (number.abs() < 9e15).then_some(number as i64));
    exact.filter(|n| range.contains(n)).ok_or_else(|| outside(name, value, range))
}

fn outside<T: std::fmt::Display>(name: &str, got: impl std::fmt::Display, range: RangeInclusive<T>) -> ApiError {
    ApiError::invalid(name, format!("{name} is {got}, but must be from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        let Value::Object(map) = value else { panic!("{value}") };
        Fields::new(map).known_as("ChatRequest")
    }

    /// What the served schema does not name is not read, whoever asks for it.
    #[test]
    fn only_members_of_the_schema_are_read() {
        let mut body = fields(json!({ "n": 1, "secret": 2, "stream_options": { "include_usage": true, "secret": 3 } }));
        assert_eq!((body.take("n"), body.take("secret"), body.peek("secret")), (Some(json!(1)), None, None));
        let mut options = body.object("stream_options").unwrap().unwrap();
        assert_eq!((options.take("include_usage"), options.take("secret")), (Some(json!(true)), None));
        assert_eq!(options.finish().unwrap_err().param.as_deref(), Some("stream_options.secret"));
        body.ignore(&["secret"]);
        assert_eq!(body.finish().unwrap_err().param.as_deref(), Some("secret"));
    }
}
