//! The gated delta rule.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::heads::Fused;
use crate::isa::{Target, per_isa};
use crate::lanes::{LANES, Lanes};
use crate::math::{exp, sigmoid, softplus};
use crate::memory::{Disjoint, with_scratch};
use crate::norm::{scaled, sum_of_squares};
use crate::span::{Span, check_rows};
use crate::state_store::{DeltaShape, Stage, StateStore};
use crate::tile::prefetch_slice;

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
#[derive(Clone, Copy)]
struct Row<'a> {
    key: &'a [f32],
    query: &'a [f32],
    value: &'a [f32],
    decay: f32,
    rate: f32,
}

impl Row<'_> {
    fn prefetch(&self) {
        [self.key, self.query, self.value].into_iter().for_each(prefetch_slice);
    }
}

/// Runs some rows of a task through its tile.
///
/// In one pass over the tile, a row changes the state and reads its output from it, and the next
/// row decays the result and asks what it predicts.
#[inline(always)]
fn run_rows<V: Lanes>(task: &Task<'_>, rows: Range<usize>, state: &mut [f32]) {
    let n = task.shape.tile_columns() / LANES;
    let (state, _) = state.as_chunks_mut::<LANES>();
    assert_eq!(state.len(), task.shape.key_dim * n, "the state is not one tile");
    let mut first = 0;
    while first < n {
        first += match (n - first).min(V::STATE_COLUMNS) {
            4 => run_columns::<V, 4>(task, rows.clone(), state, first),
            2 | 3 => run_columns::<V, 2>(task, rows.clone(), state, first),
            _ => run_columns::<V, 1>(task, rows.clone(), state, first),
        };
    }
}

