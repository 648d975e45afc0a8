//! `docs/request-fields.md`, made from the tables.

use std::fmt::Write;

use super::chat::CHAT;
use super::completions::COMPLETIONS;
use super::native::{ABORT, DETOKENIZE, GENERATE, SAMPLING_PARAMS, TOKENIZE};
use super::nested::{CALLED, FUNCTION, MESSAGE, PART, REASONING, STREAM_OPTIONS, TOOL, TOOL_CALL};
use super::{Policy, Table};

/// Every table, under the heading that it has in the document.
pub const ALL: &[(&str, &Table)] = &[
    ("POST /v1/chat/completions", &CHAT),
    ("messages[]", &MESSAGE),
    ("messages[].content[]", &PART),
    ("messages[].tool_calls[]", &TOOL_CALL),
    ("messages[].tool_calls[].function", &CALLED),
    ("tools[]", &TOOL),
    ("tools[].function", &FUNCTION),
    ("stream_options", &STREAM_OPTIONS),
    ("reasoning", &REASONING),
    ("POST /v1/completions", &COMPLETIONS),
    ("POST /generate", &GENERATE),
    ("sampling_params", &SAMPLING_PARAMS),
    ("POST /tokenize", &TOKENIZE),
    ("POST /detokenize", &DETOKENIZE),
    ("POST /abort_request", &ABORT),
];

const HEAD: &str = "# Request fields

<!-- Made from crates/api/src/fields; a test compares. -->

Nothing is accepted and ignored: a field acts as written here, or it cannot change an answer, or it is refused by name.
A field that is not listed is refused, with the nearest listed name.
`null` means that the field was not sent.
";

/// The contents of the document.
pub fn document() -> String {
    let mut out = HEAD.to_owned();
    for (heading, table) in ALL {
        // Writing into a string cannot fail.
        let _ = write_table(heading, table, &mut out);
    }
    out
}

fn write_table(heading: &str, table: &Table, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\n## `{heading}`")?;
    let honoured = || table.fields().filter(|f| matches!(f.policy, Policy::Honoured { .. }));
    if honoured().next().is_some() {
        writeln!(out, "\n| field | value | what it does |\n|---|---|---|")?;
        for field in honoured() {
            writeln!(out, "| `{}` | {} | {} |", field.name, field.kind.describe(), field.doc)?;
        }
    }
    let only = || {
        table.fields().filter_map(|field| match field.policy {
            Policy::Only(values) => Some((field, values)),
            _ => None,
        })
    };
    if only().next().is_some() {
        writeln!(out, "\nRefused, unless the value asks for what happens anyway:\n")?;
        writeln!(out, "| field | accepted | why |\n|---|---|---|")?;
        for (field, values) in only() {
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            writeln!(out, "| `{}` | {} | {} |", field.name, values.join(", "), field.doc)?;
        }
    }
    let harmless = || table.fields().filter(|f| matches!(f.policy, Policy::Harmless));
    if harmless().next().is_some() {
        writeln!(out, "\nAccepted, and without any effect on the answer:\n")?;
        writeln!(out, "| field | why |\n|---|---|")?;
        for field in harmless() {
            writeln!(out, "| `{}` | {} |", field.name, field.doc)?;
        }
    }
    Ok(())
}
