//! Sixteen lanes of two 16-bit integers, and their dot products: what int8 KV is read with.
//!
//! The sums are exact, so every instruction set gives the same numbers.
//! The contract is that of [`Lanes`].

use super::{LANES, Lanes, Scalar};

/// Sixteen 32-bit lanes: two 16-bit integers each, or a sum.
pub(crate) trait Pairs: Copy {
    /// The floats of the same registers.
    type Floats: Lanes;

    fn zero() -> Self;
    /// The pair `x`, the first in the low half, in every lane.
    fn splat(x: u32) -> Self;
    /// Sixteen pairs of 8-bit integers, widened.
    fn load_i8(x: &[i8; 2 * LANES]) -> Self;
    /// The sums `self` plus both products of the pairs of each lane.
    fn add_products(self, a: Self, b: Self) -> Self;
    /// The sums, rounded to nearest, ties to even.
    fn to_floats(self) -> Self::Floats;
}

/// The definition.
#[derive(Clone, Copy)]
pub(crate) struct ScalarPairs([i32; LANES]);

fn halves(x: i32) -> [i32; 2] {
    [i32::from(x as i16), x >> 16]
}

impl Pairs for ScalarPairs {
    type Floats = Scalar;

    #[inline(always)]
    fn zero() -> Self {
        ScalarPairs([0; LANES])
    }

    #[inline(always)]
    fn splat(x: u32) -> Self {
        ScalarPairs([x as i32; LANES])
    }

    #[inline(always)]
    fn load_i8(x: &[i8; 2 * LANES]) -> Self {
        ScalarPairs(std::array::from_fn(|i| {
            i32::from(x[2 * i] as i16 as u16) | i32::from(x[2 * i + 1]) << 16
        }))
    }

    #[inline(always)]
    fn add_products(self, a: Self, b: Self) -> Self {
        ScalarPairs(std::array::from_fn(|i| {
            let ([a0, a1], [b0, b1]) = (halves(a.0[i]), halves(b.0[i]));
            self.0[i].wrapping_add(a0 * b0).wrapping_add(a1 * b1)
        }))
    }

    #[inline(always)]
    fn to_floats(self) -> Scalar {
        Scalar(self.0.map(|x| x as f32))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2Pairs, Avx512Pairs, VnniPairs};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::{Avx2, Avx512};
    use super::{LANES, Pairs};

    /// Evaluates intrinsics that need only the instruction set.
    macro_rules! simd {
        ($e:expr) => {
            // SAFETY: by the contract of `Lanes`, this is inlined into a function compiled for,
            // and called only on, machines with these instructions. No memory is touched.
            unsafe { $e }
        };
    }

    /// Lanes 0..8 and 8..16.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2Pairs(__m256i, __m256i);

    impl Pairs for Avx2Pairs {
        type Floats = Avx2;

        #[inline(always)]
        fn zero() -> Self {
            simd!(Avx2Pairs(_mm256_setzero_si256(), _mm256_setzero_si256()))
        }

        #[inline(always)]
        fn splat(x: u32) -> Self {
            simd!(Avx2Pairs(_mm256_set1_epi32(x as i32), _mm256_set1_epi32(x as i32)))
        }

        #[inline(always)]
        fn load_i8(x: &[i8; 2 * LANES]) -> Self {
            // SAFETY: the reference covers 32 bytes; the instructions as in `simd!`.
            let (low, high) = unsafe {
                (_mm_loadu_si128(x.as_ptr().cast()), _mm_loadu_si128(x.as_ptr().add(16).cast()))
            };
            simd!(Avx2Pairs(_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)))
        }

        #[inline(always)]
        fn add_products(self, a: Self, b: Self) -> Self {
            simd!(Avx2Pairs(
                _mm256_add_epi32(self.0, _mm256_madd_epi16(a.0, b.0)),
                _mm256_add_epi32(self.1, _mm256_madd_epi16(a.1, b.1)),
            ))
        }

        #[inline(always)]
        fn to_floats(self) -> Avx2 {
            simd!(Avx2(_mm256_cvtepi32_ps(self.0), _mm256_cvtepi32_ps(self.1)))
        }
    }

    /// All lanes in one register; products and sums in two instructions.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Pairs(__m512i);

    /// The same with the dot product of AVX-512 VNNI.
    #[derive(Clone, Copy)]
    pub(crate) struct VnniPairs(__m512i);

    macro_rules! pairs_512 {
        ($name:ident, |$sum:ident, $a:ident, $b:ident| $add_products:expr) => {
            impl Pairs for $name {
                type Floats = Avx512;

                #[inline(always)]
                fn zero() -> Self {
                    simd!($name(_mm512_setzero_si512()))
                }

                #[inline(always)]
                fn splat(x: u32) -> Self {
                    simd!($name(_mm512_set1_epi32(x as i32)))
                }

                #[inline(always)]
                fn load_i8(x: &[i8; 2 * LANES]) -> Self {
                    // SAFETY: the reference covers 32 bytes; the instructions as in `simd!`.
                    let bytes = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
                    simd!($name(_mm512_cvtepi8_epi16(bytes)))
                }

                #[inline(always)]
                fn add_products(self, a: Self, b: Self) -> Self {
                    let ($sum, $a, $b) = (self.0, a.0, b.0);
                    simd!($name($add_products))
                }

                #[inline(always)]
                fn to_floats(self) -> Avx512 {
                    simd!(Avx512(_mm512_cvtepi32_ps(self.0)))
                }
            }
        };
    }

    pairs_512!(Avx512Pairs, |sum, a, b| _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)));
    pairs_512!(VnniPairs, |sum, a, b| _mm512_dpwssd_epi32(sum, a, b));
}
