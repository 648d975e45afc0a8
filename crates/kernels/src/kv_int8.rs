//! Int8 keys and values, and their products with 16-bit queries and softmax weights.
//!
//! Stored is the nearest multiple of `largest / 127`: off by at most half of that. A query head is
//! rounded to multiples of `largest / 32767`, as the weights of a block are (times the scales of
//! their values), so that the products are exact integer sums, at twice the rate of f32 products,
//! and what they add to the error of storage is about 256 times smaller than it.

use crate::isa::{Target, per_isa};
use crate::kv_store::KV_BLOCK;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2Pairs, Avx512Pairs, VnniPairs};
use crate::lanes::{LANES, Lanes, Pairs, ScalarPairs};
use crate::tile::{TILE, prefetch, prefetch_l2};

/// How far ahead in the same tile prefetches into the L1 cache run, in bytes. Into the L2 cache,
/// the values are fetched while the keys are read, and the next block while the values are.
const NEAR: usize = 512;

/// Bytes from one pair of rows of a tile to the next.
const STEP: usize = 2 * TILE;
/// The scales in front of the tiles of a head.
pub(crate) const SCALE_BYTES: usize = 2 * KV_BLOCK * size_of::<f32>();
/// Rows whose sums fit into registers.
const MAX_ROWS: usize = 6;
/// Largest head size whose dot products fit into 32 bits.
pub(crate) const MAX_DIM: usize = 512;
const _: () = assert!(MAX_DIM * 127 * 32767 < 1 << 31);

/// 1.5 * 2^23: adding it rounds to an integer (ties to even) and leaves that in the low bits.
const ROUND: f32 = 12_582_912.0;
/// A head whose largest element is below this is zero: its scale would have no inverse.
const TINY: f32 = 1e-30;

/// Rounds x to multiples of a scale, the largest element to `limit` times it.
///
/// The scale is NaN where an element is infinite or NaN, so that products with it are too.
#[inline(always)]
fn quantise_of<V: Lanes>(x: &[f32], limit: f32, integers: &mut [i16], scale: &mut f32) {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (mut largest, mut poison) = (V::splat(0.0), V::splat(0.0));
    for chunk in chunks {
        let v = V::load(chunk);
        largest = v.max(v.mul(V::splat(-1.0))).max(largest);
        poison = v.mul_add(V::splat(0.0), poison);
    }
    if !tail.is_empty() {
        let v = V::load_tail(tail, 0.0);
        largest = v.max(v.mul(V::splat(-1.0))).max(largest);
        poison = v.mul_add(V::splat(0.0), poison);
    }
    let (largest, poison) = (largest.largest(), poison.sum());
    let is_zero = largest < TINY;
    *scale = if is_zero { 0.0 } else { largest / limit } + poison;
    let inverse = if is_zero { 0.0 } else { limit / largest };
    for (x, integer) in x.iter().zip(integers) {
        *integer = (x * inverse + ROUND).to_bits() as i16;
    }
}

per_isa!(
    /// Rounds x to multiples of a scale, the largest element to `limit` times it.
    pub(crate) fn quantise_on(x: &[f32], limit: f32, integers: &mut [i16], scale: &mut f32)
        = quantise_of
);

/// The 16-bit integers of a query head, in pairs, and their scale.
pub(crate) fn quantise_query(target: Target, x: &[f32], pairs: &mut [u32]) -> f32 {
    let mut scale = 0.0;
    quantise_on(target, x, 32767.0, bytemuck::cast_slice_mut(pairs), &mut scale);
    scale
}

/// Multiplies the weights of a block with the scales of their values, of which there may be fewer,
/// and rounds the products to 16 bits, in pairs of positions; returns their scale.
pub(crate) fn quantise_weights(
    target: Target,
    weights: &[f32; TILE],
    scales: &[f32],
    pairs: &mut [u32; TILE / 2],
) -> f32 {
    let mut products = [0.0; TILE];
    for ((product, weight), scale) in products.iter_mut().zip(weights).zip(scales) {
        *product = weight * scale;
    }
    quantise_query(target, &products, pairs)
}

