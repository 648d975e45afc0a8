//! The gated delta rule.

use crate::cpu::Cpu;
use crate::heads::Fused;
use crate::isa::{Target, per_isa};
use crate::lanes::{LANES, Lanes};
use crate::math::{exp, sigmoid, softplus};
use crate::memory::{Disjoint, with_scratch};
use crate::norm::{scaled, sum_of_squares};
use crate::span::{Span, check_rows};
use crate::state_store::{DeltaShape, Stage, StateStore};

/// Inside the root of the norm of queries and keys, whatever the model's epsilon.
const L2_EPS: f32 = 1e-6;

/// What one layer's delta rule knows beside its inputs.
#[derive(Clone, Debug)]
pub struct DeltaParams {
    /// Where b (one for each value head) begins in a fused row.
    pub b: usize,
    /// Where a begins in a fused row.
    pub a: usize,
    /// `-exp(A_log)`, `[n_value_heads]`.
    pub neg_exp_a_log: Vec<f32>,
    /// `[n_value_heads]`
    pub dt_bias: Vec<f32>,
}

/// The rows that go into the delta rule.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInput<'a> {
    /// `[m, channels]` from [`Cpu::conv_silu`]: all queries, all keys, all values of a row.
    pub u: &'a [f32],
    /// The fused projection, for b and a.
    pub rows: Fused<'a>,
}

/// A row as the recurrence needs it, for one value head and one tile of columns.
struct Row<'a> {
    key: &'a [f32],
    /// Empty where no output is wanted (replay).
    query: &'a [f32],
    value: &'a [f32],
    decay: f32,
    rate: f32,
}

/// One step of the recurrence on a tile `[key_dim][width]`.
#[inline(always)]
fn step<V: Lanes>(state: &mut [f32], width: usize, row: &Row<'_>, out: &mut [f32]) {
    assert_eq!(state.len(), row.key.len() * width, "the state is not [key_dim, {width}]");
    assert!(row.value.len() <= width && out.len() <= width, "more columns than the tile has");
    assert!(out.is_empty() || (out.len(), row.query.len()) == (row.value.len(), row.key.len()));
    let mut column = 0;
    while column < width {
        let n = (width - column) / LANES;
        // SAFETY: as many vectors as the tile still has, or fewer.
        unsafe {
            column += LANES
                * match n.min(V::STATE_COLUMNS) {
                    4 => columns::<V, 4>(state, width, column, row, out),
                    2 | 3 => columns::<V, 2>(state, width, column, row, out),
                    _ => columns::<V, 1>(state, width, column, row, out),
                };
        }
    }
}

/// [`step`] for C vectors of columns from `column` on; returns C.
///
/// # Safety
/// The state is `[key_dim][width]`, and `column + 16 C <= width`.
#[inline(always)]
unsafe fn columns<V: Lanes, const C: usize>(
    state: &mut [f32],
    width: usize,
    column: usize,
    row: &Row<'_>,
    out: &mut [f32],
) -> usize {
    let decay = V::splat(row.decay);
    let mut cells = state[column..].as_mut_ptr();
    let mut predicted = [V::splat(0.0); C];
    for &key in row.key {
        let key = V::splat(key);
        for (c, predicted) in predicted.iter_mut().enumerate() {
            // SAFETY: row and columns inside the tile, by contract.
            let s = V::load(unsafe { &*cells.add(c * LANES).cast() });
            *predicted = s.mul(decay).mul_add(key, *predicted);
        }
        cells = cells.wrapping_add(width);
    }
    let mut change = [V::splat(0.0); C];
    for (c, change) in change.iter_mut().enumerate() {
        let value = load_columns::<V>(row.value, column + c * LANES);
        *change = value.sub(predicted[c]).mul(V::splat(row.rate));
    }
    let mut cells = state[column..].as_mut_ptr();
    let mut output = [V::splat(0.0); C];
    for (i, &key) in row.key.iter().enumerate() {
        let key = V::splat(key);
        let query = V::splat(row.query.get(i).copied().unwrap_or(0.0));
        for c in 0..C {
            // SAFETY: row and columns inside the tile, by contract.
            let cell = unsafe { &mut *cells.add(c * LANES).cast() };
            let s = key.mul_add(change[c], V::load(cell).mul(decay));
            s.store(cell);
            output[c] = s.mul_add(query, output[c]);
        }
        cells = cells.wrapping_add(width);
    }
    for (c, output) in output.into_iter().enumerate() {
        store_columns(output, out, column + c * LANES);
    }
    C
}

