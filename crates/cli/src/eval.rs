//! `outrider eval`: how well a model predicts a text, and how far a format is from another.
//!
//! The text is cut into windows. The first half of each window is context only, so that every
//! scored token is predicted from at least half a window.

mod score;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use kernels::{KV_BLOCK, Span};
use model::Model;
use model::batch::{Batch, Forward};
use model::network::ModelOptions;
use serde::Serialize;
use text::{Markers, Tokenizer};

use crate::flags::{KvChoice, ModelFlags};
use crate::source::{self, Source};
use score::{Scores, Summary};

/// How well a model predicts a text, alone or beside another format of it.
#[derive(Args, Clone)]
pub(crate) struct EvalFlags {
    #[command(flatten)]
    model: ModelFlags,

    /// The text to predict, UTF-8
    #[arg(long, value_name = "FILE")]
    text: PathBuf,

    /// A model to compare with, as it is stored: often MODEL itself, beside a quantised MODEL
    #[arg(long, value_name = "MODEL")]
    reference: Option<String>,

    /// Tokens of a window; those of its second half are scored
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    window: usize,

    /// Most windows to score [default: all of the text]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_windows: Option<u32>,

    /// Element type of the KV cache of MODEL; a reference keeps its own
    #[arg(long, value_enum, default_value_t = KvChoice::Auto, value_name = "TYPE")]
    kv_cache_dtype: KvChoice,

    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// Rows of one pass: their logits are held for both models.
const CHUNK: usize = 64;

#[derive(Serialize)]
struct Report {
    model: String,
    weight_format: String,
    reference: Option<Reference>,
    text: PathBuf,
    window: usize,
    n_windows: usize,
    #[serde(flatten)]
    summary: Summary,
}

#[derive(Serialize)]
struct Reference {
    model: String,
    weight_format: String,
}

/// Scores the text and prints the figures.
pub(crate) fn run(flags: &EvalFlags) -> Result<()> {
    ensure!(
        flags.window >= 4 && flags.window.is_multiple_of(2),
        "--window takes an even number of at least 4, not {}",
        flags.window
    );
    let text = std::fs::read(&flags.text)
        .with_context(|| format!("cannot read --text {}", flags.text.display()))?;
    let text = String::from_utf8(text)
        .with_context(|| format!("--text {} is not UTF-8", flags.text.display()))?;

    let tested = Scored::load(&flags.model, flags.kv_cache_dtype, flags.window, &text)?;
    let reference = flags.reference.as_ref().map(|name| {
        let as_stored = ModelFlags::stored(name, &flags.model);
        Scored::load(&as_stored, KvChoice::Auto, flags.window, &text)
    });
    let mut reference = reference.transpose()?;
    if let Some(reference) = &reference {
        ensure!(
            reference.ids == tested.ids
                && reference.model.vocab_size() == tested.model.vocab_size(),
            "{} and {} turn the text into different tokens: only formats of one model can be compared",
            tested.name,
            reference.name
        );
    }
    report(flags, tested, reference.as_mut())
}

fn report(flags: &EvalFlags, mut tested: Scored, mut reference: Option<&mut Scored>) -> Result<()> {
    let ids = std::mem::take(&mut tested.ids);
    let n_first = tested.prefix.len();
    let stride = flags.window - n_first;
    let windows: Vec<&[u32]> = ids
        .chunks_exact(stride)
        .take(flags.max_windows.map_or(usize::MAX, |n| n as usize))
        .collect();
    if windows.is_empty() {
        bail!(
            "--text {} has {} tokens, less than one window of {}: give a longer text or a smaller --window",
            flags.text.display(),
            ids.len(),
            flags.window
        );
    }
    let mut scores = Scores::default();
    let progress = source::bar(windows.len() as u64, "scoring {bar:40} {pos}/{len} windows");
    for window in &windows {
        let tokens: Vec<u32> = tested.prefix.iter().chain(*window).copied().collect();
        score(&tokens, &mut tested, reference.as_deref_mut(), &mut scores);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let report = Report {
        weight_format: tested.format(),
        model: tested.name,
        reference: reference
            .map(|r| Reference { weight_format: r.format(), model: std::mem::take(&mut r.name) }),
        text: flags.text.clone(),
        window: flags.window,
        n_windows: windows.len(),
        summary: scores.summary().context("a window has tokens to score")?,
    };
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// Runs one window through both models, chunk by chunk.
fn score(tokens: &[u32], tested: &mut Scored, mut other: Option<&mut Scored>, out: &mut Scores) {
    let first_scored = tokens.len() / 2;
    // The last token predicts nothing that is known.
    for pos in (0..tokens.len() - 1).step_by(CHUNK) {
        let end = (pos + CHUNK).min(tokens.len() - 1);
        // The row of a token predicts the next one.
        let wanted: Vec<u32> =
            (pos.max(first_scored - 1)..end).map(|row| (row - pos) as u32).collect();
        let vocab = tested.model.vocab_size();
        let logits = tested.pass(&tokens[pos..end], pos, &wanted);
        let reference = other.as_deref_mut().map(|o| o.pass(&tokens[pos..end], pos, &wanted));
        for (i, row) in wanted.iter().enumerate() {
            let row_logits = i * vocab..(i + 1) * vocab;
            let token = tokens[pos + *row as usize + 1];
            let reference = reference.as_ref().map(|logits| &logits[row_logits.clone()]);
            out.take(token, &logits[row_logits], reference);
        }
    }
}

/// A loaded model and the text in its tokens.
struct Scored {
    name: String,
    model: Model,
    /// Tokens that every sequence of this model begins with.
    prefix: Vec<u32>,
    ids: Vec<u32>,
    blocks: Vec<u32>,
}

impl Scored {
    fn load(flags: &ModelFlags, kv: KvChoice, window: usize, text: &str) -> Result<Self> {
        let source = Source::resolve(flags)?;
        let n_blocks = window.div_ceil(KV_BLOCK);
        let options = ModelOptions {
            bits: source::bits(flags),
            kv_type: source::kv_type(kv, source.checkpoint().config()),
            n_blocks,
            n_slots: 1,
            max_rows: CHUNK,
            max_drafts: 0,
            draft: false,
        };
        let tokenizer = Tokenizer::from_json(&source.checkpoint().tokenizer_json()?)?;
        let model = source::load(&source, source::cpu(flags)?, &options)?;
        Ok(Self {
            prefix: tokenizer.prefix_ids().to_vec(),
            ids: tokenizer.encode(text, Markers::Plain)?,
            name: source.name,
            model,
            blocks: (0..n_blocks as u32).collect(),
        })
    }

    fn format(&self) -> String {
        self.model.weight_format().to_string()
    }

    fn pass(&mut self, tokens: &[u32], pos: usize, wanted: &[u32]) -> Vec<f32> {
        let n_rows = tokens.len();
        let span = Span {
            row: 0,
            n_rows,
            pos,
            blocks: &self.blocks,
            slot: 0,
            n_replay: 0,
            n_commit: n_rows,
        };
        self.model.logits(&Batch { tokens, spans: &[span], logit_rows: wanted })
    }
}

fn print(report: &Report) {
    let s = &report.summary;
    println!(
        "{}, weights {}: {} tokens of {} in {} windows of {}\n",
        report.model,
        report.weight_format,
        s.n_tokens,
        report.text.display(),
        report.n_windows,
        report.window
    );
    println!(
        "perplexity        {:10.4}   {:.5} +- {:.5} nats per token",
        s.perplexity, s.nats_per_token, s.standard_error
    );
    let (Some(reference), Some(c)) = (&report.reference, &s.comparison) else { return };
    println!(
        "reference         {:10.4}   {}, weights {}",
        c.reference_perplexity, reference.model, reference.weight_format
    );
    println!(
        "KL divergence     {:10.6}   +- {:.6} nats per token; median {:.6}, 99 % {:.6}, largest {:.6}",
        c.kl_mean, c.kl_standard_error, c.kl_median, c.kl_99, c.kl_max
    );
    println!("top-1 agreement   {:8.2} %", c.top_1_agreement * 100.0);
}
