//! Two configurations side by side: asked and effective values, and what a difference can do.

use dialects::effective::{self, Effective, Why};
use dialects::{Config, Difference, Key, Value};
use serde_json::{Value as Json, json};

use crate::mechanisms;
use crate::text;

/// The differences for people.
pub fn render_diff(a: (&str, &Config), b: (&str, &Config)) -> String {
    let differences = ordered(a.1, b.1);
    if differences.is_empty() {
        return format!("{} and {} mean the same\n", a.0, b.0);
    }
    let mut rows = vec![vec![
        "factor".to_owned(),
        a.0.to_owned(),
        b.0.to_owned(),
        "what the difference can do".to_owned(),
    ]];
    for difference in &differences {
        rows.push(vec![
            difference.key.to_string(),
            shown(a.1, &difference.key, difference.a.as_ref()),
            shown(b.1, &difference.key, difference.b.as_ref()),
            effect(b.1, difference).to_owned(),
        ]);
    }
    text::table(&rows, &[])
}

/// The differences for programs.
pub fn render_diff_json(a: (&str, &Config), b: (&str, &Config)) -> Json {
    let rows: Vec<Json> = ordered(a.1, b.1)
        .iter()
        .map(|difference| {
            json!({
                "factor": difference.key,
                "a": { "asked": asked(a.1, &difference.key), "effective": difference.a },
                "b": { "asked": asked(b.1, &difference.key), "effective": difference.b },
                "effect": effect(b.1, difference),
            })
        })
        .collect();
    json!({ "schema": "diff/1", "a": a.0, "b": b.0, "differences": rows })
}

/// What can move speed first, raw flags last.
fn ordered(a: &Config, b: &Config) -> Vec<Difference> {
    let mut differences = a.differences(b);
    differences.sort_by_key(|difference| match &difference.key {
        Key::Known(factor) => (mechanisms::moves(b.engine, *factor).is_empty(), false),
        Key::Raw(_) => (true, true),
    });
    differences
}

fn effect(config: &Config, difference: &Difference) -> &'static str {
    match difference.factor() {
        Some(factor) => mechanisms::effect(config.engine, factor),
        None => "not known to this program",
    }
}

fn asked(config: &Config, key: &Key) -> Option<Value> {
    config.settings.get(key).map(|setting| setting.value.clone())
}

/// `3`, or `48 (default)` where nobody asked for it.
fn shown(config: &Config, key: &Key, value: Option<&Value>) -> String {
    let why = effective::of(config).remove(key).map(|Effective { why, .. }| why);
    match (value, why) {
        (None, _) => "not set".to_owned(),
        (Some(value), Some(Why::Default | Why::Resolved | Why::Rule(_))) => {
            format!("{value} (not asked)")
        }
        (Some(value), _) => text::cut(&value.to_string(), 40),
    }
}
