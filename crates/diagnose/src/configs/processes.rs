//! Running processes and saved process lists.

use dialects::log::parse_iso;
use dialects::{find_commands, from_argv};

use super::{Dug, Entry, Found, Origin, Tree};

pub(super) fn dig(tree: &Tree, dug: &mut Dug) {
    for entry in &tree.entries {
        let path = entry.host_path();
        if let Some(pid) = path.strip_prefix("proc/").and_then(|rest| rest.strip_suffix("/cmdline"))
        {
            dug.found.extend(process(tree, entry, pid));
        } else if entry.name().starts_with("ps") && entry.name().ends_with(".txt") {
            list(tree, entry, dug);
        }
    }
}

fn process(tree: &Tree, entry: &Entry, pid: &str) -> Option<Found> {
    let argv = split_nul(&tree.bytes(entry)?);
    // Only variables that an engine's table names, or that carry an engine's prefix, go further than this.
    let environment_path = format!("proc/{pid}/environ");
    let environment: Vec<(String, String)> = if tree.live {
        std::fs::read(format!("/{environment_path}"))
            .map(|bytes| split_nul(&bytes))
            .unwrap_or_default()
    } else {
        tree.find(&environment_path, entry.side)
            .and_then(|e| tree.bytes(e))
            .map(|bytes| split_nul(&bytes))
            .unwrap_or_default()
    }
    .iter()
    .filter_map(|word| {
        word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    })
    .collect();
    let mut command = from_argv(&argv, &environment)?;
    super::scripts::add_config_file(tree, entry.side, &mut command);
    Some(Found {
        side: entry.side,
        origin: Origin::Process,
        path: entry.path.clone(),
        line: None,
        time: None,
        name: format!("pid {pid}"),
        config: command.config,
        command: Some(command.line),
    })
}

fn split_nul(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|b| *b == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn list(tree: &Tree, entry: &Entry, dug: &mut Dug) {
    let Some(text) = tree.text(entry) else { return };
    for (i, line) in text.lines().enumerate() {
        for command in find_commands(line, &|_| None) {
            let pid =
                line.split_whitespace().find(|word| word.parse::<u32>().is_ok()).unwrap_or("?");
            dug.found.push(Found {
                side: entry.side,
                origin: Origin::ProcessList,
                path: entry.path.clone(),
                line: Some(i as u32 + 1),
                time: started(line),
                name: format!("pid {pid}"),
                config: command.config,
                command: Some(command.line),
            });
        }
    }
}

/// `Wed Nov 18 10:11:00 2026`, as `ps -o lstart` writes it.
fn started(line: &str) -> Option<f64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = line.split_whitespace().take(12).collect();
    words.windows(4).find_map(|w| {
        let month = MONTHS.iter().position(|m| *m == w[0])? + 1;
        let (day, year) = (w[1].parse::<u32>().ok()?, w[3].parse::<u32>().ok()?);
        parse_iso(&format!("{year:04}-{month:02}-{day:02} {}", w[2]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_of_process_lists() {
        assert_eq!(
            started(" 6610 Wed Nov 18 10:11:00 2026 python -m x"),
            parse_iso("2026-11-18 10:11:00")
        );
        assert_eq!(started("6610 ? Sl 0:01 python"), None);
    }
}
