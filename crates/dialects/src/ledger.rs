//! The launch ledger of `outrider serve`: one JSON line when a server starts, one when it stops.
//!
//! The writer and the readers share these types. Words of a command line are redacted before they get here.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Name and version of the lines.
pub const SCHEMA: &str = "launch/1";
/// Folder of the ledger below the user's state folder.
pub const FOLDER: &str = "outrider";
/// Name of its file.
pub const FILE: &str = "launches.jsonl";

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Line {
    /// A server started.
    Start(Box<Start>),
    /// A server stopped.
    Stop(Box<Stop>),
}

/// What ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// [`SCHEMA`].
    pub schema: String,
    /// Joins a start with its stop.
    pub id: String,
    /// When, in UTC.
    pub started_at: String,
    /// Name of the machine.
    pub host: String,
    /// Process.
    pub pid: u32,
    /// Engine.
    pub engine: String,
    /// Release of the engine.
    pub version: String,
    /// The command line, redacted.
    pub argv: Vec<String>,
    /// Every flag with its value, given or default.
    pub asked: Map<String, Json>,
    /// What the plan made of the flags, under the names of the flags.
    pub effective: Map<String, Json>,
    /// What set each effective value.
    pub limited_by: Map<String, Json>,
    /// Bytes of every part.
    pub plan: Map<String, Json>,
    /// Weights that ran.
    pub weights: Weights,
    /// The machine.
    pub hardware: Hardware,
    /// Address that the server listened on.
    pub listen: String,
}

/// Weights by name and content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weights {
    /// As it was asked for.
    pub name: String,
    /// Architecture as `config.json` names it.
    pub architecture: String,
    /// Digest of the configuration and of samples of every tensor.
    pub fingerprint: String,
    /// Seconds that loading took.
    pub load_s: f64,
}

/// The machine as the server saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// Name of the processor.
    pub cpu: String,
    /// Its extensions that matter to the kernels.
    pub features: Vec<String>,
    /// Cores that the process may use.
    pub n_cores: usize,
    /// Memory that the process may take.
    pub memory_bytes: u64,
    /// Read bandwidth of the memory in GB/s, if it was measured or stated.
    pub read_gb_per_s: Option<f64>,
    /// `measured` or `stated`; `None` without a bandwidth.
    pub read_gb_per_s_from: Option<String>,
}

/// What was achieved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stop {
    /// [`SCHEMA`].
    pub schema: String,
    /// That of the start.
    pub id: String,
    /// When, in UTC.
    pub stopped_at: String,
    /// Why: a signal, or an error.
    pub reason: String,
    /// Sums over the whole life.
    pub measured: Measured,
}

/// Sums and means over the life of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Seconds from start to stop.
    pub uptime_s: f64,
    /// Seconds in which the engine computed.
    pub busy_s: f64,
    /// Requests taken in.
    pub n_requests: u64,
    /// Requests that failed or were refused.
    pub n_failed: u64,
    /// Prompt tokens.
    pub n_prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    pub n_cached_tokens: u64,
    /// Tokens generated.
    pub n_generated_tokens: u64,
    /// Tokens per second of one stream after its first: tokens over the sum of the times between them.
    pub decode_tok_s: Option<f64>,
    /// Tokens per second of all streams together while the engine computed.
    pub busy_tok_s: Option<f64>,
    /// Tokens committed per request and decode step, bonus token included.
    pub accept_len: Option<f64>,
    /// Accepted over drafted tokens.
    pub accept_rate: Option<f64>,
    /// Drafts verified at each position.
    pub drafted_at: Vec<u64>,
    /// Drafts accepted at each position.
    pub accepted_at: Vec<u64>,
}

/// A line for the end of the file, with its line break.
#[must_use]
pub fn write(line: &Line) -> Vec<u8> {
    // Texts, numbers and maps with texts as keys always have a JSON form.
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_reads_back_as_it_was_written() {
        let stop = Line::Stop(Box::new(Stop {
            schema: SCHEMA.to_owned(),
            id: "1-2".to_owned(),
            stopped_at: "2026-11-30T08:00:00Z".to_owned(),
            reason: "SIGTERM".to_owned(),
            measured: Measured {
                drafted_at: vec![3, 2],
                accept_len: Some(1.5),
                ..Default::default()
            },
        }));
        let bytes = write(&stop);
        assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 1);
        assert!(bytes.starts_with(b"{\"event\":\"stop\",\"schema\":\"launch/1\""));
        assert_eq!(serde_json::from_slice::<Line>(&bytes).unwrap(), stop);
    }
}
