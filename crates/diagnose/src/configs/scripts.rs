//! Scripts, recorded changes of scripts, and the YAML files that `--config` names.

use std::collections::HashMap;
use std::process::Command as Process;

use dialects::{Command, Config, find_commands, yaml};

use super::{Dug, Entry, Found, Origin, Tree};
use crate::evidence::Side;

/// The largest script that is read.
const MOST_SCRIPT: u64 = 256 << 10;
/// Changes of one script that are read from its repository.
const MOST_CHANGES: &str = "20";

pub(super) fn dig(tree: &Tree, dug: &mut Dug) {
    for entry in &tree.entries {
        if entry.len > MOST_SCRIPT {
            continue;
        }
        let name = entry.name();
        if name.ends_with(".diff") || name.ends_with(".patch") {
            if let Some(text) = tree.text(entry) {
                dig_change(entry, &text, None, dug);
            }
        } else if is_script(tree, entry) {
            let Some(text) = tree.text(entry) else { continue };
            let before = dug.found.len();
            let aside = name.contains(".bak")
                || name.ends_with('~')
                || name.contains(".old")
                || name.contains(".orig");
            dug.found.extend(in_script(
                tree,
                entry,
                &text,
                if aside { Origin::Backup } else { Origin::Script },
            ));
            if tree.live && dug.found.len() > before {
                dig_repository(tree, entry, dug);
            }
        }
    }
}

fn is_script(tree: &Tree, entry: &Entry) -> bool {
    let name = entry.name();
    if name.contains(".sh") || name.contains(".bash") {
        return true;
    }
    // Files without a telling name are scripts when their first line says so; units and logs have names of their own.
    let plain = !name.contains('.')
        && !name.ends_with("_history")
        && !entry.path.contains("/proc/")
        && !entry.path.starts_with("proc/");
    plain
        && tree.head(entry, 80).is_some_and(|head| {
            head.starts_with(b"#!") && head.windows(2).any(|pair| pair == b"sh")
        })
}

fn in_script(tree: &Tree, entry: &Entry, text: &str, origin: Origin) -> Vec<Found> {
    let variables = assignments(text);
    find_commands(text, &|name| variables.get(name).cloned())
        .into_iter()
        .map(|mut command| {
            add_config_file(tree, entry.side, &mut command);
            Found {
                side: entry.side,
                origin,
                path: entry.path.clone(),
                line: line_of_server(text),
                time: None,
                name: entry.name().to_owned(),
                config: command.config,
                command: Some(command.line),
            }
        })
        .collect()
}

/// Top-level `NAME=value` lines of a script; a default in `${NAME:-value}` is left to the shell reader.
fn assignments(text: &str) -> HashMap<String, String> {
    let mut out = HashMap::new();
    for (name, value) in dialects::unit::environment_file(text) {
        if !value.contains('$') && !value.contains(' ') && !value.contains('`') {
            out.insert(name, value);
        }
    }
    out
}

fn line_of_server(text: &str) -> Option<u32> {
    const MARKS: [&str; 5] =
        ["sglang.launch_server", "sglang serve", "vllm serve", "llama-server", "outrider serve"];
    text.lines().position(|line| MARKS.iter().any(|mark| line.contains(mark))).map(|i| i as u32 + 1)
}

/// Reads both sides of a unified diff: the old one is what ran before.
fn dig_change(entry: &Entry, text: &str, time: Option<f64>, dug: &mut Dug) {
    for (keep, origin) in [('-', Origin::OldVersion), ('+', Origin::Script)] {
        let side_text: String = text
            .lines()
            .filter(|line| {
                !["---", "+++", "@@", "diff ", "index ", "commit ", "Author:", "Date:"]
                    .iter()
                    .any(|mark| line.starts_with(mark))
            })
            .filter_map(|line| match line.chars().next() {
                Some(c) if c == keep || c == ' ' => Some(&line[1..]),
                Some('-' | '+') => None,
                _ => Some(line),
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let variables = assignments(&side_text);
        for command in find_commands(&side_text, &|name| variables.get(name).cloned()) {
            dug.found.push(Found {
                side: entry.side,
                origin,
                path: entry.path.clone(),
                line: line_of_server(text),
                time,
                name: entry.name().trim_start_matches(".git-").to_owned(),
                config: command.config,
                command: Some(command.line),
            });
        }
    }
}

/// The recorded changes of a script on a live host. `git log` only reads; what a repository could make it run is off.
fn dig_repository(tree: &Tree, entry: &Entry, dug: &mut Dug) {
    let full = tree.full_path(entry);
    let (Some(folder), Some(file)) = (full.parent(), full.file_name()) else { return };
    let output = Process::new("git")
        .arg("--no-pager")
        .args([
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "log.showSignature=false",
        ])
        .arg("-C")
        .arg(folder)
        .args([
            "log",
            "-p",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--format=commit %ct",
            "-n",
            MOST_CHANGES,
            "--",
        ])
        .arg(file)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(std::process::Stdio::null())
        .output();
    let Ok(output) = output else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    for change in text.split("commit ").skip(1) {
        let (stamp, patch) = change.split_once('\n').unwrap_or((change, ""));
        dig_change(entry, patch, stamp.trim().parse().ok(), dug);
    }
}

/// Puts the settings of the file that `--config` names below the flags of the command.
pub(super) fn add_config_file(tree: &Tree, side: Side, command: &mut Command) {
    let Some(file) = command.config_file.as_deref().and_then(|path| tree.find(path, side)) else {
        return;
    };
    let Some(text) = tree.text(file) else { return };
    let Some(serde_json::Value::Object(settings)) = yaml::parse(&text).into_iter().next() else {
        return;
    };
    let mut config = Config::new(command.config.engine);
    config.set_dump(&settings);
    config.version = command.config.version.clone();
    config.settings.extend(std::mem::take(&mut command.config.settings));
    command.config = config;
}
