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

/// Checks that spans have rows, in ascending order and without overlap, inside a batch of `m`.
#[track_caller]
pub(crate) fn check_rows(spans: &[Span<'_>], m: usize) {
    let mut end = 0;
    for span in spans {
        assert!(span.n_rows > 0, "a span without rows: {span:?}");
        assert!(span.row >= end, "a span that overlaps the one before: {span:?}");
        assert!(span.n_commit <= span.n_rows, "more rows committed than there are: {span:?}");
        end = span.row + span.n_rows;
    }
    assert!(end <= m, "spans of {end} rows in a batch of {m}");
}
