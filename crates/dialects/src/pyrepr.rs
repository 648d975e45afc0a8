//! Reads Python's printed values: dicts, lists, `Name(key=value, …)`, as SGLang and vLLM log their arguments.

use serde_json::{Map, Number, Value as Json};

/// Deepest nesting that is followed; anything deeper is dropped.
const MOST_DEPTH: u32 = 16;

/// Parses a dict, a list, a `Name(k=v, …)` or a scalar. A value that is cut off keeps what came before the cut.
pub fn parse(text: &str) -> Option<Json> {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
    reader.space();
    reader.value(0)
}

/// Parses `key=value, key=value, …` up to the end of the text, as in vLLM's engine line.
pub fn parse_keywords(text: &str) -> Map<String, Json> {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
    reader.keywords(0)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: u32) -> Option<Json> {
        if depth > MOST_DEPTH {
            return None;
        }
        match self.peek()? {
            b'{' => Some(Json::Object(self.dict(depth))),
            b'[' | b'(' => Some(Json::Array(self.list(depth))),
            quote @ (b'\'' | b'"') => Some(Json::String(self.quoted(quote))),
            _ => Some(self.bare(depth)),
        }
    }

    fn dict(&mut self, depth: u32) -> Map<String, Json> {
        let mut out = Map::new();
        self.at += 1;
        loop {
            self.space();
            match self.peek() {
                None => return out,
                Some(b'}') => {
                    self.at += 1;
                    return out;
                }
                Some(b',') => {
                    self.at += 1;
                    continue;
                }
                _ => {}
            }
            let before = self.at;
            let key = match self.value(depth + 1) {
                Some(Json::String(key)) => key,
                Some(other) => other.to_string(),
                None => return out,
            };
            self.space();
            if self.peek() == Some(b':') {
                self.at += 1;
                self.space();
                match self.value(depth + 1) {
                    Some(value) => drop(out.insert(key, value)),
                    None => return out,
                }
            }
            if self.at == before {
                self.at += 1; // a byte that no rule takes
            }
        }
    }

    fn list(&mut self, depth: u32) -> Vec<Json> {
        let mut out = Vec::new();
        self.at += 1;
        loop {
            self.space();
            match self.peek() {
                None => return out,
                Some(b']' | b')') => {
                    self.at += 1;
                    return out;
                }
                Some(b',') => self.at += 1,
                _ => {
                    let before = self.at;
                    match self.value(depth + 1) {
                        Some(value) => out.push(value),
                        None => return out,
                    }
                    if self.at == before {
                        self.at += 1;
                    }
                }
            }
        }
    }

    fn quoted(&mut self, quote: u8) -> String {
        self.at += 1;
        let mut out = Vec::new();
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'\\' => {
                    let escaped = self.peek().unwrap_or(b'\\');
                    self.at += 1;
                    out.push(match escaped {
                        b'n' => b'\n',
                        b't' => b'\t',
                        other => other,
                    });
                }
                byte if byte == quote => break,
                byte => out.push(byte),
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// A number, `None`, `True`, `torch.bfloat16`, `<Enum: 1>`, or `Name(…)`.
    fn bare(&mut self, depth: u32) -> Json {
        let start = self.at;
        let mut angles = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'<' => angles += 1,
                b'>' => angles = angles.saturating_sub(1),
                b'(' if angles == 0 => {
                    self.at += 1;
                    let inner = self.keywords(depth + 1);
                    if self.peek() == Some(b')') {
                        self.at += 1;
                    }
                    return Json::Object(inner);
                }
                b',' | b'}' | b']' | b')' | b':' | b'=' if angles == 0 => break,
                b'\n' => break,
                _ => {}
            }
            self.at += 1;
        }
        let word = String::from_utf8_lossy(&self.bytes[start..self.at]).trim().to_owned();
        match word.as_str() {
            "None" | "null" | "" => Json::Null,
            "True" | "true" => Json::Bool(true),
            "False" | "false" => Json::Bool(false),
            _ => match word.parse::<i64>() {
                Ok(n) => Json::from(n),
                Err(_) => match word.parse::<f64>().ok().and_then(Number::from_f64) {
                    Some(number)
                        if word.starts_with(|c: char| {
                            c.is_ascii_digit() || matches!(c, '-' | '.')
                        }) =>
                    {
                        Json::Number(number)
                    }
                    _ => Json::String(word),
                },
            },
        }
    }

    /// `key=value, key=value` up to a closing bracket, which is left.
    fn keywords(&mut self, depth: u32) -> Map<String, Json> {
        let mut out = Map::new();
        loop {
            self.space();
            match self.peek() {
                None | Some(b')') => return out,
                Some(b',') => {
                    self.at += 1;
                    continue;
                }
                _ => {}
            }
            let before = self.at;
            let key = match self.value(depth + 1) {
                Some(Json::String(key)) => key,
                Some(_) => String::new(),
                None => return out,
            };
            if self.peek() == Some(b'=') {
                self.at += 1;
                match self.value(depth + 1) {
                    Some(value) if !key.is_empty() => drop(out.insert(key, value)),
                    Some(_) => {}
                    None => return out,
                }
            }
            if self.at == before {
                self.at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dicts_and_calls() {
        let v = parse("{'a': 1, 'b': None, 'c': ['x', 2.5], 'd': {'e': True}, 'f': <K.V: 1>, 'g': torch.bfloat16}").unwrap();
        assert_eq!(
            v,
            serde_json::json!({"a": 1, "b": null, "c": ["x", 2.5], "d": {"e": true}, "f": "<K.V: 1>", "g": "torch.bfloat16"})
        );
        let v = parse(
            "ServerArgs(model_path='/m', tp_size=1, mem=0.88, x=None, s=Spec(method='mtp', n=3))",
        )
        .unwrap();
        assert_eq!(
            v,
            serde_json::json!({"model_path": "/m", "tp_size": 1, "mem": 0.88, "x": null, "s": {"method": "mtp", "n": 3}})
        );
    }

    #[test]
    fn keywords_without_brackets() {
        let v = parse_keywords(
            "model='/m', speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=3), dtype=torch.float32, k=[1,2]",
        );
        assert_eq!(v["speculative_config"]["num_spec_tokens"], 3);
        assert_eq!(v["dtype"], "torch.float32");
    }

    #[test]
    fn cut_and_broken_text_keeps_what_was_whole() {
        assert_eq!(
            parse("{'a': 1, 'b': 'cut of").unwrap(),
            serde_json::json!({"a": 1, "b": "cut of"})
        );
        assert!(parse(&"[".repeat(5000)).is_some());
        parse("{:,,=)(]}");
        parse("{'a'");
    }
}
