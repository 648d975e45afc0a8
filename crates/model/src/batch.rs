//! What one forward pass is asked to do, and the seam between the engine and a model.

pub use kernels::Span;

/// Hidden rows per slot that a model keeps for the draft head at least; the engine never leaves more
/// unconsumed, the rows of a pass included.
pub const CARRY_ROWS: usize = 32;

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
    /// Recurrent-state slot of the sequence: names its carry.
    pub slot: u32,
    /// Block table; must cover `pos + next.len() + depth` positions.
    pub blocks: &'a [u32],
    /// Position of the first catch-up row: the first row of the carry.
    pub pos: usize,
    /// The token after each catch-up row, at least one; the last is the newest committed token.
    pub next: &'a [u32],
    /// How many tokens to draft; 0 only catches up.
    pub depth: usize,
}

/// A model as the engine sees it. It cannot fail: what could go wrong was refused before.
///
/// A model with a draft head keeps a *carry* for each slot: the final hidden rows, at consecutive
/// positions, that the head has not consumed.
/// - `forward` first drops carry rows at or after `span.pos`: they belonged to rejected drafts. What is
///   left ends at `span.pos - 1`, or is empty because a `draft` consumed it.
/// - A span of one row, or one with drafts (`n_commit < n_rows`), appends its rows to the carry.
/// - Any other span is a prefill chunk: its row before `span.pos` (if it has one it is the whole carry)
///   and its own rows but the last know their next token, so the head's KV at `span.pos - 1 ..` is filled
///   at once, and the carry becomes the last row alone.
/// - `draft` consumes the rows from `pos` on that `next` covers, and drops the rest. The rows of all its
///   spans together are no more than a pass may have.
/// - `copy_state` leaves the carry of the target empty: the row would need the token after it, which
///   differs between the sequences that continue a shared prefix. The head's KV at the last position of
///   a shared prefix is therefore that of the sequence which computed it, or nothing of meaning; that
///   changes what is drafted, never what is generated.
pub trait Forward {
    /// Width of a row of logits.
    fn vocab_size(&self) -> usize;

    /// Runs all rows, and hands out the wanted logits one row after another: `take(i, logits)` gets
    /// those of `batch.logit_rows[i]`. Never are all of them in memory at once.
    fn forward(&mut self, batch: &Batch<'_>, take: &mut dyn FnMut(usize, &[f32]));

    /// Runs all rows and returns the wanted logits, `[batch.logit_rows.len(), vocab]`.
    fn logits(&mut self, batch: &Batch<'_>) -> Vec<f32> {
        let mut all = Vec::with_capacity(batch.logit_rows.len() * self.vocab_size());
        self.forward(batch, &mut |_, row| all.extend_from_slice(row));
        all
    }

    /// Runs the draft head: catch-up rows first, then `depth` drafts one after another.
    ///
    /// `pick(span, i, logits)` chooses draft `i` (from 0) of span `span`.
    fn draft(&mut self, spans: &[DraftSpan<'_>], pick: &mut dyn FnMut(usize, usize, &[f32]) -> u32);

    /// Makes slot `to` hold the committed recurrent state of slot `from`, with nothing pending and an
    /// empty carry.
    fn copy_state(&mut self, from: u32, to: u32);

    /// Makes block `to` hold the KV of block `from`, the draft head's included.
    fn copy_block(&mut self, from: u32, to: u32);
}
