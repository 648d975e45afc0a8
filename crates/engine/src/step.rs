//! One step, from claims to events.
//!
//! Schedule, draft, forward, verify, commit: a chunk of a prompt, a plain decode and a verify are the
//! same walk with other numbers of rows. Nothing a step guesses outlives it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cache::CopyOf;
use model::batch::{Batch, Forward, Span};
use telemetry::record::StepRecord;

use crate::depth::{Decode, StepTime};
use crate::engine::Engine;
use crate::sampler::Sampler;
use crate::scheduler::Claim;
use crate::sequence::Running;
use crate::verify::{Verdict, verify};

/// The rows of a batch; kept between steps for their memory only.
#[derive(Default)]
pub(crate) struct Rows {
    tokens: Vec<u32>,
    logit_rows: Vec<u32>,
}

impl Engine {
    /// Runs one step. There must be a sequence that can run.
    pub(crate) fn step(&mut self) {
        let started = Instant::now();
        let start_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut record = StepRecord {
            step: self.snapshot.totals.n_steps + 1,
            start_unix_s: start_unix_s.as_secs_f64(),
            ..StepRecord::default()
        };

        let depths = self.depth.choose(&mut decodes(&mut self.scheduler.running));
        let schedule = self.scheduler.schedule(&depths, &mut |what| copy(&mut *self.model, what));
        assert!(!schedule.claims.is_empty(), "nothing can run, and nothing will ever change that");
        record.n_admitted = schedule.n_admitted;
        record.n_preempted = schedule.n_preempted;
        record.n_cached_tokens = schedule.n_cached_tokens;
        self.stamp_scheduled(&schedule.claims, started);
        count_rows(&schedule.claims, &mut record);

        let drafting = Instant::now();
        if self.depth.is_on() {
            let running = &mut self.scheduler.running;
            self.drafts.draft(&mut *self.model, &schedule.claims, running, &mut self.sampler);
        }
        record.draft_s = drafting.elapsed().as_secs_f64();

        let forward = Instant::now();
        self.rows.fill(&schedule.claims, &self.scheduler.running, &self.drafts.tokens);
        let batch = Batch {
            tokens: &self.rows.tokens,
            spans: &spans(&schedule.claims, &self.scheduler.running),
            logit_rows: &self.rows.logit_rows,
        };
        let logits = self.model.forward(&batch);
        record.forward_s = forward.elapsed().as_secs_f64();

        let sample = Instant::now();
        let (running, drafts) = (&mut self.scheduler.running, &self.drafts.tokens);
        let verdicts = judge(&schedule.claims, running, drafts, logits, &mut self.sampler);
        record.sample_s = sample.elapsed().as_secs_f64();

        self.commit(&schedule.claims, verdicts, &mut record);
        let total_s = started.elapsed().as_secs_f64();
        record.other_s = total_s - record.forward_s - record.draft_s - record.sample_s;
        if record.n_prefill_sequences == 0 {
            self.depth.timed(&StepTime {
                n_decodes: record.n_decode_sequences,
                n_rows: record.n_decode_rows,
                depth: schedule.claims.iter().map(|claim| claim.depth).max().unwrap_or(0),
                step_s: total_s - record.draft_s,
                draft_s: record.draft_s,
            });
        }
        self.measured(record);
    }

    /// Waits end with the first scheduled row.
    fn stamp_scheduled(&mut self, claims: &[Claim], now: Instant) {
        let totals = &mut self.snapshot.totals;
        for claim in claims {
            let sequence = &mut self.scheduler.running[claim.running].sequence;
            if sequence.clock.first_scheduled.is_none() {
                sequence.clock.first_scheduled = Some(now);
                totals.queue_wait_s += (now - sequence.clock.submitted).as_secs_f64();
                totals.n_queue_waits += 1;
                totals.n_prompt_tokens += sequence.n_prompt as u64;
            }
        }
    }
}

/// Lets the model copy what the cache asks for.
pub(crate) fn copy(model: &mut dyn Forward, what: CopyOf) {
    match what {
        CopyOf::State { from, to } => model.copy_state(from, to),
        CopyOf::Block { from, to } => model.copy_block(from, to),
    }
}

/// The sequences that decode, as the choice of depths sees them.
fn decodes(running: &mut [Running]) -> Vec<Decode<'_>> {
    let decoding = running.iter_mut().filter(|r| r.is_decoding());
    decoding
        .map(|Running { sequence, .. }| Decode {
            depth_max: sequence.n_remaining() - 1,
            state: &mut sequence.depth,
        })
        .collect()
}

impl Rows {
    /// Lays out the tokens of all claims, and asks for logits where a token is to be drawn.
    fn fill(&mut self, claims: &[Claim], running: &[Running], mut drafts: &[u32]) {
        self.tokens.clear();
        self.logit_rows.clear();
        for claim in claims {
            let Running { sequence, n_computed, .. } = &running[claim.running];
            let known = &sequence.tokens[*n_computed..][..claim.n_known];
            self.tokens.extend_from_slice(known);
            let (mine, others) = drafts.split_at(claim.depth);
            self.tokens.extend_from_slice(mine);
            drafts = others;
            if draws(claim, &running[claim.running]) {
                let end = self.tokens.len();
                self.logit_rows.extend((end - claim.depth - 1..end).map(|row| row as u32));
            }
        }
    }
}

/// Whether the claim reaches the newest token, so that the next one is drawn.
fn draws(claim: &Claim, running: &Running) -> bool {
    running.n_computed + claim.n_known == running.sequence.tokens.len()
}

/// Where the rows of each claim live.
fn spans<'a>(claims: &[Claim], running: &'a [Running]) -> Vec<Span<'a>> {
    let mut row = 0;
    let span = |claim: &Claim| {
        let Running { lease, n_computed, n_replay, .. } = &running[claim.running];
        let n_rows = claim.n_known + claim.depth;
        row += n_rows;
        Span {
            row: row - n_rows,
            n_rows,
            pos: *n_computed,
            blocks: lease.blocks(),
            slot: lease.slot(),
            n_replay: *n_replay,
            n_commit: claim.n_known,
        }
    };
    claims.iter().map(span).collect()
}

/// Draws the tokens of every claim that reaches its newest token; `None` for the others.
fn judge(
    claims: &[Claim],
    running: &mut [Running],
    drafts: &[u32],
    logits: &[f32],
    sampler: &mut Sampler,
) -> Vec<Option<Verdict>> {
    let (mut drafts, mut logits) = (drafts, logits);
    let judge_one = |claim: &Claim| {
        let (mine, others) = drafts.split_at(claim.depth);
        drafts = others;
        let running = &mut running[claim.running];
        draws(claim, running).then(|| {
            let (rows, others) = logits.split_at((1 + claim.depth) * sampler.vocab_size());
            logits = others;
            verify(&mut running.sequence, mine, rows, sampler)
        })
    };
    claims.iter().map(judge_one).collect()
}

/// Counts the rows of a step by kind.
fn count_rows(claims: &[Claim], record: &mut StepRecord) {
    for claim in claims {
        if claim.decodes {
            record.n_decode_sequences += 1;
            record.n_decode_rows += 1 + claim.depth;
        } else {
            record.n_prefill_sequences += 1;
            record.n_prefill_rows += claim.n_known;
        }
    }
}
