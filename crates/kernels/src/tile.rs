//! The product of some rows with one tile of 64 outputs: what matrix products and attention are
//! made of.
//!
//! Definition: `y[r, n] = fold over k ascending of fma(x[r, k], w[k, n], y[r, n])`, one f32
//! accumulator for each output. Blocks of k store the accumulator and go on from it, so neither
//! blocking nor the number of rows changes a bit.

use std::mem::MaybeUninit;

use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};

/// Outputs of a tile.
pub(crate) const TILE: usize = 64;

/// Rows whose accumulators fit into registers.
const MAX_ROWS: usize = 6;
/// Columns of x in a block when there are more rows than that: 32 KiB of f32 weights.
const BLOCK: usize = 128;
/// How far ahead of the weights the prefetch runs when they are read once, in bytes.
const AHEAD: usize = 3 << 10;

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
    if rows.n == TILE {
        // SAFETY: passed on from the caller.
        return unsafe { full_width::<V>(tile, rows) };
    }
    // A narrow tile works on a copy of its outputs that is 64 wide.
    let mut y = [[0.0; TILE]; 2 * MAX_ROWS];
    for first in (0..rows.m).step_by(y.len()) {
        let m = (rows.m - first).min(y.len());
        for (r, y) in y[..m].iter_mut().enumerate() {
            // SAFETY: n outputs of a row below m.
            unsafe { y.as_mut_ptr().copy_from(rows.y.add((first + r) * rows.y_stride), rows.n) };
        }
        let part = Rows {
            m,
            // SAFETY: a row below m.
            x: unsafe { rows.x.add(first * rows.x_stride) },
            y: y.as_mut_ptr().cast(),
            y_stride: TILE,
            n: TILE,
            ..rows
        };
        // SAFETY: x by the caller; y is the local copy.
        unsafe { full_width::<V>(tile, part) };
        for (r, y) in y[..m].iter().enumerate() {
            // SAFETY: as for reading.
            unsafe { y.as_ptr().copy_to(rows.y.add((first + r) * rows.y_stride), rows.n) };
        }
    }
}

/// [`product_of`] for all 64 outputs.
#[inline(always)]
unsafe fn full_width<V: Lanes>(tile: Tile<'_>, rows: Rows) {
    if rows.m <= MAX_ROWS {
        // SAFETY: the tile covers k columns (checked by `product_of`); the rest by the caller.
        return unsafe {
            match tile {
                Tile::F32(w) => few_rows::<V, F32>(w.as_ptr(), rows),
                Tile::Bf16(w) => few_rows::<V, Bf16>(w.as_ptr(), rows),
            }
        };
    }
    // Many rows: widen a block of the tile once, then pass all rows over it in cache.
    let mut wide = MaybeUninit::<[[f32; TILE]; BLOCK]>::uninit();
    let wide = wide.as_mut_ptr().cast::<f32>();
    let n_groups = rows.m.div_ceil(MAX_ROWS);
    for k in (0..rows.k).step_by(BLOCK) {
        let block_k = (rows.k - k).min(BLOCK);
        let w = match tile {
            Tile::F32(w) => w[k * TILE..].as_ptr(),
            Tile::Bf16(w) => {
                let pairs = &w[k / 2 * TILE..(k + block_k).div_ceil(2) * TILE];
                // SAFETY: `wide` has room for BLOCK columns, an even number.
                unsafe { widen::<V>(pairs, wide) };
                wide.cast_const()
            }
        };
        for group in 0..n_groups {
            let (first, end) = (group * rows.m / n_groups, (group + 1) * rows.m / n_groups);
            // SAFETY: rows below m and columns below k; `w` holds block_k columns.
            unsafe {
                let part = Rows {
                    m: end - first,
                    k: block_k,
                    x: rows.x.add(first * rows.x_stride + k),
                    y: rows.y.add(first * rows.y_stride),
                    accumulate: rows.accumulate || k > 0,
                    ..rows
                };
                few_rows::<V, F32>(w, part);
            }
        }
    }
}

/// Widens bf16 pairs `[k/2][64]` to `[k][64]`.
#[inline(always)]
unsafe fn widen<V: Lanes>(pairs: &[u32], wide: *mut f32) {
    for (i, pairs) in pairs.as_chunks::<LANES>().0.iter().enumerate() {
        let (low, high) = V::load_bf16_pairs(pairs);
        // SAFETY: the caller provides two f32 for every pair; the parts do not overlap.
        unsafe {
            let column = wide.add(i / 4 * 2 * TILE + i % 4 * LANES);
            low.store(&mut *column.cast());
            high.store(&mut *column.add(TILE).cast());
        }
    }
}

