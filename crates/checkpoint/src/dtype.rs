//! How the elements of a stored weight are encoded.

use std::fmt;

/// Element type of a stored weight.
///
/// The block types are GGUF's: a row is cut into blocks of consecutive elements, and each block
/// is packed with its own scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// The upper half of a single.
    Bf16,
    /// IEEE half precision.
    F16,
    /// One byte: sign, 4 bits of exponent, 3 of mantissa; no infinities. Comes with scales.
    F8E4m3,
    /// 32 elements: a half-precision scale and signed 8-bit integers.
    Q8_0,
    /// 32 elements: a half-precision scale and 4-bit integers less 8.
    Q4_0,
    /// 32 elements: half-precision scale and minimum, 4-bit integers.
    Q4_1,
    /// 32 elements: a half-precision scale and 5-bit integers less 16.
    Q5_0,
    /// 32 elements: half-precision scale and minimum, 5-bit integers.
    Q5_1,
    /// 256 elements in 8 groups with 6-bit scales and minimums, 4-bit integers.
    Q4K,
    /// 256 elements in 8 groups with 6-bit scales and minimums, 5-bit integers.
    Q5K,
    /// 256 elements in 16 groups with 8-bit scales, 6-bit integers less 32.
    Q6K,
}

impl DType {
    /// Elements of a block, and its bytes; one element where there are no blocks.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Bf16 | Self::F16 => (1, 2),
            Self::F8E4m3 => (1, 1),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of `shape`; `None` when a row is no whole number of blocks, or on overflow.
    pub fn bytes_of(self, shape: &[usize]) -> Option<u64> {
        let (elements, bytes) = self.block();
        if !shape.last().copied().unwrap_or(1).is_multiple_of(elements) {
            return None;
        }
        let n = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64))?;
        (n / elements as u64).checked_mul(bytes as u64)
    }

    /// The name that the file formats have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::F8E4m3 => "F8_E4M3",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
