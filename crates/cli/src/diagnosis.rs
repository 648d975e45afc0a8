//! The commands that look at servers and change nothing: `logs`, `configs`, `diff`, `diagnose`.
//!
//! They work on what a host remembers; the exit code is that of the verdict.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::observe::log_tail::LogSource;
use clap::Args;
use diagnose::collect::{self, ssh};
use diagnose::commands::{self, ConfigsArgs, DiagnoseArgs, DiffArgs, EXIT_ERROR, LogsArgs};
use diagnose::evidence::Evidence;

use crate::fix::LAST_EVIDENCE;
use crate::live::{self, LiveFlags};

#[derive(Args, Clone)]
pub(crate) struct LogsFlags {
    /// Logs of SGLang, vLLM, llama.cpp or Outrider
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Every window, none merged and none left out
    #[arg(long)]
    all: bool,

    /// Bars instead of the table
    #[arg(long)]
    plot: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Another host.
#[derive(Args, Clone)]
pub(crate) struct RemoteFlags {
    /// Look on another host instead, through your own ssh, with a fixed list of commands that read
    #[arg(long, value_name = "HOST", conflicts_with_all = ["from_dir"])]
    ssh: Option<String>,

    /// Print that list for HOST and run nothing
    #[arg(long, requires = "ssh")]
    print_commands: bool,
}

impl RemoteFlags {
    /// The list, where it is asked for; a host that is none is an error before anything is run.
    fn list(&self, logs: &[LogSource]) -> anyhow::Result<Option<String>> {
        let Some(host) = &self.ssh else { return Ok(None) };
        ssh::check(host)?;
        let logs: Result<Vec<String>, _> =
            logs.iter().map(|log| ssh::log_command(&log.to_string())).collect();
        let lines = ssh::command_lines(host, &logs?).join("\n");
        Ok(self.print_commands.then(|| lines + "\n"))
    }
}

#[derive(Args, Clone)]
pub(crate) struct ConfigsFlags {
    /// A folder laid out like a host, instead of this machine
    #[arg(long, value_name = "DIR")]
    from_dir: Option<PathBuf>,

    #[command(flatten)]
    remote: RemoteFlags,

    /// Leave out what is older: `90d`, `12w`, `2y`, or a number of days
    #[arg(long, value_name = "AGE", value_parser = days)]
    since: Option<u32>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone)]
pub(crate) struct DiffFlags {
    /// `#3` of the list that `configs` prints, a file, or a command line
    a: String,

    /// The other one
    b: String,

    /// The folder of the list, instead of this machine
    #[arg(long, value_name = "DIR")]
    from_dir: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone)]
pub(crate) struct DiagnoseFlags {
    /// Address of the running server, with or without `/v1`
    #[arg(value_name = "URL", conflicts_with = "evidence")]
    url: Option<String>,

    /// A folder laid out like a host, instead of this machine
    #[arg(long, value_name = "DIR", conflicts_with = "evidence")]
    from_dir: Option<PathBuf>,

    #[command(flatten)]
    remote: RemoteFlags,

    /// Saved evidence, judged again instead of collecting any
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,

    /// A log of the server as it runs now; may be given several times
    #[arg(long, value_name = "FILE|journal:UNIT|docker:NAME")]
    log: Vec<LogSource>,

    /// What is wrong, in the words of whoever noticed
    #[arg(long, value_name = "TEXT")]
    complaint: Option<String>,

    /// Send no requests to the server: only ask what it tells, twice
    #[arg(long)]
    no_probe: bool,

    #[command(flatten)]
    live: LiveFlags,

    /// Write the report as HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the report as Markdown
    #[arg(long, value_name = "FILE")]
    md: Option<PathBuf>,

