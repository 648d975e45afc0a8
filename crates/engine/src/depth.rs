//! How many tokens to draft: as many as make the most tokens per second, measured while running.
//!
//! Two things are measured. Acceptance by draft index, for each sequence, with the one of all sequences of
//! about its temperature as its prior: answers are too short to learn much from one alone, and nothing
//! changes acceptance as much as the temperature does. And time by number of decoding sequences: of a
//! step without its drafting by its rows, of drafting by the passes of the draft head. Times are medians,
//! since a small model's steps are short beside what a busy machine adds to some of them. What was never
//! measured is taken to be as fast as it plausibly can be: either it is not worth a try even then, or it
//! is tried and known.
//!
//! A further draft of a sequence is worth the probability that all drafts up to it are accepted; taking
//! drafts in falling order of worth, the best number is where expected tokens per second peak. The choice
//! can be wrong for a while, but never changes a token.

use telemetry::record::MAX_DEPTH;

use crate::config::{EngineConfig, Speculation};

/// How much of an observed acceptance is left after one more round of the same sequence, and after one
/// more round of any.
const KEEP_SEQUENCE: f64 = 0.98;
const KEEP_ALL: f64 = 0.995;
/// Rounds that the acceptance of all counts for beside that of a sequence, and the first guess beside all.
const PRIOR_ROUNDS: f64 = 15.0;
const GUESS_ROUNDS: f64 = 3.0;
/// Acceptance of the first draft before anything was observed.
const FIRST_GUESS: f64 = 0.8;
/// What a time that was measured only once counts for: what disturbs a step makes it longer, and one that
/// would be the best choice by so little deserves a second try.
const ONCE_SHARE: f64 = 0.85;
/// Every so many steps a measurement is refreshed that the current choice would not make: one draft more
/// than pays, and every fourth time none.
const PROBE_INTERVAL: u64 = 64;
/// Newest times that a median is of.
const N_TIMES: usize = 9;
/// After so many steps without a new time, only the newest of the old ones still count, so few that two
/// new ones outweigh them and a single disturbed one does not.
const STALE_AGE: u64 = 32;
const N_STALE: usize = 2;
/// Temperatures up to these have their acceptance in common; higher ones too.
const TEMPERATURES: [f32; 3] = [0.0, 0.75, 1.25];
/// A time this many steps old is forgotten: a number of rows that once was slow gets another try.
const FORGET_AGE: u64 = 500;

/// Chooses the depth of every decode of a step.
pub(crate) struct DepthPolicy {
    speculation: Speculation,
    /// Most drafts of one step.
    max_drafts: usize,
    /// By kind of temperature.
    all: [Acceptance; TEMPERATURES.len() + 1],
    /// Steps so far: the clock of ages.
    n_steps: u64,
    /// `[decodes]`, by rows: steps without drafting.
    steps: Vec<Costs>,
    /// `[decodes]`, by passes of the draft head: drafting.
    drafting: Vec<Costs>,
}

/// Decayed counts of accepted drafts by their index, among rounds that accepted all drafts before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    n_tried: [f64; MAX_DEPTH],
    n_accepted: [f64; MAX_DEPTH],
}

/// What the policy keeps of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceDepth {
    /// Index into the acceptance of all.
    kind: usize,
    acceptance: Acceptance,
    /// The next round tries one draft more than pays. Kept up as long as these are accepted, so that a
    /// change for the better is learnt within a few rounds.
    probes: bool,
}

impl SequenceDepth {
    pub(crate) fn at(temperature: f32) -> SequenceDepth {
        let kind = TEMPERATURES.iter().filter(|&&t| temperature > t).count();
        SequenceDepth { kind, ..SequenceDepth::default() }
    }
}

/// A sequence that decodes in the coming step.
pub(crate) struct Decode<'a> {
    /// Drafts that could still become tokens.
    pub(crate) depth_max: usize,
    pub(crate) state: &'a mut SequenceDepth,
}

/// One draft that could be made.
struct Draft {
    /// Probability that it is accepted, and with it the tokens it is expected to gain.
    worth: f64,
    /// How many drafts of the same decode come before it.
    index: usize,
    /// Whose it is.
    decode: usize,
}

