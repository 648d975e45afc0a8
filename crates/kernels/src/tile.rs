//! The product of some rows with one tile of 64 outputs: what matrix products and attention are
//! made of.
//!
//! Definition: `y[r, n] = fold over k ascending of fma(x[r, k], w[k, n], y[r, n])`, one f32
//! accumulator for each output. Blocks of k store the accumulator and go on from it, so neither
//! blocking nor the number of rows changes a bit.

use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};

/// Outputs of a tile.
pub(crate) const TILE: usize = 64;

/// Columns in a block that several groups of rows pass over: 8 KiB of bf16 stay in the L1 cache.
const BLOCK: usize = 64;
/// Most rows that pass over a tile together: their outputs stay in the L1 cache too.
const PASS_ROWS: usize = 16;
/// How far ahead of a stream of weights the prefetches run, in bytes: into the L2 cache, where
/// many lines can be on their way at once, and from there into the L1 cache.
const FAR: usize = 3 << 10;
const NEAR: usize = 512;

/// 64 outputs of a weight.
#[derive(Clone, Copy)]
pub(crate) enum Tile<'a> {
    /// `[k][64]`
    F32(&'a [f32]),
    /// `[k/2][64]`, two consecutive k in a word, the first in the low half.
    Bf16(&'a [u32]),
}

impl Tile<'_> {
    /// Number of k covered.
    fn max_k(self) -> usize {
        match self {
            Tile::F32(elements) => elements.len() / TILE,
            Tile::Bf16(pairs) => pairs.len() / TILE * 2,
        }
    }
}

/// Rows of x `[m, k]` and where their outputs go.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) x: *const f32,
    /// Elements from one row of x to the next.
    pub(crate) x_stride: usize,
    pub(crate) y: *mut f32,
    pub(crate) y_stride: usize,
    /// Outputs to write, at most 64.
    pub(crate) n: usize,
    /// Start from the values in y, not from zero.
    pub(crate) accumulate: bool,
}

