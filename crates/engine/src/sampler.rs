//! Logits to a token.
//!
//! Order: repetition penalty, presence and frequency penalty, logit bias, the `min_tokens` mask; then
//! temperature, top-k, top-p, min-p. Tokens are ranked by logit, of equals the lowest id first; each
//! filter keeps the head of that ranking, so what survives is everything down to one cut. The token is
//! the argmax of `logit / temperature + Gumbel noise` over the survivors, which draws from their softmax.
//! Noise depends on seed, position and token alone, so verifying a draft is comparing two tokens.
//!
//! A vocabulary is large and survivors are few: nothing here sorts a whole row, and noise is computed
//! only for tokens that could still win.

use std::cmp::Ordering;

use thiserror::Error;

use crate::history::History;
use crate::noise::{self, Noise};
use crate::request::{Sampling, TokenOut};

/// Tokens this many nats below the most likely one have no share in a nucleus: all of a large
/// vocabulary together would hold less than the rounding of an f32.
const NUCLEUS_DEPTH: f64 = 32.0;
/// The nucleus is first found to one bucket of probabilities: this many buckets per nat.
const BUCKETS_PER_NAT: f64 = 8.0;
const N_BUCKETS: usize = (NUCLEUS_DEPTH * BUCKETS_PER_NAT) as usize;

/// What decides a draw besides the logits.
pub(crate) struct Draw<'a> {
    pub(crate) sampling: &'a Sampling,
    /// Tokens that would end the answer.
    pub(crate) ends: &'a [u32],
    /// Tokens before this position.
    pub(crate) history: &'a History,
    pub(crate) n_generated: usize,
    /// Index of the token to draw in its sequence.
    pub(crate) position: usize,
}

/// Why no token could be drawn.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum DrawError {
    #[error("the model produced logits that are not numbers")]
    NotANumber,
    #[error("every token is masked, or the largest logit is infinite")]
    NothingLeft,
}

/// Working memory of one engine; a draw leaves nothing behind in it.
pub(crate) struct Sampler {
    /// The row after penalties, bias and mask, `[vocab]`.
    adjusted: Vec<f32>,
    ranked: Vec<Ranked>,
    /// Probability mass by bucket of distance from the largest logit.
    mass: Vec<f64>,
}

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ranked {
    logit: f32,
    id: u32,
}

impl Ranked {
    /// Most likely first, of equals the lowest id first. Logits are numbers here, and both zeros equal.
    fn order(&self, other: &Ranked) -> Ordering {
        let by_logit = other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal);
        by_logit.then(self.id.cmp(&other.id))
    }
}

/// The logits of a row as distances from the largest one, in units of the temperature: at most 0.
struct Scale {
    top: Ranked,
    /// One over the temperature.
    factor: f64,
}

impl Scale {
    fn z(&self, logit: f32) -> f64 {
        (f64::from(logit) - f64::from(self.top.logit)) * self.factor
    }
}

/// What a row keeps when no top-k has made it short.
struct Cut {
    /// The last token of the nucleus; everything ranked after it is out.
    last: Option<Ranked>,
    /// The least distance from the largest logit that min-p keeps.
    z_min: f64,
}

impl Sampler {
    pub(crate) fn new(vocab_size: usize) -> Sampler {
        Sampler {
            adjusted: vec![0.0; vocab_size],
            ranked: Vec::with_capacity(1024),
            mass: vec![0.0; N_BUCKETS + 1],
        }
    }

