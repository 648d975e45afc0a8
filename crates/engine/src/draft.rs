//! Drafting: what the target would probably draw, guessed by the draft head.
//!
//! Drafts are drawn exactly as the target draws: same noise, same penalties, history up to each draft. The
//! closer the head's logits are to the target's, the more often both draw the same token, at any
//! temperature. Drafts live in one buffer for the length of a step.

use model::batch::{CARRY_ROWS, DraftSpan, Forward};

use crate::sampler::Sampler;
use crate::scheduler::Claim;
use crate::sequence::{Drafter, Running};

/// Lets the draft head catch up where it must, and fills `drafts` with the drafts of all claims, one
/// after another in the order of the claims.
pub(crate) fn draft(
    model: &mut dyn Forward,
    claims: &[Claim],
    running: &mut [Running],
    sampler: &mut Sampler,
    drafts: &mut Vec<u32>,
) {
    drafts.clear();
    let (mut spans, mut drafters) = (Vec::new(), Vec::new());
    let mut all = running.iter_mut().enumerate();
    for claim in claims {
        let first = drafts.len();
        drafts.resize(first + claim.depth, 0);
        // Claims are in the order of `running`, so looking ahead finds each in turn.
        let (_, running) =
            all.find(|(i, _)| *i == claim.running).expect("a claim is of one running");
        if claim.depth == 0 && !must_catch_up(claim, running) {
            continue;
        }
        let pos = std::mem::replace(&mut running.carried_from, running.n_computed);
        let (tokens, drafter) = running.sequence.drafter();
        spans.push(DraftSpan {
            slot: running.lease.slot(),
            blocks: running.lease.blocks(),
            pos,
            next: &tokens[pos + 1..],
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

fn pick(drafter: &mut Drafter<'_>, i: usize, logits: &[f32], sampler: &mut Sampler) -> u32 {
    // Where the head has no numbers any token will do: the target decides.
    let token = sampler.draw(logits, &drafter.draw(i)).unwrap_or(0);
    drafter.push(token);
    token
}

/// Whether the coming row would be one more than the model keeps for the draft head, or others are about
/// to share the head's KV of the rows before it.
fn must_catch_up(claim: &Claim, running: &Running) -> bool {
    let n_carried = running.n_computed - running.carried_from;
    n_carried >= CARRY_ROWS || (claim.decodes && claim.keeps_state && n_carried > 0)
}