/// What one step measured.
pub(crate) struct StepTime {
    /// Decoding sequences.
    pub(crate) n_decodes: usize,
    /// Their rows.
    pub(crate) n_rows: usize,
    /// The deepest of their drafts.
    pub(crate) depth: usize,
    /// Time without drafting.
    pub(crate) step_s: f64,
    /// Time of drafting.
    pub(crate) draft_s: f64,
}

impl DepthPolicy {
    pub(crate) fn new(config: &EngineConfig) -> DepthPolicy {
        let EngineConfig { speculation, max_running, max_drafts, .. } = *config;
        let max_depth = speculation.max_depth();
        let all = 0..=max_running;
        DepthPolicy {
            speculation,
            max_drafts,
            all: Default::default(),
            n_steps: 0,
            steps: all.clone().map(|n| Costs::up_to(n * (1 + max_depth))).collect(),
            drafting: all.map(|_| Costs::up_to(max_depth)).collect(),
        }
    }

    /// Whether there is a draft head to use.
    pub(crate) fn is_on(&self) -> bool {
        self.speculation != Speculation::Off
    }

    /// The depth of each decode, in order; how `auto` shares the drafts of a step out follows from what
    /// they are worth, a fixed depth is cut to the same for all.
    pub(crate) fn choose(&mut self, decodes: &mut [Decode<'_>]) -> Vec<usize> {
        match self.speculation {
            Speculation::Off => vec![0; decodes.len()],
            Speculation::Fixed(depth) => {
                let share = (self.max_drafts / decodes.len().max(1)).max(1);
                decodes.iter().map(|d| depth.min(share).min(d.depth_max)).collect()
            }
            Speculation::Auto { max_depth } => self.choose_auto(decodes, max_depth),
        }
    }

    fn choose_auto(&mut self, decodes: &mut [Decode<'_>], max_depth: usize) -> Vec<usize> {
        let mut depths = vec![0; decodes.len()];
        if decodes.is_empty() {
            return depths;
        }
        self.n_steps += 1;
        let probe = self.n_steps.is_multiple_of(PROBE_INTERVAL);
        if probe && self.n_steps.is_multiple_of(4 * PROBE_INTERVAL) {
            return depths;
        }
        let mut drafts = Vec::new();
        for (decode, Decode { depth_max, state }) in decodes.iter().enumerate() {
            let mut worth = 1.0;
            for index in 0..max_depth.min(*depth_max) {
                worth *= self.rate(state, index);
                drafts.push(Draft { worth, index, decode });
            }
        }
        // The worth never rises with the index, so the head of this order is a depth for each decode.
        drafts.sort_by(|a, b| {
            b.worth.total_cmp(&a.worth).then((a.index, a.decode).cmp(&(b.index, b.decode)))
        });
        drafts.truncate(self.max_drafts);
        for draft in &drafts[..self.n_paying(decodes.len(), &drafts)] {
            depths[draft.decode] += 1;
        }
        for (decode, depth) in decodes.iter_mut().zip(&mut depths) {
            decode.state.probes |= probe;
            if decode.state.probes {
                *depth = (*depth + 1).min(max_depth).min(decode.depth_max);
            }
        }
        depths
    }

    /// How many of the drafts, best first, give the most tokens per second.
    fn n_paying(&self, n_decodes: usize, drafts: &[Draft]) -> usize {
        let time_of = |costs: &[Costs], size| costs[n_decodes].of(size, self.n_steps);
        let mut tokens = n_decodes as f64;
        // Before the first step any unit will do, and drafting is free until it was tried.
        let mut step_s = time_of(&self.steps, n_decodes).unwrap_or(1.0);
        let mut best = (tokens / step_s, 0);
        let (mut n_passes, mut draft_s) = (0, 0.0_f64);
        for (n, draft) in drafts.iter().enumerate() {
            tokens += draft.worth;
            // More rows never take less time, whatever a disturbed measurement says: without this, noise
            // would make drafts pay that are never accepted.
            step_s = time_of(&self.steps, n_decodes + n + 1).unwrap_or(step_s).max(step_s);
            if draft.index == n_passes {
                n_passes += 1;
                draft_s = time_of(&self.drafting, n_passes).unwrap_or(draft_s).max(draft_s);
            }
            let tokens_per_s = tokens / (step_s + draft_s);
            if tokens_per_s > best.0 {
                best = (tokens_per_s, n + 1);
            }
        }
        best.1
    }

    /// Probability that draft `i` of a sequence is accepted after all before it were.
    fn rate(&self, sequence: &SequenceDepth, i: usize) -> f64 {
        let all = &self.all[sequence.kind];
        let of_all = (0..=i).fold(FIRST_GUESS, |before, i| all.rate(i, before, GUESS_ROUNDS));
        sequence.acceptance.rate(i, of_all, PRIOR_ROUNDS)
    }

    /// A verify accepted `n_accepted` of `depth` drafts of a sequence that goes on.
    pub(crate) fn accepted(&mut self, state: &mut SequenceDepth, depth: usize, n_accepted: usize) {
        self.all[state.kind].observe(depth, n_accepted, KEEP_ALL);
        state.acceptance.observe(depth, n_accepted, KEEP_SEQUENCE);
        state.probes &= n_accepted == depth;
    }

    /// A step that only decoded took this long.
    pub(crate) fn timed(&mut self, time: &StepTime) {
        self.steps[time.n_decodes].observe(time.n_rows, time.step_s, self.n_steps);
        if time.depth > 0 {
            self.drafting[time.n_decodes].observe(time.depth, time.draft_s, self.n_steps);
        }
    }
}

impl Acceptance {
    fn observe(&mut self, depth: usize, n_accepted: usize, keep: f64) {
        for i in 0..depth.min(n_accepted + 1) {
            self.n_tried[i] = self.n_tried[i] * keep + 1.0;
            self.n_accepted[i] = self.n_accepted[i] * keep + f64::from(u8::from(i < n_accepted));
        }
    }

    fn rate(&self, i: usize, prior: f64, n_prior: f64) -> f64 {
        (self.n_accepted[i] + n_prior * prior) / (self.n_tried[i] + n_prior)
    }
}

/// Times of one thing in several sizes: of a step by its rows, of drafting by its passes.
struct Costs {
    /// By size.
    measured: Vec<Option<Times>>,
}

/// The newest times of one thing.
#[derive(Clone, Copy, Default)]
struct Times {
    /// Oldest first; the first `n` count.
    newest: [f64; N_TIMES],
    n: usize,
    median: f64,
    /// Number of the step that measured it last.
    at: u64,
}

impl Times {
    fn add(&mut self, seconds: f64, at: u64) {
        let n_kept = if at - self.at > STALE_AGE { N_STALE } else { N_TIMES - 1 };
        let n_dropped = self.n.saturating_sub(n_kept);
        self.newest.copy_within(n_dropped..self.n, 0);
        self.n -= n_dropped;
        self.newest[self.n] = seconds;
        self.n += 1;
        let mut sorted = self.newest;
        sorted[..self.n].sort_unstable_by(f64::total_cmp);
        // Of two the smaller one: what disturbs a step makes it longer.
        self.median = sorted[(self.n - 1) / 2];
        self.at = at;
    }
}

impl Costs {
    fn up_to(max_size: usize) -> Costs {
        Costs { measured: vec![None; max_size + 1] }
    }

    /// Expected time of a size, in seconds; none while no size was measured.
    ///
    /// Measured, or the least that its measured neighbours leave plausible: in proportion to the next
    /// larger one, no more than the next smaller one, and between two on a curve that rises late.
    fn of(&self, size: usize, now: u64) -> Option<f64> {
        let at = |n: usize| self.recent(n, now).map(|s| (n as f64, s));
        let below = (0..=size).rev().find_map(at);
        let above = (size..self.measured.len()).find_map(at);
        let n = size as f64;
        Some(match (below, above) {
            (Some((n0, s0)), Some((n1, s1))) if n0 < n1 => {
                let share = (n - n0) / (n1 - n0);
                s0 + (s1 - s0) * share * share
            }
            (Some((_, s)), _) => s,
            (None, Some((n1, s))) => s * n / n1,
            (None, None) => return None,
        })
    }

    /// A time that is not forgotten.
    fn recent(&self, size: usize, now: u64) -> Option<f64> {
        let times = self.measured[size].filter(|times| now - times.at <= FORGET_AGE)?;
        Some(if times.n == 1 { ONCE_SHARE * times.median } else { times.median })
    }

    fn observe(&mut self, size: usize, seconds: f64, now: u64) {
        self.measured[size].get_or_insert_default().add(seconds, now);
    }
}

#[cfg(test)]
#[path = "tests/depth.rs"]
mod tests;
