//! The list of configurations as text and as JSON.

use dialects::effective::{self, Why};
use dialects::{Factor, Key};
use serde_json::{Value as Json, json};

use super::{Dug, Found};
use crate::text;

/// The list for people: one block per configuration, the most certain first.
pub fn render_text(dug: &Dug) -> String {
    if dug.found.is_empty() {
        return "no server configuration was found\n".to_owned();
    }
    let mut out = String::new();
    for (i, found) in dug.found.iter().enumerate() {
        let date = found.time.map_or_else(|| "no date".to_owned(), text::date);
        let version = found.config.version.as_ref().map_or(String::new(), |v| format!(" {v}"));
        out.push_str(&format!(
            "#{} {}{version}  {}  {}  {date}  confidence {}\n",
            i + 1,
            found.config.engine,
            found.origin.name(),
            found.place(),
            text::percent(found.origin.confidence())
        ));
        for line in text::wrap(&settings(found), 92) {
            out.push_str(&format!("   {line}\n"));
        }
    }
    if !dug.edits.is_empty() {
        out.push_str("edits and restarts\n");
        for edit in &dug.edits {
            let date = edit.time.map_or_else(|| "no date".to_owned(), text::date);
            out.push_str(&format!("   {date}  {}:{}  {}\n", edit.path, edit.line, edit.text));
        }
    }
    for gap in &dug.gaps {
        out.push_str(&format!("not read: {gap}\n"));
    }
    out
}

/// What was asked for, in the order of the factors. A dump's resting values are left out.
fn settings(found: &Found) -> String {
    let mut parts = Vec::new();
    for (key, setting) in &found.config.settings {
        let rests = found.config.whole
            && match key {
                Key::Known(factor) => dialects::flags::for_factor(found.config.engine, *factor)
                    .and_then(|flag| flag.default)
                    .is_some_and(|default| {
                        dialects::value::normalise(*factor, default).same(&setting.value)
                    }),
                Key::Raw(_) => true,
            };
        if !rests {
            parts.push(format!("{key} {};", setting.value));
        }
    }
    parts.join(" ")
}

/// The list for programs.
pub fn render_json(dug: &Dug) -> Json {
    let found: Vec<Json> = dug.found.iter().map(one).collect();
    json!({ "schema": "configs/1", "configs": found, "edits": dug.edits, "gaps": dug.gaps })
}

fn one(found: &Found) -> Json {
    let asked: serde_json::Map<String, Json> = found
        .config
        .settings
        .iter()
        .map(|(key, setting)| {
            (key.to_string(), json!({ "value": setting.value, "flag": setting.flag }))
        })
        .collect();
    let effective: serde_json::Map<String, Json> = effective::of(&found.config)
        .into_iter()
        .map(|(key, effective)| {
            let why = match effective.why {
                Why::Asked => "asked",
                Why::Resolved => "resolved by the engine",
                Why::Default => "default",
                Why::Rule(rule) => rule,
            };
            (key.to_string(), json!({ "value": effective.value, "why": why }))
        })
        .collect();
    json!({
        "engine": found.config.engine,
        "version": found.config.version,
        "origin": found.origin,
        "path": found.path,
        "line": found.line,
        "date": found.time.map(text::date),
        "name": found.name,
        "confidence": found.origin.confidence(),
        "model": found.config.get(Factor::ModelPath),
        "asked": asked,
        "effective": effective,
        "command": found.command,
    })
}
