//! Build tasks: `cargo xtask tidy` checks what the compiler and clippy cannot; `cargo xtask race`
//! measures beside other engines.

mod race;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

const USAGE: &str = "usage: cargo xtask tidy | race";

fn main() -> anyhow::Result<ExitCode> {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => {
            let problems = tidy::problems(repository_root()?)?;
            for problem in &problems {
                eprintln!("{problem}");
            }
            Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some("race") => {
            race::run(&race::RaceFlags::parse_from(std::env::args().skip(1)))?;
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
