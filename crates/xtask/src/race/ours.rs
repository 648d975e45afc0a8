//! Our side of the race: `outrider bench`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Kind, Racer, Row, Speeds, n_decoded, peer::stdout};

pub(crate) struct Ours {
    pub(crate) program: PathBuf,
    pub(crate) model: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) threads: usize,
}

impl Racer for Ours {
    fn name(&self) -> String {
        "outrider".to_owned()
    }

    fn run(&self, kind: Kind) -> Result<Speeds> {
        let list = |keep: &dyn Fn(Row) -> Option<usize>| {
            let values: Vec<String> =
                kind.rows().into_iter().filter_map(keep).map(|n| n.to_string()).collect();
            if values.is_empty() { "none".to_owned() } else { values.join(",") }
        };
        let depth = kind.rows().into_iter().find_map(|row| match row {
            Row::Decode(depth) => Some(depth),
            _ => None,
        });
        let prefill = list(&|row| if let Row::Prefill(n) = row { Some(n) } else { None });
        let batch = list(&|row| match row {
            Row::Decode(_) => Some(1),
            Row::Batch(n) => Some(n),
            _ => None,
        });
        let verify = list(&|row| if let Row::Verify(n) = row { Some(n) } else { None });
        let n_tokens = depth.map_or(16, n_decoded);
        let mut command = Command::new(&self.program);
        command.arg("bench").arg(&self.model).args(&self.arguments).args([
            "--json",
            "--repeat=1",
            &format!("--threads={}", self.threads),
            &format!("--prefill={prefill}"),
            &format!("--batch={batch}"),
            &format!("--verify={verify}"),
            &format!("--decode={n_tokens}"),
            // The peers count the sixteen tokens of a batch's prompts as context too.
            &format!("--depth={}", depth.unwrap_or(16)),
        ]);
        speeds(kind, &stdout(&mut command)?)
    }
}

/// The rows of our bench's JSON.
fn speeds(kind: Kind, json: &str) -> Result<Speeds> {
    let report: Value = serde_json::from_str(json).context("bench did not print JSON")?;
    let rows = report["rows"].as_array().context("bench printed no rows")?;
    let row = |row: &Value| {
        let n = |name: &str| row[name].as_u64().map(|n| n as usize);
        let which = match (row["what"].as_str()?, kind) {
            ("prefill", _) => Row::Prefill(n("n_rows")?),
            ("verify", _) => Row::Verify(n("n_rows")?),
            ("decode", Kind::Batch) => Row::Batch(n("n_sequences")?),
            ("decode", _) => Row::Decode(n("depth")?),
            _ => return None,
        };
        Some((which, row["tokens_per_s"].as_f64()?))
    };
    rows.iter().map(|r| row(r).with_context(|| format!("an unknown row: {r}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_bench_are_those_of_the_table() {
        let json = r#"{"rows": [
            {"what": "prefill", "depth": 0, "n_sequences": 1, "n_rows": 512, "tokens_per_s": 300.5},
            {"what": "decode", "depth": 4096, "n_sequences": 1, "n_rows": 1, "tokens_per_s": 18.0},
            {"what": "verify", "depth": 16, "n_sequences": 1, "n_rows": 4, "tokens_per_s": 60.0}]}"#;
        let speeds = speeds(Kind::Deep, json).unwrap();
        let expected =
            [(Row::Prefill(512), 300.5), (Row::Decode(4096), 18.0), (Row::Verify(4), 60.0)];
        assert_eq!(speeds, expected.into());
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(speeds(Kind::Batch, "no model").is_err());
        assert!(speeds(Kind::Batch, r#"{"rows": [{"what": "nap"}]}"#).is_err());
    }
}
