//! `cargo xtask race`: our bench beside `llama-bench` and `llama-batched-bench` of builds the user
//! points to, on the same file, taking turns.
//!
//! On a shared machine only ratios of neighbouring runs mean something. Every round runs all
//! programs on one kind of work, each round in another order, and a probe before each run says
//! what the memory gave and how much of the cores others took meanwhile.

mod machine;
mod ours;
mod peer;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use machine::Probe;
use ours::Ours;
use peer::Peer;

/// Race our bench against llama.cpp or a fork of it
#[derive(Parser)]
#[command(name = "cargo xtask race", bin_name = "cargo xtask race")]
pub(crate) struct RaceFlags {
    /// The GGUF file that all of them run
    #[arg(long, value_name = "FILE")]
    model: PathBuf,

    /// Folder with `llama-bench` and `llama-batched-bench`; may be given more than once
    #[arg(long, value_name = "DIR", required = true)]
    peer: Vec<PathBuf>,

    /// Our program
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    ours: PathBuf,

    /// A checkpoint that ours runs instead of the GGUF, with the same weights
    #[arg(long, value_name = "MODEL")]
    our_model: Option<PathBuf>,

    /// More arguments of our bench, such as `--quantization int8`
    #[arg(long, value_name = "ARGUMENTS", default_value = "", allow_hyphen_values = true)]
    our_arguments: String,

    /// Threads of every program
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,

    /// Rounds; the table shows medians over them
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,

    /// Kinds of work
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_enum,
        default_values_t = Kind::value_variants().iter().copied())]
    work: Vec<Kind>,
}

/// One kind of work: what one process measures in one go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// A prompt of 512 and one of 2048 tokens
    Prefill,
    /// 128 tokens of one sequence from an empty context
    Decode,
    /// 32 tokens of one sequence after 4096
    Deep,
    /// 1, 4, 8 and 16 sequences at once, 16 tokens each after 16
    Batch,
    /// 2, 4 and 8 rows of one sequence in one pass, beside one row
    Verify,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    Prefill(usize),
    /// Tokens of one sequence after this many.
    Decode(usize),
    /// This many sequences.
    Batch(usize),
    /// This many rows of one sequence.
    Verify(usize),
}

/// Tokens of a decode row, by the depth it starts from.
pub(crate) fn n_decoded(depth: usize) -> usize {
    if depth == 0 { 128 } else { 32 }
}

/// Tokens per second of every row of one run.
pub(crate) type Speeds = BTreeMap<Row, f64>;

impl Kind {
    pub(crate) fn rows(self) -> Vec<Row> {
        match self {
            Kind::Prefill => [512, 2048].map(Row::Prefill).to_vec(),
            Kind::Decode => vec![Row::Decode(0)],
            Kind::Deep => vec![Row::Decode(4096)],
            Kind::Batch => [1, 4, 8, 16].map(Row::Batch).to_vec(),
            Kind::Verify => [1, 2, 4, 8].map(Row::Verify).to_vec(),
        }
    }
}

/// One run of one program.
pub(crate) struct Turn {
    pub(crate) speeds: Speeds,
    /// Read bandwidth just before, GB/s.
    pub(crate) bandwidth: f64,
    /// Share of the cores that others took meanwhile.
    pub(crate) foreign: f64,
}

/// A program of the race.
trait Racer {
    fn name(&self) -> String;
    fn run(&self, kind: Kind) -> Result<Speeds>;
}

/// Runs the race that the arguments describe and prints its table.
pub(crate) fn run(flags: &RaceFlags) -> Result<()> {
    ensure!(flags.rounds > 0 && flags.threads > 0, "--rounds and --threads are at least 1");
    ensure!(flags.model.is_file(), "--model {} is not a file", flags.model.display());
    let mut racers: Vec<Box<dyn Racer>> = vec![Box::new(Ours {
        program: flags.ours.clone(),
        model: flags.our_model.clone().unwrap_or_else(|| flags.model.clone()),
        arguments: flags.our_arguments.split_whitespace().map(str::to_owned).collect(),
        threads: flags.threads,
    })];
    for folder in &flags.peer {
        racers.push(Box::new(Peer::find(folder, &flags.model, flags.threads)?));
    }
    let probe = Probe::new(flags.threads);
    for kind in &flags.work {
        let mut turns: Vec<Vec<Turn>> = racers.iter().map(|_| Vec::new()).collect();
        for round in 0..flags.rounds {
            for i in 0..racers.len() {
                let i = (i + round) % racers.len();
                let measured = probe.around(|| racers[i].run(*kind));
                turns[i].push(measured.with_context(|| format!("{} failed", racers[i].name()))?);
            }
        }
        let names: Vec<String> = racers.iter().map(|racer| racer.name()).collect();
        print!("{}", report::table(*kind, &names, &turns));
    }
    Ok(())
}
