//! What the engine measures: one record per step, and sums since the start.
//!
//! Plain data without behaviour; rendering (log line, trace, Prometheus) is done elsewhere.
//! Counts are `n_x`, times are seconds (`x_s`).

use serde::Serialize;

/// The deepest draft whose acceptance is counted by position.
pub const MAX_DEPTH: usize = 16;

/// How full the engine is at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Gauges {
    /// Sequences that hold a slot.
    pub n_running: usize,
    /// Requests that wait for a slot or for blocks, preempted ones included.
    pub n_waiting: usize,
    /// KV blocks that running sequences or cached prefixes hold.
    pub n_blocks_used: usize,
    /// KV blocks in the pool.
    pub n_blocks: usize,
    /// Of the used blocks, those that only cached prefixes hold: they can be evicted.
    pub n_blocks_cached: usize,
    /// Recurrent-state slots that running sequences hold.
    pub n_slots_used: usize,
    /// Recurrent-state slots that hold snapshots of cached prefixes.
    pub n_slots_snapshot: usize,
    /// Recurrent-state slots in the pool.
    pub n_slots: usize,
    /// Token positions whose KV running sequences hold.
    pub n_tokens_held: usize,
}

/// One step: schedule, draft, forward, sample, commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepRecord {
    /// Number of the step, from 1.
    pub step: u64,
    /// When the step began, seconds since the Unix epoch.
    pub start_unix_s: f64,
    /// How full the engine was at the end of the step.
    pub gauges: Gauges,
    /// Sequences admitted in this step.
    pub n_admitted: usize,
    /// Sequences preempted in this step: they wait and recompute.
    pub n_preempted: usize,
    /// Sequences with a prefill chunk in this step.
    pub n_prefill_sequences: usize,
    /// Prompt rows computed: tokens of a first pass and of a recomputation after preemption.
    pub n_prefill_rows: usize,
    /// Prompt tokens of the sequences admitted in this step that came from the prefix cache.
    pub n_cached_tokens: usize,
    /// Sequences that decoded, with drafts or without.
    pub n_decode_sequences: usize,
    /// Rows of decoding sequences: one each, and one per draft.
    pub n_decode_rows: usize,
    /// Of the decoding sequences, those that verified at least one draft.
    pub n_verify_rounds: usize,
    /// Drafts verified.
    pub n_drafted: usize,
    /// Drafts accepted. A round emits one token more than it accepts.
    pub n_accepted: usize,
    /// Rounds that verified a draft at index `i`.
    pub n_drafted_at: [u32; MAX_DEPTH],
    /// Rounds that accepted the draft at index `i`.
    pub n_accepted_at: [u32; MAX_DEPTH],
    /// Tokens emitted.
    pub n_generated: usize,
    /// Time in the target's forward pass.
    pub forward_s: f64,
    /// Time in the draft head, drawing drafts included.
    pub draft_s: f64,
    /// Time drawing and verifying tokens.
    pub sample_s: f64,
    /// The rest of the step: scheduling, commit, delivery.
    pub other_s: f64,
}

/// Sums since the start; none of them ever falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Steps.
    pub n_steps: u64,
    /// Requests taken in.
    pub n_requests: u64,
    /// Requests refused because the queue was full.
    pub n_refused: u64,
    /// Requests that ended on an end token, a stop token or a stop string.
    pub n_stop: u64,
    /// Requests that ended on their token limit.
    pub n_length: u64,
    /// Requests whose client left or that were aborted.
    pub n_cancelled: u64,
    /// Requests that failed.
    pub n_failed: u64,
    /// Requests ended by a shutdown.
    pub n_shutdown: u64,
    /// Preemptions.
    pub n_preempted: u64,
    /// Prompt tokens of all requests that were admitted, cached ones included.
    pub n_prompt_tokens: u64,
    /// Of these, tokens that came from the prefix cache.
    pub n_cached_tokens: u64,
    /// Prompt rows computed.
    pub n_prefill_rows: u64,
    /// Rows of decoding sequences.
    pub n_decode_rows: u64,
    /// Decodes: sequences that decoded, summed over steps, with drafts or without.
    pub n_decode_rounds: u64,
    /// Tokens emitted.
    pub n_generated: u64,
    /// Rounds that verified at least one draft.
    pub n_verify_rounds: u64,
    /// Drafts verified.
    pub n_drafted: u64,
    /// Drafts accepted.
    pub n_accepted: u64,
    /// Rounds that verified a draft at index `i`.
    pub n_drafted_at: [u64; MAX_DEPTH],
    /// Rounds that accepted the draft at index `i`.
    pub n_accepted_at: [u64; MAX_DEPTH],
    /// Time in the target's forward pass.
    pub forward_s: f64,
    /// Time in the draft head.
    pub draft_s: f64,
    /// Time drawing and verifying tokens.
    pub sample_s: f64,
    /// Time in the rest of the steps.
    pub other_s: f64,
    /// Of all this, the steps that decoded and computed no prompt.
    pub decode: DecodeSums,
    /// Sum of the waits from submission to the first scheduled row.
    pub queue_wait_s: f64,
    /// Number of these waits.
    pub n_queue_waits: u64,
    /// Sum of the times from submission to the first token.
    pub ttft_s: f64,
    /// Number of first tokens.
    pub n_ttft: u64,
    /// Sum of the times between one token of a request and its next.
    pub itl_s: f64,
    /// Number of these intervals, one per token after the first.
    pub n_itl: u64,
}

