//! What a tool's JSON schema says about the type of a parameter, and how parameter text becomes
//! JSON of that type.

use std::collections::HashMap;

use serde_json::Value as Json;

/// The parameter types of a request's tools.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    by_name: HashMap<String, HashMap<String, Types>>,
}

impl Tools {
    /// Reads OpenAI tools, `{"type": "function", "function": {"name", "parameters"}}` or the inner
    /// object alone.
    pub fn new(tools: &[Json]) -> Tools {
        let mut by_name = HashMap::new();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Json::as_str) else { continue };
            let schema = function.get("parameters").unwrap_or(&Json::Null);
            let properties = schema.get("properties").and_then(Json::as_object);
            let types = properties
                .into_iter()
                .flatten()
                .map(|(key, p)| (key.clone(), Types::of(p, schema)));
            by_name.insert(name.to_owned(), types.collect());
        }
        Tools { by_name }
    }

    pub(crate) fn types(&self, function: &str, parameter: &str) -> Types {
        self.by_name.get(function).and_then(|p| p.get(parameter)).copied().unwrap_or_default()
    }
}

/// Nesting of `anyOf`, `$ref` and the like that is followed; deeper is a reference cycle.
const MAX_DEPTH: usize = 16;

/// The types that a schema allows. None of them set: the schema says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Types {
    pub string: bool,
    pub integer: bool,
    pub number: bool,
    pub boolean: bool,
    pub null: bool,
    pub object: bool,
    pub array: bool,
}

impl Types {
    /// The types that `schema` allows; `root` is where `$ref` points into.
    pub(crate) fn of(schema: &Json, root: &Json) -> Types {
        let mut types = Types::default();
        types.read(schema, root, MAX_DEPTH);
        types
    }

    /// Whether the text itself is the value: a string, or nothing is known.
    pub(crate) fn is_text(self) -> bool {
        self == Types::default() || self == Types { string: true, ..Types::default() }
    }

    fn read(&mut self, schema: &Json, root: &Json, depth: usize) {
        if depth == 0 {
            return;
        }
        match schema.get("type") {
            Some(Json::String(name)) => self.add(name),
            Some(Json::Array(names)) => {
                names.iter().filter_map(Json::as_str).for_each(|name| self.add(name))
            }
            _ => {
                let constants = schema.get("enum").and_then(Json::as_array).into_iter().flatten();
                for value in constants.chain(schema.get("const")) {
                    self.add(type_name(value));
                }
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for option in schema.get(key).and_then(Json::as_array).into_iter().flatten() {
                self.read(option, root, depth - 1);
            }
        }
        let target =
            schema.get("$ref").and_then(Json::as_str).and_then(|path| path.strip_prefix('#'));
        if let Some(target) = target.and_then(|path| root.pointer(path)) {
            self.read(target, root, depth - 1);
        }
    }

    fn add(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => {}
        }
    }

    /// The JSON form of a parameter's text, or `None` where it has none of the allowed types and
    /// stays a string.
    pub(crate) fn convert(self, text: &str) -> Option<String> {
        let text = text.trim();
        if self.null && matches!(text, "null" | "None") {
            return Some("null".into());
        }
        if self.boolean && (text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false"))
        {
            return Some(text.to_ascii_lowercase());
        }
        let json: Json = serde_json::from_str(text).ok()?;
        match json {
            // The text, not the parsed value: a number keeps all of its digits, an object the order
            // of its keys.
            Json::Number(_) if self.number || (self.integer && is_integer(text)) => {
                Some(text.to_owned())
            }
            Json::Number(n) if self.integer => {
                n.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| format!("{x:.0}"))
            }
            Json::Object(_) if self.object => Some(text.to_owned()),
            Json::Array(_) if self.array => Some(text.to_owned()),
            _ => None,
        }
    }
}

fn is_integer(text: &str) -> bool {
    !text.contains(['.', 'e', 'E'])
}

fn type_name(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(n) if n.is_f64() => "number",
        Json::Number(_) => "integer",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn convert(schema: Json, text: &str) -> Option<String> {
        Types::of(
            &schema,
            &json!({"$defs": {"Place": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}}}),
        )
        .convert(text)
    }

    #[test]
    fn text_becomes_the_declared_type_or_stays_text() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(convert(json!({"type": "integer"}), "12"), some("12"));
        assert_eq!(convert(json!({"type": "integer"}), "12.0"), some("12"));
        assert_eq!(convert(json!({"type": "integer"}), "12.5"), None);
        assert_eq!(convert(json!({"type": "integer"}), "007"), None);
        assert_eq!(convert(json!({"type": "integer"}), "2031-02-05"), None);
        assert_eq!(
            convert(json!({"type": "integer"}), "-9007199254740993"),
            some("-9007199254740993")
        );
        assert_eq!(convert(json!({"type": "number"}), "1e3"), some("1e3"));
        assert_eq!(convert(json!({"type": "number"}), "nan"), None);
        assert_eq!(convert(json!({"type": "boolean"}), "True"), some("true"));
        assert_eq!(convert(json!({"type": "boolean"}), "yes"), None);
        assert_eq!(convert(json!({"type": ["integer", "null"]}), "None"), some("null"));
        assert_eq!(
            convert(json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "00420"),
            None
        );
        assert_eq!(convert(json!({"enum": [1, 2]}), "2"), some("2"));
        assert_eq!(
            convert(json!({"$ref": "#/$defs/Place"}), "{\"b\": 1, \"a\": 2}"),
            some("{\"b\": 1, \"a\": 2}")
        );
        assert_eq!(convert(json!({"$ref": "#/$defs/Loop"}), "{}"), None);
        assert_eq!(convert(json!({"type": "array"}), "[1, 2"), None);
    }
}
