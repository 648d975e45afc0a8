//! Commit: a pass becomes final, its tokens go out, and what has ended lets go of everything.

use std::time::Instant;

use telemetry::record::{StepRecord, Totals};

use crate::engine::Engine;
use crate::scheduler::Claim;
use crate::sequence::{Running, Sequence};
use crate::step::copy;
use crate::verify::Verdict;

impl Engine {
    /// Makes the rows of the pass final, hands out the tokens, and lets go of what has ended.
    pub(crate) fn commit(
        &mut self,
        claims: &[Claim],
        verdicts: Vec<Option<Verdict>>,
        record: &mut StepRecord,
    ) {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (claim, verdict) in claims.iter().zip(verdicts) {
            let running = &mut self.scheduler.running[claim.running];
            advance(running, claim, verdict.as_ref().map_or(0, Verdict::n_accepted));
            if claim.keeps_state {
                let model = &mut *self.model;
                self.scheduler.keep_state(claim.running, |what| copy(model, what));
            }
            let running = &mut self.scheduler.running[claim.running];
            let Some(mut verdict) = verdict else { continue };
            if claim.decodes {
                count_round(&mut running.sequence, claim.depth, verdict.n_accepted(), record);
                if claim.depth > 0 && verdict.end.is_none() {
                    let state = &mut running.sequence.depth;
                    self.depth.accepted(state, claim.depth, verdict.n_accepted());
                }
            }
            if !verdict.tokens.is_empty() {
                let (n_tokens, totals) = (verdict.tokens.len(), &mut self.snapshot.totals);
                record.n_generated += n_tokens;
                time_tokens(&mut running.sequence, n_tokens, now, totals);
                let answer = running.sequence.send(std::mem::take(&mut verdict.tokens));
                verdict.end_by_listener(answer);
            }
            ended.extend(verdict.end.map(|end| (claim.running, end)));
        }
        // From the back, so that the indices of the others stay true.
        for (index, end) in ended.into_iter().rev() {
            let sequence = self.scheduler.remove(index);
            self.end(sequence, end);
        }
    }
}

/// Moves a sequence over its known tokens and the accepted drafts. Rejected drafts need no undoing: their
/// KV lies beyond `n_computed`, and their state was never written.
fn advance(running: &mut Running, claim: &Claim, n_accepted: usize) {
    running.n_computed += claim.n_known + n_accepted;
    running.n_replay = n_accepted;
    if claim.n_known > 1 {
        // The draft head has read a prompt chunk along with the model, up to its last row.
        running.carried_from = running.n_computed - 1;
    }
}

/// Counts a decode, with drafts or without.
fn count_round(sequence: &mut Sequence, depth: usize, n_accepted: usize, record: &mut StepRecord) {
    let counts = &mut sequence.speculation;
    counts.n_decode_rounds += 1;
    if depth == 0 {
        return;
    }
    counts.n_verify_rounds += 1;
    counts.n_drafted += depth;
    counts.n_accepted += n_accepted;
    counts.n_accepted_at.resize(depth.max(counts.n_accepted_at.len()), 0);
    counts.n_accepted_at[..n_accepted].iter_mut().for_each(|n| *n += 1);

    record.n_verify_rounds += 1;
    record.n_drafted += depth;
    record.n_accepted += n_accepted;
    record.n_drafted_at[..depth].iter_mut().for_each(|n| *n += 1);
    record.n_accepted_at[..n_accepted].iter_mut().for_each(|n| *n += 1);
}

/// Adds the new tokens of a sequence to the latencies.
fn time_tokens(sequence: &mut Sequence, n_tokens: usize, now: Instant, totals: &mut Totals) {
    let clock = &mut sequence.clock;
    if let Some(last) = clock.last_token.replace(now) {
        totals.itl_s += (now - last).as_secs_f64();
        totals.n_itl += n_tokens as u64;
    } else {
        clock.first_token = Some(now);
        totals.ttft_s += (now - clock.submitted).as_secs_f64();
        totals.n_ttft += 1;
    }
}
