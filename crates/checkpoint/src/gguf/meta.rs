//! Typed reading of metadata, with errors that name the file, the key and what it holds.

use super::header::Header;
use super::value::{Array, Value};
use crate::CheckpointError;

/// The metadata of a model's file.
pub(super) struct Meta<'a> {
    file: &'a str,
    header: &'a Header<'a>,
}

impl<'a> Meta<'a> {
    pub(super) fn new(file: &'a str, header: &'a Header<'a>) -> Self {
        Self { file, header }
    }

    pub(super) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.header.get(key)
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::config(self.file, problem)
    }

    pub(super) fn wrong(&self, key: &str, found: Value<'_>, wanted: &str) -> CheckpointError {
        let found = match found {
            Value::Unsigned(n) => n.to_string(),
            Value::Signed(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Bool(b) => b.to_string(),
            Value::Text(text) => format!("\"{}\"", text.chars().take(60).collect::<String>()),
            Value::Array(array) => format!("a list of {}", array.len()),
        };
        self.error(format!("`{key}` is {found}; {wanted} is needed"))
    }

    pub(super) fn missing(&self, key: &str) -> CheckpointError {
        self.error(format!("`{key}` is missing"))
    }

    /// A whole number, if present. A list of the same number for each layer is that number.
    pub(super) fn whole(&self, key: &str) -> Result<Option<u64>, CheckpointError> {
        let number = |value| match value {
            Value::Unsigned(n) => Some(n),
            Value::Signed(n) => u64::try_from(n).ok(),
            _ => None,
        };
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = match value {
            Value::Array(array) => {
                let mut values = array.values().map(number);
                let first = values.next().flatten();
                first.filter(|n| values.all(|other| other == Some(*n)))
            }
            one => number(one),
        };
        match found {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(key, value, "a whole number, the same for all layers")),
        }
    }

    pub(super) fn whole_required(&self, key: &str) -> Result<u64, CheckpointError> {
        self.whole(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) if x.is_finite() => Ok(Some(x)),
            Some(Value::Unsigned(n)) => Ok(Some(n as f64)),
            Some(Value::Signed(n)) => Ok(Some(n as f64)),
            Some(other) => Err(self.wrong(key, other, "a number")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "text")),
        }
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<Array<'a>>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(self.wrong(key, other, "a list")),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, CheckpointError> {
        let Some(array) = self.list(key)? else { return Ok(None) };
        let text = |value| match value {
            Value::Text(text) => Some(text),
            _ => None,
        };
        match array.values().map(text).collect() {
            Some(texts) => Ok(Some(texts)),
            None => Err(self.wrong(key, Value::Array(array), "a list of texts")),
        }
    }

    pub(super) fn token_id(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        match self.whole(key)? {
            None => Ok(None),
            // What converters write for "none".
            Some(n) if n == u64::from(u32::MAX) => Ok(None),
            Some(n) => match u32::try_from(n) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(self.wrong(key, Value::Unsigned(n), "a token id")),
            },
        }
    }
}
