//! The rows of one sequence inside a batch.

/// The rows of one sequence inside a batch, and where its KV and recurrent state live.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// First row in the batch.
    pub row: usize,
    /// Number of rows, at least one.
    pub n_rows: usize,
    /// Absolute position of the first row.
    pub pos: usize,
    /// Block table: position `p` lives in block `blocks[p / 64]` at offset `p % 64`.
    pub blocks: &'a [u32],
    /// Recurrent-state slot.
    pub slot: u32,
    /// Pending rows of the previous pass that were accepted; they are committed first.
    pub n_replay: usize,
    /// Leading rows that are certain: their state is written. The rest are drafts, kept as pending.
    pub n_commit: usize,
}
