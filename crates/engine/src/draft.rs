//! Drafting: what the target would probably draw, guessed by the draft head.
//!
//! Drafts are drawn exactly as the target draws: same noise, same penalties, history up to each draft. The
//! closer the head's logits are to the target's, the more often both draw the same token, at any
//! temperature. Drafts live for the length of a step.

use model::batch::{CARRY_ROWS, DraftSpan, Forward};

use crate::config::EngineConfig;
use crate::sampler::Sampler;
use crate::scheduler::Claim;
use crate::sequence::{Drafter, Running};

/// The drafts of one step; kept between steps for its memory only.
pub(crate) struct Drafts {
    /// The drafts of all claims, one after another in the order of the claims.
    pub(crate) tokens: Vec<u32>,
    /// Hidden rows of a sequence after which the draft head must catch up.
    n_carried_max: usize,
}

impl Drafts {
    /// No drafts. The rows of all sequences must fit into one pass of the draft head together.
    pub(crate) fn new(config: &EngineConfig) -> Drafts {
        // One sequence has more only if its last pass had drafts, and by no more than these.
        let n_rows = config.max_rows() - config.max_drafts;
        let n_carried_max = CARRY_ROWS.min(n_rows / config.max_running);
        Drafts { tokens: Vec::new(), n_carried_max }
    }

    /// Lets the draft head catch up where it must, and drafts for all claims.
    pub(crate) fn draft(
        &mut self,
        model: &mut dyn Forward,
        claims: &[Claim],
        running: &mut [Running],
        sampler: &mut Sampler,
    ) {
        let drafts = &mut self.tokens;
        drafts.clear();
        let (mut spans, mut drafters) = (Vec::new(), Vec::new());
        let mut all = running.iter_mut().enumerate();
        for claim in claims {
            let first = drafts.len();
            drafts.resize(first + claim.depth, 0);
            // Claims are in the order of `running`, so looking ahead finds each in turn.
            let (_, running) =
                all.find(|(i, _)| *i == claim.running).expect("a claim is of one running");
            if claim.depth == 0 && !must_catch_up(claim, running, self.n_carried_max) {
                continue;
            }
            let pos = std::mem::replace(&mut running.carried_from, running.n_computed);
            let (tokens, drafter) = running.sequence.drafter();
            spans.push(DraftSpan {
                slot: running.lease.slot(),
                blocks: running.lease.blocks(),
                pos,
                next: &tokens[pos + 1..=running.n_computed],
                depth: claim.depth,
            });
            drafters.push((first, drafter));
        }
        if spans.is_empty() {
            return;
        }
        model.draft(&spans, &mut |span, i, logits| {
            let (first, drafter) = &mut drafters[span];
            drafts[*first + i] = pick(drafter, i, logits, sampler);
            drafts[*first + i]
        });
        for ((first, mut drafter), span) in drafters.into_iter().zip(&spans) {
            for &token in drafts[first..][..span.depth].iter().rev() {
                drafter.undo(token);
            }
        }
    }
}

fn pick(drafter: &mut Drafter<'_>, i: usize, logits: &[f32], sampler: &mut Sampler) -> u32 {
    // Where the head has no numbers any token will do: the target decides.
    let token = sampler.draw(logits, &drafter.draw(i)).unwrap_or(0);
    drafter.push(token);
    token
}

/// Whether the coming rows would be more than may wait for the draft head, or others are about to share
/// the head's KV of the rows before them. A chunk of more than one row takes one waiting row along.
fn must_catch_up(claim: &Claim, running: &Running, n_carried_max: usize) -> bool {
    let n_carried = running.n_computed - running.carried_from;
    match claim.n_known {
        1 => n_carried >= n_carried_max || (claim.keeps_state && n_carried > 0),
        _ => n_carried > 1,
    }
}
