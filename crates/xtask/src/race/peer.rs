//! The other side: builds of llama.cpp, or of a fork with its command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{Kind, Racer, Row, Speeds, n_decoded};

pub(crate) struct Peer {
    folder: PathBuf,
    model: PathBuf,
    threads: usize,
    /// Whether it repacks weights when told to, as forks do.
    repacks: bool,
    /// Whether it measures generation at a depth with `-d`; otherwise with `-gp`.
    has_depth: bool,
}

impl Peer {
    pub(crate) fn find(folder: &Path, model: &Path, threads: usize) -> Result<Self> {
        for program in ["llama-bench", "llama-batched-bench"] {
            ensure!(
                folder.join(program).is_file(),
                "--peer {} has no {program}: point to the folder of the build's programs",
                folder.display()
            );
        }
        // Some forks print their help and fail.
        let help = Command::new(folder.join("llama-bench"))
            .arg("--help")
            .output()
            .with_context(|| format!("cannot run llama-bench of {}", folder.display()))?;
        let help = String::from_utf8_lossy(&help.stdout) + String::from_utf8_lossy(&help.stderr);
        Ok(Self {
            folder: folder.to_owned(),
            model: model.to_owned(),
            threads,
            repacks: help.contains("-rtr"),
            has_depth: help.contains("--n-depth"),
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        command.arg("-m").arg(&self.model).args(["-t", &self.threads.to_string()]);
        command
    }

    fn bench(&self, kind: Kind) -> Result<Speeds> {
        let mut command = self.command("llama-bench");
        command.args(["-r", "1", "-o", "json"]);
        if self.repacks {
            command.args(["-rtr", "1"]);
        }
        let list = |values: &[Row]| {
            let n = values.iter().map(|row| match row {
                Row::Prefill(n) | Row::Verify(n) => n.to_string(),
                Row::Decode(_) | Row::Batch(_) => unreachable!("not a prompt"),
            });
            n.collect::<Vec<_>>().join(",")
        };
        match kind {
            Kind::Decode => command.args(["-p", "0", "-n", &n_decoded(0).to_string()]),
            Kind::Deep if self.has_depth => {
                command.args(["-p", "0", "-n", &n_decoded(4096).to_string(), "-d", "4096"])
            }
            Kind::Deep => {
                command.args(["-p", "0", "-n", "0", "-gp", &format!("4096,{}", n_decoded(4096))])
            }
            _ => command.args(["-p", &list(&kind.rows()), "-n", "0"]),
        };
        bench_speeds(kind, &stdout(&mut command)?)
    }

    fn batched(&self) -> Result<Speeds> {
        let mut command = self.command("llama-batched-bench");
        let threads = self.threads.to_string();
        command.args(["-c", "4096", "-b", "2048", "-ub", "512", "-tb", &threads]);
        command.args(["-npp", "16", "-ntg", "16", "-npl", "1,4,8,16"]);
        if self.repacks {
            command.arg("-rtr");
        }
        Ok(batched_speeds(&stdout(&mut command)?))
    }
}

impl Racer for Peer {
    fn name(&self) -> String {
        // The folder of the programs is called the same everywhere: `…/NAME/build/bin`.
        let named = |part: &&str| !["build", "bin", "", "."].contains(part);
        let path = self.folder.to_string_lossy();
        path.rsplit('/').find(|part| named(part)).unwrap_or(&path).to_owned()
    }

    fn run(&self, kind: Kind) -> Result<Speeds> {
        let speeds = if kind == Kind::Batch { self.batched() } else { self.bench(kind) }?;
        ensure!(!speeds.is_empty(), "no row in what it printed");
        Ok(speeds)
    }
}

/// The rows of `llama-bench -o json`.
fn bench_speeds(kind: Kind, json: &str) -> Result<Speeds> {
    // Forks print lines of their own around the list.
    let list = json.find('[').zip(json.rfind(']')).map(|(start, end)| &json[start..=end]);
    let entries: Vec<Value> =
        serde_json::from_str(list.unwrap_or(json)).context("llama-bench did not print JSON")?;
    let row = |entry: &Value| {
        let n = |name: &str| entry[name].as_u64().unwrap_or(0) as usize;
        let which = match kind {
            Kind::Prefill => Row::Prefill(n("n_prompt")),
            Kind::Verify => Row::Verify(n("n_prompt")),
            _ => Row::Decode(n("n_depth").max(n("n_prompt"))),
        };
        Some((which, entry["avg_ts"].as_f64()?))
    };
    entries.iter().map(|e| row(e).with_context(|| format!("a row without avg_ts: {e}"))).collect()
}

/// The lines of the table that `llama-batched-bench` prints: PP, TG, B, N_KV, T_PP, S_PP, T_TG,
/// S_TG, T, S.
fn batched_speeds(text: &str) -> Speeds {
    let row = |line: &str| {
        let cells: Vec<f64> = line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
        (cells.len() == 10).then(|| (Row::Batch(cells[2] as usize), cells[7]))
    };
    text.lines().filter_map(row).collect()
}

/// Runs a program to its end and takes what it printed.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        bail!("{command:?} ended with {}: {}", output.status, last.join(" / "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_that_of_either_command_line() {
        let with_d = r#"[{"n_prompt": 0, "n_gen": 32, "n_depth": 4096, "avg_ts": 21.5}]"#;
        let with_gp = "warming up\n[{\"n_prompt\": 4096, \"n_gen\": 32, \"avg_ts\": 21.5}]\n";
        for json in [with_d, with_gp] {
            let speeds = bench_speeds(Kind::Deep, json).unwrap();
            assert_eq!(speeds, [(Row::Decode(4096), 21.5)].into());
        }
        let json = r#"[{"n_prompt": 4, "n_gen": 0, "n_depth": 0, "avg_ts": 90.0}]"#;
        assert_eq!(bench_speeds(Kind::Verify, json).unwrap(), [(Row::Verify(4), 90.0)].into());
        assert!(bench_speeds(Kind::Verify, "error: no such file").is_err());
    }

    #[test]
    fn batches_are_read_from_the_table() {
        let text = "\
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    16 |     16 |    4 |    128 |    0.900 |    71.11 |    1.654 |    38.70 |    2.554 |    50.12 |
main: done";
        assert_eq!(batched_speeds(text), [(Row::Batch(4), 38.7)].into());
    }
}
