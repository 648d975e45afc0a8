//! Products with weights of 8 and 4 bits.
//!
//! Activations are quantised per row and group of 128 columns to signed bytes ([`inputs`]), the
//! weights at load to unsigned ones ([`pack`]), with scales per 128 or 32 columns. [`product`]
//! defines the result: integer sums, which are exact, and one fixed order of the few floating
//! operations that scale them. So every instruction set gives the same bits here too.

pub(crate) mod inputs;
pub(crate) mod pack;
pub(crate) mod product;
#[cfg(target_arch = "x86_64")]
mod tiles;

use crate::matrix::WeightFormat;
use crate::tile::TILE;

/// Columns that share the scale of an activation.
pub(crate) const GROUP: usize = 128;
/// Columns that share a weight's scale in the fine formats.
pub(crate) const PART: usize = 32;
/// Bytes of the scales of 64 outputs: half precision.
pub(crate) const SCALE_BYTES: usize = 2 * TILE;

/// How a tile of 64 outputs lies in memory: group after group of 128 columns, each with its
/// weights first and its scales behind, so that a thread reads one stream.
///
/// Weights are unsigned, `zero` standing for 0: bytes as `[columns / 4][64][4]`, or pairs of
/// 4-bit numbers as `[columns / 8][64][4]` with the lower four columns in the low halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coding {
    /// Bits of a weight: 8 or 4.
    pub(crate) bits: usize,
    /// Columns that share a scale: [`GROUP`] or [`PART`].
    pub(crate) scaled: usize,
}

impl Coding {
    /// The coding of a format; none for floats.
    pub(crate) fn of(format: WeightFormat) -> Option<Coding> {
        match format {
            WeightFormat::F32 | WeightFormat::Bf16 => None,
            WeightFormat::Int8 => Some(Coding { bits: 8, scaled: GROUP }),
            WeightFormat::Q8_0 => Some(Coding { bits: 8, scaled: PART }),
            WeightFormat::Q4_0 => Some(Coding { bits: 4, scaled: PART }),
        }
    }

    /// The number that stands for 0.
    pub(crate) fn zero(self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Columns of group `g` out of k, padded: matrix tiles take 64 columns at a time where a
    /// scale covers them.
    pub(crate) fn columns(self, k: usize, g: usize) -> usize {
        (k - g * GROUP).min(GROUP).next_multiple_of(if self.scaled == GROUP { 64 } else { PART })
    }

    /// Bytes of the weights of so many columns of 64 outputs, without the scales.
    pub(crate) fn weight_bytes(self, columns: usize) -> usize {
        columns * TILE * self.bits / 8
    }

    /// Bytes of a group of so many columns of 64 outputs.
    pub(crate) fn group_bytes(self, columns: usize) -> usize {
        self.weight_bytes(columns) + columns.div_ceil(self.scaled) * SCALE_BYTES
    }

    /// Bytes of a tile of 64 outputs and k columns.
    pub(crate) fn tile_bytes(self, k: usize) -> usize {
        (0..k.div_ceil(GROUP)).map(|g| self.group_bytes(self.columns(k, g))).sum()
    }

    /// One weight of a tile, widened: (its number less zero, its scale).
    pub(crate) fn element(self, tile: &[u8], k: usize, lane: usize, column: usize) -> (i32, f32) {
        let (g, i) = (column / GROUP, column % GROUP);
        let columns = self.columns(k, g);
        let group = &tile[g * self.group_bytes(GROUP)..][..self.group_bytes(columns)];
        let (weights, scales) = group.split_at(self.weight_bytes(columns));
        let number = match self.bits {
            8 => weights[i / 4 * 4 * TILE + lane * 4 + i % 4],
            _ => weights[i / 8 * 4 * TILE + lane * 4 + i % 4] >> (i % 8 / 4 * 4) & 15,
        };
        let at = i / self.scaled * SCALE_BYTES + 2 * lane;
        let scale = half::f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32();
        (i32::from(number) - self.zero(), scale)
    }
}

#[cfg(test)]
mod tests;
