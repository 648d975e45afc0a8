//! The `outrider` command.

mod arguments;
mod bench;
mod bench_speculation;
mod chat;
mod diagnosis;
#[cfg(test)]
mod documentation;
mod download;
mod embedded;
mod flags;
mod foreign;
mod generate;
mod launch;
mod logging;
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
        Command::Logs(flags) => return Ok(diagnosis::logs(flags)),
        Command::Configs(flags) => return Ok(diagnosis::configs(flags)),
        Command::Diff(flags) => return Ok(diagnosis::diff(flags)),
        Command::Diagnose(flags) => return Ok(diagnosis::diagnose(flags)),
    }
    Ok(ExitCode::SUCCESS)
}
