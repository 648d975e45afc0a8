//! Which drafts are right: those that the target draws itself.

use crate::request::{FinishReason, TokenOut};
use crate::sampler::Sampler;
use crate::sequence::{End, Sequence};

/// What one pass gave a sequence.
#[derive(Default)]
pub(crate) struct Verdict {
    /// The new tokens, already appended: the accepted drafts, then one that the target drew alone. Empty
    /// only if the first row could not be drawn from.
    pub(crate) tokens: Vec<TokenOut>,
    /// How the sequence ends with the last of them, if it does.
    pub(crate) end: Option<End>,
}

impl Verdict {
    /// Draws from the next row, for as long as the draft before the row is what was drawn. The rows are
    /// the logits after the newest token and after each of `drafts`.
    ///
    /// Each draw sees the history up to its row, so the tokens are those of decoding one by one.
    pub(crate) fn draw(
        &mut self,
        sequence: &mut Sequence,
        drafts: &[u32],
        row: (usize, &[f32]),
        sampler: &mut Sampler,
    ) {
        let (i, logits) = row;
        let is_right =
            |drawn: &TokenOut| self.end.is_none() && drafts.get(i - 1) == Some(&drawn.id);
        if i > 0 && !(self.tokens.len() == i && self.tokens.last().is_some_and(is_right)) {
            return;
        }
        let token = match sampler.draw(logits, &sequence.next_draw()) {
            Ok(token) => token,
            Err(error) => {
                let position = sequence.tokens.len();
                self.end = Some(End::Failed(format!("token {position}: {error}")));
                return;
            }
        };
        self.tokens.push(sampler.report(logits, token, sequence.sampling.logprobs));
        self.end = sequence.push(token).map(End::Finished);
    }

    /// Drafts that became tokens.
    pub(crate) fn n_accepted(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }

    /// The listener's answer ends the sequence, unless the sequence had ended by itself.
    pub(crate) fn end_by_listener(&mut self, reason: Option<FinishReason>) {
        self.end = self.end.take().or(reason.map(End::Finished));
    }
}
