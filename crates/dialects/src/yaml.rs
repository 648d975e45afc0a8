//! The part of YAML that compose files, manifests and `--config` files use, read into JSON values.
//!
//! Block and flow maps and lists, quoted, plain and block scalars, several documents. Anchors are dropped and aliases stay
//! as text, so that a small file cannot grow; nesting is bounded. What cannot be read is left out, not guessed.

use serde_json::{Map, Value as Json};

/// Deepest nesting that is followed.
const MOST_DEPTH: u32 = 24;

/// Reads every document of a text.
pub fn parse(text: &str) -> Vec<Json> {
    let lines: Vec<&str> = text.lines().collect();
    let mut reader = Reader { lines, at: 0 };
    let mut documents = Vec::new();
    while reader.at < reader.lines.len() {
        if reader.lines[reader.at].starts_with("---") || reader.content().is_none() {
            reader.at += 1;
            continue;
        }
        let before = reader.at;
        let indent = reader.indent();
        if let Some(value) = reader.block(indent, 0) {
            documents.push(value);
        }
        if reader.at == before {
            reader.at += 1;
        }
    }
    documents
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// The current line without indentation and comment, if anything is left of it.
    fn content(&self) -> Option<&'a str> {
        let line = self.lines.get(self.at)?;
        let text = without_comment(line).trim();
        (!text.is_empty()).then_some(text)
    }

    fn indent(&self) -> usize {
        self.lines.get(self.at).map_or(0, |line| line.len() - line.trim_start().len())
    }

    /// Moves to the next line that has content; false at the end or at a new document.
    fn seek(&mut self) -> bool {
        while self.at < self.lines.len() {
            if self.lines[self.at].starts_with("---") {
                return false;
            }
            if self.content().is_some() {
                return true;
            }
            self.at += 1;
        }
        false
    }

    fn block(&mut self, indent: usize, depth: u32) -> Option<Json> {
        if depth > MOST_DEPTH || !self.seek() {
            return None;
        }
        let text = self.content()?;
        if is_item(text) {
            Some(Json::Array(self.list(indent, depth)))
        } else if key_of(text).is_some() {
            Some(Json::Object(self.map(indent, depth)))
        } else {
            self.at += 1;
            Some(scalar(text))
        }
    }

    fn list(&mut self, indent: usize, depth: u32) -> Vec<Json> {
        let mut out = Vec::new();
        while self.seek() && self.indent() == indent {
            let Some(text) = self.content().filter(|text| is_item(text)) else { break };
            let rest = text[1..].trim_start();
            if rest.is_empty() {
                self.at += 1;
                if self.seek() && self.indent() > indent {
                    let inner = self.indent();
                    out.extend(self.block(inner, depth + 1));
                }
            } else if key_of(rest).is_some() && !rest.starts_with(['{', '[', '"', '\'']) {
                // A map that begins on the line of its dash: its keys stand where the first one does.
                out.push(Json::Object(self.inline_map(indent, text.len() - rest.len(), depth + 1)));
            } else {
                out.push(self.value(rest, indent, depth));
            }
        }
        out
    }

    fn inline_map(&mut self, indent: usize, offset: usize, depth: u32) -> Map<String, Json> {
        let mut out = Map::new();
        let inner = indent + offset;
        if let Some(text) = self.content() {
            self.entry(text[1..].trim_start(), inner, depth, &mut out);
        }
        if depth <= MOST_DEPTH && self.seek() && self.indent() == inner {
            for (key, value) in self.map(inner, depth) {
                out.insert(key, value);
            }
        }
        out
    }

    fn map(&mut self, indent: usize, depth: u32) -> Map<String, Json> {
        let mut out = Map::new();
        while self.seek() && self.indent() == indent {
            let Some(text) = self.content().filter(|text| !is_item(text) && key_of(text).is_some())
            else {
                break;
            };
            self.entry(text, indent, depth, &mut out);
        }
        out
    }

    /// Reads `key: value`, moving past it.
    fn entry(&mut self, text: &str, indent: usize, depth: u32, out: &mut Map<String, Json>) {
        let Some((key, rest)) = key_of(text) else {
            self.at += 1;
            return;
        };
        let rest = rest.trim();
        let rest = if rest.starts_with('&') {
            rest.split_once(' ').map_or("", |(_, after)| after.trim())
        } else {
            rest
        };
        let value = if rest.is_empty() {
            self.at += 1;
            if self.seek()
                && (self.indent() > indent
                    || (self.indent() == indent && self.content().is_some_and(is_item)))
            {
                let inner = self.indent();
                self.block(inner, depth + 1).unwrap_or(Json::Null)
            } else {
                Json::Null
            }
        } else {
            self.value(rest, indent, depth)
        };
        out.insert(key, value);
    }

    /// A value that begins on this line and may go on below it, deeper than `indent`.
    fn value(&mut self, rest: &str, indent: usize, depth: u32) -> Json {
        if rest.starts_with('|') || rest.starts_with('>') {
            return Json::String(self.block_scalar(indent, rest.starts_with('>')));
        }
        self.at += 1;
        let mut whole = rest.to_owned();
        while !is_closed(&whole) && self.at < self.lines.len() && whole.len() < 1 << 16 {
            let next = self.lines[self.at];
            let deeper = next.len() - next.trim_start().len() > indent;
            if !deeper && !next.trim().is_empty() && !rest.starts_with(['[', '{']) {
                break;
            }
            whole.push(' ');
            whole.push_str(without_comment(next).trim());
            self.at += 1;
        }
        if !whole.starts_with(['"', '\'', '[', '{']) {
            while let Some(text) = self.content().filter(|_| self.indent() > indent) {
                whole.push(' ');
                whole.push_str(text);
                self.at += 1;
            }
        }
        if depth > MOST_DEPTH { Json::Null } else { scalar(&whole) }
    }

    fn block_scalar(&mut self, indent: usize, folded: bool) -> String {
        self.at += 1;
        let mut out = String::new();
        while let Some(line) = self.lines.get(self.at) {
            let empty = line.trim().is_empty();
            if !empty && line.len() - line.trim_start().len() <= indent {
                break;
            }
            if !out.is_empty() {
                out.push(if folded { ' ' } else { '\n' });
            }
            out.push_str(line.trim());
            self.at += 1;
        }
        out
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// Whether quotes and brackets that a value opens are closed again.
fn is_closed(text: &str) -> bool {
    let mut quote = None;
    let mut open = 0i64;
    let starts = text.chars().next();
    if !matches!(starts, Some('"' | '\'' | '[' | '{')) {
        return true;
    }
    let mut escaped = false;
    for c in text.chars() {
        match (quote, c) {
            (Some('"'), '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (Some(q), c) if c == q && !escaped => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => open += 1,
            (None, ']' | '}') => open -= 1,
            _ => {}
        }
        escaped = false;
    }
    quote.is_none() && open <= 0
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (i, c) in line.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'')
                if before.is_whitespace() || matches!(before, '[' | ',' | '{' | ':') =>
            {
                quote = Some(c)
            }
            (None, '#') if before.is_whitespace() => return &line[..i],
            _ => {}
        }
        before = c;
    }
    line
}