    /// Write the evidence, to be judged again later; into a folder as evidence.json
    #[arg(long, visible_alias = "save-evidence", value_name = "FILE|DIR")]
    save: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// An age in days.
fn days(text: &str) -> Result<u32, String> {
    let units = [("d", 1), ("w", 7), ("y", 365)];
    let unit = units.iter().find_map(|(unit, days)| Some((text.strip_suffix(unit)?, *days)));
    let (number, days) = unit.unwrap_or((text, 1));
    let age = number.parse::<u32>().ok().and_then(|n| n.checked_mul(days));
    age.ok_or_else(|| "not an age like 90d, 12w or 2y".to_owned())
}

pub(crate) fn logs(flags: &LogsFlags) -> ExitCode {
    let LogsFlags { files, all, plot, json } = flags.clone();
    finish(|out| Ok(commands::logs(&LogsArgs { files, json, all, plot }, out)?))
}

pub(crate) fn configs(flags: &ConfigsFlags) -> ExitCode {
    let ConfigsFlags { from_dir, remote, since, json } = flags.clone();
    finish(|out| {
        if let Some(list) = remote.list(&[])? {
            write!(out, "{list}")?;
            return Ok(commands::EXIT_OK);
        }
        let args = ConfigsArgs { from_dir, ssh: remote.ssh, since_days: since, json };
        Ok(commands::configs(&args, out)?)
    })
}

pub(crate) fn diff(flags: &DiffFlags) -> ExitCode {
    let DiffFlags { a, b, from_dir, json } = flags.clone();
    finish(|out| Ok(commands::diff(&DiffArgs { a, b, from_dir, json }, out)?))
}

pub(crate) fn diagnose(flags: &DiagnoseFlags) -> ExitCode {
    finish(|out| {
        if let Some(list) = flags.remote.list(&flags.log)? {
            write!(out, "{list}")?;
            return Ok(commands::EXIT_OK);
        }
        let mut collected = gather(flags)?;
        if let Some(complaint) = &flags.complaint {
            collected.complaint = Some(dialects::redact::line(complaint, 400));
        }
        if flags.from_dir.is_none() && flags.evidence.is_none() {
            remember(&collected);
        }
        let args = DiagnoseArgs {
            collected: Some(collected),
            json: flags.json,
            html: flags.html.clone(),
            markdown: flags.md.clone(),
            save_evidence: flags.save.clone().map(|path| match path.is_dir() {
                true => path.join("evidence.json"),
                false => path,
            }),
            ..DiagnoseArgs::default()
        };
        Ok(commands::diagnose(&args, out)?)
    })
}

/// Keeps the evidence for `outrider fix`; where nothing may be written, that command asks for a file.
fn remember(evidence: &Evidence) {
    let Some(folder) = crate::ledger::state_folder() else { return };
    if let Ok(text) = evidence.to_json()
        && std::fs::create_dir_all(&folder).is_ok()
    {
        // A read-only host is no reason not to diagnose.
        let _ = std::fs::write(folder.join(LAST_EVIDENCE), text);
    }
}

/// Everything that the flags name: saved evidence, a folder, this host, a running server, logs.
fn gather(flags: &DiagnoseFlags) -> anyhow::Result<Evidence> {
    let over_ssh: Vec<String> = flags.log.iter().map(ToString::to_string).collect();
    let host = match (&flags.evidence, &flags.from_dir, &flags.remote.ssh) {
        (Some(path), ..) => Some(commands::read_evidence(path)?),
        (None, Some(folder), _) => Some(collect::from_folder(folder)?),
        (None, None, Some(host)) => Some(ssh::from_host(host, &over_ssh)?),
        (None, None, None) => None,
    };
    // A log is where the server is.
    let logs = if flags.remote.ssh.is_some() { &[] } else { flags.log.as_slice() };
    let Some(url) = &flags.url else {
        anyhow::ensure!(!flags.live.bounds.force, "--force probes a server: name its URL");
        let mut evidence = host.unwrap_or_else(collect::from_host);
        for log in logs {
            // A file that was named and cannot be read is a mistake of the caller.
            if let LogSource::File(path) = log {
                collect::add_log(&mut evidence, path)?;
            } else {
                live::add_logs(&mut evidence, std::slice::from_ref(log));
            }
        }
        return Ok(evidence);
    };
    let order = live::Order { url, flags: &flags.live, logs, probe: !flags.no_probe, host };
    live::collect(order)
}

/// Runs a command on standard output; an error is exit code 2, since 1 says nothing here.
fn finish(run: impl FnOnce(&mut dyn Write) -> anyhow::Result<u8>) -> ExitCode {
    match run(&mut stdout().lock()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(EXIT_ERROR)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::days;

    #[test]
    fn ages_as_people_write_them() {
        for (text, n) in [("90d", 90), ("90", 90), ("12w", 84), ("2y", 730), ("0d", 0)] {
            assert_eq!(days(text), Ok(n), "{text}");
        }
        for text in ["", "d", "-1d", "1.5d", "3 weeks", "4000000000w"] {
            assert!(days(text).is_err(), "{text}");
        }
    }
}
