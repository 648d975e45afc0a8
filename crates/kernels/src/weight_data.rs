//! Rows of a weight as they lie in a file.

use half::f16;

use crate::quant::PART;
use crate::quant::pack::{Q4_0_BYTES, Q8_0_BYTES, nibble};

/// Rows of a weight as they lie in a file: little-endian, row-major `[n, k]`, any alignment.
#[derive(Clone, Copy, Debug)]
pub enum WeightData<'a> {
    /// IEEE single precision.
    F32(&'a [u8]),
    /// bfloat16.
    Bf16(&'a [u8]),
    /// IEEE half precision.
    F16(&'a [u8]),
    /// GGUF's Q8_0: blocks of 32 columns, a half-precision scale and 32 signed bytes.
    Q8_0(&'a [u8]),
    /// GGUF's Q4_0: blocks of 32 columns, a half-precision scale and 16 bytes, whose low halves
    /// are the first 16 columns and whose high halves the others, all less 8.
    Q4_0(&'a [u8]),
}

impl<'a> WeightData<'a> {
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            WeightData::F32(bytes)
            | WeightData::Bf16(bytes)
            | WeightData::F16(bytes)
            | WeightData::Q8_0(bytes)
            | WeightData::Q4_0(bytes) => bytes,
        }
    }

    /// Bytes of a row of k columns.
    pub(crate) fn row_bytes(self, k: usize) -> usize {
        match self {
            WeightData::F32(_) => 4 * k,
            WeightData::Bf16(_) | WeightData::F16(_) => 2 * k,
            WeightData::Q8_0(_) => k.div_ceil(PART) * Q8_0_BYTES,
            WeightData::Q4_0(_) => k.div_ceil(PART) * Q4_0_BYTES,
        }
    }

    /// Whether whole rows have k columns.
    pub(crate) fn divides(self, k: usize) -> bool {
        !matches!(self, WeightData::Q8_0(_) | WeightData::Q4_0(_)) || k.is_multiple_of(PART)
    }

    /// Row n of rows of k columns.
    pub(crate) fn row(self, n: usize, k: usize) -> WeightData<'a> {
        let bytes = &self.bytes()[n * self.row_bytes(k)..(n + 1) * self.row_bytes(k)];
        match self {
            WeightData::F32(_) => WeightData::F32(bytes),
            WeightData::Bf16(_) => WeightData::Bf16(bytes),
            WeightData::F16(_) => WeightData::F16(bytes),
            WeightData::Q8_0(_) => WeightData::Q8_0(bytes),
            WeightData::Q4_0(_) => WeightData::Q4_0(bytes),
        }
    }
}

/// Columns of a row from `first` on, widened.
pub(crate) fn widen(row: WeightData<'_>, first: usize, out: &mut [f32]) {
    let columns = first..first + out.len();
    match row {
        WeightData::F32(bytes) => {
            for (out, x) in out.iter_mut().zip(&bytes.as_chunks().0[columns]) {
                *out = f32::from_le_bytes(*x);
            }
        }
        WeightData::Bf16(bytes) => {
            for (out, x) in out.iter_mut().zip(&bytes.as_chunks().0[columns]) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
            }
        }
        WeightData::F16(_) | WeightData::Q8_0(_) | WeightData::Q4_0(_) => {
            for (out, column) in out.iter_mut().zip(columns) {
                *out = element(row, column);
            }
        }
    }
}

/// One element of a row, widened.
pub(crate) fn element(row: WeightData<'_>, column: usize) -> f32 {
    match row {
        WeightData::F32(bytes) => f32::from_le_bytes(bytes.as_chunks().0[column]),
        WeightData::Bf16(bytes) => {
            f32::from_bits(u32::from(u16::from_le_bytes(bytes.as_chunks().0[column])) << 16)
        }
        WeightData::F16(bytes) => f16::from_le_bytes(bytes.as_chunks().0[column]).to_f32(),
        WeightData::Q8_0(bytes) => {
            let block = &bytes[column / PART * Q8_0_BYTES..][..Q8_0_BYTES];
            f32::from(block[2 + column % PART] as i8) * block_scale(block)
        }
        WeightData::Q4_0(bytes) => {
            let block = &bytes[column / PART * Q4_0_BYTES..][..Q4_0_BYTES];
            (f32::from(nibble(block, column % PART)) - 8.0) * block_scale(block)
        }
    }
}

fn block_scale(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[0], block[1]]).to_f32()
}
