//! Weights in 8 and 4 bits: how they are chosen, and how they are laid out.
//!
//! 8 bits: `scale = largest magnitude / 127`, numbers -127 to 127.
//! 4 bits: numbers -8 to 7 and the scale, of either sign, that leave the least squared error among
//! those that a sweep of the scale meets.
//! Scales are half precision. A group with an infinity or NaN has the scale NaN.

use half::f16;

use super::{Coding, GROUP, PART, SCALE_BYTES};
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::tile::TILE;

/// Columns of 64 rows, widened: what is quantised at a time.
pub(crate) type Columns = [[f32; TILE]];

/// Adding this rounds a number below 2^22 to an integer, ties to even.
const MAGIC: f32 = 12_582_912.0;

per_isa!(
    /// Quantises the columns of one group into its place in a tile.
    pub(crate) fn quantise_group(coding: Coding, columns: &Columns, group: &mut [u8]) = quantise_group_of
);

#[inline(always)]
fn quantise_group_of<V: Lanes>(coding: Coding, columns: &Columns, group: &mut [u8]) {
    let (weights, scales) = group.split_at_mut(coding.weight_bytes(columns.len()));
    for (p, columns) in columns.chunks(coding.scaled).enumerate() {
        for lane in (0..TILE).step_by(LANES) {
            let bits = match coding.bits {
                8 => scales_8::<V>(columns, lane),
                _ => scales_4::<V>(columns, lane),
            };
            for (i, bits) in bits.iter().enumerate() {
                let at = p * SCALE_BYTES + 2 * (lane + i);
                scales[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            }
            let scale = bits.map(|bits| f16::from_bits(bits).to_f32());
            // Where there is no scale, all numbers are zero.
            let inverse = scale.map(|scale| if scale == 0.0 { 0.0 } else { 1.0 / scale });
            let limits = if coding.bits == 8 { (-127.0, 127.0) } else { (-8.0, 7.0) };
            let step = 32 / coding.bits;
            for (s, columns) in columns.chunks(step).enumerate() {
                let mut words = [0u32; LANES];
                for (i, column) in columns.iter().enumerate() {
                    let numbers = rounded::<V>(column, lane, V::load(&inverse), limits);
                    // The lower four columns of eight are the low halves.
                    let shift = if coding.bits == 8 { 8 * i } else { i % 4 * 8 + i / 4 * 4 };
                    for (word, number) in words.iter_mut().zip(numbers) {
                        let number = number as i32 + coding.zero();
                        *word |= (number as u32) << shift;
                    }
                }
                let at = ((p * coding.scaled / step + s) * TILE + lane) * 4;
                weights[at..at + 4 * LANES].copy_from_slice(bytemuck::cast_slice(&words));
            }
        }
    }
}

/// Sixteen elements of a column.
#[inline(always)]
fn load<V: Lanes>(column: &[f32; TILE], lane: usize) -> V {
    V::load(column[lane..lane + LANES].try_into().expect("sixteen lanes"))
}

/// Rounded to integers within the limits; NaN becomes the lower one.
#[inline(always)]
fn rounded<V: Lanes>(
    column: &[f32; TILE],
    lane: usize,
    inverse: V,
    (least, most): (f32, f32),
) -> [f32; LANES] {
    let magic = V::splat(MAGIC);
    let mut numbers = [0.0; LANES];
    let scaled = load::<V>(column, lane).mul(inverse).max(V::splat(least)).min(V::splat(most));
    scaled.add(magic).sub(magic).store(&mut numbers);
    numbers
}

/// Bits of the scales that reach the largest magnitudes.
#[inline(always)]
fn scales_8<V: Lanes>(columns: &Columns, lane: usize) -> [u16; LANES] {
    let zero = V::splat(0.0);
    let (mut most, mut poison) = (zero, zero);
    for column in columns {
        let x = load::<V>(column, lane);
        most = x.max(zero.sub(x)).max(most);
        poison = x.mul_add(zero, poison);
    }
    let mut scales = [0.0; LANES];
    // Zero times anything but a finite number is NaN.
    most.div(V::splat(127.0)).add(poison).store(&mut scales);
    scales.map(|scale| f16::from_f32(scale).to_bits())
}

/// Where -8 and 7 may end up: candidates of the number that stands for the element of the largest
/// magnitude. A scale has either sign, since there are more negative numbers.
const EXTREMES: [f32; 26] = [
    -7.0, -7.125, -7.25, -7.375, -7.5, -7.625, -7.75, -7.875, -8.0, -8.125, -8.25, -8.375, -8.5,
    -8.625, -8.75, -8.875, -9.0, 6.25, 6.5, 6.75, 7.0, 7.25, 7.5, 7.75, 8.0, 8.25,
];

/// Bits of the scales with the least squared error: for given numbers q it is `sum x q / sum q²`
/// and leaves `sum x² - (sum x q)² / sum q²`.
#[inline(always)]
fn scales_4<V: Lanes>(columns: &Columns, lane: usize) -> [u16; LANES] {
    let zero = V::splat(0.0);
    let (mut high, mut low, mut poison) = (zero, zero, zero);
    for column in columns {
        let x = load::<V>(column, lane);
        high = x.max(high);
        low = x.min(low);
        poison = x.mul_add(zero, poison);
    }
    let (mut highs, mut lows, mut poisons) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    high.store(&mut highs);
    low.store(&mut lows);
    poison.store(&mut poisons);
    // One over the element of the largest magnitude.
    let mut inverses = [0.0; LANES];
    for i in 0..LANES {
        let extreme: f32 = if highs[i] > -lows[i] { highs[i] } else { lows[i] };
        inverses[i] = if extreme == 0.0 { 0.0 } else { 1.0 / extreme };
    }
    let inverse = V::load(&inverses);
    let (mut best, mut scales) = ([0.0; LANES], [0.0; LANES]);
    let (least, most, magic) = (V::splat(-8.0), V::splat(7.0), V::splat(MAGIC));
    for extreme in EXTREMES {
        let factor = inverse.mul(V::splat(extreme));
        let (mut products, mut squares) = (zero, zero);
        for column in columns {
            let x = load::<V>(column, lane);
            let q = x.mul(factor).max(least).min(most).add(magic).sub(magic);
            products = x.mul_add(q, products);
            squares = q.mul_add(q, squares);
        }
        let (mut product, mut square) = ([0.0; LANES], [0.0; LANES]);
        products.store(&mut product);
        squares.store(&mut square);
        for i in 0..LANES {
            let scale = product[i] / square[i];
            let gain = scale * product[i];
            if gain > best[i] {
                best[i] = gain;
                scales[i] = scale;
            }
        }
    }
    std::array::from_fn(|i| f16::from_f32(scales[i] + poisons[i]).to_bits())
}

/// Bytes of 32 columns of a row of GGUF's Q8_0 and Q4_0.
pub(crate) const Q8_0_BYTES: usize = 2 + PART;
pub(crate) const Q4_0_BYTES: usize = 2 + PART / 2;

/// Copies the blocks of one row of GGUF's Q8_0 or Q4_0 into its lane of a tile, number by number.
pub(crate) fn repack_row(coding: Coding, row: &[u8], k: usize, lane: usize, tile: &mut [u8]) {
    let block_bytes = if coding.bits == 8 { Q8_0_BYTES } else { Q4_0_BYTES };
    for (b, block) in row.chunks_exact(block_bytes).enumerate() {
        let (g, p) = (b * PART / GROUP, b * PART % GROUP / PART);
        let group = &mut tile[g * coding.group_bytes(GROUP)..];
        let (weights, scales) = group.split_at_mut(coding.weight_bytes(coding.columns(k, g)));
        let at = p * SCALE_BYTES + 2 * lane;
        scales[at..at + 2].copy_from_slice(&block[..2]);
        let weights = &mut weights[p * coding.weight_bytes(PART)..];
        for (i, word) in
            weights.chunks_exact_mut(4 * TILE).take(PART * coding.bits / 32).enumerate()
        {
            let word = &mut word[4 * lane..4 * lane + 4];
            for (j, byte) in word.iter_mut().enumerate() {
                *byte = match coding.bits {
                    8 => block[2 + 4 * i + j] ^ 128,
                    // Columns 8 i + j and 8 i + 4 + j of 32.
                    _ => nibble(block, 8 * i + j) | nibble(block, 8 * i + 4 + j) << 4,
                };
            }
        }
    }
}

/// Number of column `i` of a Q4_0 block: the low halves of its bytes, then the high halves.
pub(crate) fn nibble(block: &[u8], i: usize) -> u8 {
    if i < PART / 2 { block[2 + i] & 15 } else { block[2 + i - PART / 2] >> 4 }
}
