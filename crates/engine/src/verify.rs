//! Which drafts are right: those that the target draws itself.

use crate::request::{FinishReason, TokenOut};
use crate::sampler::Sampler;
use crate::sequence::{End, Sequence};

/// What one pass gave a sequence.
pub(crate) struct Verdict {
    /// The new tokens, already appended: the accepted drafts, then one that the target drew alone. Empty
    /// only if the first row could not be drawn from.
    pub(crate) tokens: Vec<TokenOut>,
    /// How the sequence ends with the last of them, if it does.
    pub(crate) end: Option<End>,
}

/// Draws from one row after another, for as long as the draft after the row is what was drawn.
///
/// `rows` are the logits after the newest token and after each draft, `[1 + drafts.len(), vocab]`. Each
/// draw sees the history up to its row, so the tokens are those of decoding one by one.
pub(crate) fn verify(
    sequence: &mut Sequence,
    drafts: &[u32],
    rows: &[f32],
    sampler: &mut Sampler,
) -> Verdict {
    let mut verdict = Verdict { tokens: Vec::with_capacity(1 + drafts.len()), end: None };
    let vocab_size = rows.len() / (1 + drafts.len());
    let n_top = sequence.sampling.logprobs;
    for (i, row) in rows.chunks_exact(vocab_size).enumerate() {
        let token = match sampler.draw(row, &sequence.next_draw()) {
            Ok(token) => token,
            Err(error) => {
                let position = sequence.tokens.len();
                verdict.end = Some(End::Failed(format!("token {position}: {error}")));
                break;
            }
        };
        verdict.tokens.push(sampler.report(row, token, n_top));
        verdict.end = sequence.push(token).map(End::Finished);
        if verdict.end.is_some() || drafts.get(i) != Some(&token) {
            break;
        }
    }
    verdict
}

impl Verdict {
    /// Drafts that became tokens.
    pub(crate) fn n_accepted(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }

    /// The listener's answer ends the sequence, unless the sequence had ended by itself.
    pub(crate) fn end_by_listener(&mut self, reason: Option<FinishReason>) {
        self.end = self.end.take().or(reason.map(End::Finished));
    }
}