per_isa!(
    /// The product of `rows` with `tile`.
    ///
    /// # Safety
    /// `rows.x` must be readable for m rows of k elements, and `rows.y` readable and writable
    /// for m rows of n elements which nobody else uses meanwhile.
    ///
    /// # Panics
    /// If the tile has fewer than k columns or n is over 64.
    pub(crate) unsafe fn product(tile: Tile<'_>, rows: Rows) = product_of
);

#[inline(always)]
unsafe fn product_of<V: Lanes>(tile: Tile<'_>, rows: Rows) {
    assert!(rows.k <= tile.max_k() && rows.n <= TILE, "the tile does not fit the rows");
    // SAFETY: the tile covers k columns; the rest is passed on from the caller.
    unsafe {
        match tile {
            Tile::F32(w) => all_rows::<V, F32>(w.as_ptr(), rows),
            Tile::Bf16(w) => all_rows::<V, Bf16>(w.as_ptr(), rows),
        }
    }
}

/// Outputs of the rows that pass over a tile together, while they are accumulated.
#[repr(align(64))]
struct Outputs([[f32; TILE]; PASS_ROWS]);

/// One group of rows over the whole tile, or several over block after block of it.
#[inline(always)]
unsafe fn all_rows<V: Lanes, F: Format>(w: *const F::Word, rows: Rows) {
    if rows.n == TILE && rows.m <= F::MAX_ROWS {
        // SAFETY: passed on from the caller.
        return unsafe { group::<V, F, true>(w, w, rows) };
    }
    // Blocks accumulate in a copy that stays in the L1 cache and is as wide as a tile.
    let mut outputs = Outputs([[0.0; TILE]; PASS_ROWS]);
    let n_passes = rows.m.div_ceil(PASS_ROWS);
    for pass in 0..n_passes {
        let (first, end) = (pass * rows.m / n_passes, (pass + 1) * rows.m / n_passes);
        if rows.accumulate {
            for (row, output) in (first..end).zip(&mut outputs.0) {
                // SAFETY: n outputs of a row below m.
                unsafe { output.as_mut_ptr().copy_from(rows.y.add(row * rows.y_stride), rows.n) };
            }
        }
        for k in (0..rows.k).step_by(BLOCK) {
            // SAFETY: rows below m, the words of the columns from k on; y is the local copy.
            unsafe {
                let part = Rows {
                    m: end - first,
                    k: BLOCK.min(rows.k - k),
                    x: rows.x.add(first * rows.x_stride + k),
                    y: outputs.0.as_mut_ptr().cast(),
                    y_stride: TILE,
                    accumulate: rows.accumulate || k > 0,
                    ..rows
                };
                groups::<V, F>(w.add(k / F::STEP * TILE), part);
            }
        }
        for (row, output) in (first..end).zip(&outputs.0) {
            // SAFETY: as for reading.
            unsafe { output.as_ptr().copy_to(rows.y.add(row * rows.y_stride), rows.n) };
        }
    }
}

/// All rows over one block of weights, in groups that are as even as possible. The first two
/// groups fetch half of the next block each.
#[inline(always)]
unsafe fn groups<V: Lanes, F: Format>(w: *const F::Word, rows: Rows) {
    let half_block = BLOCK / F::STEP * TILE / 2;
    let n = rows.m.div_ceil(F::MAX_ROWS);
    for i in 0..n {
        let (first, end) = (i * rows.m / n, (i + 1) * rows.m / n);
        let next = w.wrapping_add((2 + i.min(1)) * half_block);
        // SAFETY: rows below m.
        unsafe {
            let part = Rows {
                m: end - first,
                x: rows.x.add(first * rows.x_stride),
                y: rows.y.add(first * rows.y_stride),
                ..rows
            };
            group::<V, F, false>(w, next, part);
        }
    }
}

/// One group of rows: chooses the loop with that many.
#[inline(always)]
unsafe fn group<V: Lanes, F: Format, const STREAM: bool>(
    w: *const F::Word,
    next: *const F::Word,
    rows: Rows,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows.m {
            0 => {}
            1 => all_columns::<V, F, STREAM, 1>(w, next, rows),
            2 => all_columns::<V, F, STREAM, 2>(w, next, rows),
            3 => all_columns::<V, F, STREAM, 3>(w, next, rows),
            4 => all_columns::<V, F, STREAM, 4>(w, next, rows),
            5 => all_columns::<V, F, STREAM, 5>(w, next, rows),
            6 if F::MAX_ROWS == 6 => all_columns::<V, F, STREAM, 6>(w, next, rows),
            m => unreachable!("{m} rows in one group"),
        }
    }
}

/// Passes over the 64 outputs, as many at a time as the registers hold.
#[inline(always)]
unsafe fn all_columns<V: Lanes, F: Format, const STREAM: bool, const R: usize>(
    w: *const F::Word,
    next: *const F::Word,
    rows: Rows,
) {
    // SAFETY: passed on from the caller, with the outputs from 16 `column` on.
    unsafe {
        if V::TILE_COLUMNS[R - 1] == 4 {
            return block::<V, F, STREAM, R, 4>(w, next, rows);
        }
        for column in 0..4 {
            let part = Rows { y: rows.y.add(column * LANES), ..rows };
            block::<V, F, STREAM, R, 1>(w.add(column * LANES), next, part);
        }
    }
}

/// How the elements of a tile are read: in steps of [`Format::STEP`] columns of 64 words.
trait Format {
    type Word;
    const STEP: usize;
    /// Rows whose accumulators fit into registers, beside the weights of a step.
    const MAX_ROWS: usize;
    /// Column `j` of the step whose 16 outputs are at `w`.
    ///
    /// # Safety
    /// 16 words must be readable at `w`.
    unsafe fn load<V: Lanes>(w: *const Self::Word, j: usize) -> V;
}

struct F32;