    /// The token at `draw.position`.
    pub(crate) fn draw(&mut self, logits: &[f32], draw: &Draw<'_>) -> Result<u32, DrawError> {
        let sampling = draw.sampling;
        let masked = draw.n_generated < sampling.min_tokens as usize && !draw.ends.is_empty();
        let row = if masked || !draw.history.is_empty() || !sampling.logit_bias.is_empty() {
            self.adjusted.copy_from_slice(logits);
            adjust(&mut self.adjusted, draw, masked);
            &self.adjusted
        } else {
            logits
        };
        let top = largest(row)?;
        if sampling.temperature == 0.0 || sampling.top_k == 1 {
            return Ok(top.id);
        }
        let scale = Scale { top, factor: 1.0 / f64::from(sampling.temperature) };
        let noise = Noise::new(sampling.seed, draw.position);
        let top_k = sampling.top_k as usize;
        if top_k > 0 && top_k < row.len() {
            rank_head(row, top_k, &mut self.ranked);
            cut_head(&mut self.ranked, &scale, sampling);
            return Ok(argmax_of_head(&self.ranked, &scale, noise));
        }
        let last = (sampling.top_p < 1.0)
            .then(|| nucleus_end(row, &scale, sampling.top_p, &mut self.mass, &mut self.ranked));
        let cut = Cut { last, z_min: z_min(sampling) };
        Ok(argmax_of_row(row, &cut, &scale, noise))
    }

    /// What is reported of a token: the log-softmax of the raw logits, and of the `n_top` best.
    pub(crate) fn report(&mut self, logits: &[f32], id: u32, n_top: Option<u32>) -> TokenOut {
        let Some(n_top) = n_top else {
            return TokenOut { id, logprob: None, top: Vec::new() };
        };
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| f64::from(libm::expf(x - largest))).sum();
        let log_sum = libm::log(sum);
        let logprob = |logit: f32| (f64::from(logit - largest) - log_sum) as f32;
        rank_head(logits, (n_top as usize).min(logits.len()), &mut self.ranked);
        let top = self.ranked.iter().map(|token| (token.id, logprob(token.logit))).collect();
        TokenOut { id, logprob: Some(logprob(logits[id as usize])), top }
    }
}

