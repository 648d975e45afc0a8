//! The commands that look at servers and change nothing: `logs`, `configs`, `diff`, `diagnose`.
//!
//! They work on what a host remembers; the exit code is that of the verdict.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use diagnose::commands::{self, ConfigsArgs, DiagnoseArgs, DiffArgs, EXIT_ERROR, LogsArgs};

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

#[derive(Args, Clone)]
pub(crate) struct ConfigsFlags {
    /// A folder laid out like a host, instead of this machine
    #[arg(long, value_name = "DIR")]
    from_dir: Option<PathBuf>,

    /// Leave out what is older than this many days
    #[arg(long, value_name = "DAYS")]
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
    /// A folder laid out like a host, instead of this machine
    #[arg(long, value_name = "DIR", conflicts_with = "evidence")]
    from_dir: Option<PathBuf>,

    /// Saved evidence, judged again instead of collecting any
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,

    /// A log of the server as it runs now; may be given several times
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,

    /// What is wrong, in the words of whoever noticed
    #[arg(long, value_name = "TEXT")]
    complaint: Option<String>,

    /// Send nothing to any server; this version never does
    #[arg(long)]
    no_probe: bool,

    /// Write the report as HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the report as Markdown
    #[arg(long, value_name = "FILE")]
    md: Option<PathBuf>,

    /// Write the evidence, to be judged again later
    #[arg(long, value_name = "FILE")]
    save_evidence: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn logs(flags: &LogsFlags) -> ExitCode {
    let LogsFlags { files, all, plot, json } = flags.clone();
    finish(|out| commands::logs(&LogsArgs { files, json, all, plot }, out))
}

pub(crate) fn configs(flags: &ConfigsFlags) -> ExitCode {
    let ConfigsFlags { from_dir, since, json } = flags.clone();
    finish(|out| commands::configs(&ConfigsArgs { from_dir, since_days: since, json }, out))
}

pub(crate) fn diff(flags: &DiffFlags) -> ExitCode {
    let DiffFlags { a, b, from_dir, json } = flags.clone();
    finish(|out| commands::diff(&DiffArgs { a, b, from_dir, json }, out))
}

pub(crate) fn diagnose(flags: &DiagnoseFlags) -> ExitCode {
    let flags = flags.clone();
    let args = DiagnoseArgs {
        from_dir: flags.from_dir,
        evidence: flags.evidence,
        logs: flags.log,
        complaint: flags.complaint,
        collected: None,
        json: flags.json,
        html: flags.html,
        markdown: flags.md,
        save_evidence: flags.save_evidence,
    };
    finish(|out| commands::diagnose(&args, out))
}

/// Runs a command on standard output; an error is exit code 2, since 1 says nothing here.
fn finish(run: impl FnOnce(&mut dyn Write) -> Result<u8, diagnose::Error>) -> ExitCode {
    match run(&mut stdout().lock()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(EXIT_ERROR)
        }
    }
}
