//! The product of some rows with one tile of 64 outputs.
//!
//! Definition, for one row and output:
//! `fold over groups ascending of fma(t, x_scale, acc)` from 0, where
//! `t = fold over the scales of the group ascending of fma(sum, w_scale, t)` from 0, and `sum` is
//! the exact sum of the products of the numbers that the scale covers.
//! Neither blocking nor the number of rows changes a bit of it.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::inputs::{Head, Inputs};
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::{Coding, GROUP, PART, SCALE_BYTES};
use crate::dot::{Dot, DotIsa, DotTarget, per_dot};
use crate::lanes::{LANES, Lanes};
use crate::tile::{TILE, prefetch, prefetch_l2};

/// Most rows that pass over a tile together: their outputs and the weights of a group stay in the
/// L1 cache.
pub(crate) const PASS_ROWS: usize = 48;
/// How far ahead of a stream of weights the prefetches run, in bytes.
pub(super) const FAR: usize = 6 << 10;
const NEAR: usize = 1024;

/// Where the outputs of some rows go.
#[derive(Clone, Copy)]
pub(crate) struct Outputs {
    /// Of the first row and the first output.
    pub(crate) y: *mut f32,
    pub(crate) y_stride: usize,
    /// Outputs to write, at most 64.
    pub(crate) n: usize,
}

/// The tile of a weight with k columns.
#[derive(Clone, Copy)]
pub(crate) struct CodedTile<'a> {
    pub(crate) coding: Coding,
    pub(crate) k: usize,
    pub(crate) bytes: &'a [u8],
}

/// Outputs of a row while they are accumulated.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Row(pub(super) [f32; TILE]);

/// The weights of a group as bytes.
#[repr(align(64))]
#[expect(dead_code, reason = "only room for bytes, written and read through pointers")]
pub(super) struct Bytes([u8; GROUP * TILE]);

/// The products of some rows of the inputs with a tile.
///
/// # Safety
/// The outputs must be writable for those rows of n elements which nobody else uses meanwhile.
pub(crate) unsafe fn product(
    target: DotTarget,
    tile: CodedTile<'_>,
    inputs: &Inputs<'_>,
    range: Range<usize>,
    outputs: Outputs,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if target.isa() == DotIsa::Amx && range.len() >= tiles::MIN_ROWS {
            return tiles::product(tile, inputs, range, outputs);
        }
        product_on_vectors(target, tile, inputs, range, outputs);
    }
}

per_dot!(
    /// The same, on vectors alone.
    unsafe fn product_on_vectors(
        tile: CodedTile<'_>,
        inputs: &Inputs<'_>,
        range: Range<usize>,
        outputs: Outputs,
    ) = product_of
);

#[inline(always)]
unsafe fn product_of<D: Dot>(
    tile: CodedTile<'_>,
    inputs: &Inputs<'_>,
    range: Range<usize>,
    outputs: Outputs,
) {
    // SAFETY: passed on from the caller.
    unsafe { all_groups(&Vectors::<D>(PhantomData), tile, inputs, range, outputs) }
}

/// Adds the products of one group of columns to the outputs of some rows.
pub(super) trait AddGroup {
    fn add(&self, group: Group<'_>, rows: &mut [Row]);
}

/// One group of columns of a tile, and of the inputs of at least as many rows as are added.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) coding: Coding,
    /// Columns, padded.
    pub(super) columns: usize,
    /// The weights, then the scales.
    pub(super) bytes: &'a [u8],
    /// `[rows][128]`
    pub(super) numbers: &'a [i8],
    pub(super) heads: &'a [Head],
}

/// Passes over the groups of a tile, as many rows at a time as stay in the cache.
///
/// # Safety
/// As for [`product`].
#[inline(always)]
pub(super) unsafe fn all_groups<A: AddGroup>(
    adder: &A,
    tile: CodedTile<'_>,
    inputs: &Inputs<'_>,
    range: Range<usize>,
    outputs: Outputs,
) {
    let mut rows = [const { MaybeUninit::<Row>::uninit() }; PASS_ROWS];
    for done in (0..range.len()).step_by(PASS_ROWS) {
        let rows = &mut rows[..PASS_ROWS.min(range.len() - done)];
        for row in rows.iter_mut() {
            row.write(Row([0.0; TILE]));
        }
        // SAFETY: these rows have just been written.
        let rows = unsafe { &mut *(&raw mut *rows as *mut [Row]) };
        let mut bytes = tile.bytes;
        for g in 0..tile.k.div_ceil(GROUP) {
            let columns = tile.coding.columns(tile.k, g);
            let (group, rest) = bytes.split_at(tile.coding.group_bytes(columns));
            let (numbers, heads) = inputs.group(g, range.start + done);
            adder.add(Group { coding: tile.coding, columns, bytes: group, numbers, heads }, rows);
            bytes = rest;
        }
        for (i, row) in rows.iter().enumerate() {
            // SAFETY: a row of the range, n outputs of it.
            unsafe {
                let y = outputs.y.add((done + i) * outputs.y_stride);
                row.0.as_ptr().copy_to(y, outputs.n);
            }
        }
    }
}

