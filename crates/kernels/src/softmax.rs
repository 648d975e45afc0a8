//! The running softmax of attention: block after block, and part after part.

use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::math::exp;
use crate::tile::TILE;

/// The running softmax of one query head.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Softmax {
    /// Largest score so far.
    pub(crate) max: f32,
    /// Sum of `exp(score - max)`.
    pub(crate) sum: f32,
}

impl Softmax {
    /// Of no scores at all.
    pub(crate) const EMPTY: Softmax = Softmax { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// One block of the online softmax of one query head. In: the products of the query with the
/// 64 keys, of which `n_valid` count. Out: their weights, 0 for the others; `output` is rescaled
/// to the new maximum.
#[inline(always)]
fn softmax_block<V: Lanes>(
    scores: &mut [f32; TILE],
    n_valid: usize,
    scale: f32,
    state: &mut Softmax,
    output: &mut [f32],
) {
    // What lies behind the last valid key may be anything, NaN included.
    scores[n_valid..].fill(f32::NEG_INFINITY);
    let (lanes, _) = scores.as_chunks_mut::<LANES>();
    let mut v = [V::splat(0.0); TILE / LANES];
    for (v, lanes) in v.iter_mut().zip(&*lanes) {
        *v = V::load(lanes).mul(V::splat(scale));
    }
    let block_max = v[0].max(v[1]).max(v[2].max(v[3])).largest();
    let max = if block_max > state.max { block_max } else { state.max };
    for (v, lanes) in v.iter_mut().zip(lanes) {
        *v = exp(v.sub(V::splat(max)));
        v.store(lanes);
    }
    let sum = v[0].add(v[1]).add(v[2].add(v[3])).sum();
    let correction = exp_of::<V>(state.max - max);
    *state = Softmax { max, sum: state.sum.mul_add(correction, sum) };
    if correction != 1.0 {
        let (output, _) = output.as_chunks_mut::<LANES>();
        for lanes in output {
            V::load(lanes).mul(V::splat(correction)).store(lanes);
        }
    }
}

per_isa!(
    /// [`softmax_block`]
    pub(crate) fn softmax_block_on(
        scores: &mut [f32; TILE],
        n_valid: usize,
        scale: f32,
        state: &mut Softmax,
        output: &mut [f32],
    ) = softmax_block
);

/// e^x
#[inline(always)]
fn exp_of<V: Lanes>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    exp(V::splat(x)).store(&mut lanes);
    lanes[0]
}

/// Adds the part of a context that follows: both sides are rescaled to the larger maximum.
#[inline(always)]
fn merge<V: Lanes>(state: &mut Softmax, output: &mut [f32], part: Softmax, part_output: &[f32]) {
    let max = if part.max > state.max { part.max } else { state.max };
    let (before, after) = (exp_of::<V>(state.max - max), exp_of::<V>(part.max - max));
    *state = Softmax { max, sum: state.sum.mul_add(before, part.sum * after) };
    let ((output, _), (part, _)) =
        (output.as_chunks_mut::<LANES>(), part_output.as_chunks::<LANES>());
    for (output, part) in output.iter_mut().zip(part) {
        let part = V::load(part).mul(V::splat(after));
        V::load(output).mul_add(V::splat(before), part).store(output);
    }
}

per_isa!(
    /// [`merge`]
    pub(crate) fn merge_on(
        state: &mut Softmax,
        output: &mut [f32],
        part: Softmax,
        part_output: &[f32],
    ) = merge
);
