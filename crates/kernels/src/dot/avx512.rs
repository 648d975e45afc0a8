//! The integer lanes in one 512-bit register, with VNNI.

use std::arch::x86_64::*;

use super::Dot;
use crate::lanes::Avx512;

/// Sixteen sums in one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Dot(__m512i);

/// Evaluates intrinsics that need only the instruction set.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: by the contract of `Dot`, this is inlined into a function compiled for, and
        // called only on, machines with these instructions. Memory is touched through references
        // that cover it.
        unsafe { $e }
    };
}

impl Dot for Avx512Dot {
    type Floats = Avx512;
    type Weights = __m512i;
    type Inputs = __m512i;

    // 32 registers: 6 rows x 4 sums, 4 weights and a broadcast; or 3 x 4 sums twice.
    const COLUMNS: usize = 4;
    const ROWS: usize = 6;
    const FINE_ROWS: usize = 3;

    #[inline(always)]
    fn splat(x: i32) -> Self {
        Avx512Dot(simd!(_mm512_set1_epi32(x)))
    }

    #[inline(always)]
    fn load(x: &[i32; 16]) -> Self {
        Avx512Dot(simd!(_mm512_loadu_si512(x.as_ptr().cast())))
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Avx512Dot(simd!(_mm512_add_epi32(self.0, b.0)))
    }

    #[inline(always)]
    fn weights(x: &[u8; 64]) -> __m512i {
        simd!(_mm512_loadu_si512(x.as_ptr().cast()))
    }

    #[inline(always)]
    fn nibbles(x: &[u8; 64]) -> (__m512i, __m512i) {
        simd!({
            let bytes = _mm512_loadu_si512(x.as_ptr().cast());
            let mask = _mm512_set1_epi8(15);
            let high = _mm512_srli_epi16::<4>(bytes);
            (_mm512_and_si512(bytes, mask), _mm512_and_si512(high, mask))
        })
    }

    #[inline(always)]
    fn store_weights(w: __m512i, y: &mut [u8; 64]) {
        simd!(_mm512_storeu_si512(y.as_mut_ptr().cast(), w));
    }

    #[inline(always)]
    fn inputs(x: &[i8; 4]) -> __m512i {
        simd!(_mm512_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))))
    }

    #[inline(always)]
    fn dot(self, w: __m512i, x: __m512i) -> Self {
        Avx512Dot(simd!(_mm512_dpbusd_epi32(self.0, w, x)))
    }

    #[inline(always)]
    fn to_floats(self) -> Avx512 {
        Avx512(simd!(_mm512_cvtepi32_ps(self.0)))
    }

    #[inline(always)]
    fn scales(x: &[u8; 32]) -> Avx512 {
        Avx512(simd!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast()))))
    }
}