/// Elements `first..first + 16`; 0 where there are none.
#[inline(always)]
fn load_columns<V: Lanes>(x: &[f32], first: usize) -> V {
    match x.get(first..).unwrap_or(&[]) {
        x if x.len() >= LANES => V::load(&x.as_chunks().0[0]),
        x => V::load_tail(x, 0.0),
    }
}

/// Stores to elements `first..first + 16`, where they exist.
#[inline(always)]
fn store_columns<V: Lanes>(v: V, out: &mut [f32], first: usize) {
    match out.get_mut(first..).unwrap_or(&mut []) {
        out if out.len() >= LANES => v.store(&mut out.as_chunks_mut().0[0]),
        out => v.store_tail(out),
    }
}

per_isa!(
    fn step_on(state: &mut [f32], width: usize, row: &Row<'_>, out: &mut [f32]) = step
);

/// What the value heads of a row have in common, computed once: normalised queries and keys,
/// decay factors and rates. `[q | k | decay | rate]`
struct Prepared<'a> {
    shape: &'a DeltaShape,
    rows: &'a [f32],
}

impl<'a> Prepared<'a> {
    fn row_len(shape: &DeltaShape) -> usize {
        2 * (shape.keys() + shape.n_value_heads)
    }

    fn row(&self, row: usize) -> &'a [f32] {
        let len = Self::row_len(self.shape);
        &self.rows[row * len..(row + 1) * len]
    }

    fn query(&self, row: usize, key_head: usize) -> &'a [f32] {
        &self.row(row)[key_head * self.shape.key_dim..][..self.shape.key_dim]
    }

    /// Keys of all heads, then decay factors and rates.
    fn keys_and_gates(&self, row: usize) -> &'a [f32] {
        &self.row(row)[self.shape.keys()..]
    }
}

/// Fills one prepared row from a row of u and its b and a.
#[inline(always)]
fn prepare<V: Lanes>(
    shape: &DeltaShape,
    params: &DeltaParams,
    u: &[f32],
    fused: &[f32],
    out: &mut [f32],
) {
    let (queries_keys, gates) = out.split_at_mut(2 * shape.keys());
    let scale = 1.0 / (shape.key_dim as f32).sqrt();
    let heads = queries_keys.chunks_exact_mut(shape.key_dim);
    for (head, (x, y)) in u.chunks_exact(shape.key_dim).zip(heads).enumerate() {
        let norm = 1.0 / (sum_of_squares::<V>(x) + L2_EPS).sqrt();
        let is_query = head < shape.n_key_heads;
        scaled::<V>(x, if is_query { norm * scale } else { norm }, y);
    }
    let n = shape.n_value_heads;
    let (b, a) = (&fused[params.b..params.b + n], &fused[params.a..params.a + n]);
    let (decay, rate) = gates.split_at_mut(n);
    for first in (0..n).step_by(LANES) {
        store_columns(sigmoid(load_columns::<V>(b, first)), rate, first);
        let dt = load_columns::<V>(a, first).add(load_columns(&params.dt_bias, first));
        let g = softplus(dt).mul(load_columns(&params.neg_exp_a_log, first));
        store_columns(exp(g), decay, first);
    }
}

per_isa!(fn prepare_on(
    shape: &DeltaShape,
    params: &DeltaParams,
    u: &[f32],
    fused: &[f32],
    out: &mut [f32],
) = prepare);