per_isa!(fn run_rows_on(task: &Task<'_>, rows: Range<usize>, state: &mut [f32]) = run_rows);

/// [`run_rows`] for C vectors of columns from vector `first` on; returns C.
#[inline(always)]
fn run_columns<V: Lanes, const C: usize>(
    task: &Task<'_>,
    rows: Range<usize>,
    state: &mut [[f32; LANES]],
    first: usize,
) -> usize {
    let n = task.shape.tile_columns() / LANES;
    let mut row = task.row(rows.start);
    let mut predicted = [V::splat(0.0); C];
    for (cells, &key) in state.chunks_exact_mut(n).zip(row.key) {
        let decayed = decay::<V, C>(load(&cells[first..]), V::splat(row.decay));
        predicted = accumulate(decayed, V::splat(key), predicted);
        store(decayed, &mut cells[first..]);
    }
    for i in rows.clone() {
        let mut change = [V::splat(0.0); C];
        for (c, change) in change.iter_mut().enumerate() {
            let value = load_columns::<V>(row.value, (first + c) * LANES);
            *change = value.sub(predicted[c]).mul(V::splat(row.rate));
        }
        let mut output = [V::splat(0.0); C];
        let inputs = state.chunks_exact_mut(n).zip(row.key.iter().zip(row.query));
        if i + 1 < rows.end {
            let next = task.row(i + 1);
            if i + 2 < rows.end {
                task.row(i + 2).prefetch();
            }
            predicted = [V::splat(0.0); C];
            for ((cells, (&key, &query)), &next_key) in inputs.zip(next.key) {
                let s = accumulate(change, V::splat(key), load::<V, C>(&cells[first..]));
                output = accumulate(s, V::splat(query), output);
                let decayed = decay(s, V::splat(next.decay));
                predicted = accumulate(decayed, V::splat(next_key), predicted);
                store(decayed, &mut cells[first..]);
            }
            row = next;
        } else {
            for (cells, (&key, &query)) in inputs {
                let s = accumulate(change, V::splat(key), load::<V, C>(&cells[first..]));
                output = accumulate(s, V::splat(query), output);
                store(s, &mut cells[first..]);
            }
        }
        // SAFETY: these columns of this row belong to this task, and are written once.
        let out = unsafe { task.output(i) };
        for (c, output) in output.into_iter().enumerate() {
            store_columns(output, out, (first + c) * LANES);
        }
    }
    C
}

#[inline(always)]
fn load<V: Lanes, const C: usize>(cells: &[[f32; LANES]]) -> [V; C] {
    let mut v = [V::splat(0.0); C];
    for (v, cells) in v.iter_mut().zip(&cells[..C]) {
        *v = V::load(cells);
    }
    v
}

#[inline(always)]
fn store<V: Lanes, const C: usize>(v: [V; C], cells: &mut [[f32; LANES]]) {
    for (v, cells) in v.into_iter().zip(&mut cells[..C]) {
        v.store(cells);
    }
}

#[inline(always)]
fn decay<V: Lanes, const C: usize>(mut v: [V; C], factor: V) -> [V; C] {
    for v in &mut v {
        *v = v.mul(factor);
    }
    v
}

/// `v * factor + acc`
#[inline(always)]
fn accumulate<V: Lanes, const C: usize>(v: [V; C], factor: V, mut acc: [V; C]) -> [V; C] {
    for (v, acc) in v.into_iter().zip(&mut acc) {
        *acc = v.mul_add(factor, *acc);
    }
    acc
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

    /// Queries and keys of all heads; decay factors, then rates.
    fn row(&self, row: usize) -> (&'a [f32], &'a [f32], &'a [f32]) {
        let len = Self::row_len(self.shape);
        let (queries, rest) = self.rows[row * len..(row + 1) * len].split_at(self.shape.keys());
        let (keys, gates) = rest.split_at(self.shape.keys());
        (queries, keys, gates)
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
    /// The columns of all values of a row that the tile holds.
    columns: Range<usize>,
    prepared: &'a Prepared<'a>,
    u: &'a [f32],
    cells: &'a Disjoint<'a, f32>,
    /// Where the pending rows of the slot start within `cells`, and what of them is read.
    pending: &'a [usize],
    part: Range<usize>,
    out: &'a Disjoint<'a, f32>,
}

impl Task<'_> {
    /// Row `i` of the replayed rows and those of the span.
    fn row(&self, i: usize) -> Row<'_> {
        let shape = self.shape;
        let key_head = self.head / (shape.n_value_heads / shape.n_key_heads);
        let head = key_head * shape.key_dim..(key_head + 1) * shape.key_dim;
        let (queries, keys, values, gates) = match i.checked_sub(self.span.n_replay) {
            None => {
                let (start, part) = (self.pending[i], &self.part);
                // SAFETY: nobody writes pending rows while the tasks run.
                let row = unsafe { self.cells.read(start + part.start..start + part.end) };
                let (keys, rest) = row.split_at(shape.keys());
                let (values, gates) = rest.split_at(shape.values());
                // The output of a replayed row is known and not computed from its query.
                (keys, keys, values, gates)
            }
            Some(i) => {
                let row = self.span.row + i;
                let (queries, keys, gates) = self.prepared.row(row);
                let u = &self.u[row * shape.channels()..(row + 1) * shape.channels()];
                (queries, keys, &u[2 * shape.keys()..], gates)
            }
        };
        Row {
            key: &keys[head.clone()],
            query: &queries[head],
            value: &values[self.columns.clone()],
            decay: gates[self.head],
            rate: gates[shape.n_value_heads + self.head],
        }
    }

    /// Where the output of row `i` goes; nowhere for a replayed row.
    ///
    /// # Safety
    /// The output of the same row must not be alive.
    #[expect(clippy::mut_from_ref, reason = "the contract excludes aliases")]
    unsafe fn output(&self, i: usize) -> &mut [f32] {
        let Some(i) = i.checked_sub(self.span.n_replay) else { return &mut [] };
        let start = (self.span.row + i) * self.shape.values();
        // SAFETY: these columns of the rows of this span belong to this task.
        unsafe { self.out.part(start + self.columns.start..start + self.columns.end) }
    }

    /// Runs the replayed and the committed rows on `state`, and the drafts on a copy of it.
    fn run(&self, target: Target, state: &mut [f32]) {
        if self.span.pos == 0 {
            state.fill(0.0);
        }
        let n_certain = self.span.n_replay + self.span.n_commit;
        let n_rows = self.span.n_replay + self.span.n_rows;
        if n_certain > 0 {
            run_rows_on(target, self, 0..n_certain, state);
        }
        if n_certain < n_rows {
            with_scratch(state.len(), |copy| {
                copy.copy_from_slice(state);
                run_rows_on(target, self, n_certain..n_rows, copy);
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
        let pending: Vec<_> = spans.iter().map(|span| st.pending(span.slot, layer)).collect();
        let part = st.pending_delta();
        let cells = Disjoint::new(st.cells());
        let out = Disjoint::new(out);
        let (tasks_per_span, width) = (n_heads * shape.n_tiles(), shape.tile_columns());
        let n_rows: usize = spans.iter().map(|span| span.n_replay + span.n_rows).sum();
        let cost = n_rows * 4 * shape.tile_len() / spans.len().max(1);
        self.run(spans.len() * tasks_per_span, cost, &|i| {
            let (span, tile) = (i / tasks_per_span, i % tasks_per_span);
            let (head, first) = (tile / shape.n_tiles(), tile % shape.n_tiles() * width);
            let dim = shape.value_dim;
            let task = Task {
                shape: &shape,
                span: &spans[span],
                head,
                columns: head * dim + first..head * dim + dim.min(first + width),
                prepared: &rows,
                u,
                cells: &cells,
                pending: &pending[span],
                part: part.clone(),
                out: &out,
            };
            let start = starts[span] + layout.state + tile * shape.tile_len();
            // SAFETY: slots are distinct, and each task takes its own tile of one.
            task.run(self.target(), unsafe { cells.part(start..start + shape.tile_len()) });
        });

        for (span, starts) in spans.iter().zip(pending) {
            for (row, start) in (span.row + span.n_commit..span.row + span.n_rows).zip(starts) {
                let pending = &mut st.cells()[start + part.start..start + part.end];
                let (_, keys, gates) = rows.row(row);
                let values = &u[row * channels + 2 * shape.keys()..(row + 1) * channels];
                pending[..keys.len()].copy_from_slice(keys);
                pending[keys.len()..][..values.len()].copy_from_slice(values);
                pending[keys.len() + values.len()..].copy_from_slice(gates);
            }
        }
        st.return_prepared(prepared);
    }
}
