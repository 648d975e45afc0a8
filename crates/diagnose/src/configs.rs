//! Archaeology: every configuration that a host still remembers, with its origin and date.

mod containers;
mod diff;
mod history;
mod listing;
mod processes;
mod scripts;
mod tree;
mod units;

pub use diff::{render_diff, render_diff_json};
pub use history::Edit;
pub use listing::{render_json, render_text};
pub use tree::{Entry, Tree};

use dialects::Config;
use serde::{Deserialize, Serialize};

use crate::evidence::Side;

/// Where a configuration was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// An information endpoint of the running server.
    ServerInfo,
    /// The arguments in a log header.
    LogArgs,
    /// A running process.
    Process,
    /// A saved process list.
    ProcessList,
    /// A unit with its drop-ins, as systemd would start it.
    Unit,
    /// A container as it was created.
    Container,
    /// A compose file or a manifest.
    Compose,
    /// A launch record.
    LaunchRecord,
    /// A unit without the drop-in that overrides it.
    UnitWithoutDropIn,
    /// A backup of a unit, of its environment file or of a compose file.
    Backup,
    /// A drop-in that is not in force.
    DisabledDropIn,
    /// The older side of a recorded change.
    OldVersion,
    /// A script.
    Script,
    /// A line of a shell history.
    History,
}

impl Origin {
    /// Every origin, the most certain first.
    pub const ALL: [Origin; 14] = [
        Origin::ServerInfo,
        Origin::LogArgs,
        Origin::Process,
        Origin::ProcessList,
        Origin::LaunchRecord,
        Origin::Container,
        Origin::Unit,
        Origin::Compose,
        Origin::Backup,
        Origin::UnitWithoutDropIn,
        Origin::DisabledDropIn,
        Origin::OldVersion,
        Origin::Script,
        Origin::History,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Origin::ServerInfo => "server info",
            Origin::LogArgs => "log header",
            Origin::Process => "process",
            Origin::ProcessList => "process list",
            Origin::Unit => "unit",
            Origin::Container => "container",
            Origin::Compose => "compose file",
            Origin::LaunchRecord => "launch record",
            Origin::UnitWithoutDropIn => "unit without its drop-in",
            Origin::Backup => "backup",
            Origin::DisabledDropIn => "disabled drop-in",
            Origin::OldVersion => "older version of a script",
            Origin::Script => "script",
            Origin::History => "shell history",
        }
    }

    /// How sure it is that a server ran, or runs, with it: 0 to 1.
    pub fn confidence(self) -> f64 {
        match self {
            Origin::ServerInfo => 0.99,
            Origin::LogArgs | Origin::Process => 0.97,
            Origin::ProcessList | Origin::LaunchRecord => 0.9,
            Origin::Container => 0.85,
            Origin::Unit => 0.8,
            Origin::Compose | Origin::Backup => 0.7,
            Origin::UnitWithoutDropIn | Origin::DisabledDropIn | Origin::OldVersion => 0.65,
            Origin::Script => 0.5,
            Origin::History => 0.45,
        }
    }

    /// Whether it is what runs, or would be started next, rather than what ran once.
    pub fn is_current(self) -> bool {
        matches!(
            self,
            Origin::ServerInfo
                | Origin::LogArgs
                | Origin::Process
                | Origin::ProcessList
                | Origin::Unit
                | Origin::Container
                | Origin::Compose
                | Origin::Script
        )
    }
}

/// One configuration and where it was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Which side of the comparison its place speaks for.
    pub side: Side,
    /// The sort of place.
    pub origin: Origin,
    /// The file.
    pub path: String,
    /// The line, from 1, where the source has lines.
    pub line: Option<u32>,
    /// When, in seconds since 1970, where the source tells it.
    pub time: Option<f64>,
    /// The name of the unit, service, container or process.
    pub name: String,
    /// The settings, redacted.
    pub config: Config,
    /// The command on one line, redacted.
    pub command: Option<String>,
}

impl Found {
    /// `path:line`.
    pub fn place(&self) -> String {
        match self.line {
            Some(line) => format!("{}:{line}", self.path),
            None => self.path.clone(),
        }
    }
}

/// Everything that a tree of files tells about configurations.
#[derive(Clone, Debug, Default)]
pub struct Dug {
    /// The configurations.
    pub found: Vec<Found>,
    /// Dated edits.
    pub edits: Vec<Edit>,
    /// What could not be read.
    pub gaps: Vec<String>,
}

/// Digs through a tree of files laid out like a host.
pub fn dig(tree: &Tree) -> Dug {
    let mut dug = Dug::default();
    units::dig(tree, &mut dug);
    containers::dig(tree, &mut dug);
    processes::dig(tree, &mut dug);
    scripts::dig(tree, &mut dug);
    history::dig(tree, &mut dug);
    for found in &mut dug.found {
        if found.time.is_none() {
            found.time = date_in_name(&found.path).or_else(|| tree.modified(&found.path));
        }
    }
    dug.gaps.extend(tree.gaps());
    dug.found.sort_by(|a, b| {
        a.origin
            .cmp(&b.origin)
            .then(b.time.partial_cmp(&a.time).unwrap_or(std::cmp::Ordering::Equal))
            .then(a.path.cmp(&b.path))
    });
    dug
}

/// A date that a backup carries in its name: `unit.bak-20261009`, `2026-11-02T0915.json`.
pub(crate) fn date_in_name(path: &str) -> Option<f64> {
    let name = path.rsplit('/').next()?;
    let bytes = name.as_bytes();
    for start in 0..bytes.len().saturating_sub(7) {
        let digits: String =
            name.get(start..)?.chars().take(10).filter(|c| c.is_ascii_digit()).collect();
        let dashed = bytes.get(start + 4) == Some(&b'-') && bytes.get(start + 7) == Some(&b'-');
        let plain = bytes[start..start + 8].iter().all(u8::is_ascii_digit);
        let free = start == 0 || !bytes[start - 1].is_ascii_digit();
        if free && digits.len() >= 8 && digits.starts_with("20") && (dashed || plain) {
            let text = format!("{}-{}-{} 00:00:00", &digits[..4], &digits[4..6], &digits[6..8]);
            if let Some(time) = dialects::log::parse_iso(&text) {
                return Some(time);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_in_names() {
        assert_eq!(
            date_in_name("a/sglang.service.bak-20261009"),
            dialects::log::parse_iso("2026-10-09 00:00:00")
        );
        assert_eq!(
            date_in_name("launch-records/2026-11-02T0915.json"),
            dialects::log::parse_iso("2026-11-02 00:00:00")
        );
        assert_eq!(date_in_name("x/sglang.service~"), None);
        assert_eq!(date_in_name("12345678901234567"), None);
    }
}
