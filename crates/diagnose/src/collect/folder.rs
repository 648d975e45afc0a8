//! Collects a folder laid out like a host, or a case: whatever is there is recognised by its form, not by its name.

use std::path::Path;

use dialects::log::Clock;
use dialects::{Factor, benchmark, info, metrics, redact};
use serde_json::Value as Json;

use super::client;
use super::gpu::GpuSnapshot;
use super::{launch, probe};
use crate::Error;
use crate::configs::{self, Entry, Found, Origin, Tree};
use crate::evidence::{Evidence, Item, Side};
use crate::logs;

/// Reads everything in a folder that says something about a server.
///
/// # Errors
/// When the folder cannot be listed.
pub fn from_folder(root: &Path) -> Result<Evidence, Error> {
    let tree = Tree::open(root).map_err(|error| Error::io(root.display().to_string(), error))?;
    Ok(from_tree(&tree))
}

/// Reads everything in a tree of files.
pub(super) fn from_tree(tree: &Tree) -> Evidence {
    let mut evidence = Evidence::new();
    for entry in &tree.entries {
        collect(tree, entry, &mut evidence);
    }
    let dug = configs::dig(tree);
    evidence.configs.extend(dug.found);
    evidence.edits = dug.edits;
    evidence.gaps.extend(dug.gaps);
    add_stated_configs(&mut evidence);
    evidence.model = model_config(&evidence, &|path| {
        tree.find(path, Side::Now).and_then(|entry| tree.text(entry))
    });
    evidence
}

/// The `config.json` of the model that some configuration names, its texts redacted.
pub(super) fn model_config(
    evidence: &Evidence,
    read: &dyn Fn(&str) -> Option<String>,
) -> Option<Json> {
    let paths = evidence.configs.iter().filter_map(|found| found.config.get(Factor::ModelPath));
    let mut paths: Vec<String> = paths.map(|path| format!("{path}/config.json")).collect();
    paths.dedup();
    let json = paths.iter().find_map(|path| serde_json::from_str(&read(path)?).ok())?;
    Some(redacted(json))
}

fn redacted(json: Json) -> Json {
    match json {
        Json::String(text) => Json::String(redact::text(&text)),
        Json::Array(items) => items.into_iter().map(redacted).collect(),
        Json::Object(map) => {
            map.into_iter().map(|(key, value)| (redact::text(&key), redacted(value))).collect()
        }
        other => other,
    }
}

/// Log headers and information endpoints are configurations too.
fn add_stated_configs(evidence: &mut Evidence) {
    add_log_configs(evidence);
    evidence.configs.extend(evidence.infos.iter().map(stated).collect::<Vec<_>>());
}

fn stated(item: &Item<info::Info>) -> Found {
    Found {
        side: item.side,
        origin: Origin::ServerInfo,
        path: item.source.clone(),
        line: None,
        time: None,
        name: item.what.config.engine.name().to_owned(),
        config: item.what.config.clone(),
        command: None,
    }
}

/// Adds the configurations in the headers of logs that were not looked at yet.
pub(super) fn add_log_configs(evidence: &mut Evidence) {
    let mut found = Vec::new();
    for log in &evidence.logs {
        let known = |line: u32| {
            evidence.configs.iter().any(|f| {
                f.origin == Origin::LogArgs && f.path == log.source && f.line == Some(line)
            })
        };
        for run in &log.what.runs {
            let Some(mut config) = run.asked.clone().or_else(|| run.resolved.clone()) else {
                continue;
            };
            config.version = run.version.clone().or(config.version);
            let line = run.asked_line.max(1) as u32;
            if known(line) {
                continue;
            }
            found.push(Found {
                side: log.side,
                origin: Origin::LogArgs,
                path: log.source.clone(),
                line: Some(line),
                // A stamp without a year is no date.
                time: run.span.map(|(start, _)| start).filter(|_| run.clock == Some(Clock::Date)),
                name: config.engine.name().to_owned(),
                config,
                command: None,
            });
        }
    }
    evidence.configs.extend(found);
}

/// Adds one piece of text that somebody else collected: a probe, metrics, an answer of an information endpoint, a look at
/// the devices, a benchmark's table. It is recognised by its form; false when it is none of these.
pub fn add_text(evidence: &mut Evidence, side: Side, source: &str, text: &str) -> bool {
    let source = source.to_owned();
    if let Some(what) = probe::parse(text) {
        evidence.probes.push(Item { side, source, what });
    } else if let Some(what) = info::parse(text) {
        let item = Item { side, source, what };
        evidence.configs.push(stated(&item));
        evidence.infos.push(item);
    } else if let Some(what) = GpuSnapshot::parse(text) {
        evidence.gpus.push(Item { side, source, what });
    } else {
        let scrape = metrics::parse(text);
        let tables = benchmark::parse(text);
        if scrape.values.is_empty() && tables.is_empty() {
            return false;
        }
        if !scrape.values.is_empty() {
            evidence.scrapes.push(Item { side, source: source.clone(), what: scrape });
        }
        evidence.tables.extend(tables.into_iter().map(|what| Item {
            side,
            source: source.clone(),
            what,
        }));
    }
    true
}

