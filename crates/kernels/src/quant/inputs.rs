//! Activations in 8 bits.
//!
//! Definition, per row and group of 128 columns: `scale = largest magnitude / 127`, each element
//! `round(x * (127 / largest))`, ties to even. A group without anything above 1e-30 is zero; one
//! with an infinity or NaN has the scale NaN, so that its row says so.

use super::{GROUP, PART};
use crate::cpu::Cpu;
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::memory::{Disjoint, with_scratch};

/// Rows that may be read behind the last one: matrix tiles take 32 at a time.
const SPARE_ROWS: usize = 32;
/// What the largest magnitude of a group has to exceed.
const TINY: f32 = 1e-30;
/// Adding this leaves a number below 2^22 rounded in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// What belongs to one row of a group.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) scale: f32,
    /// Sum of the numbers of the group.
    pub(crate) sum: i32,
    /// Sums of its parts of 32.
    pub(crate) part_sums: [i32; GROUP / PART],
}

/// Quantised rows `[m, k]`, group-major: the rows of a group lie together.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) m: usize,
    /// `[groups][m][128]`, padded with zeros to whole groups, and readable for more rows.
    numbers: &'a [i8],
    /// `[groups][m]`
    heads: &'a [Head],
}

impl Inputs<'_> {
    /// The numbers and heads of a group from a row on: `[m - row][128]` and `[m - row]`.
    pub(crate) fn group(&self, g: usize, row: usize) -> (&[i8], &[Head]) {
        let first = g * self.m + row;
        (&self.numbers[first * GROUP..], &self.heads[first..(g + 1) * self.m])
    }
}

/// 4-byte words that hold the quantised rows.
pub(crate) fn scratch_words(m: usize, k: usize) -> usize {
    let rows = m * k.div_ceil(GROUP);
    (rows + SPARE_ROWS) * GROUP / 4 + rows * size_of::<Head>() / 4
}

impl Cpu {
    /// Calls `f` with the rows of x `[m, k]` quantised.
    pub(crate) fn with_quantised<R>(
        &self,
        x: &[f32],
        k: usize,
        f: impl FnOnce(&Inputs<'_>) -> R,
    ) -> R {
        let m = x.len() / k;
        let n_groups = k.div_ceil(GROUP);
        with_scratch(scratch_words(m, k), |words| {
            let (numbers, heads) = words.split_at_mut((m * n_groups + SPARE_ROWS) * GROUP / 4);
            let numbers: &mut [i8] = bytemuck::cast_slice_mut(numbers);
            let heads: &mut [Head] = bytemuck::cast_slice_mut(heads);
            let (all_numbers, all_heads) = (Disjoint::new(numbers), Disjoint::new(heads));
            self.run_rows(m, 2 * k, &|rows| {
                for row in rows {
                    for (g, x) in x[row * k..(row + 1) * k].chunks(GROUP).enumerate() {
                        let i = g * m + row;
                        // SAFETY: each row belongs to one task.
                        let (numbers, head) = unsafe {
                            (all_numbers.part(i * GROUP..(i + 1) * GROUP), all_heads.part(i..i + 1))
                        };
                        quantise(self.target(), x, numbers, &mut head[0]);
                    }
                }
            });
            f(&Inputs { m, numbers, heads })
        })
    }
}

per_isa!(fn quantise(x: &[f32], numbers: &mut [i8], head: &mut Head) = quantise_on);

#[inline(always)]
fn quantise_on<V: Lanes>(x: &[f32], numbers: &mut [i8], head: &mut Head) {
    let mut padded = [0.0; GROUP];
    padded[..x.len()].copy_from_slice(x);
    let vectors = padded.as_chunks::<LANES>().0;
    let zero = V::splat(0.0);
    let (mut most, mut poison) = (zero, zero);
    for x in vectors {
        let x = V::load(x);
        most = x.max(zero.sub(x)).max(most);
        poison = x.mul_add(zero, poison);
    }
    let most = most.largest();
    let (scale, factor) = if most > TINY { (most / 127.0, 127.0 / most) } else { (0.0, 0.0) };
    // Zero times anything but a finite number is NaN.
    head.scale = scale + poison.sum();
    head.sum = 0;
    let (factor, magic) = (V::splat(factor), V::splat(MAGIC));
    let parts = numbers.chunks_exact_mut(PART).zip(vectors.chunks_exact(PART / LANES));
    for ((numbers, vectors), part_sum) in parts.zip(&mut head.part_sums) {
        *part_sum = 0;
        for (numbers, x) in numbers.as_chunks_mut::<LANES>().0.iter_mut().zip(vectors) {
            let mut rounded = [0.0; LANES];
            V::load(x).mul(factor).add(magic).store(&mut rounded);
            for (number, rounded) in numbers.iter_mut().zip(rounded) {
                *number = rounded.to_bits() as i8;
            }
            *part_sum += numbers.iter().map(|&n| i32::from(n)).sum::<i32>();
        }
        head.sum += *part_sum;
    }
}
