//! Build tasks: `cargo xtask tidy` checks what the compiler and clippy cannot; `cargo xtask race`
//! measures beside other engines; `cargo xtask log` writes a long server log to measure with.

mod big_log;
mod race;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

const USAGE: &str = "usage: cargo xtask tidy | race | log FILE MIB";

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["tidy"] => {
            let problems = tidy::problems(repository_root()?)?;
            for problem in &problems {
                eprintln!("{problem}");
            }
            Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        ["race", ..] => {
            race::run(&race::RaceFlags::parse_from(std::env::args().skip(1)))?;
            Ok(ExitCode::SUCCESS)
        }
        ["log", path, mib] => {
            big_log::write(path, mib.parse().context(USAGE)?)?;
            Ok(ExitCode::SUCCESS)
        }
        _ => anyhow::bail!(USAGE),
    }
}

/// The folder that holds the workspace manifest.
fn repository_root() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("xtask does not lie in crates/xtask")
}