/// At most 6 rows, chosen to a loop with that many.
#[inline(always)]
unsafe fn few_rows<V: Lanes, F: Format>(w: *const F::Word, rows: Rows) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows.m {
            0 => {}
            1 => all_columns::<V, F, 1>(w, rows),
            2 => all_columns::<V, F, 2>(w, rows),
            3 => all_columns::<V, F, 3>(w, rows),
            4 => all_columns::<V, F, 4>(w, rows),
            5 => all_columns::<V, F, 5>(w, rows),
            6 => all_columns::<V, F, 6>(w, rows),
            m => unreachable!("{m} rows in one block"),
        }
    }
}

/// Passes over the 64 outputs, as many at a time as the registers hold.
#[inline(always)]
unsafe fn all_columns<V: Lanes, F: Format, const R: usize>(w: *const F::Word, rows: Rows) {
    // SAFETY: passed on from the caller, with the outputs from 16 `column` on.
    unsafe {
        match V::TILE_COLUMNS[R - 1] {
            4 => block::<V, F, R, 4>(w, rows),
            2 => {
                for column in [0, 2] {
                    let part = Rows { y: rows.y.add(column * LANES), ..rows };
                    block::<V, F, R, 2>(w.add(column * LANES), part);
                }
            }
            _ => {
                for column in 0..4 {
                    let part = Rows { y: rows.y.add(column * LANES), ..rows };
                    block::<V, F, R, 1>(w.add(column * LANES), part);
                }
            }
        }
    }
}

/// How the elements of a tile are read: in steps of [`Format::STEP`] columns of 64 words.
trait Format {
    type Word;
    const STEP: usize;
    /// The 16 outputs at `w`, for the columns of one step; of these, `[0]` alone is valid in a
    /// last half step.
    unsafe fn load<V: Lanes>(w: *const Self::Word) -> [V; 2];
}

struct F32;

impl Format for F32 {
    type Word = f32;
    const STEP: usize = 1;

    #[inline(always)]
    unsafe fn load<V: Lanes>(w: *const f32) -> [V; 2] {
        // SAFETY: the caller provides 16 words.
        let w = V::load(unsafe { &*w.cast() });
        [w, w]
    }
}

struct Bf16;

impl Format for Bf16 {
    type Word = u32;
    const STEP: usize = 2;

    #[inline(always)]
    unsafe fn load<V: Lanes>(w: *const u32) -> [V; 2] {
        // SAFETY: the caller provides 16 words.
        V::load_bf16_pairs(unsafe { &*w.cast() }).into()
    }
}

/// R rows and 16 C outputs in registers, over all k.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "r and c index registers and memory alike")]
unsafe fn block<V: Lanes, F: Format, const R: usize, const C: usize>(
    w: *const F::Word,
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
    for step in 0..rows.k / F::STEP {
        // SAFETY: the words of columns below k; x below k in rows below m. A prefetch may point
        // anywhere.
        unsafe {
            let w = w.add(step * TILE);
            let mut weights = [[V::splat(0.0); 2]; C];
            for c in 0..C {
                prefetch(w.wrapping_add(c * LANES).cast::<u8>().wrapping_add(AHEAD));
                weights[c] = F::load::<V>(w.add(c * LANES));
            }
            for j in 0..F::STEP {
                for r in 0..R {
                    let x = V::splat(*rows.x.add(r * rows.x_stride + step * F::STEP + j));
                    for c in 0..C {
                        acc[r][c] = x.mul_add(weights[c][j], acc[r][c]);
                    }
                }
            }
        }
    }
    if rows.k % F::STEP == 1 {
        for c in 0..C {
            // SAFETY: the last, half used word of each output; the last column of x.
            unsafe {
                let [weight, _] = F::load::<V>(w.add(rows.k / F::STEP * TILE + c * LANES));
                for r in 0..R {
                    let x = V::splat(*rows.x.add(r * rows.x_stride + rows.k - 1));
                    acc[r][c] = x.mul_add(weight, acc[r][c]);
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            // SAFETY: as for loading.
            acc[r][c].store(unsafe { &mut *rows.y.add(r * rows.y_stride + c * LANES).cast() });
        }
    }
}

/// Asks for the cache line at `p`, which need not be valid.
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
