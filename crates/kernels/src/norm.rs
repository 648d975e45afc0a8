//! The norms.
//!
//! Sums over a row use 16 partial sums, lane = index mod 16, then the tree of [`Lanes::sum`].

use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::math::silu;
use crate::memory::Disjoint;

/// Sum of squares of a row.
#[inline(always)]
pub(crate) fn sum_of_squares<V: Lanes>(x: &[f32]) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut acc = V::splat(0.0);
    for chunk in chunks {
        let v = V::load(chunk);
        acc = v.mul_add(v, acc);
    }
    if !tail.is_empty() {
        let v = V::load_tail(tail, 0.0);
        acc = v.mul_add(v, acc);
    }
    acc.sum()
}

/// `(mean(x^2) + eps)^-1/2`.
#[inline(always)]
fn inverse_rms<V: Lanes>(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares::<V>(x) / x.len() as f32 + eps).sqrt()
}

/// `y = x * scale`.
#[inline(always)]
pub(crate) fn scaled<V: Lanes>(x: &[f32], scale: f32, y: &mut [f32]) {
    let scale = V::splat(scale);
    let ((x, x_tail), (y, y_tail)) = (x.as_chunks::<LANES>(), y.as_chunks_mut::<LANES>());
    for (x, y) in x.iter().zip(y) {
        V::load(x).mul(scale).store(y);
    }
    if !x_tail.is_empty() {
        V::load_tail(x_tail, 0.0).mul(scale).store_tail(y_tail);
    }
}

/// `x = x * (mean(x^2) + eps)^-1/2 * w`, one row in place.
#[inline(always)]
pub(crate) fn rms_norm_in_place<V: Lanes>(x: &mut [f32], w: &[f32], eps: f32) {
    let scale = V::splat(inverse_rms::<V>(x, eps));
    let ((x, x_tail), (w, w_tail)) = (x.as_chunks_mut::<LANES>(), w.as_chunks::<LANES>());
    for (x, w) in x.iter_mut().zip(w) {
        V::load(x).mul(scale).mul(V::load(w)).store(x);
    }
    if !x_tail.is_empty() {
        let v = V::load_tail(x_tail, 0.0).mul(scale).mul(V::load_tail(w_tail, 0.0));
        v.store_tail(x_tail);
    }
}

#[inline(always)]
fn rms_norm_rows<V: Lanes>(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    y.copy_from_slice(x);
    for row in y.chunks_exact_mut(w.len()) {
        rms_norm_in_place::<V>(row, w, eps);
    }
}

per_isa!(fn rms_norm_on(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) = rms_norm_rows);

/// `o = norm(o) * w * silu(z)`, one head in place.
#[inline(always)]
fn gated_norm_in_place<V: Lanes>(o: &mut [f32], z: &[f32], w: &[f32], eps: f32) {
    rms_norm_in_place::<V>(o, w, eps);
    let ((o, o_tail), (z, z_tail)) = (o.as_chunks_mut::<LANES>(), z.as_chunks::<LANES>());
    for (o, z) in o.iter_mut().zip(z) {
        V::load(o).mul(silu(V::load(z))).store(o);
    }
    if !o_tail.is_empty() {
        let v = V::load_tail(o_tail, 0.0).mul(silu(V::load_tail(z_tail, 0.0)));
        v.store_tail(o_tail);
    }
}

per_isa!(fn gated_norm_on(o: &mut [f32], z: &[f32], w: &[f32], eps: f32) = gated_norm_in_place);

