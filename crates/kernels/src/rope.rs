//! Norms of query and key heads, and their rotation.

use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::memory::{Disjoint, with_scratch};
use crate::norm::rms_norm_in_place;

/// Rotary position embedding of the first `2 * inv_freq.len()` channels of a head: pairs are
/// `(j, j + inv_freq.len())`.
#[derive(Clone, Debug)]
pub struct Rope {
    inv_freq: Vec<f32>,
}

impl Rope {
    /// The frequencies, scaled as the model wants them.
    pub fn new(inv_freq: Vec<f32>) -> Rope {
        Rope { inv_freq }
    }

    /// Number of channels that rotate.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Cosines, then sines, of all frequencies at a position. The angle is one f32 product, as
    /// models were trained with.
    fn table(&self, pos: u32, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.inv_freq.len());
        for (j, &freq) in self.inv_freq.iter().enumerate() {
            (sin[j], cos[j]) = libm::sincosf(pos as f32 * freq);
        }
    }
}

/// A norm's weight and epsilon.
type Norm<'a> = (&'a [f32], f32);

/// Norm, then rotation of one head in place.
#[inline(always)]
fn norm_rope_head<V: Lanes>(x: &mut [f32], norm: Option<Norm<'_>>, table: &[f32]) {
    if let Some((w, eps)) = norm {
        rms_norm_in_place::<V>(x, w, eps);
    }
    let half = table.len() / 2;
    let (cos, sin) = table.split_at(half);
    let (a, b) = x[..2 * half].split_at_mut(half);
    let ((cos, cos_tail), (sin, sin_tail)) = (cos.as_chunks::<LANES>(), sin.as_chunks::<LANES>());
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks_mut::<LANES>(), b.as_chunks_mut::<LANES>());
    for i in 0..a.len() {
        let (x, y) = rotate(V::load(&a[i]), V::load(&b[i]), V::load(&cos[i]), V::load(&sin[i]));
        x.store(&mut a[i]);
        y.store(&mut b[i]);
    }
    if !a_tail.is_empty() {
        let (x, y) = rotate(
            V::load_tail(a_tail, 0.0),
            V::load_tail(b_tail, 0.0),
            V::load_tail(cos_tail, 0.0),
            V::load_tail(sin_tail, 0.0),
        );
        x.store_tail(a_tail);
        y.store_tail(b_tail);
    }
}

/// `(a cos - b sin, b cos + a sin)`
#[inline(always)]
fn rotate<V: Lanes>(a: V, b: V, cos: V, sin: V) -> (V, V) {
    let negated = b.mul(V::splat(-1.0));
    (a.mul_add(cos, negated.mul(sin)), b.mul_add(cos, a.mul(sin)))
}

per_isa!(
    fn norm_rope_on(x: &mut [f32], norm: Option<Norm<'_>>, table: &[f32]) = norm_rope_head
);

impl Cpu {
    /// Norms every head (`norm` is the weight `[heads.dim]`, as [`Cpu::rms_norm`] takes it, and
    /// epsilon) and rotates it to the position of its row, in place. The rest of the fused rows
    /// `x` stays as it is.
    ///
    /// # Panics
    /// If `x` is not one row for each position or the sizes do not fit together.
    pub fn norm_rope(
        &self,
        x: &mut [f32],
        heads: Heads,
        norm: Option<(&[f32], f32)>,
        rope: &Rope,
        pos: &[u32],
    ) {
        heads.check(x.len(), pos.len());
        assert!(rope.rotary_dim() <= heads.dim, "more channels rotate than a head has");
        assert!(norm.is_none_or(|(w, _)| w.len() == heads.dim), "the norm is not one head");
        let row_len = heads.row;
        let x = Disjoint::new(x);
        let cost = 64 * rope.inv_freq.len() + 4 * heads.n * heads.dim;
        self.run_rows(pos.len(), cost, &|range| {
            with_scratch(rope.rotary_dim(), |table| {
                for row in range {
                    rope.table(pos[row], table);
                    // SAFETY: each row belongs to one task.
                    let x = unsafe { x.part(row * row_len..(row + 1) * row_len) };
                    for head in 0..heads.n {
                        let start = heads.start(0, head);
                        let x = &mut x[start..start + heads.dim];
                        norm_rope_on(self.target(), x, norm, table);
                    }
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_close, bits, golden, golden_positions, isas};

    #[test]
    fn matches_the_golden_file() {
        let (shape, mut q) = golden("rope.q");
        let rope = Rope::new(golden("rope.inv_freq").1);
        let pos = golden_positions("rope.pos");
        assert_eq!(pos.iter().max(), Some(&262_143));
        let mut table = vec![0.0; rope.rotary_dim()];
        let (cos, sin) = (golden("rope.cos").1, golden("rope.sin").1);
        let half = rope.inv_freq.len();
        for (i, &pos) in pos.iter().enumerate() {
            rope.table(pos, &mut table);
            assert_close(&table[..half], &cos[i * half..(i + 1) * half], "cos");
            if pos > 0 {
                assert_close(&table[half..], &sin[i * half..(i + 1) * half], "sin");
            }
        }
        let heads = Heads::dense(shape[1], shape[2]);
        Cpu::new(1, crate::Isa::detect()).norm_rope(&mut q, heads, None, &rope, &pos);
        assert_close(&q, &golden("rope.q_out").1, "rope");
    }

    #[test]
    fn the_bits_depend_on_the_row_alone_and_other_columns_stay() {
        let mut random = Random::new(10);
        for (dim, half) in [(8, 2), (32, 16), (256, 32), (40, 20)] {
            let heads = Heads { offset: 5, row: 5 + 3 * 2 * dim, n: 3, step: 2 * dim, dim };
            let m = 40;
            let x = random.normals(m * heads.row);
            let w = random.normals(dim);
            let rope = Rope::new((0..half).map(|j| 0.7f32.powi(j)).collect());
            let pos: Vec<u32> = (0..m as u32).map(|i| i * i).collect();
            let mut expected = x.clone();
            for (row, pos) in expected.chunks_mut(heads.row).zip(&pos) {
                let cpu = Cpu::new(1, crate::Isa::Scalar);
                cpu.norm_rope(row, heads, Some((&w, 1e-6)), &rope, &[*pos]);
            }
            for (i, (&before, &after)) in x.iter().zip(&expected).enumerate() {
                let column = i % heads.row;
                let inside = column >= 5 && (column - 5) % (2 * dim) < dim;
                assert!(inside || before.to_bits() == after.to_bits());
            }
            for isa in isas() {
                for n_threads in 1..=3 {
                    let mut got = x.clone();
                    let cpu = Cpu::new(n_threads, isa);
                    cpu.norm_rope(&mut got, heads, Some((&w, 1e-6)), &rope, &pos);
                    assert_eq!(bits(&got), bits(&expected));
                }
            }
        }
    }

    #[test]
    fn the_norm_comes_before_the_rotation() {
        let cpu = Cpu::new(1, crate::Isa::Scalar);
        let mut x = [3.0, 4.0];
        let heads = Heads::dense(1, 2);
        let rope = Rope::new(vec![std::f32::consts::FRAC_PI_2]);
        cpu.norm_rope(&mut x, heads, Some((&[1.0, 2.0], 0.0)), &rope, &[1]);
        let rms = 12.5f32.sqrt();
        assert_close(&x, &[-8.0 / rms, 3.0 / rms], "quarter turn");
    }
}
