//! What one forward pass is asked to do, and the seam between the engine and a model.

pub use kernels::Span;

/// The rows of one forward pass: prefill chunks, decodes and verifies of many sequences, flat.
pub struct Batch<'a> {
    /// Input token of every row.
    pub tokens: &'a [u32],
    /// Which rows belong to which sequence; spans tile `tokens` in order and never overlap.
    pub spans: &'a [Span<'a>],
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: &'a [u32],
}

/// What the draft head is asked to do for one sequence.
pub struct DraftSpan<'a> {
    /// Recurrent-state slot of the sequence: names its unconsumed hidden rows.
    pub slot: u32,
    /// Block table; must cover `pos + next.len() + depth` positions.
    pub blocks: &'a [u32],
    /// Position of the first catch-up row.
    pub pos: usize,
    /// The token after each catch-up row, at least one; the last is the newest committed token.
    pub next: &'a [u32],
    /// How many tokens to draft; 0 only catches up.
    pub depth: usize,
}

/// A model as the engine sees it. It cannot fail: what could go wrong was refused before.
pub trait Forward {
    /// Width of a row of logits.
    fn vocab_size(&self) -> usize;

    /// Runs all rows and returns the wanted logits, `[batch.logit_rows.len(), vocab]`.
    fn forward(&mut self, batch: &Batch<'_>) -> &[f32];

    /// Runs the draft head: catch-up rows first, then `depth` drafts one after another.
    ///
    /// `pick(span, i, logits)` chooses draft `i` (from 0) of span `span`.
    fn draft(
        &mut self,
        spans: &[DraftSpan<'_>],
        pick: &mut dyn FnMut(usize, usize, &[f32]) -> u32,
    );
}
