//! Collects from the running host: configurations, devices, and the logs that the caller names. Nothing is changed.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::gpu::GpuSnapshot;
use super::{folder, launch};
use crate::Error;
use crate::configs::{self, Tree};
use crate::evidence::{Evidence, Item, Side};
use crate::logs;

/// Reads what the host remembers.
pub fn from_host() -> Evidence {
    let mut evidence = Evidence::new();
    let dug = configs::dig(&Tree::host());
    evidence.configs.extend(dug.found);
    evidence.edits = dug.edits;
    evidence.gaps.extend(dug.gaps);
    devices(&mut evidence);
    for ledger in ledgers() {
        let Ok(text) = std::fs::read_to_string(&ledger) else { continue };
        let path = ledger.display().to_string();
        for (found, what) in launch::parse(&text, &path, Side::Open) {
            evidence.configs.push(found);
            evidence.launches.push(Item { side: Side::Open, source: path.clone(), what });
        }
    }
    evidence.model = folder::model_config(&evidence, &|path| std::fs::read_to_string(path).ok());
    evidence
}

/// Adds a log to evidence, as one of now.
///
/// # Errors
/// When the log cannot be read.
pub fn add_log(evidence: &mut Evidence, path: &Path) -> Result<(), Error> {
    let source = path.display().to_string();
    let mut file = std::fs::File::open(path).map_err(|error| Error::io(source.clone(), error))?;
    add_log_stream(evidence, &source, &mut file)
}

/// Adds a log that comes from elsewhere, such as `journalctl`, as one of now.
///
/// # Errors
/// When the log cannot be read.
pub fn add_log_stream(
    evidence: &mut Evidence,
    source: &str,
    log: &mut dyn Read,
) -> Result<(), Error> {
    let source = source.to_owned();
    let what = logs::read_stream(log).map_err(|error| Error::io(source.clone(), error))?;
    evidence.logs.push(Item { side: Side::Now, source, what });
    folder::add_log_configs(evidence);
    Ok(())
}

/// Where `outrider serve` keeps its launch records; variables with relative values do not count.
fn ledgers() -> Vec<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let path = state.map(|state| state.join(dialects::ledger::FOLDER).join(dialects::ledger::FILE));
    path.into_iter().collect()
}

fn devices(evidence: &mut Evidence) {
    let query = ["-q", "-d", "CLOCK,TEMPERATURE,POWER,PERFORMANCE,UTILIZATION,MEMORY,PIDS"];
    match Command::new("nvidia-smi").args(query).stdin(std::process::Stdio::null()).output() {
        Ok(output) => {
            if let Some(what) = GpuSnapshot::parse(&String::from_utf8_lossy(&output.stdout)) {
                evidence.gpus.push(Item {
                    side: Side::Now,
                    source: "nvidia-smi -q".to_owned(),
                    what,
                });
            }
        }
        Err(error) => evidence.gaps.push(format!("nvidia-smi: {}", error.kind())),
    }
}