/// Splits `key: rest`; the key may be quoted.
fn key_of(text: &str) -> Option<(String, &str)> {
    if let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        let end = text[1..].find(quote)? + 1;
        let rest = text[end + 1..].trim_start().strip_prefix(':')?;
        return Some((text[1..end].to_owned(), rest));
    }
    if text.starts_with(['[', '{']) {
        return None;
    }
    let at = text.find(": ").or_else(|| text.ends_with(':').then(|| text.len() - 1))?;
    let key = text[..at].trim();
    (!key.is_empty() && !key.contains(char::is_whitespace) || key == "<<")
        .then(|| (key.to_owned(), &text[at + 1..]))
}

/// A scalar or a flow value on one line.
fn scalar(text: &str) -> Json {
    let text = text.trim();
    if text.starts_with(['[', '{']) {
        return serde_json::from_str(text)
            .unwrap_or_else(|_| Flow { rest: text }.value(0).unwrap_or(Json::Null));
    }
    if let Some(inner) = text.strip_prefix('"') {
        return serde_json::from_str(text)
            .unwrap_or_else(|_| Json::String(inner.trim_end_matches('"').to_owned()));
    }
    if let Some(inner) = text.strip_prefix('\'') {
        return Json::String(inner.strip_suffix('\'').unwrap_or(inner).replace("''", "'"));
    }
    match text {
        "" | "~" | "null" => Json::Null,
        "true" | "True" => Json::Bool(true),
        "false" | "False" => Json::Bool(false),
        _ => match text.parse::<i64>() {
            Ok(n) => Json::from(n),
            Err(_) => match text.parse::<f64>() {
                Ok(x) if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
                    Json::from(x)
                }
                _ => Json::String(text.to_owned()),
            },
        },
    }
}

