//! Compose files, manifests and `docker inspect` output.

use dialects::compose::{self, Service};
use dialects::log::parse_iso;
use dialects::unit::environment_file;

use super::{Dug, Entry, Found, Origin, Tree};

pub(super) fn dig(tree: &Tree, dug: &mut Dug) {
    for entry in &tree.entries {
        let name = entry.name().to_ascii_lowercase();
        let aside = [".bak", ".old", ".orig", ".save", "~", ".disabled"]
            .iter()
            .any(|mark| name.contains(mark));
        let is_yaml = name.contains(".yml") || name.contains(".yaml");
        let is_inspect = name.contains("inspect") || name == "config.v2.json";
        if !(is_yaml || is_inspect) || entry.len > 1 << 20 {
            continue;
        }
        let Some(text) = tree.text(entry) else { continue };
        if is_yaml {
            let origin = if aside { Origin::Backup } else { Origin::Compose };
            dug.found.extend(
                compose::from_yaml(&text)
                    .into_iter()
                    .map(|service| found(tree, entry, &text, service, origin)),
            );
        } else {
            dug.found.extend(
                compose::from_inspect(&text)
                    .into_iter()
                    .map(|service| found(tree, entry, &text, service, Origin::Container)),
            );
        }
    }
}

fn found(tree: &Tree, entry: &Entry, text: &str, service: Service, origin: Origin) -> Found {
    let mut command = service.command;
    let folder = entry.host_path().rsplit_once('/').map_or("", |(folder, _)| folder);
    for file in &service.env_files {
        let path = if file.starts_with('/') {
            file.clone()
        } else {
            format!("{folder}/{}", file.trim_start_matches("./"))
        };
        if let Some(file) = tree.find(&path, entry.side) {
            for (name, value) in environment_file(&tree.text(file).unwrap_or_default()) {
                command.config.set_variable(&name, &value);
            }
        }
    }
    super::scripts::add_config_file(tree, entry.side, &mut command);
    // The line of the service's name is as near as the reader gets.
    let line = text
        .lines()
        .position(|line| line.trim().trim_end_matches(':') == service.name)
        .map(|i| i as u32 + 1);
    Found {
        side: entry.side,
        origin,
        path: entry.path.clone(),
        line,
        time: service.created.as_deref().and_then(parse_iso),
        name: service.name,
        config: command.config,
        command: Some(command.line),
    }
}