/// One tile of the state of one value head of one span.
struct Task<'a> {
    shape: &'a DeltaShape,
    span: &'a Span<'a>,
    head: usize,
    tile: usize,
    prepared: &'a Prepared<'a>,
    u: &'a [f32],
}

impl Task<'_> {
    /// The columns of the head that the tile holds.
    fn columns(&self) -> std::ops::Range<usize> {
        let (width, dim) = (self.shape.tile_columns(), self.shape.value_dim);
        let first = self.head * dim;
        first + self.tile * width..first + dim.min((self.tile + 1) * width)
    }

    /// A row from its keys, values, decay factors and rates of all heads.
    fn row<'b>(&self, keys: &'b [f32], values: &'b [f32], gates: &'b [f32]) -> Row<'b> {
        let shape = self.shape;
        let key_head = self.head / (shape.n_value_heads / shape.n_key_heads);
        Row {
            key: &keys[key_head * shape.key_dim..][..shape.key_dim],
            query: &[],
            value: &values[self.columns()],
            decay: gates[self.head],
            rate: gates[shape.n_value_heads + self.head],
        }
    }

    /// A pending row, as [`StateStore`] lays it out.
    fn pending_row<'b>(&self, pending: &'b [f32]) -> Row<'b> {
        let (keys, rest) = pending.split_at(self.shape.keys());
        let (values, gates) = rest.split_at(self.shape.values());
        self.row(keys, values, gates)
    }

    /// Row `i` of the span.
    fn span_row(&self, i: usize) -> Row<'_> {
        let (shape, row) = (self.shape, self.span.row + i);
        let (keys, gates) = self.prepared.keys_and_gates(row).split_at(shape.keys());
        let u = &self.u[row * shape.channels()..(row + 1) * shape.channels()];
        let key_head = self.head / (shape.n_value_heads / shape.n_key_heads);
        Row {
            query: self.prepared.query(row, key_head),
            ..self.row(keys, &u[2 * shape.keys()..], gates)
        }
    }

    /// Runs the replayed and the committed rows on `state`, and the drafts on a copy of it.
    fn run<'b>(
        &self,
        target: Target,
        state: &mut [f32],
        pending: impl Fn(usize) -> &'b [f32],
        out: &Disjoint<'_, f32>,
    ) {
        let width = self.shape.tile_columns();
        if self.span.pos == 0 {
            state.fill(0.0);
        }
        for i in 0..self.span.n_replay {
            step_on(target, state, width, &self.pending_row(pending(i)), &mut []);
        }
        let output = |i: usize| {
            let start = (self.span.row + i) * self.shape.values();
            let columns = self.columns();
            // SAFETY: these columns of the rows of this span belong to this task.
            unsafe { out.part(start + columns.start..start + columns.end) }
        };
        for i in 0..self.span.n_commit {
            step_on(target, state, width, &self.span_row(i), output(i));
        }
        if self.span.n_commit < self.span.n_rows {
            with_scratch(state.len(), |copy| {
                copy.copy_from_slice(state);
                for i in self.span.n_commit..self.span.n_rows {
                    step_on(target, copy, width, &self.span_row(i), output(i));
                }
            });
        }
    }
}

