//! Build tasks: `cargo xtask tidy` checks what the compiler and clippy cannot; `cargo xtask race`
//! measures beside other engines; `cargo xtask log` writes a long server log to measure with;
//! `cargo xtask smollm2` fetches a small real model for the tests that want one.

mod big_log;
mod race;
mod smollm2;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

const USAGE: &str = "usage: cargo xtask tidy | race | log FILE MIB | smollm2 [DIR]";

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
        ["smollm2"] => {
            smollm2::fetch(&repository_root()?.join("models/smollm2"))?;
            Ok(ExitCode::SUCCESS)
        }
        ["smollm2", folder] => {
            smollm2::fetch(Path::new(folder))?;
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