/// Keys and values of one head of a block.
#[derive(Clone, Copy)]
pub(crate) struct Int8Head<'a> {
    /// `[head_dim/2][64 positions][2]`
    keys: &'a [i8],
    /// `[head_dim/64][32][64][2]`
    values: &'a [i8],
    /// `[2][64]`, of the keys and of the values.
    scales: &'a [f32],
}

impl<'a> Int8Head<'a> {
    pub(crate) fn new(bytes: &'a [i8], head_dim: usize) -> Self {
        let (scales, tiles) = bytes.split_at(SCALE_BYTES);
        let (keys, values) = tiles.split_at(head_dim * KV_BLOCK);
        Int8Head { keys, values, scales: bytemuck::cast_slice(scales) }
    }

    /// Scales of the values, by position.
    pub(crate) fn value_scales(&self) -> &'a [f32] {
        &self.scales[KV_BLOCK..]
    }

    /// Products of the queries, `stride` pairs apart, with the 64 keys, `[m, 64]`, but for the
    /// scales of the queries.
    pub(crate) fn scores(
        &self,
        target: Target,
        queries: &[u32],
        stride: usize,
        scores: &mut [[f32; TILE]],
    ) {
        let n_pairs = self.keys.len() / STEP;
        assert_eq!(queries.len(), scores.len() * stride, "a query for each row of scores");
        assert!(n_pairs <= stride, "queries of {stride} pairs for keys of {n_pairs}");
        let rows = Rows {
            m: scores.len(),
            n_pairs,
            x: queries.as_ptr(),
            x_stride: stride,
            y: scores.as_mut_ptr().cast(),
            y_stride: TILE,
            scales: Scales::Columns(self.scales.as_ptr()),
            next: self.values.as_ptr().cast(),
        };
        // SAFETY: all keys; m rows of queries and scores; 64 scales of keys.
        unsafe { product_on(target, self.keys.as_ptr(), rows) };
    }

    /// `output[h] += scales[h] * (weights[h, ..n_valid] V)` for rows of `output` as long as a
    /// padded head. Meanwhile, as many bytes are fetched from `next` on.
    pub(crate) fn add(
        &self,
        target: Target,
        weights: Weights<'_>,
        n_valid: usize,
        output: &mut [f32],
        next: *const u8,
    ) {
        let stride = self.values.len() / KV_BLOCK;
        let m = weights.scales.len();
        assert!(weights.rows.len() == m && output.len() >= m * stride && n_valid <= KV_BLOCK);
        for (i, tile) in self.values.chunks_exact(TILE * KV_BLOCK).enumerate() {
            let rows = Rows {
                m,
                n_pairs: n_valid.div_ceil(2),
                x: weights.rows.as_ptr().cast(),
                x_stride: TILE / 2,
                y: output[i * TILE..].as_mut_ptr(),
                y_stride: stride,
                scales: Scales::Rows(weights.scales.as_ptr()),
                next: next.wrapping_add(i * TILE * KV_BLOCK),
            };
            // SAFETY: a whole tile; m rows of weights with their scales; columns of tile i of m
            // rows of the output.
            unsafe { product_on(target, tile.as_ptr(), rows) };
        }
    }
}

/// Weights of a block for some query heads, with their scales.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    pub(crate) rows: &'a [[u32; TILE / 2]],
    pub(crate) scales: &'a [f32],
}

/// What the integer sums are multiplied with.
#[derive(Clone, Copy)]
enum Scales {
    /// 64, one for each output; y is overwritten.
    Columns(*const f32),
    /// One for each row; y is added to.
    Rows(*const f32),
}

/// Rows of pairs and where their 64 outputs go.
#[derive(Clone, Copy)]
struct Rows {
    m: usize,
    n_pairs: usize,
    x: *const u32,
    x_stride: usize,
    y: *mut f32,
    y_stride: usize,
    scales: Scales,
    /// What to fetch meanwhile.
    next: *const u8,
}