impl Cpu {
    /// RMS norm of every row of width `w.len()`: `y = x * (mean(x^2) + eps)^-1/2 * w`.
    ///
    /// For zero-centred norms the caller stores `1 + w`.
    ///
    /// # Panics
    /// If `x` is not whole rows or `y` has another size.
    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
        let width = w.len();
        assert_eq!(x.len() % width, 0, "x is not rows of {width}");
        assert_eq!(y.len(), x.len(), "y is not as large as x");
        let y = Disjoint::new(y);
        self.run_rows(x.len() / width, width, &|rows| {
            let range = rows.start * width..rows.end * width;
            // SAFETY: each row belongs to one task.
            let y = unsafe { y.part(range.clone()) };
            rms_norm_on(self.target(), &x[range], w, eps, y);
        });
    }

    /// Gated norm of every value head: `out = o * (mean(o^2) + eps)^-1/2 * w * silu(z)`.
    ///
    /// `o` and `out` are `[m, z.n * z.dim]`, `w` `[z.dim]`; `z` addresses the gate inside `rows`.
    ///
    /// # Panics
    /// If the sizes do not fit together.
    pub fn gated_norm(
        &self,
        o: &[f32],
        rows: &[f32],
        z: Heads,
        w: &[f32],
        eps: f32,
        out: &mut [f32],
    ) {
        let width = z.n * z.dim;
        let m = o.len() / width;
        assert_eq!(o.len(), m * width, "o is not rows of {width}");
        assert_eq!(out.len(), o.len(), "out is not as large as o");
        assert_eq!(w.len(), z.dim, "w is not one head");
        z.check(rows.len(), m);
        let out = Disjoint::new(out);
        self.run_rows(m, 8 * width, &|range| {
            for row in range {
                // SAFETY: each row belongs to one task.
                let out = unsafe { out.part(row * width..(row + 1) * width) };
                out.copy_from_slice(&o[row * width..(row + 1) * width]);
                for (head, out) in out.chunks_exact_mut(z.dim).enumerate() {
                    gated_norm_on(self.target(), out, z.of(rows, row, head), w, eps);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_close, bits, golden, isas};

    #[test]
    fn rms_norm_matches_the_golden_file() {
        let (shape, x) = golden("rms.x");
        let w: Vec<f32> = golden("rms.w").1.iter().map(|w| 1.0 + w).collect();
        let mut y = vec![0.0; x.len()];
        Cpu::new(1, crate::Isa::detect()).rms_norm(&x, &w, 1e-6, &mut y);
        assert_eq!(shape[1], w.len());
        assert_close(&y, &golden("rms.out").1, "rms");
    }

    #[test]
    fn gated_norm_matches_the_golden_file() {
        let ((shape, x), (_, z), (_, w)) =
            (golden("gated.x"), golden("gated.z"), golden("gated.w"));
        let mut y = vec![0.0; x.len()];
        let heads = Heads::dense(1, shape[1]);
        Cpu::new(1, crate::Isa::detect()).gated_norm(&x, &z, heads, &w, 1e-6, &mut y);
        assert_close(&y, &golden("gated.out").1, "gated");
    }

    #[test]
    fn the_bits_depend_on_the_row_alone() {
        let mut random = Random::new(7);
        for width in [1, 15, 16, 33, 1024] {
            let m = 70;
            let (x, w) = (random.normals(m * width), random.normals(width));
            let fused = random.normals(m * (2 * width + 3));
            let z = Heads { offset: 3, row: 2 * width + 3, n: 1, step: width, dim: width };
            let mut expected = Vec::new();
            for row in 0..m {
                let mut y = vec![0.0; 2 * width];
                let (norm, gated) = y.split_at_mut(width);
                let cpu = Cpu::new(1, crate::Isa::Scalar);
                let x = &x[row * width..(row + 1) * width];
                let fused = &fused[row * z.row..(row + 1) * z.row];
                cpu.rms_norm(x, &w, 1e-5, norm);
                cpu.gated_norm(x, fused, z, &w, 1e-5, gated);
                expected.push(bits(&y));
            }
            for isa in isas() {
                for n_threads in 1..=3 {
                    let cpu = Cpu::new(n_threads, isa);
                    let (mut norm, mut gated) = (x.clone(), x.clone());
                    cpu.rms_norm(&x, &w, 1e-5, &mut norm);
                    cpu.gated_norm(&x, &fused, z, &w, 1e-5, &mut gated);
                    for (row, expected) in expected.iter().enumerate() {
                        let range = row * width..(row + 1) * width;
                        assert_eq!(bits(&norm[range.clone()]), expected[..width]);
                        assert_eq!(bits(&gated[range]), expected[width..]);
                    }
                }
            }
        }
    }

    #[test]
    fn heads_inside_fused_rows() {
        let cpu = Cpu::new(1, crate::Isa::Scalar);
        // Two heads of two in rows of seven, two apart.
        let z = Heads { offset: 1, row: 7, n: 2, step: 4, dim: 2 };
        let rows = [9.0, 1.0, 1.0, 9.0, 9.0, -1.0, 2.0];
        let mut out = [0.0; 4];
        cpu.gated_norm(&[1.0, -1.0, 3.0, 3.0], &rows, z, &[1.0, 2.0], 0.0, &mut out);
        let silu = |x: f32| x / (1.0 + (-x).exp());
        let expected = [silu(1.0), -2.0 * silu(1.0), silu(-1.0), 2.0 * silu(2.0)];
        assert_close(&out, &expected, "gated");
    }
}
