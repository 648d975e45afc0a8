//! The rows of a fused projection, and where the heads are inside them.

/// The rows of a fused projection, `[m, width]`, of which an operation reads some columns.
#[derive(Clone, Copy, Debug)]
pub struct Fused<'a> {
    /// The elements, row after row.
    pub data: &'a [f32],
    /// Elements of a row.
    pub width: usize,
}

impl<'a> Fused<'a> {
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }

    /// Checks that there are exactly m rows.
    #[track_caller]
    pub(crate) fn check(&self, m: usize) {
        assert_eq!(self.data.len(), m * self.width, "not {m} rows of {}", self.width);
    }
}

/// Addresses heads inside fused rows: element d of head h of row r is at
/// `r * row + offset + h * step + d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// First element of head 0 in a row.
    pub offset: usize,
    /// Elements from one row to the next.
    pub row: usize,
    /// Number of heads.
    pub n: usize,
    /// Elements from one head to the next.
    pub step: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl Heads {
    /// Heads that lie side by side and fill their rows.
    pub fn dense(n: usize, dim: usize) -> Heads {
        Heads { offset: 0, row: n * dim, n, step: dim, dim }
    }

    pub(crate) fn start(&self, row: usize, head: usize) -> usize {
        row * self.row + self.offset + head * self.step
    }

    /// The elements of one head.
    pub(crate) fn of<'a>(&self, rows: &'a [f32], row: usize, head: usize) -> &'a [f32] {
        let start = self.start(row, head);
        &rows[start..start + self.dim]
    }

    /// Checks that the heads lie inside their rows and `len` is `n_rows` whole rows.
    #[track_caller]
    pub(crate) fn check(&self, len: usize, n_rows: usize) {
        let last = self.offset + self.n.saturating_sub(1) * self.step + self.dim;
        assert!(self.n > 0 && last <= self.row && self.dim <= self.step.max(self.row), "{self:?}");
        assert_eq!(len, n_rows * self.row, "not {n_rows} rows of {}", self.row);
    }
}