/// The product of rows with a tile of 64 outputs.
///
/// # Safety
/// `tile` must be readable for `n_pairs` pairs of rows of 64; x, y and scales as `rows` says.
unsafe fn product_on(target: Target, tile: *const i8, rows: Rows) {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::Isa;

        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
        unsafe fn vnni(tile: *const i8, rows: Rows) {
            // SAFETY: passed on from the caller.
            unsafe { product::<VnniPairs, 4>(tile, rows) }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        unsafe fn avx512(tile: *const i8, rows: Rows) {
            // SAFETY: passed on from the caller.
            unsafe { product::<Avx512Pairs, 4>(tile, rows) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(tile: *const i8, rows: Rows) {
            // SAFETY: passed on from the caller.
            unsafe { product::<Avx2Pairs, 1>(tile, rows) }
        }
        match target.isa() {
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => {
                // SAFETY: the machine was seen to have the instructions; the rest is passed on.
                return unsafe { vnni(tile, rows) };
            }
            // SAFETY: a `Target` exists only for instruction sets this machine has.
            Isa::Avx512 => return unsafe { avx512(tile, rows) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2(tile, rows) },
            Isa::Scalar => {}
        }
    }
    let _ = target;
    // SAFETY: passed on from the caller.
    unsafe { product::<ScalarPairs, 4>(tile, rows) }
}

/// All rows in groups that are as even as possible, 16 C outputs at a time.
#[inline(always)]
unsafe fn product<P: Pairs, const C: usize>(tile: *const i8, rows: Rows) {
    let n = rows.m.div_ceil(MAX_ROWS);
    for i in 0..n {
        let (first, end) = (i * rows.m / n, (i + 1) * rows.m / n);
        for column in (0..TILE).step_by(LANES * C) {
            // SAFETY: rows below m, columns below 64.
            unsafe {
                let part = Rows {
                    m: end - first,
                    x: rows.x.add(first * rows.x_stride),
                    y: rows.y.add(first * rows.y_stride + column),
                    scales: match rows.scales {
                        Scales::Columns(scales) => Scales::Columns(scales.add(column)),
                        Scales::Rows(scales) => Scales::Rows(scales.add(first)),
                    },
                    ..rows
                };
                let is_first = i == 0 && column == 0;
                group::<P, C>(tile.add(2 * column), part, is_first);
            }
        }
    }
}

#[inline(always)]
unsafe fn group<P: Pairs, const C: usize>(tile: *const i8, rows: Rows, is_first: bool) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows.m {
            1 => sums::<P, C, 1>(tile, rows, is_first),
            2 => sums::<P, C, 2>(tile, rows, is_first),
            3 => sums::<P, C, 3>(tile, rows, is_first),
            4 => sums::<P, C, 4>(tile, rows, is_first),
            5 => sums::<P, C, 5>(tile, rows, is_first),
            6 => sums::<P, C, 6>(tile, rows, is_first),
            m => unreachable!("{m} rows in one group"),
        }
    }
}

/// R rows and 16 C outputs in registers. The first group of a tile fetches the next one.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "r and c index registers and memory alike")]
unsafe fn sums<P: Pairs, const C: usize, const R: usize>(
    tile: *const i8,
    rows: Rows,
    is_first: bool,
) {
    let mut acc = [[P::zero(); C]; R];
    for k in 0..rows.n_pairs {
        if is_first {
            for line in 0..2 {
                let bytes = k * STEP + line * 64;
                prefetch_l2(rows.next.wrapping_add(bytes));
                prefetch(tile.cast::<u8>().wrapping_add(bytes + NEAR));
            }
        }
        let mut weights = [P::zero(); C];
        for c in 0..C {
            // SAFETY: pair k of the tile, 16 outputs.
            weights[c] = P::load_i8(unsafe { &*tile.add(k * STEP + 2 * c * LANES).cast() });
        }
        for r in 0..R {
            // SAFETY: row r below m, pair k.
            let x = P::splat(unsafe { *rows.x.add(r * rows.x_stride + k) });
            for c in 0..C {
                acc[r][c] = acc[r][c].add_products(weights[c], x);
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            // SAFETY: row r below m, outputs of this group; scales of them or of the row.
            unsafe {
                let y: &mut [f32; LANES] = &mut *rows.y.add(r * rows.y_stride + c * LANES).cast();
                let sum = acc[r][c].to_floats();
                match rows.scales {
                    Scales::Columns(scales) => {
                        sum.mul(P::Floats::load(&*scales.add(c * LANES).cast())).store(y);
                    }
                    Scales::Rows(scales) => {
                        sum.mul_add(P::Floats::splat(*scales.add(r)), P::Floats::load(y)).store(y);
                    }
                }
            }
        }
    }
}