/// The weights of a group.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Numbers, as [`Coding`] says.
    pub(super) numbers: *const u8,
    pub(super) scales: *const u8,
    pub(super) columns: usize,
    pub(super) zero: i32,
}

/// The inputs of a group: rows of 128 numbers, and their heads.
#[derive(Clone, Copy)]
struct Rows {
    m: usize,
    numbers: *const i8,
    heads: *const Head,
    y: *mut Row,
}

/// Sums in vectors of 16 outputs.
struct Vectors<D>(PhantomData<D>);

impl<D: Dot> AddGroup for Vectors<D> {
    #[inline(always)]
    fn add(&self, group: Group<'_>, rows: &mut [Row]) {
        let m = rows.len();
        let coding = group.coding;
        let w = group.weights();
        assert!(group.numbers.len() >= m * GROUP && group.heads.len() >= m);
        let rows = Rows {
            m,
            numbers: group.numbers.as_ptr(),
            heads: group.heads.as_ptr(),
            y: rows.as_mut_ptr(),
        };
        // SAFETY: there are m rows of everything, as was just checked; the unpacked weights have
        // 8 bits.
        unsafe {
            match (coding.bits, coding.scaled == GROUP) {
                (8, true) => blocks::<D, false, 8>(w, rows),
                (8, false) => blocks::<D, true, 8>(w, rows),
                _ if m <= D::FINE_ROWS => blocks::<D, true, 4>(w, rows),
                _ => {
                    let mut bytes = MaybeUninit::<Bytes>::uninit();
                    let bytes = bytes.as_mut_ptr().cast::<u8>();
                    unpack::<D>(w, bytes);
                    blocks::<D, true, 8>(Weights { numbers: bytes, ..w }, rows);
                }
            }
        }
    }
}

impl Group<'_> {
    /// Where its numbers and scales are; checks that they are all there.
    #[inline(always)]
    pub(super) fn weights(&self) -> Weights {
        let Group { coding, columns, bytes, .. } = *self;
        assert!(bytes.len() == coding.group_bytes(columns) && columns <= GROUP);
        let (numbers, scales) = bytes.split_at(coding.weight_bytes(columns));
        Weights { numbers: numbers.as_ptr(), scales: scales.as_ptr(), columns, zero: coding.zero() }
    }
}

/// Turns 4-bit numbers into bytes, `[columns / 4][64][4]`.
///
/// # Safety
/// `bytes` must be writable for all columns of 64 outputs.
#[inline(always)]
pub(super) unsafe fn unpack<D: Dot>(w: Weights, bytes: *mut u8) {
    const STEP: usize = 4 * TILE;
    for step in 0..w.columns / 8 {
        for c in 0..4 {
            // SAFETY: the caller provides 64 outputs of all columns, packed and as bytes.
            unsafe {
                let packed = w.numbers.add(step * STEP + c * 64);
                prefetch_l2(packed.wrapping_add(FAR));
                prefetch(packed.wrapping_add(NEAR));
                let (low, high) = D::nibbles(&*packed.cast());
                D::store_weights(low, &mut *bytes.add(2 * step * STEP + c * 64).cast());
                D::store_weights(high, &mut *bytes.add((2 * step + 1) * STEP + c * 64).cast());
            }
        }
    }
}

/// All rows over a group, in blocks that are as even as possible. The first fetches what follows.
#[inline(always)]
unsafe fn blocks<D: Dot, const FINE: bool, const BITS: usize>(w: Weights, rows: Rows) {
    let n = rows.m.div_ceil(if FINE { D::FINE_ROWS } else { D::ROWS });
    for i in 0..n {
        let (first, end) = (i * rows.m / n, (i + 1) * rows.m / n);
        // SAFETY: rows below m.
        unsafe {
            let part = Rows {
                m: end - first,
                numbers: rows.numbers.add(first * GROUP),
                heads: rows.heads.add(first),
                y: rows.y.add(first),
            };
            if i == 0 {
                choose::<D, FINE, BITS, true>(w, part);
            } else {
                choose::<D, FINE, BITS, false>(w, part);
            }
        }
    }
}

