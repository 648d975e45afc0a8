//! Typed reading of JSON objects, with errors that name the file, the entry and what it holds.

use serde_json::{Map, Value};

use crate::CheckpointError;

/// A JSON object of a configuration file, and the object around it where entries may also stand.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    inner: &'a Map<String, Value>,
    outer: Option<&'a Map<String, Value>>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(file: &'a str, object: &'a Map<String, Value>) -> Self {
        Self { file, inner: object, outer: None }
    }

    /// The object under `key`, backed by this one; `None` when there is no such entry.
    pub(crate) fn nested(self, key: &str) -> Result<Option<Self>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => {
                Ok(Some(Self { file: self.file, inner: object, outer: Some(self.inner) }))
            }
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    /// The same object without the one around it.
    pub(crate) fn alone(self) -> Self {
        Self { outer: None, ..self }
    }

    /// The entry as it stands; an explicit `null` counts as absent.
    pub(crate) fn get(self, key: &str) -> Option<&'a Value> {
        let own = self.inner.get(key).filter(|value| !value.is_null());
        own.or_else(|| self.outer.and_then(|outer| outer.get(key)).filter(|value| !value.is_null()))
    }

    /// The entry of the object around this one.
    pub(crate) fn outer(self, key: &str) -> Option<&'a Value> {
        self.outer.and_then(|outer| outer.get(key)).filter(|value| !value.is_null())
    }

    pub(crate) fn error(self, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::config(self.file, problem)
    }

    pub(crate) fn wrong(self, key: &str, found: &Value, wanted: &str) -> CheckpointError {
        let mut found = found.to_string();
        if let Some((cut, _)) = found.char_indices().nth(80) {
            found.truncate(cut);
            found.push('…');
        }
        self.error(format!("`{key}` is {found}; {wanted} is needed"))
    }

    fn required<T>(self, key: &str, value: Option<T>) -> Result<T, CheckpointError> {
        value.ok_or_else(|| self.error(format!("`{key}` is missing")))
    }

    /// A whole number in `1..=max`.
    pub(crate) fn size(self, key: &str, max: usize) -> Result<usize, CheckpointError> {
        self.required(key, self.size_opt(key, max)?)
    }

    /// A whole number in `1..=max`, if present.
    pub(crate) fn size_opt(self, key: &str, max: usize) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (1..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.wrong(key, value, &format!("a whole number from 1 to {max}"))),
        }
    }

    /// A finite number, if present.
    pub(crate) fn number(self, key: &str) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|n| n.is_finite()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(key, value, "a number")),
        }
    }

    /// A finite number above zero, if present.
    pub(crate) fn positive(self, key: &str) -> Result<Option<f64>, CheckpointError> {
        match self.number(key)? {
            Some(n) if n <= 0.0 => {
                Err(self.error(format!("`{key}` is {n}; a number above 0 is needed")))
            }
            n => Ok(n),
        }
    }

    pub(crate) fn flag(self, key: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    pub(crate) fn text(self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    pub(crate) fn text_required(self, key: &str) -> Result<&'a str, CheckpointError> {
        self.required(key, self.text(key)?)
    }

    /// A token id, or a list of them; empty when absent.
    pub(crate) fn token_ids(self, key: &str) -> Result<Vec<u32>, CheckpointError> {
        let id = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let ids = match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.wrong(key, value, "a token id or a list of token ids"))
    }
}

/// Parses a JSON file that must hold an object.
pub(crate) fn parse_object(
    file: &str,
    bytes: &[u8],
) -> Result<Map<String, Value>, CheckpointError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(CheckpointError::config(file, "the file holds no JSON object")),
        Err(error) => Err(CheckpointError::config(file, format!("not valid JSON: {error}"))),
    }
}