/// `[a, b]` and `{k: v}` with words that JSON would not take.
struct Flow<'a> {
    rest: &'a str,
}

impl Flow<'_> {
    fn value(&mut self, depth: u32) -> Option<Json> {
        self.rest = self.rest.trim_start();
        if depth > MOST_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '[' => {
                self.rest = &self.rest[1..];
                let mut out = Vec::new();
                while !self.close(']') {
                    out.push(self.value(depth + 1)?);
                }
                Some(Json::Array(out))
            }
            '{' => {
                self.rest = &self.rest[1..];
                let mut out = Map::new();
                while !self.close('}') {
                    let key = self.word(&[':', ',', '}']);
                    if self.rest.starts_with(':') {
                        self.rest = &self.rest[1..];
                    }
                    out.insert(key, self.value(depth + 1)?);
                }
                Some(Json::Object(out))
            }
            _ => Some(scalar(&self.word(&[',', ']', '}']))),
        }
    }

    /// Skips separators; true when the bracket closes or the text ends.
    fn close(&mut self, bracket: char) -> bool {
        self.rest = self.rest.trim_start_matches([' ', ',', '\t']);
        if let Some(rest) = self.rest.strip_prefix(bracket) {
            self.rest = rest;
            return true;
        }
        // A bracket of the other kind cannot be consumed as a word and would never end.
        self.rest.is_empty() || self.rest.starts_with([']', '}', ':'])
    }

    fn word(&mut self, ends: &[char]) -> String {
        let text = self.rest.trim_start();
        let end = match text.chars().next() {
            Some(quote @ ('"' | '\'')) => text[1..].find(quote).map_or(text.len(), |i| i + 2),
            _ => text.find(ends).unwrap_or(text.len()),
        };
        self.rest = &text[end..];
        let word = text[..end].trim();
        if ends.contains(&':') {
            word.trim_matches(['"', '\'']).to_owned()
        } else {
            word.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn compose_shapes() {
        let text = "services:\n  llm: # the server\n    image: vllm/vllm-openai:v0.33.0\n    command: >\n      --model m\n      --max-num-seqs 8\n    environment:\n      - A=1\n      - \"B=x # y\"\n    ports: [\"8000:8000\", 9]\n    deploy: {resources: {n: 2}}\n  two:\n    command:\n    - --tp\n    - '2'\n    environment:\n      K: v\n";
        let docs = parse(text);
        assert_eq!(
            docs,
            [json!({"services": {
                "llm": {"image": "vllm/vllm-openai:v0.33.0", "command": "--model m --max-num-seqs 8", "environment": ["A=1", "B=x # y"],
                        "ports": ["8000:8000", 9], "deploy": {"resources": {"n": 2}}},
                "two": {"command": ["--tp", "2"], "environment": {"K": "v"}}}})]
        );
    }

    #[test]
    fn lists_of_maps_and_documents() {
        let docs = parse(
            "a: 1\n---\nspec:\n  containers:\n    - name: x\n      args: [\"--c\", 3]\n      env:\n        - name: A\n          value: b\n    - name: y\n",
        );
        assert_eq!(docs.len(), 2);
        assert_eq!(docs[1]["spec"]["containers"][0]["env"][0], json!({"name": "A", "value": "b"}));
        assert_eq!(docs[1]["spec"]["containers"][1]["name"], "y");
    }

    #[test]
    fn long_plain_values_go_on() {
        let docs =
            parse("command: python -m x\n  --a 1\n  --b 2\nflag: 'it''s'\nlist: [a,\n  b]\n");
        assert_eq!(
            docs[0],
            json!({"command": "python -m x --a 1 --b 2", "flag": "it's", "list": ["a", "b"]})
        );
    }

    #[test]
    fn hostile_text_ends() {
        for text in [
            "- ".repeat(5000),
            "[".repeat(5000),
            "{a: ".repeat(5000),
            "a:\n".repeat(100),
            "? x".into(),
            "{:}".into(),
            "[}".into(),
            "'".into(),
        ] {
            parse(&text);
        }
        let deep: String = (0..200).map(|i| format!("{}k:\n", " ".repeat(i))).collect();
        parse(&deep);
    }
}