/// The loop with that many rows.
#[inline(always)]
unsafe fn choose<D: Dot, const FINE: bool, const BITS: usize, const STREAM: bool>(
    w: Weights,
    rows: Rows,
) {
    let most = if FINE { D::FINE_ROWS } else { D::ROWS };
    // SAFETY: passed on from the caller.
    unsafe {
        match rows.m {
            1 => columns::<D, FINE, BITS, STREAM, 1>(w, rows),
            2 => columns::<D, FINE, BITS, STREAM, 2>(w, rows),
            3 if most >= 3 => columns::<D, FINE, BITS, STREAM, 3>(w, rows),
            4 if most >= 4 => columns::<D, FINE, BITS, STREAM, 4>(w, rows),
            5 if most >= 5 => columns::<D, FINE, BITS, STREAM, 5>(w, rows),
            6 if most >= 6 => columns::<D, FINE, BITS, STREAM, 6>(w, rows),
            m => unreachable!("{m} rows in one block"),
        }
    }
}

/// Passes over the 64 outputs, as many at a time as the registers hold.
#[inline(always)]
unsafe fn columns<
    D: Dot,
    const FINE: bool,
    const BITS: usize,
    const STREAM: bool,
    const R: usize,
>(
    w: Weights,
    rows: Rows,
) {
    // SAFETY: passed on from the caller; outputs 16 c to 16 c + 16 of the 64.
    unsafe {
        if D::COLUMNS == 4 {
            return block::<D, FINE, BITS, STREAM, R, 4>(w, rows, 0);
        }
        for c in 0..4 {
            block::<D, FINE, BITS, STREAM, R, 1>(w, rows, c);
        }
    }
}

/// R rows and 16 C outputs from 16 `first` on, in registers.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "r and c index registers and memory alike")]
unsafe fn block<
    D: Dot,
    const FINE: bool,
    const BITS: usize,
    const STREAM: bool,
    const R: usize,
    const C: usize,
>(
    w: Weights,
    rows: Rows,
    first: usize,
) {
    let zero = D::Floats::splat(0.0);
    let mut t = [[zero; C]; R];
    let (n_parts, part) = if FINE { (w.columns / PART, PART) } else { (1, w.columns) };
    for p in 0..n_parts {
        let mut sums = [[D::splat(0); C]; R];
        for r in 0..R {
            // SAFETY: row r below m.
            let head = unsafe { &*rows.heads.add(r) };
            let sum = if FINE { head.part_sums[p] } else { head.sum };
            sums[r] = [D::splat(-w.zero * sum); C];
        }
        // SAFETY: the weights of this part and the numbers of R rows.
        unsafe {
            let numbers = w.numbers.add(p * part * TILE * BITS / 8 + first * 64);
            add_part::<D, BITS, STREAM, R, C>(numbers, rows.numbers.add(p * part), part, &mut sums);
        }
        for c in 0..C {
            // SAFETY: the scales of 64 outputs for each part.
            let scales = unsafe { &*w.scales.add(p * SCALE_BYTES + (first + c) * 32).cast() };
            let scales = D::scales(scales);
            for r in 0..R {
                t[r][c] = sums[r][c].to_floats().mul_add(scales, t[r][c]);
            }
        }
    }
    for r in 0..R {
        // SAFETY: row r below m and its outputs.
        unsafe {
            let scale = D::Floats::splat((*rows.heads.add(r)).scale);
            let y = (*rows.y.add(r)).0.as_mut_ptr().add(first * LANES);
            for c in 0..C {
                let y = &mut *y.add(c * LANES).cast::<[f32; LANES]>();
                t[r][c].mul_add(scale, D::Floats::load(y)).store(y);
            }
        }
    }
}

/// Adds the products of some columns to the sums: those that share a scale. Meanwhile the weights
/// that follow in the stream are fetched.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "r and c index registers and memory alike")]
unsafe fn add_part<
    D: Dot,
    const BITS: usize,
    const STREAM: bool,
    const R: usize,
    const C: usize,
>(
    numbers: *const u8,
    x: *const i8,
    columns: usize,
    sums: &mut [[D; C]; R],
) {
    let step_columns = 32 / BITS;
    for step in 0..columns / step_columns {
        for c in 0..C {
            // SAFETY: 64 bytes of each step; the activations of its columns.
            unsafe {
                let line = numbers.add(step * 4 * TILE + c * 64);
                if STREAM {
                    prefetch_l2(line.wrapping_add(FAR));
                    prefetch(line.wrapping_add(NEAR));
                }
                let x = x.add(step * step_columns);
                if BITS == 8 {
                    let w = D::weights(&*line.cast());
                    for r in 0..R {
                        let x = D::inputs(&*x.add(r * GROUP).cast());
                        sums[r][c] = sums[r][c].dot(w, x);
                    }
                } else {
                    let (low, high) = D::nibbles(&*line.cast());
                    for r in 0..R {
                        let x = x.add(r * GROUP);
                        sums[r][c] = sums[r][c].dot(low, D::inputs(&*x.cast()));
                        sums[r][c] = sums[r][c].dot(high, D::inputs(&*x.add(4).cast()));
                    }
                }
            }
        }
    }
}
