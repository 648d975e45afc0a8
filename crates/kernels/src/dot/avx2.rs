//! The integer lanes in two 256-bit registers, with VNNI and without.

use std::arch::x86_64::*;

use super::Dot;
use crate::lanes::Avx2;

/// Evaluates intrinsics that need only the instruction set.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: by the contract of `Dot`, this is inlined into a function compiled for, and
        // called only on, machines with these instructions. Memory is touched through references
        // that cover it.
        unsafe { $e }
    };
}

/// Lanes 0..8 and 8..16; products of bytes through 16-bit numbers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Dot(__m256i, __m256i);

/// The same with VNNI.
#[derive(Clone, Copy)]
pub(crate) struct AvxVnniDot(__m256i, __m256i);

#[inline(always)]
fn load_bytes(x: &[u8; 64]) -> (__m256i, __m256i) {
    let p = x.as_ptr().cast::<__m256i>();
    simd!((_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))))
}

#[inline(always)]
fn store_bytes(w: (__m256i, __m256i), y: &mut [u8; 64]) {
    let p = y.as_mut_ptr().cast::<__m256i>();
    simd!({
        _mm256_storeu_si256(p, w.0);
        _mm256_storeu_si256(p.add(1), w.1);
    });
}

#[inline(always)]
fn load_nibbles(x: &[u8; 64]) -> ((__m256i, __m256i), (__m256i, __m256i)) {
    let (a, b) = load_bytes(x);
    simd!({
        let mask = _mm256_set1_epi8(15);
        let high = (_mm256_srli_epi16::<4>(a), _mm256_srli_epi16::<4>(b));
        (
            (_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)),
            (_mm256_and_si256(high.0, mask), _mm256_and_si256(high.1, mask)),
        )
    })
}

#[inline(always)]
fn broadcast(x: &[i8; 4]) -> __m256i {
    simd!(_mm256_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))))
}

#[inline(always)]
fn floats(a: __m256i, b: __m256i) -> Avx2 {
    simd!(Avx2(_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)))
}

#[inline(always)]
fn widened(x: &[u8; 32]) -> Avx2 {
    let p = x.as_ptr().cast::<__m128i>();
    simd!(Avx2(_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))))
}

/// Adds the products of four bytes of each lane, two at a time.
#[inline(always)]
fn add_products(sums: __m256i, w: __m256i, x: (__m256i, __m256i)) -> __m256i {
    simd!({
        let first = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), x.0);
        let second = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), x.1);
        _mm256_add_epi32(sums, _mm256_add_epi32(first, second))
    })
}

/// What the two have in common.
macro_rules! both_kinds {
    () => {
        type Floats = Avx2;
        type Weights = (__m256i, __m256i);

        #[inline(always)]
        fn splat(x: i32) -> Self {
            let v = simd!(_mm256_set1_epi32(x));
            Self(v, v)
        }

        #[inline(always)]
        fn load(x: &[i32; 16]) -> Self {
            let p = x.as_ptr().cast::<__m256i>();
            simd!(Self(_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))))
        }

        #[inline(always)]
        fn add(self, b: Self) -> Self {
            simd!(Self(_mm256_add_epi32(self.0, b.0), _mm256_add_epi32(self.1, b.1)))
        }

        #[inline(always)]
        fn weights(x: &[u8; 64]) -> Self::Weights {
            load_bytes(x)
        }

        #[inline(always)]
        fn nibbles(x: &[u8; 64]) -> (Self::Weights, Self::Weights) {
            load_nibbles(x)
        }

        #[inline(always)]
        fn store_weights(w: Self::Weights, y: &mut [u8; 64]) {
            store_bytes(w, y);
        }

        #[inline(always)]
        fn to_floats(self) -> Avx2 {
            floats(self.0, self.1)
        }

        #[inline(always)]
        fn scales(x: &[u8; 32]) -> Avx2 {
            widened(x)
        }
    };
}

impl Dot for Avx2Dot {
    both_kinds!();

    /// The first and third of the four activations as 16-bit numbers, and the second and fourth.
    type Inputs = (__m256i, __m256i);

    // 16 registers: 3 rows x 2 sums, the weights as 4 registers, the activations as 2.
    const COLUMNS: usize = 1;
    const ROWS: usize = 3;
    const FINE_ROWS: usize = 2;

    #[inline(always)]
    fn inputs(x: &[i8; 4]) -> Self::Inputs {
        let x = broadcast(x);
        simd!((_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x)))
    }

    /// `vpmaddubsw` would saturate: pairs of products exceed 16 bits.
    #[inline(always)]
    fn dot(self, w: Self::Weights, x: Self::Inputs) -> Self {
        Avx2Dot(add_products(self.0, w.0, x), add_products(self.1, w.1, x))
    }
}

impl Dot for AvxVnniDot {
    both_kinds!();

    type Inputs = __m256i;

    // 16 registers: 6 rows x 2 sums, 2 of weights and a broadcast; or 3 rows with the sums twice.
    const COLUMNS: usize = 1;
    const ROWS: usize = 6;
    const FINE_ROWS: usize = 3;

    #[inline(always)]
    fn inputs(x: &[i8; 4]) -> __m256i {
        broadcast(x)
    }

    #[inline(always)]
    fn dot(self, w: Self::Weights, x: __m256i) -> Self {
        simd!(AvxVnniDot(
            _mm256_dpbusd_avx_epi32(self.0, w.0, x),
            _mm256_dpbusd_avx_epi32(self.1, w.1, x),
        ))
    }
}
