//! The causal depthwise convolution in front of the delta rule.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::heads::Fused;
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::math::silu;
use crate::memory::Disjoint;
use crate::span::{Span, check_rows};
use crate::state_store::{Stage, StateStore};
use crate::tile::prefetch_slice;

/// Channels of one task.
const CHANNELS: usize = 512;
/// Most taps a convolution can have.
const MAX_TAPS: usize = 8;

/// The taps of a convolution, `[kernel][channels]`.
pub struct ConvWeight {
    kernel: usize,
    channels: usize,
    taps: Vec<f32>,
}

impl ConvWeight {
    /// From `[channels, kernel]`, the last tap being that of the current row.
    ///
    /// # Panics
    /// If `w` is not whole channels or the kernel has more than 8 taps.
    pub fn new(kernel: usize, w: &[f32]) -> ConvWeight {
        assert!((1..=MAX_TAPS).contains(&kernel), "a kernel of {kernel} taps");
        assert_eq!(w.len() % kernel, 0, "w is not [channels, {kernel}]");
        let channels = w.len() / kernel;
        let taps =
            (0..kernel).flat_map(|tap| (0..channels).map(move |c| w[c * kernel + tap])).collect();
        ConvWeight { kernel, channels, taps }
    }

    /// A tap of some channels.
    pub(crate) fn tap(&self, tap: usize, channels: &Range<usize>) -> &[f32] {
        &self.taps[tap * self.channels..][channels.clone()]
    }
}

/// `out = silu(fold over taps ascending of fma(tap, input, acc))`
#[inline(always)]
fn conv_silu_row<V: Lanes>(taps: &[&[f32]], inputs: &[&[f32]], out: &mut [f32]) {
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for (i, out) in out.iter_mut().enumerate() {
        let mut acc = V::splat(0.0);
        for (tap, input) in taps.iter().zip(inputs) {
            let (tap, input) = (&tap.as_chunks().0[i], &input.as_chunks().0[i]);
            acc = V::load(tap).mul_add(V::load(input), acc);
        }
        silu(acc).store(out);
    }
    if !out_tail.is_empty() {
        let mut acc = V::splat(0.0);
        for (tap, input) in taps.iter().zip(inputs) {
            let (_, tap) = tap.as_chunks::<LANES>();
            let (_, input) = input.as_chunks::<LANES>();
            acc = V::load_tail(tap, 0.0).mul_add(V::load_tail(input, 0.0), acc);
        }
        silu(acc).store_tail(out_tail);
    }
}

per_isa!(fn conv_silu_row_on(taps: &[&[f32]], inputs: &[&[f32]], out: &mut [f32]) = conv_silu_row);

/// Some channels of one span.
struct Task<'a> {
    span: &'a Span<'a>,
    channels: Range<usize>,
    rows: Fused<'a>,
    w: &'a ConvWeight,
    /// Where the history columns and the pending rows start within `cells`.
    history: usize,
    pending: &'a [usize],
    cells: &'a Disjoint<'a, f32>,
}

impl Task<'_> {
    /// The channels of one row of the span.
    fn input(&self, row: usize) -> &[f32] {
        &self.rows.row(self.span.row + row)[self.channels.clone()]
    }

    /// The channels of a column that starts at `start` within the cells.
    #[expect(clippy::mut_from_ref, reason = "the contract excludes aliases")]
    unsafe fn column(&self, start: usize) -> &mut [f32] {
        let range = start + self.channels.start..start + self.channels.end;
        // SAFETY: these channels of this slot belong to this task; the caller keeps its own
        // columns apart.
        unsafe { self.cells.part(range) }
    }

    /// Drops the `n` oldest columns of `history ++ rows`.
    fn shift<'b>(&self, history: &mut [&mut [f32]], n: usize, row: impl Fn(usize) -> &'b [f32]) {
        if n == 0 {
            return;
        }
        for i in 0..history.len() {
            if let Some(after) = (n + i).checked_sub(history.len()) {
                history[i].copy_from_slice(row(after));
            } else {
                let (to, from) = history.split_at_mut(n + i);
                to[i].copy_from_slice(from[0]);
            }
        }
    }

    fn run(&self, cpu: &Cpu, out: &Disjoint<'_, f32>) {
        let (kernel, n_channels) = (self.w.kernel, self.w.channels);
        let mut columns: [&mut [f32]; MAX_TAPS - 1] = Default::default();
        let history = &mut columns[..kernel - 1];
        for (i, column) in history.iter_mut().enumerate() {
            // SAFETY: each column once.
            *column = unsafe { self.column(self.history + i * n_channels) };
            if self.span.pos == 0 {
                column.fill(0.0);
            }
        }
        // SAFETY: a pending row is borrowed for one copy.
        let pending = |i: usize| unsafe { self.column(self.pending[i]) };
        self.shift(history, self.span.n_replay, |i| pending(i));

        let mut taps: [&[f32]; MAX_TAPS] = Default::default();
        for (i, tap) in taps[..kernel].iter_mut().enumerate() {
            *tap = self.w.tap(i, &self.channels);
        }
        for row in 0..self.span.n_rows {
            if row + 1 < self.span.n_rows {
                prefetch_slice(self.input(row + 1));
            }
            let mut inputs: [&[f32]; MAX_TAPS] = Default::default();
            for (tap, input) in inputs[..kernel].iter_mut().enumerate() {
                *input = match (row + tap).checked_sub(kernel - 1) {
                    Some(row) => self.input(row),
                    None => &*history[row + tap],
                };
            }
            let start = (self.span.row + row) * n_channels;
            let range = start + self.channels.start..start + self.channels.end;
            // SAFETY: these channels of the rows of this span belong to this task.
            let out = unsafe { out.part(range) };
            conv_silu_row_on(cpu.target(), &taps[..kernel], &inputs[..kernel], out);
        }

        self.shift(history, self.span.n_commit, |i| self.input(i));
        for row in self.span.n_commit..self.span.n_rows {
            pending(row - self.span.n_commit).copy_from_slice(self.input(row));
        }
    }
}

