//! The fields of every request body, each declared once: its type and range, and what is done with it.
//!
//! Nothing is accepted and ignored: a field is honoured, or it cannot change an answer and is listed
//! as harmless, or it is accepted only with the values that ask for what happens anyway. Everything
//! else is refused by name. `null` means that the field was not sent.
//! `docs/request-fields.md` and one test per field are generated from these tables.

pub mod chat;
pub mod completions;
pub mod document;
pub mod native;
pub mod nested;
pub mod sampling;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// One field of a request body.
pub struct Field {
    /// Name in the JSON object.
    pub name: &'static str,
    /// Type and range of its values.
    pub kind: Kind,
    /// What is done with it.
    pub policy: Policy,
    /// What it does, or why it is refused or harmless.
    pub doc: &'static str,
}

/// What is done with a field.
pub enum Policy {
    /// It acts as documented.
    Honoured {
        /// A JSON value that differs from the default: the field's test sends it.
        example: &'static str,
        /// JSON object with the fields that must come with the example.
        with: &'static str,
    },
    /// Any value is accepted, because none can change an answer.
    Harmless,
    /// Only these JSON values are accepted: they ask for what happens anyway.
    /// Everything else is refused by name, so an empty list refuses the field.
    Only(&'static [&'static str]),
}

/// Type and range of a field's values.
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number, both ends included.
    Int(i64, i64),
    /// A finite number, both ends included.
    Float(f64, f64),
    /// A finite number above the first and up to the second.
    FloatAbove(f64, f64),
    /// A string.
    Text,
    /// A string, or a list of strings.
    Texts,
    /// A list of token ids.
    Ids,
    /// An object with the fields of another table.
    Object(&'static Table),
    /// An object with names of the client's choosing.
    Map,
    /// A list whose entries are checked where they are read.
    List,
    /// Several types, checked where the value is read.
    Any,
}

/// All fields of one kind of JSON object.
pub struct Table {
    /// What the object is, for messages and documents.
    pub title: &'static str,
    /// Groups of fields; groups are shared between tables.
    pub groups: &'static [&'static [Field]],
}

/// A field that acts.
pub const fn honoured(
    name: &'static str,
    kind: Kind,
    example: &'static str,
    doc: &'static str,
) -> Field {
    Field { name, kind, policy: Policy::Honoured { example, with: "{}" }, doc }
}

/// A field that is accepted and cannot change an answer.
pub const fn harmless(name: &'static str, doc: &'static str) -> Field {
    Field { name, kind: Kind::Any, policy: Policy::Harmless, doc }
}

