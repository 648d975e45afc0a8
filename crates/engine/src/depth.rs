//! How many tokens to draft: as many as make the most tokens per second, measured while running.
//!
//! Two things are measured. Acceptance by draft index, of all sequences of about the same temperature:
//! answers are too short to learn it from one alone, and nothing changes acceptance as much as the
//! temperature does. Of one sequence only how much harder than the others it is to guess is kept, a single
//! number, which all its drafts tell about. And time by number of decoding sequences: of a
//! step without its drafting by its rows, of drafting by the passes of the draft head. Times are medians,
//! since a small model's steps are short beside what a busy machine adds to some of them, and relative to
//! the pace of the machine, which changes within seconds where it is shared: what was measured at another
//! pace stays comparable. What is not measured, or only a few times, is taken to be as fast as it
//! plausibly can be: either it is not worth a try even then, or it is tried and known.
//!
//! A further draft of a sequence is worth the probability that all drafts up to it are accepted; taking
//! drafts in falling order of worth, the best number is where expected tokens per second peak. The choice
//! can be wrong for a while, but never changes a token.

use telemetry::record::MAX_DEPTH;

use crate::config::{EngineConfig, Speculation};

/// How much of what was observed is left after one more round of the same sequence, and of any.
const KEEP_SEQUENCE: f64 = 0.97;
const KEEP_ALL: f64 = 0.995;
/// Rejections that it takes to believe that a sequence differs from all, and rounds that the first guess
/// counts for beside all.
const PRIOR_REJECTIONS: f64 = 2.0;
const GUESS_ROUNDS: f64 = 3.0;
/// Acceptance of the first draft before anything was observed.
const FIRST_GUESS: f64 = 0.8;
/// How much less than measured a time may truly be, as a share, where it was measured once; measured `n`
/// times, a root of `n` less. A choice that could be the best is tried again.
const DOUBT: f64 = 0.15;
/// How far the pace of the machine follows one step, and what one step can say about it at most.
const PACE_GAIN: f64 = 0.1;
const PACE_RANGE: (f64, f64) = (0.5, 2.0);
/// Every so many steps a measurement is refreshed that the current choice would not make: one draft more
/// than pays, and every fourth time none.
const PROBE_INTERVAL: u64 = 64;
/// Newest times that a median is of.
const N_TIMES: usize = 25;
/// After so many steps without a new time, only the newest of the old ones still count, so few that two
/// new ones outweigh them and a single disturbed one does not.
const STALE_AGE: u64 = 128;
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
    /// Seconds that the machine now takes for one of the times below. Only ratios of these matter, so it
    /// needs no anchor.
    pace: f64,
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
    /// Decayed count of rounds that rejected a draft, and how many were expected to with the acceptance of
    /// all.
    n_rejected: f64,
    n_expected: f64,
    /// The next round tries one draft more than pays. Kept up as long as these are accepted, so that a
    /// change for the better is learnt within a few rounds.
    probes: bool,
}

impl SequenceDepth {
    pub(crate) fn at(temperature: f32) -> SequenceDepth {
        let kind = TEMPERATURES.iter().filter(|&&t| temperature > t).count();
        SequenceDepth { kind, ..SequenceDepth::default() }
    }

    /// How often drafts of this sequence are rejected, over how often those of all are.
    fn hardness(&self) -> f64 {
        (self.n_rejected + PRIOR_REJECTIONS) / (self.n_expected + PRIOR_REJECTIONS)
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
            pace: 1.0,
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
        (1.0 - sequence.hardness() * (1.0 - self.all[sequence.kind].rate(i))).max(0.0)
    }

    /// A verify accepted `n_accepted` of `depth` drafts of a sequence that goes on.
    pub(crate) fn accepted(&mut self, state: &mut SequenceDepth, depth: usize, n_accepted: usize) {
        let all = &mut self.all[state.kind];
        let n_tried = depth.min(n_accepted + 1);
        let n_expected: f64 = (0..n_tried).map(|i| 1.0 - all.rate(i)).sum();
        let rejected = f64::from(u8::from(n_accepted < depth));
        state.n_expected = state.n_expected * KEEP_SEQUENCE + n_expected;
        state.n_rejected = state.n_rejected * KEEP_SEQUENCE + rejected;
        state.probes &= n_accepted == depth;
        all.observe(n_tried, n_accepted);
    }

    /// A step that only decoded took this long.
    pub(crate) fn timed(&mut self, time: &StepTime) {
        let now = self.n_steps;
        let (steps, drafting) =
            (&mut self.steps[time.n_decodes], &mut self.drafting[time.n_decodes]);
        // Drafting no token takes no time worth keeping.
        let draft_s = if time.depth > 0 { time.draft_s } else { 0.0 };
        let known = |costs: &Costs, size| costs.recent(size, now).map(|times| times.median);
        let expected = match time.depth {
            0 => known(steps, time.n_rows),
            depth => known(steps, time.n_rows).zip(known(drafting, depth)).map(|(a, b)| a + b),
        };
        if let Some(expected) = expected {
            let (least, most) = PACE_RANGE;
            let said = (time.step_s + draft_s) / (expected * self.pace);
            self.pace *= 1.0 + PACE_GAIN * (said.clamp(least, most) - 1.0);
        }
        steps.observe(time.n_rows, time.step_s / self.pace, now);
        if time.depth > 0 {
            drafting.observe(time.depth, draft_s / self.pace, now);
        }
    }
}

impl Acceptance {
    fn observe(&mut self, n_tried: usize, n_accepted: usize) {
        for i in 0..n_tried {
            self.n_tried[i] = self.n_tried[i] * KEEP_ALL + 1.0;
            self.n_accepted[i] =
                self.n_accepted[i] * KEEP_ALL + f64::from(u8::from(i < n_accepted));
        }
    }

    /// Share of the drafts at index `i` that are accepted; where few were tried, about that of the index
    /// before.
    fn rate(&self, i: usize) -> f64 {
        (0..=i).fold(FIRST_GUESS, |before, i| {
            (self.n_accepted[i] + GUESS_ROUNDS * before) / (self.n_tried[i] + GUESS_ROUNDS)
        })
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

    fn least(&self) -> f64 {
        self.median * (1.0 - DOUBT / (self.n as f64).sqrt())
    }
}

impl Costs {
    fn up_to(max_size: usize) -> Costs {
        Costs { measured: vec![None; max_size + 1] }
    }

    /// The least time that a size plausibly takes; none while no size was measured.
    ///
    /// Measured, less a doubt, or the least that its measured neighbours leave plausible: in proportion to the next
    /// larger one, no more than the next smaller one, and between two on a curve that rises late.
    fn of(&self, size: usize, now: u64) -> Option<f64> {
        let at = |n: usize| self.recent(n, now).map(|times| (n as f64, times.least()));
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

    /// Times that are not forgotten.
    fn recent(&self, size: usize, now: u64) -> Option<&Times> {
        self.measured[size].as_ref().filter(|times| now - times.at <= FORGET_AGE)
    }

    fn observe(&mut self, size: usize, seconds: f64, now: u64) {
        self.measured[size].get_or_insert_default().add(seconds, now);
    }
}

#[cfg(test)]
#[path = "tests/depth.rs"]
mod tests;