impl Cpu {
    /// Causal convolution of every channel, then SiLU:
    /// `out[t, c] = silu(sum over j of w[c, j] * x[t - kernel + 1 + j, c])`, the sum being a fold
    /// of fused multiply-adds over j ascending.
    ///
    /// x are the first `channels` elements of each of the fused `rows`; `out` is `[m, channels]`. What precedes a span comes from its slot, after the
    /// accepted pending rows; the slot keeps the inputs of the committed rows, and those of the
    /// drafts as pending rows.
    ///
    /// # Panics
    /// If sizes do not fit together, or a span does not continue its slot.
    pub fn conv_silu(
        &self,
        st: &mut StateStore,
        layer: usize,
        spans: &[Span<'_>],
        rows: Fused<'_>,
        w: &ConvWeight,
        out: &mut [f32],
    ) {
        let m = rows.data.len() / rows.width;
        let shape = *st.shape();
        assert_eq!((w.kernel, w.channels), (shape.conv_kernel, shape.channels()), "{shape:?}");
        rows.check(m);
        assert!(w.channels <= rows.width, "{} channels in rows of {}", w.channels, rows.width);
        assert_eq!(out.len(), m * w.channels, "out is not [{m}, {}]", w.channels);
        check_rows(spans, m);
        st.advance(Stage::Conv, layer, spans);

        let layout = st.layout().clone();
        let starts: Vec<usize> = spans.iter().map(|span| st.start(span.slot, layer)).collect();
        let pending: Vec<_> = spans.iter().map(|span| st.pending(span.slot, layer)).collect();
        let cells = Disjoint::new(st.cells());
        let out = Disjoint::new(out);
        let tasks_per_span = w.channels.div_ceil(CHANNELS);
        let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
        let cost = n_rows * CHANNELS * 8 / spans.len().max(1);
        self.run(spans.len() * tasks_per_span, cost, &|i| {
            let (i, first) = (i / tasks_per_span, i % tasks_per_span * CHANNELS);
            let task = Task {
                span: &spans[i],
                channels: first..w.channels.min(first + CHANNELS),
                rows,
                w,
                history: starts[i] + layout.history,
                pending: &pending[i],
                cells: &cells,
            };
            task.run(self, &out);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::state_store::DeltaShape;
    use crate::testing::{assert_close, golden};

    #[test]
    fn matches_the_golden_file() {
        let ((_, x), (shape, w), (_, state)) =
            (golden("conv.x"), golden("conv.w"), golden("conv.state"));
        let (channels, kernel) = (shape[0], shape[1]);
        let delta = DeltaShape {
            n_layers: 1,
            n_key_heads: 1,
            n_value_heads: 1,
            key_dim: 4,
            value_dim: channels - 8,
            conv_kernel: kernel,
        };
        let cpu = Cpu::new(1, Isa::detect());
        let mut st = StateStore::new(delta, 1, 0);
        let w = ConvWeight::new(kernel, &w);
        let span = |pos, n_rows| Span {
            row: 0,
            n_rows,
            pos,
            blocks: &[],
            slot: 0,
            n_replay: 0,
            n_commit: n_rows,
        };
        // The start state of the file, fed as the rows it stands for.
        let before: Vec<f32> = (0..kernel - 1)
            .flat_map(|i| (0..channels).map(move |c| (i, c)))
            .map(|(i, c)| state[c * (kernel - 1) + i])
            .collect();
        let mut out = vec![0.0; before.len()];
        cpu.conv_silu(
            &mut st,
            0,
            &[span(0, kernel - 1)],
            Fused { data: &before, width: channels },
            &w,
            &mut out,
        );
        assert_eq!(st.conv_state(0, 0), state);
        let mut out = vec![0.0; x.len()];
        let n_rows = x.len() / channels;
        cpu.conv_silu(
            &mut st,
            0,
            &[span(kernel - 1, n_rows)],
            Fused { data: &x, width: channels },
            &w,
            &mut out,
        );
        assert_close(&out, &golden("conv.out").1, "conv");
        assert_eq!(st.conv_state(0, 0), golden("conv.state_out").1);
    }
}
