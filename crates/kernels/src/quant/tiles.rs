//! The product of many rows with one tile of 64 outputs, on matrix tiles.
//!
//! The sums come from AMX and are scaled by vectors, in the order that `product` defines.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::inputs::{Head, Inputs};
use super::product::{
    AddGroup, Bytes, CodedTile, FAR, Group, Outputs, Row, Weights, all_groups, unpack,
};
use super::{GROUP, PART, SCALE_BYTES};
use crate::dot::amx::{Steps, TILE_ROWS, Tiles};
use crate::dot::{Avx512Dot, Dot};
use crate::lanes::{LANES, Lanes};
use crate::tile::{TILE, prefetch_l2};

/// Fewer rows are faster on vectors.
pub(crate) const MIN_ROWS: usize = 8;

/// Parts of a group that have scales of their own.
const PARTS: usize = GROUP / PART;

/// Sums of 32 rows of 64 outputs, or of each part of a group for 16 rows.
#[repr(align(64))]
#[expect(dead_code, reason = "only room for sums, written and read through pointers")]
struct Sums([[i32; TILE]; PARTS * TILE_ROWS]);

/// See [`super::product::product`].
///
/// # Safety
/// As there, and the machine must have AMX and 512-bit VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn product(
    tile: CodedTile<'_>,
    inputs: &Inputs<'_>,
    range: Range<usize>,
    outputs: Outputs,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let tiles = Tiles::configure(tile.coding.scaled == GROUP);
        all_groups(&tiles, tile, inputs, range, outputs);
    }
}

impl AddGroup for Tiles {
    #[inline(always)]
    fn add(&self, group: Group<'_>, rows: &mut [Row]) {
        let mut w = group.weights();
        let mut bytes = MaybeUninit::<Bytes>::uninit();
        if group.coding.bits == 4 {
            let bytes = bytes.as_mut_ptr().cast::<u8>();
            // SAFETY: room for a whole group.
            unsafe { unpack::<Avx512Dot>(w, bytes) };
            w.numbers = bytes;
        }
        let follows = if group.coding.bits == 4 { 0..0 } else { FAR..FAR + group.bytes.len() };
        let mut ahead = Ahead { start: group.bytes.as_ptr(), bytes: follows };
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<i32>();
        let fine = group.coding.scaled != GROUP;
        let mut done = 0;
        while done < rows.len() {
            let left = rows.len() - done;
            let numbers = group.numbers[done * GROUP..].as_ptr();
            // SAFETY: the inputs are readable for 32 rows from any row on, and there is room for
            // the sums of so many. The sums of a row are written before they are read.
            unsafe {
                if fine {
                    let n = left.min(TILE_ROWS);
                    let steps = Steps { n: 1, columns: PART, x_stride: GROUP };
                    for p in 0..w.columns / PART {
                        let part = w.numbers.add(p * PART * TILE);
                        let sums = sums.add(p * TILE_ROWS * TILE);
                        self.product_16x64(part, numbers.add(p * PART), steps, sums);
                    }
                    let (heads, rows) = (&group.heads[done..], &mut rows[done..done + n]);
                    add_scaled::<true>(w, sums, &mut ahead, heads, rows);
                    done += n;
                } else {
                    let n = left.min(2 * TILE_ROWS);
                    let steps = Steps { n: w.columns / 64, columns: 64, x_stride: GROUP };
                    if n > TILE_ROWS {
                        for half in 0..2 {
                            let outputs = w.numbers.add(half * 2 * 64);
                            let sums = sums.add(half * 2 * LANES);
                            self.product_32x32(outputs, numbers, steps, sums);
                        }
                    } else {
                        self.product_16x64(w.numbers, numbers, steps, sums);
                    }
                    let (heads, rows) = (&group.heads[done..], &mut rows[done..done + n]);
                    add_scaled::<false>(w, sums, &mut ahead, heads, rows);
                    done += n;
                }
            }
        }
    }
}

/// The part of the stream of weights that is fetched while a group is scaled: a little at a time,
/// since a burst would wait for the memory.
struct Ahead {
    start: *const u8,
    bytes: Range<usize>,
}

impl Ahead {
    #[inline(always)]
    fn fetch(&mut self, n_bytes: usize) {
        let end = self.bytes.end.min(self.bytes.start + n_bytes);
        while self.bytes.start < end {
            prefetch_l2(self.start.wrapping_add(self.bytes.start));
            self.bytes.start += 64;
        }
    }
}

/// Adds the scaled sums of a group to the outputs of some rows.
#[inline(always)]
unsafe fn add_scaled<const FINE: bool>(
    w: Weights,
    sums: *const i32,
    ahead: &mut Ahead,
    heads: &[Head],
    rows: &mut [Row],
) {
    let step = ahead.bytes.len().div_ceil(4 * rows.len()).next_multiple_of(64);
    type Floats = <Avx512Dot as Dot>::Floats;
    let n_parts = if FINE { w.columns / PART } else { 1 };
    let zero = Floats::splat(0.0);
    let mut scales = [[zero; 4]; PARTS];
    for (p, scales) in scales.iter_mut().enumerate().take(n_parts) {
        for (c, scale) in scales.iter_mut().enumerate() {
            // SAFETY: the scales of 64 outputs for each part.
            *scale = Avx512Dot::scales(unsafe { &*w.scales.add(p * SCALE_BYTES + c * 32).cast() });
        }
    }
    for (i, (row, head)) in rows.iter_mut().zip(heads).enumerate() {
        let x_scale = Floats::splat(head.scale);
        let outputs = row.0.as_chunks_mut::<LANES>().0;
        for (c, y) in outputs.iter_mut().enumerate() {
            ahead.fetch(step);
            let mut t = zero;
            for (p, scales) in scales.iter().enumerate().take(n_parts) {
                let sum = if FINE { head.part_sums[p] } else { head.sum };
                // SAFETY: the sums of 64 outputs for each row of each part.
                let at = unsafe { &*sums.add((p * TILE_ROWS + i) * TILE + c * LANES).cast() };
                let exact = Avx512Dot::load(at).add(Avx512Dot::splat(-w.zero * sum));
                t = exact.to_floats().mul_add(scales[c], t);
            }
            t.mul_add(x_scale, Floats::load(y)).store(y);
        }
    }
}