/// Steps in which sequences decoded and no prompt was computed: how fast decoding is, and where its time goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DecodeSums {
    /// Such steps.
    pub n_steps: u64,
    /// Sequences that decoded, summed over them.
    pub n_rounds: u64,
    /// Drafts verified in them.
    pub n_drafted: u64,
    /// Drafts accepted in them.
    pub n_accepted: u64,
    /// Time in the target's forward pass: with drafts, the verify pass.
    pub forward_s: f64,
    /// Time in the draft head.
    pub draft_s: f64,
    /// Time drawing and verifying tokens.
    pub sample_s: f64,
    /// The rest of the steps.
    pub other_s: f64,
}

impl DecodeSums {
    fn add(&mut self, step: &StepRecord) {
        self.n_steps += 1;
        self.n_rounds += step.n_decode_sequences as u64;
        self.n_drafted += step.n_drafted as u64;
        self.n_accepted += step.n_accepted as u64;
        self.forward_s += step.forward_s;
        self.draft_s += step.draft_s;
        self.sample_s += step.sample_s;
        self.other_s += step.other_s;
    }
}

/// What the engine shows of itself: readable at any time without waiting for a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// How full it is.
    pub gauges: Gauges,
    /// What it has done.
    pub totals: Totals,
    /// The draft depth of the last step that decoded: the deepest of its sequences.
    pub depth: usize,
}

impl Totals {
    /// Adds one step.
    pub fn add(&mut self, step: &StepRecord) {
        self.n_steps += 1;
        self.n_preempted += step.n_preempted as u64;
        self.n_cached_tokens += step.n_cached_tokens as u64;
        self.n_prefill_rows += step.n_prefill_rows as u64;
        self.n_decode_rows += step.n_decode_rows as u64;
        self.n_decode_rounds += step.n_decode_sequences as u64;
        self.n_generated += step.n_generated as u64;
        self.n_verify_rounds += step.n_verify_rounds as u64;
        self.n_drafted += step.n_drafted as u64;
        self.n_accepted += step.n_accepted as u64;
        for i in 0..MAX_DEPTH {
            self.n_drafted_at[i] += u64::from(step.n_drafted_at[i]);
            self.n_accepted_at[i] += u64::from(step.n_accepted_at[i]);
        }
        self.forward_s += step.forward_s;
        self.draft_s += step.draft_s;
        self.sample_s += step.sample_s;
        self.other_s += step.other_s;
        if step.n_decode_sequences > 0 && step.n_prefill_rows == 0 {
            self.decode.add(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_with_a_prompt_says_nothing_about_decoding() {
        let mut totals = Totals::default();
        let decode = StepRecord {
            n_decode_sequences: 2,
            n_drafted: 6,
            n_accepted: 3,
            forward_s: 0.05,
            draft_s: 0.01,
            ..StepRecord::default()
        };
        totals.add(&decode);
        totals.add(&StepRecord { n_prefill_rows: 100, forward_s: 1.0, ..decode });
        totals.add(&StepRecord { n_prefill_rows: 100, ..StepRecord::default() });
        assert_eq!((totals.n_steps, totals.n_decode_rounds, totals.forward_s), (3, 4, 1.05));
        let sums = totals.decode;
        assert_eq!((sums.n_steps, sums.n_rounds, sums.n_accepted), (1, 2, 3));
        assert_eq!((sums.forward_s, sums.draft_s), (0.05, 0.01));
    }
}
