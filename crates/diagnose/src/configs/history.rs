//! Shell histories: server commands that somebody typed, and dated edits of what starts a server.

use dialects::{Engine, find_commands, flags, history, redact};
use serde::{Deserialize, Serialize};

use super::{Dug, Found, Origin, Tree};

/// A dated line that changed, or applied, a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edit {
    /// When, in seconds since 1970, where the shell kept it.
    pub time: Option<f64>,
    /// The history file.
    pub path: String,
    /// Its line, from 1.
    pub line: u32,
    /// The command, one safe line.
    pub text: String,
}

/// Programs that change a configuration or put it in force.
const VERBS: &[&str] = &[
    "vim",
    "vi",
    "nvim",
    "nano",
    "emacs",
    "sed",
    "cp",
    "mv",
    "systemctl",
    "docker",
    "podman",
    "pip",
    "pip3",
    "uv",
    "tee",
    "git",
];

pub(super) fn dig(tree: &Tree, dug: &mut Dug) {
    // Names of what was found to start a server: only lines about these are kept.
    let names: Vec<String> = dug
        .found
        .iter()
        .flat_map(|found| {
            [found.name.clone(), found.path.rsplit('/').next().unwrap_or("").to_owned()]
        })
        .map(|name| name.trim_start_matches(".git-").trim_end_matches(".diff").to_owned())
        .flat_map(|name| [name.trim_end_matches(".service").to_owned(), name])
        // Short stems would match anything; a whole file name does not.
        .filter(|name| (name.len() > 3 || name.contains('.')) && !name.starts_with("pid "))
        .collect();
    for entry in &tree.entries {
        let name = entry.name();
        if !(name.ends_with("_history") || name.ends_with(".zhistory") || name == ".histfile") {
            continue;
        }
        let Some(text) = tree.text(entry) else { continue };
        for typed in history::parse(&text) {
            let time = typed.time.map(|t| t as f64);
            for command in find_commands(&typed.text, &|_| None) {
                dug.found.push(Found {
                    side: entry.side,
                    origin: Origin::History,
                    path: entry.path.clone(),
                    line: Some(typed.line_no),
                    time,
                    name: command.config.engine.name().to_owned(),
                    config: command.config,
                    command: Some(command.line),
                });
            }
            if is_edit(&typed.text, &names) {
                dug.edits.push(Edit {
                    time,
                    path: entry.path.clone(),
                    line: typed.line_no,
                    text: redact::line(&typed.text, 160),
                });
            }
        }
    }
    dug.edits.sort_by(|a, b| a.time.partial_cmp(&b.time).unwrap_or(std::cmp::Ordering::Equal));
}

fn is_edit(text: &str, names: &[String]) -> bool {
    // Looking is no edit.
    if [
        "systemctl status",
        "systemctl cat",
        "systemctl show",
        "docker logs",
        "docker ps",
        "git log",
        "git status",
        "git diff",
    ]
    .iter()
    .any(|look| text.contains(look))
    {
        return false;
    }
    let does = text
        .split(|c: char| c.is_whitespace() || matches!(c, '&' | ';' | '|' | '('))
        .any(|word| VERBS.contains(&word));
    let starts_script = names.iter().any(|name| text.contains(&format!("./{name}")));
    let about = names.iter().any(|name| text.contains(name.as_str()))
        || Engine::ALL.iter().any(|engine| text.contains(engine.name()))
        || text
            .split_whitespace()
            .map(|word| word.trim_start_matches(|c| c != '-'))
            .any(is_known_flag);
    starts_script || (does && about)
}

fn is_known_flag(word: &str) -> bool {
    let name = word.split(['=', '/', '"', '\'']).next().unwrap_or(word);
    name.len() > 8
        && name.starts_with("--")
        && Engine::ALL.iter().any(|engine| flags::lookup(*engine, name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_about_a_server_are_kept() {
        let names = vec!["sglang-qwen".to_owned(), "run-qwen.sh".to_owned()];
        for kept in [
            "sudo vim /etc/systemd/system/sglang-qwen.service",
            "sudo systemctl daemon-reload && sudo systemctl restart sglang-qwen",
            "uv pip install -U sglang",
            "sed -i \"s/--context-length 131072/--context-length 262144/\" /srv/llm/args.txt",
            "./run-qwen.sh",
        ] {
            assert!(is_edit(kept, &names), "{kept}");
        }
        for left in [
            "vim diary.txt",
            "ssh prod",
            "mysql -p hunter2",
            "ls --all-the-things",
            "nvidia-smi",
            "systemctl status sglang-qwen",
        ] {
            assert!(!is_edit(left, &names), "{left}");
        }
    }
}
