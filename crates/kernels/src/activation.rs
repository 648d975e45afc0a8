//! Elementwise operations.

use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::math::{sigmoid, silu};
use crate::memory::Disjoint;

#[inline(always)]
fn add_rows<V: Lanes>(x: &mut [f32], y: &[f32]) {
    let ((x, x_tail), (y, y_tail)) = (x.as_chunks_mut::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter_mut().zip(y) {
        V::load(x).add(V::load(y)).store(x);
    }
    for (x, y) in x_tail.iter_mut().zip(y_tail) {
        *x += y;
    }
}

per_isa!(fn add_on(x: &mut [f32], y: &[f32]) = add_rows);

/// `out = silu(gate) * up`
#[inline(always)]
fn swiglu_row<V: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let ((gate, gate_tail), (up, up_tail)) = (gate.as_chunks::<LANES>(), up.as_chunks::<LANES>());
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for ((gate, up), out) in gate.iter().zip(up).zip(out) {
        silu(V::load(gate)).mul(V::load(up)).store(out);
    }
    if !gate_tail.is_empty() {
        let v = silu(V::load_tail(gate_tail, 0.0)).mul(V::load_tail(up_tail, 0.0));
        v.store_tail(out_tail);
    }
}

per_isa!(fn swiglu_on(gate: &[f32], up: &[f32], out: &mut [f32]) = swiglu_row);

/// `out *= sigmoid(gate)`
#[inline(always)]
fn sigmoid_gate_head<V: Lanes>(out: &mut [f32], gate: &[f32]) {
    let ((out, out_tail), (gate, gate_tail)) =
        (out.as_chunks_mut::<LANES>(), gate.as_chunks::<LANES>());
    for (out, gate) in out.iter_mut().zip(gate) {
        V::load(out).mul(sigmoid(V::load(gate))).store(out);
    }
    if !out_tail.is_empty() {
        let v = V::load_tail(out_tail, 0.0).mul(sigmoid(V::load_tail(gate_tail, 0.0)));
        v.store_tail(out_tail);
    }
}

per_isa!(fn sigmoid_gate_on(out: &mut [f32], gate: &[f32]) = sigmoid_gate_head);

impl Cpu {
    /// `x += y`.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "x and y differ in size");
        const PIECE: usize = 64 * LANES;
        let n = x.len();
        let x = Disjoint::new(x);
        self.run_rows(n.div_ceil(PIECE), PIECE, &|pieces| {
            let range = pieces.start * PIECE..n.min(pieces.end * PIECE);
            // SAFETY: each piece belongs to one task.
            add_on(self.target(), unsafe { x.part(range.clone()) }, &y[range]);
        });
    }

    /// `out[m, i] = silu(gate_up[m, i]) * gate_up[m, inner + i]`; `gate_up` is `[m, 2 inner]`,
    /// `out` `[m, inner]`.
    ///
    /// # Panics
    /// If the sizes do not fit together.
    pub fn swiglu(&self, gate_up: &[f32], inner: usize, out: &mut [f32]) {
        let m = out.len() / inner;
        assert_eq!(out.len(), m * inner, "out is not rows of {inner}");
        assert_eq!(gate_up.len(), 2 * out.len(), "gate_up is not [{m}, 2 * {inner}]");
        // Pieces rather than rows, so that a single row is shared too.
        let piece = inner.min(64 * LANES);
        let pieces_per_row = inner.div_ceil(piece);
        let out = Disjoint::new(out);
        self.run_rows(m * pieces_per_row, 8 * piece, &|pieces| {
            for i in pieces {
                let (row, first) = (i / pieces_per_row, i % pieces_per_row * piece);
                let end = inner.min(first + piece);
                let (gate, up) = gate_up[row * 2 * inner..(row + 1) * 2 * inner].split_at(inner);
                // SAFETY: each piece belongs to one task.
                let out = unsafe { out.part(row * inner + first..row * inner + end) };
                swiglu_on(self.target(), &gate[first..end], &up[first..end], out);
            }
        });
    }

    /// `out *= sigmoid(gate)`; `out` is `[m, gate.n * gate.dim]` and `gate` addresses `rows`.
    ///
    /// # Panics
    /// If the sizes do not fit together.
    pub fn sigmoid_gate(&self, out: &mut [f32], rows: &[f32], gate: Heads) {
        let width = gate.n * gate.dim;
        let m = out.len() / width;
        assert_eq!(out.len(), m * width, "out is not rows of {width}");
        gate.check(rows.len(), m);
        let out = Disjoint::new(out);
        self.run_rows(m, 8 * width, &|range| {
            for row in range {
                // SAFETY: each row belongs to one task.
                let out = unsafe { out.part(row * width..(row + 1) * width) };
                for (head, out) in out.chunks_exact_mut(gate.dim).enumerate() {
                    sigmoid_gate_on(self.target(), out, gate.of(rows, row, head));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_close, bits, isas};

    fn sigmoid64(x: f32) -> f64 {
        1.0 / (1.0 + (-f64::from(x)).exp())
    }

    #[test]
    fn swiglu_and_gate_match_f64_and_have_the_same_bits_everywhere() {
        let mut random = Random::new(8);
        for (m, inner) in [(1, 1), (3, 17), (1, 3584), (65, 100)] {
            let x = random.normals(m * 2 * inner);
            let mut expected = vec![0.0; m * inner];
            let mut gated = vec![0.0; m * inner];
            for i in 0..m * inner {
                let (row, column) = (i / inner, i % inner);
                let (gate, up) = (x[row * 2 * inner + column], x[row * 2 * inner + inner + column]);
                expected[i] = (f64::from(gate) * sigmoid64(gate) * f64::from(up)) as f32;
                gated[i] = (f64::from(up) * sigmoid64(gate)) as f32;
            }
            let gate = Heads { offset: 0, row: 2 * inner, n: 1, step: inner, dim: inner };
            let mut first: Option<(Vec<u32>, Vec<u32>)> = None;
            for isa in isas() {
                for n_threads in 1..=3 {
                    let cpu = Cpu::new(n_threads, isa);
                    let mut y = vec![f32::NAN; m * inner];
                    cpu.swiglu(&x, inner, &mut y);
                    assert_close(&y, &expected, "swiglu");
                    let mut g: Vec<f32> =
                        x.chunks(2 * inner).flat_map(|row| row[inner..].to_vec()).collect();
                    cpu.sigmoid_gate(&mut g, &x, gate);
                    assert_close(&g, &gated, "sigmoid gate");
                    let got = (bits(&y), bits(&g));
                    assert_eq!(&got, first.get_or_insert_with(|| got.clone()));
                }
            }
        }
    }

    #[test]
    fn add_adds() {
        let mut random = Random::new(9);
        for n in [0, 5, 16, 5000, 100_000] {
            let (x, y) = (random.normals(n), random.normals(n));
            let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            for isa in isas() {
                let mut got = x.clone();
                Cpu::new(2, isa).add(&mut got, &y);
                assert_eq!(bits(&got), bits(&sum));
            }
        }
    }
}