/// A field of which only some values are accepted.
pub const fn only(name: &'static str, values: &'static [&'static str], doc: &'static str) -> Field {
    Field { name, kind: Kind::Any, policy: Policy::Only(values), doc }
}

/// A field that is refused with any value.
pub const fn refused(name: &'static str, doc: &'static str) -> Field {
    only(name, &[], doc)
}

impl Field {
    /// Adds the fields that the example needs beside it.
    pub const fn with(mut self, with: &'static str) -> Field {
        if let Policy::Honoured { example, .. } = self.policy {
            self.policy = Policy::Honoured { example, with };
        }
        self
    }
}

impl Table {
    /// All fields, in the order of the documents.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    /// The field of that name.
    pub fn find(&self, name: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.name == name)
    }

    /// Checks every field of `object`; `path` is put before the names, such as `messages[0].`.
    ///
    /// # Errors
    /// Names the first field that is unknown, refused, of a wrong type or out of range.
    pub fn check(&self, object: &Map<String, Value>, path: &str) -> Result<(), ApiError> {
        for (name, value) in object {
            let param = format!("{path}{name}");
            let field = self.find(name).ok_or_else(|| self.unknown(name, &param))?;
            if value.is_null() {
                continue;
            }
            match &field.policy {
                Policy::Honoured { .. } => field.kind.check(value, &param)?,
                Policy::Harmless => {}
                Policy::Only(accepted) => check_accepted(field, accepted, value, &param)?,
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str, param: &str) -> ApiError {
        let near = self
            .fields()
            .map(|field| (distance(name, field.name), field.name))
            .filter(|(d, near)| *d <= (near.len().max(name.len())) / 3)
            .min();
        let hint = near.map(|(_, near)| format!(" Did you mean `{near}`?")).unwrap_or_default();
        // A name is echoed, but not a body's worth of it.
        let shown: String = param.chars().take(100).collect();
        ApiError::UnknownField {
            message: format!(
                "`{shown}` is not a field of a {}; it is refused because an ignored field could \
                 change the answer.{hint}",
                self.title
            ),
            param: shown,
        }
    }
}

fn check_accepted(
    field: &Field,
    accepted: &[&str],
    value: &Value,
    param: &str,
) -> Result<(), ApiError> {
    let is = |text: &&str| serde_json::from_str::<Value>(text).is_ok_and(|v| same(&v, value));
    if accepted.iter().any(is) {
        return Ok(());
    }
    let but = match accepted {
        [] => String::new(),
        values => format!(" Accepted: {}, or leave it out.", values.join(", ")),
    };
    Err(ApiError::unsupported(
        param,
        format!("`{param}` is not supported with this value: {}.{but}", field.doc),
    ))
}

/// Equal as JSON, with `1` equal to `1.0`.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

impl Kind {
    /// # Errors
    /// Names the field and says what would be right.
    pub fn check(&self, value: &Value, param: &str) -> Result<(), ApiError> {
        let right = match self {
            Kind::Bool => value.is_boolean(),
            Kind::Int(min, max) => {
                whole(value).is_some_and(|n| i128::from(*min) <= n && n <= i128::from(*max))
            }
            Kind::Float(min, max) => value.as_f64().is_some_and(|x| *min <= x && x <= *max),
            Kind::FloatAbove(min, max) => value.as_f64().is_some_and(|x| *min < x && x <= *max),
            Kind::Text => value.is_string(),
            Kind::Texts => value.is_string() || is_list_of(value, Value::is_string),
            Kind::Ids => is_list_of(value, |v| whole(v).is_some_and(is_id)),
            Kind::Object(table) => match value {
                Value::Object(object) => return table.check(object, &format!("{param}.")),
                _ => false,
            },
            Kind::Map => value.is_object(),
            Kind::List => value.is_array(),
            Kind::Any => true,
        };
        if right {
            return Ok(());
        }
        let message = format!("`{param}` must be {}, not {}.", self.describe(), shown(value));
        Err(ApiError::invalid(param, message))
    }

    /// What a right value is, for messages and documents.
    pub fn describe(&self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Int(i64::MIN, i64::MAX) => "a whole number of 64 bits".into(),
            Kind::Int(min, i64::MAX) => format!("a whole number of at least {min}"),
            Kind::Int(i64::MIN, max) => format!("a whole number up to {max}"),
            Kind::Int(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Float(min, max) => format!("a number from {min} to {max}"),
            Kind::FloatAbove(min, max) => format!("a number above {min} and up to {max}"),
            Kind::Text => "a string".into(),
            Kind::Texts => "a string or a list of strings".into(),
            Kind::Ids => "a list of token ids".into(),
            Kind::Object(table) => format!("an object ({})", table.title),
            Kind::Map => "an object".into(),
            Kind::List => "a list".into(),
            Kind::Any => "one of several types".into(),
        }
    }
}

/// The whole number that a JSON number stands for: `10` and `10.0`, not `10.5` and not `"10"`.
pub fn whole(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(n) = number.as_i128() {
        return Some(n);
    }
    let x = number.as_f64()?;
    // Above 2^53 a float does not name one whole number.
    (x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0).then_some(x as i128)
}

fn is_id(n: i128) -> bool {
    u32::try_from(n).is_ok()
}

fn is_list_of(value: &Value, is: impl Fn(&Value) -> bool) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(is))
}

/// A short form of a value for a message: long strings and containers are not echoed.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) if s.chars().count() <= 40 => format!("the string {s:?}"),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list with other contents".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// Edit distance of two names, for the hint in a refusal.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    // A name longer than this is nobody's typing error.
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The values of a checked object, by name and type; `null` is absent.
#[derive(Clone, Copy)]
pub struct Args<'a>(pub &'a Map<String, Value>);

impl<'a> Args<'a> {
    /// The value, unless absent or `null`.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A number.
    pub fn f32(&self, name: &str) -> Option<f32> {
        self.get(name)?.as_f64().map(|x| x as f32)
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Option<i128> {
        whole(self.get(name)?)
    }

    /// A whole number that the table limits to 32 bits.
    pub fn u32(&self, name: &str) -> Option<u32> {
        u32::try_from(self.int(name)?).ok()
    }

    /// `true` where the field is present and true.
    pub fn flag(&self, name: &str) -> bool {
        self.bool(name).unwrap_or(false)
    }

    /// A truth value.
    pub fn bool(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    /// A string.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    /// A string or the strings of a list.
    pub fn texts(&self, name: &str) -> Vec<&'a str> {
        match self.get(name) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Token ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).map(ids).unwrap_or_default()
    }

    /// The fields of an object.
    pub fn object(&self, name: &str) -> Option<Args<'a>> {
        self.get(name)?.as_object().map(Args)
    }
}

/// The token ids of a checked list.
pub fn ids(list: &Value) -> Vec<u32> {
    let entries = list.as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().filter_map(|v| whole(v).and_then(|n| u32::try_from(n).ok())).collect()
}

#[cfg(test)]
mod tests;