fn collect(tree: &Tree, entry: &Entry, evidence: &mut Evidence) {
    let name = entry.name().to_ascii_lowercase();
    let item_source = entry.path.clone();
    if name == "complaint.txt" {
        let text = tree.text(entry).unwrap_or_default();
        evidence.complaint =
            Some(redact::line(&text.split_whitespace().collect::<Vec<_>>().join(" "), 400));
        return;
    }
    if name.ends_with(".json") || name.ends_with(".jsonl") {
        return json(tree, entry, evidence);
    }
    if name.ends_with(".prom") || name.starts_with("metrics") {
        let scrape = metrics::parse(&tree.text(entry).unwrap_or_default());
        if !scrape.values.is_empty() {
            evidence.scrapes.push(Item { side: entry.side, source: item_source, what: scrape });
        }
        return;
    }
    if is_configuration(entry) {
        if (name.ends_with(".diff") || name.ends_with(".patch"))
            && let Some(text) = tree.text(entry)
        {
            let changes = client::parse_change(&text);
            evidence.client_changes.extend(changes.into_iter().map(|what| Item {
                side: entry.side,
                source: item_source.clone(),
                what,
            }));
        }
        return;
    }
    if name.contains("log")
        || name.contains("journal")
        || name.ends_with(".out")
        || name.ends_with(".err")
    {
        return log(tree, entry, evidence);
    }
    if name.ends_with(".txt") || name.ends_with(".csv") {
        text(tree, entry, evidence);
    }
}

/// Files that the archaeology reads, and documents about the folder itself.
fn is_configuration(entry: &Entry) -> bool {
    let name = entry.name();
    let path = entry.host_path();
    name.contains(".service")
        || path.contains(".service.d/")
        || name.contains(".yml")
        || name.contains(".yaml")
        || name.contains(".sh")
        || name.contains("_history")
        || name.ends_with(".diff")
        || name.ends_with(".patch")
        || name.ends_with(".md")
        || path.starts_with("proc/")
        || path.starts_with("etc/")
}

fn json(tree: &Tree, entry: &Entry, evidence: &mut Evidence) {
    let Some(text) = tree.text(entry) else { return };
    let (side, source) = (entry.side, entry.path.clone());
    if let Some(what) = probe::parse(&text) {
        evidence.probes.push(Item { side, source, what });
    } else if let Some(what) = info::parse(&text) {
        evidence.infos.push(Item { side, source, what });
    } else {
        for (found, launch) in launch::parse(&text, &entry.path, side) {
            evidence.configs.push(found);
            evidence.launches.push(Item { side, source: source.clone(), what: launch });
        }
    }
}

fn log(tree: &Tree, entry: &Entry, evidence: &mut Evidence) {
    let summary = match logs::read_file(&tree.full_path(entry)) {
        Ok(summary) => summary,
        Err(error) => {
            evidence.gaps.push(format!("{}: {}", entry.path, error.kind()));
            return;
        }
    };
    let (side, source) = (entry.side, entry.path.clone());
    if summary.understood > 0 {
        evidence.logs.push(Item { side, source, what: summary });
    } else if let Some(what) = tree.text(entry).as_deref().and_then(client::parse_log) {
        evidence.client_logs.push(Item { side, source, what });
    }
}

/// A text file may be a benchmark's table, a look at the devices, a log, or notes.
fn text(tree: &Tree, entry: &Entry, evidence: &mut Evidence) {
    let Some(text) = tree.text(entry) else { return };
    let (side, source) = (entry.side, entry.path.clone());
    let tables = benchmark::parse(&text);
    if !tables.is_empty() {
        evidence.tables.extend(tables.into_iter().map(|what| Item {
            side,
            source: source.clone(),
            what,
        }));
        return;
    }
    if let Some(what) = GpuSnapshot::parse(&text) {
        evidence.gpus.push(Item { side, source, what });
        return;
    }
    let summary = logs::read_text(&text);
    if summary.understood > 0 && summary.understood * 2 >= summary.not_understood {
        evidence.logs.push(Item { side, source, what: summary });
    } else if entry.name().contains("note") {
        let line = redact::line(&text.split_whitespace().collect::<Vec<_>>().join(" "), 400);
        evidence.notes.push(Item { side, source, what: line });
    }
}
