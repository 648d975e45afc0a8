//! The template engine, set up as `transformers` sets up `jinja2`.
//!
//! Blocks eat their line break and the blanks before them, nothing is HTML-escaped, `tojson` writes
//! Python's JSON, strings have Python's methods, and templates may `raise_exception`, ask
//! `strftime_now`, `break` and `continue`.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};

use crate::python::{self, JsonStyle};

/// Marks the error of `raise_exception`: a refusal by the template, not a fault in it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub String);

/// An environment without templates.
pub(crate) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(format);
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| python::str(value));
    // In Python text and mappings are sequences too.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    Ok(env)
}

/// Removes what `minijinja` does not know: `{% generation %}` marks the assistant's part for
/// training and changes nothing in the text. It becomes a block that is always taken, so that the
/// white space rules stay those of a block.
pub(crate) fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']);
        out.push_str(&tag[..tag.len() - inner.len()]);
        let word = inner.trim_start();
        let n_word = word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len());
        rest = match &word[..n_word] {
            "generation" => {
                out.push_str(" if true");
                &word[n_word..]
            }
            "endgeneration" => {
                out.push_str(" endif");
                &word[n_word..]
            }
            _ => inner,
        };
    }
    out + rest
}

/// What `{{ value }}` prints.
fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            out.write_str(&python::str(value)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// The filter `tojson`: Python's `json.dumps(value, ensure_ascii=False)`.
fn tojson(value: &Value, args: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = args.get("indent")?;
    let separators: Option<(String, String)> = match args.get::<Option<Value>>("separators")? {
        Some(pair) => {
            Some((pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()))
        }
        None => None,
    };
    let style = JsonStyle {
        indent: match indent {
            Some(width) if width.is_number() => Some(" ".repeat(usize::try_from(width)?)),
            Some(text) if text.as_str().is_some() => Some(text.to_string()),
            _ => None,
        },
        separators,
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    args.assert_all_used()?;
    style.dumps(value)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The local time in Python's `strftime` notation. Prompts of templates that ask for it change with
/// the date.
fn strftime_now(format: String) -> Result<String, Error> {
    jiff::fmt::strtime::format(&format, &jiff::ZonedDateTime::now())
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
}