impl Format for F32 {
    type Word = f32;
    const STEP: usize = 1;
    const MAX_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn load<V: Lanes>(w: *const f32, _: usize) -> V {
        // SAFETY: the caller provides 16 words.
        V::load(unsafe { &*w.cast() })
    }
}

struct Bf16;

impl Format for Bf16 {
    type Word = u32;
    const STEP: usize = 2;
    const MAX_ROWS: usize = 5;

    #[inline(always)]
    unsafe fn load<V: Lanes>(w: *const u32, j: usize) -> V {
        // SAFETY: the caller provides 16 words.
        let (low, high) = V::load_bf16_pairs(unsafe { &*w.cast() });
        if j == 0 { low } else { high }
    }
}

/// Adds column k to the accumulators; it is column `j` of the step whose words are at `w`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "r and c index registers and memory alike")]
unsafe fn column<V: Lanes, F: Format, const R: usize, const C: usize>(
    w: *const F::Word,
    j: usize,
    k: usize,
    rows: Rows,
    acc: &mut [[V; C]; R],
) {
    let mut weights = [V::splat(0.0); C];
    for c in 0..C {
        // SAFETY: the caller provides the words of the step.
        weights[c] = unsafe { F::load(w.add(c * LANES), j) };
    }
    for r in 0..R {
        // SAFETY: a row below m and a column below k.
        let x = V::splat(unsafe { *rows.x.add(r * rows.x_stride + k) });
        for c in 0..C {
            acc[r][c] = x.mul_add(weights[c], acc[r][c]);
        }
    }
}

/// R rows and 16 C outputs in registers, over all k. Meanwhile the weights that follow are
/// fetched: those of the same stream, or half a block from `next` on.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "r and c index registers and memory alike")]
unsafe fn block<V: Lanes, F: Format, const STREAM: bool, const R: usize, const C: usize>(
    w: *const F::Word,
    next: *const F::Word,
    rows: Rows,
) {
    let mut acc = [[V::splat(0.0); C]; R];
    if rows.accumulate {
        for r in 0..R {
            for c in 0..C {
                // SAFETY: row r below m; outputs of this block.
                acc[r][c] = V::load(unsafe { &*rows.y.add(r * rows.y_stride + c * LANES).cast() });
            }
        }
    }
    let n_steps = rows.k / F::STEP;
    for step in 0..n_steps {
        if STREAM {
            for c in 0..C {
                let line = w.wrapping_add(step * TILE + c * LANES).cast::<u8>();
                prefetch_l2(line.wrapping_add(FAR));
                prefetch(line.wrapping_add(NEAR));
            }
        } else {
            for line in 0..2 {
                prefetch(next.wrapping_add(step * TILE / 2 + line * LANES).cast());
            }
        }
        for j in 0..F::STEP {
            // SAFETY: the words of this step; column step * STEP + j is below k.
            unsafe {
                column::<V, F, R, C>(w.add(step * TILE), j, step * F::STEP + j, rows, &mut acc);
            }
        }
    }
    if n_steps * F::STEP < rows.k {
        // SAFETY: the words of the last step, of which half is used.
        unsafe { column::<V, F, R, C>(w.add(n_steps * TILE), 0, rows.k - 1, rows, &mut acc) };
    }
    for r in 0..R {
        for c in 0..C {
            // SAFETY: as for loading.
            acc[r][c].store(unsafe { &mut *rows.y.add(r * rows.y_stride + c * LANES).cast() });
        }
    }
}

/// Fetches the cache line at `p`, which need not be valid, into the L1 cache.
#[inline(always)]
pub(crate) fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on the program, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Fetches a slice into the L1 cache: for rows that are too far apart for the hardware to guess.
#[inline(always)]
pub(crate) fn prefetch_slice(x: &[f32]) {
    x.chunks(LANES).for_each(|line| prefetch(line.as_ptr().cast()));
}

/// Fetches the cache line at `p`, which need not be valid, into the L2 cache.
#[inline(always)]
pub(crate) fn prefetch_l2(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as for `prefetch`.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