impl Cpu {
    /// The gated delta rule, row after row, `out` being `[m, n_value_heads * value_dim]`.
    ///
    /// For a value head with state S `[key_dim, value_dim]` and the key head it shares:
    /// ```text
    /// q = l2norm(q) * key_dim^-1/2     k = l2norm(k)     l2norm(x) = x * (sum(x^2) + 1e-6)^-1/2
    /// alpha = exp(neg_exp_a_log * softplus(a + dt_bias))           beta = sigmoid(b)
    /// p = (alpha S)^T k     d = beta (v - p)     S = alpha S + k d^T     o = S^T q
    /// ```
    /// p and o are folds of fused multiply-adds over the rows of S ascending; every column of S
    /// evolves alone.
    ///
    /// The accepted pending rows of the slot come first, then the committed rows of the span;
    /// both change the slot's state. The drafts run on a copy and are kept as pending rows.
    ///
    /// # Panics
    /// If sizes do not fit together, or a span does not continue its slot.
    pub fn delta_rule(
        &self,
        st: &mut StateStore,
        layer: usize,
        spans: &[Span<'_>],
        input: DeltaInput<'_>,
        params: &DeltaParams,
        out: &mut [f32],
    ) {
        let shape = *st.shape();
        let DeltaInput { u, rows } = input;
        let (n_heads, channels) = (shape.n_value_heads, shape.channels());
        let m = u.len() / channels;
        assert_eq!(u.len(), m * channels, "u is not [m, {channels}]");
        rows.check(m);
        assert_eq!(out.len(), m * shape.values(), "out is not [{m}, {}]", shape.values());
        assert!(params.a.max(params.b) + n_heads <= rows.width, "a or b is outside a row");
        assert_eq!(params.neg_exp_a_log.len(), n_heads, "neg_exp_a_log is not one for each head");
        assert_eq!(params.dt_bias.len(), n_heads, "dt_bias is not one for each head");
        check_rows(spans, m);
        st.advance(Stage::Delta, layer, spans);

        let mut prepared = st.take_prepared(m * Prepared::row_len(&shape));
        let row_len = Prepared::row_len(&shape);
        let parts = Disjoint::new(&mut prepared);
        self.run_rows(m, 4 * row_len, &|range| {
            for row in range {
                // SAFETY: each row belongs to one task.
                let out = unsafe { parts.part(row * row_len..(row + 1) * row_len) };
                let u = &u[row * channels..(row + 1) * channels];
                prepare_on(self.target(), &shape, params, u, rows.row(row), out);
            }
        });
        let rows = Prepared { shape: &shape, rows: &prepared };

        let layout = st.layout().clone();
        let starts: Vec<usize> = spans.iter().map(|span| st.start(span.slot, layer)).collect();
        let cells = Disjoint::new(st.cells());
        let out = Disjoint::new(out);
        let tasks_per_span = n_heads * shape.n_tiles();
        let n_rows: usize = spans.iter().map(|span| span.n_replay + span.n_rows).sum();
        let cost = n_rows * 4 * shape.tile_len() / spans.len().max(1);
        self.run(spans.len() * tasks_per_span, cost, &|i| {
            let (i, tile) = (i / tasks_per_span, i % tasks_per_span);
            let task = Task {
                shape: &shape,
                span: &spans[i],
                head: tile / shape.n_tiles(),
                tile: tile % shape.n_tiles(),
                prepared: &rows,
                u,
            };
            let start = starts[i] + layout.state + tile * shape.tile_len();
            // SAFETY: slots are distinct, and each task takes its own tile of one.
            let state = unsafe { cells.part(start..start + shape.tile_len()) };
            let pending = |row| {
                let range = layout.delta_row(&shape, row);
                // SAFETY: nobody writes pending rows while the tasks run.
                unsafe { cells.read(starts[i] + range.start..starts[i] + range.end) }
            };
            task.run(self.target(), state, pending, &out);
        });

        for (span, start) in spans.iter().zip(starts) {
            for (i, row) in (span.row + span.n_commit..span.row + span.n_rows).enumerate() {
                let range = layout.delta_row(&shape, i);
                let pending = &mut st.cells()[start + range.start..start + range.end];
                let (keys, gates) = rows.keys_and_gates(row).split_at(shape.keys());
                let values = &u[row * channels + 2 * shape.keys()..(row + 1) * channels];
                pending[..keys.len()].copy_from_slice(keys);
                pending[keys.len()..][..values.len()].copy_from_slice(values);
                pending[keys.len() + values.len()..].copy_from_slice(gates);
            }
        }
        st.return_prepared(prepared);
    }
}