fn adjust(row: &mut [f32], draw: &Draw<'_>, masked: bool) {
    draw.history.penalise(draw.sampling, row);
    for &(token, bias) in &draw.sampling.logit_bias {
        row[token as usize] += bias;
    }
    if masked {
        for &token in draw.ends {
            // A stop token outside the vocabulary can never be drawn.
            if let Some(logit) = row.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// The most likely token, of equals the lowest id. One pass in lanes that the compiler can vectorise.
fn largest(row: &[f32]) -> Result<Ranked, DrawError> {
    const LANES: usize = 16;
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut not_a_number = [false; LANES];
    let mut visit = |lane: usize, x: f32| {
        best[lane] = if x > best[lane] { x } else { best[lane] };
        not_a_number[lane] |= x.is_nan();
    };
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in chunk.iter().enumerate() {
            visit(lane, x);
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        visit(lane, x);
    }
    if not_a_number.contains(&true) {
        return Err(DrawError::NotANumber);
    }
    let logit = best.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if logit.is_infinite() {
        return Err(DrawError::NothingLeft);
    }
    let id = row.iter().position(|&x| x == logit).expect("the largest value is in the row");
    Ok(Ranked { logit, id: id as u32 })
}

/// Puts the first `n` tokens of the ranking into `head`, in order.
fn rank_head(row: &[f32], n: usize, head: &mut Vec<Ranked>) {
    head.clear();
    if n == 0 {
        return;
    }
    // Ids rise, so a later token with an equal logit ranks behind: only larger ones can enter.
    let mut least = f32::NEG_INFINITY;
    let n_max = (2 * n).max(64);
    for (id, &logit) in row.iter().enumerate() {
        if logit > least || head.len() < n {
            head.push(Ranked { logit, id: id as u32 });
            if head.len() == n_max {
                head.select_nth_unstable_by(n - 1, Ranked::order);
                head.truncate(n);
                least = head[n - 1].logit;
            }
        }
    }
    head.sort_unstable_by(Ranked::order);
    head.truncate(n);
}

/// Top-p and min-p over the ranked survivors of top-k.
fn cut_head(head: &mut Vec<Ranked>, scale: &Scale, sampling: &Sampling) {
    if sampling.top_p < 1.0 {
        let sum: f64 = head.iter().map(|token| libm::exp(scale.z(token.logit))).sum();
        let n_kept = n_reaching(head, scale, f64::from(sampling.top_p) * sum);
        head.truncate(n_kept);
    }
    let z_min = z_min(sampling);
    let n_likely = head.partition_point(|token| scale.z(token.logit) >= z_min);
    head.truncate(n_likely);
}

/// How many ranked tokens it takes until their weights first reach `mass`; all if they never do.
fn n_reaching(ranked: &[Ranked], scale: &Scale, mass: f64) -> usize {
    let mut sum = 0.0;
    for (i, token) in ranked.iter().enumerate() {
        sum += libm::exp(scale.z(token.logit));
        if sum >= mass {
            return i + 1;
        }
    }
    ranked.len()
}

/// The last token of the nucleus of a whole row: finds the bucket of probabilities in which the sum
/// crosses `top_p`, and ranks only that bucket.
fn nucleus_end(
    row: &[f32],
    scale: &Scale,
    top_p: f32,
    mass: &mut [f64],
    ranked: &mut Vec<Ranked>,
) -> Ranked {
    let bucket = |z: f64| (-z * BUCKETS_PER_NAT) as usize;
    mass.fill(0.0);
    for &logit in row {
        let z = scale.z(logit);
        if z >= -NUCLEUS_DEPTH {
            mass[bucket(z)] += f64::from(libm::expf(z as f32));
        }
    }
    let mut missing = f64::from(top_p) * mass.iter().sum::<f64>();
    let crossing = mass.iter().position(|&m| {
        let crosses = m > 0.0 && m >= missing;
        missing -= if crosses { 0.0 } else { m };
        crosses
    });
    // Rounding may leave a crumb missing after the last bucket: then the last filled one is the end.
    let crossing = crossing
        .or_else(|| mass.iter().rposition(|&m| m > 0.0))
        .expect("the largest logit fills a bucket");
    ranked.clear();
    for (id, &logit) in row.iter().enumerate() {
        let z = scale.z(logit);
        if z >= -NUCLEUS_DEPTH && bucket(z) == crossing {
            ranked.push(Ranked { logit, id: id as u32 });
        }
    }
    ranked.sort_unstable_by(Ranked::order);
    ranked[n_reaching(ranked, scale, missing) - 1]
}

/// The least distance from the largest logit that min-p keeps; minus infinity when it is off.
fn z_min(sampling: &Sampling) -> f64 {
    libm::log(f64::from(sampling.min_p))
}

fn argmax_of_head(head: &[Ranked], scale: &Scale, noise: Noise) -> u32 {
    let mut best = (f64::NEG_INFINITY, u32::MAX);
    for token in head {
        let score = scale.z(token.logit) + noise.of(token.id);
        if score > best.0 || (score == best.0 && token.id < best.1) {
            best = (score, token.id);
        }
    }
    best.1
}

/// The same over a whole row. A group of four tokens shares one call of the generator; it is skipped
/// when no noise could lift any of them above the best score so far, and a token's logarithms are
/// skipped when its random word is too small for it.
fn argmax_of_row(row: &[f32], cut: &Cut, scale: &Scale, noise: Noise) -> u32 {
    // Starting from the most likely token makes the bound tight from the first group on.
    let mut best = (noise.of(scale.top.id), scale.top.id);
    for (group, logits) in row.chunks(4).enumerate() {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let z = scale.z(largest);
        if z + noise::GUMBEL_MAX < best.0 || !cut.may_keep(largest, z) {
            continue;
        }
        let words = noise.words(group as u32);
        for (lane, (&logit, word)) in logits.iter().zip(words).enumerate() {
            let token = Ranked { logit, id: (4 * group + lane) as u32 };
            let z = scale.z(logit);
            if z + noise::gumbel_bound(word) < best.0 || !cut.keeps(&token, z) {
                continue;
            }
            let score = z + noise::gumbel(word);
            if score > best.0 || (score == best.0 && token.id < best.1) {
                best = (score, token.id);
            }
        }
    }
    best.1
}

impl Cut {
    /// Whether some token with this logit can survive.
    fn may_keep(&self, logit: f32, z: f64) -> bool {
        z >= self.z_min && self.last.is_none_or(|last| logit >= last.logit)
    }

    fn keeps(&self, token: &Ranked, z: f64) -> bool {
        z >= self.z_min && self.last.is_none_or(|last| token.order(&last).is_le())
    }
}

#[cfg(test)]
#[path = "tests/sampler.rs"]
mod tests;
