//! The `outrider` command.

mod arguments;
mod baseline;
mod bench;
mod bench_speculation;
mod chat;
mod diagnosis;
#[cfg(test)]
mod documentation;
mod download;
mod embedded;
mod eval;
mod fix;
mod flags;
mod foreign;
mod generate;
mod launch;
mod ledger;
mod live;
mod logging;
mod paced;
mod plan;
mod probe;
mod serve;
mod sink;
mod source;
mod speculation;

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{CommandFactory, FromArgMatches};

use crate::flags::{Cli, Command};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The exit code of a command on the diagnosis side: an error is 2, since 1 says nothing there.
fn exit(result: Result<u8>) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        probe::EXIT_ERROR
    }))
}

fn run() -> Result<ExitCode> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow!("a TLS provider is already installed"))?;
    let command = Cli::command().mut_subcommand("serve", foreign::declare);
    let matches = command.get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match &cli.command {
        Command::Serve(flags) => {
            let given = matches.subcommand_matches("serve").map(foreign::notices);
            serve::run(flags, &given.unwrap_or_default())?;
        }
        Command::Generate(flags) => generate::run(flags)?,
        Command::Chat(flags) => chat::run(flags)?,
        Command::Bench(flags) => bench::run(flags)?,
        Command::Probe(flags) => return Ok(probe::run(flags)),
        Command::Plan(flags) => return Ok(exit(plan::run(flags).map(|()| 0))),
        Command::Baseline(flags) => return Ok(exit(baseline::run(flags))),
        Command::Eval(flags) => eval::run(flags)?,
        Command::Logs(flags) => return Ok(diagnosis::logs(flags)),
        Command::Configs(flags) => return Ok(diagnosis::configs(flags)),
        Command::Diff(flags) => return Ok(diagnosis::diff(flags)),
        Command::Diagnose(flags) => return Ok(diagnosis::diagnose(flags)),
        Command::Fix(flags) => return Ok(fix::run(flags)),
        Command::Validate(flags) => return Ok(fix::validate(flags)),
    }
    Ok(ExitCode::SUCCESS)
}
