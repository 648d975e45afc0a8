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
use crate::sequence::{Running, Sequence};
use crate::verify::Verdict;

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
        let (spans, mut rounds) =
            rounds(&schedule.claims, &mut self.scheduler.running, &self.drafts.tokens);
        let Rows { tokens, logit_rows } = &self.rows;
        let mut sample_s = 0.0;
        let sampler = &mut self.sampler;
        let whose = rows_of(&rounds);
        self.model.forward(&Batch { tokens, spans: &spans, logit_rows }, &mut |row, logits| {
            let sample = Instant::now();
            let (round, i) = whose[row];
            rounds[round].draw(i, logits, sampler);
            sample_s += sample.elapsed().as_secs_f64();
        });
        let verdicts = rounds.into_iter().map(|round| round.verdict).collect();
        record.sample_s = sample_s;
        record.forward_s = forward.elapsed().as_secs_f64() - sample_s;

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

/// One claim while its rows are computed and drawn from.
struct Round<'a> {
    sequence: &'a mut Sequence,
    drafts: &'a [u32],
    /// None where the claim does not reach the newest token.
    verdict: Option<Verdict>,
}

impl Round<'_> {
    fn draw(&mut self, i: usize, logits: &[f32], sampler: &mut Sampler) {
        let verdict = self.verdict.as_mut().expect("logits are asked for where a token is drawn");
        verdict.draw(self.sequence, self.drafts, (i, logits), sampler);
    }
}

/// Where the rows of each claim live, and what is drawn from them.
fn rounds<'a>(
    claims: &[Claim],
    running: &'a mut [Running],
    mut drafts: &'a [u32],
) -> (Vec<Span<'a>>, Vec<Round<'a>>) {
    let mut row = 0;
    let mut all = running.iter_mut().enumerate();
    let round = |claim: &Claim| {
        // Claims are in the order of `running`, so looking ahead finds each in turn.
        let (_, running) =
            all.find(|(i, _)| *i == claim.running).expect("a claim is of one running");
        let verdict = draws(claim, running).then(Verdict::default);
        let Running { sequence, lease, n_computed, n_replay, .. } = running;
        let n_rows = claim.n_known + claim.depth;
        row += n_rows;
        let span = Span {
            row: row - n_rows,
            n_rows,
            pos: *n_computed,
            blocks: lease.blocks(),
            slot: lease.slot(),
            n_replay: *n_replay,
            n_commit: claim.n_known,
        };
        let (mine, others) = drafts.split_at(claim.depth);
        drafts = others;
        (span, Round { sequence, drafts: mine, verdict })
    };
    claims.iter().map(round).unzip()
}

/// Whose each row of logits is: the round, and which of its rows.
fn rows_of(rounds: &[Round<'_>]) -> Vec<(usize, usize)> {
    let drawing = rounds.iter().enumerate().filter(|(_, round)| round.verdict.is_some());
    drawing.flat_map(|(at, round)| (0..=round.drafts.len()).map(move |i| (at, i))).collect()
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
