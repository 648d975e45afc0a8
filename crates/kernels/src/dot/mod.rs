//! Sixteen lanes of integer dot products: the vocabulary in which products with 8-bit and 4-bit
//! weights are written, as `lanes` is for floats.
//!
//! A lane adds four products of an unsigned weight and a signed activation at a time. The sums are
//! exact, so all instruction sets give the same bits.
//!
//! Contract: the vector types may be used only inside a function that `per_dot!` compiled for
//! them. Everything generic over [`Dot`] is therefore `#[inline(always)]` and free of closures.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use std::fmt;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{Avx2Dot, AvxVnniDot};
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512Dot;
pub(crate) use scalar::ScalarDot;

use crate::Isa;
use crate::lanes::Lanes;

/// Sixteen 32-bit sums.
pub(crate) trait Dot: Copy {
    /// The lanes that the sums are scaled in.
    type Floats: Lanes;
    /// Four weights for each lane.
    type Weights: Copy;
    /// Four activations, the same for each lane.
    type Inputs: Copy;

    /// How many vectors of 16 outputs a block keeps in registers: 4 or 1.
    const COLUMNS: usize;
    /// How many rows it keeps with one scale per group, at most 6.
    const ROWS: usize;
    /// How many with a scale for each part of a group, which takes twice the accumulators; at
    /// most 3.
    const FINE_ROWS: usize;

    fn splat(x: i32) -> Self;
    fn load(x: &[i32; 16]) -> Self;
    fn add(self, b: Self) -> Self;
    /// Four bytes for each lane.
    fn weights(x: &[u8; 64]) -> Self::Weights;
    /// The low halves of the bytes and the high halves.
    fn nibbles(x: &[u8; 64]) -> (Self::Weights, Self::Weights);
    fn store_weights(w: Self::Weights, y: &mut [u8; 64]);
    fn inputs(x: &[i8; 4]) -> Self::Inputs;
    /// Adds the four products of each lane.
    fn dot(self, w: Self::Weights, x: Self::Inputs) -> Self;
    /// Exact below 2^24.
    fn to_floats(self) -> Self::Floats;
    /// Sixteen half-precision numbers, little-endian.
    fn scales(x: &[u8; 32]) -> Self::Floats;
}

/// The instructions that multiply bytes, chosen once at run time beside the [`Isa`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotIsa {
    /// Plain Rust, the definition.
    Scalar,
    /// 256-bit multiplication of 16-bit numbers.
    Avx2,
    /// 256-bit VNNI.
    AvxVnni,
    /// 512-bit VNNI.
    Avx512Vnni,
    /// Matrix tiles where there are many rows, 512-bit VNNI for few.
    Amx,
}

impl DotIsa {
    /// All of them, the fastest first.
    pub(crate) const ALL: [DotIsa; 5] =
        [DotIsa::Amx, DotIsa::Avx512Vnni, DotIsa::AvxVnni, DotIsa::Avx2, DotIsa::Scalar];

    /// Whether this machine can run it beside `isa`.
    fn is_available(self, isa: Isa) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = isa >= Isa::Avx2 && is_x86_feature_detected!("f16c");
            let vnni = isa == Isa::Avx512 && avx2 && is_x86_feature_detected!("avx512vnni");
            match self {
                DotIsa::Scalar => true,
                DotIsa::Avx2 => avx2,
                DotIsa::AvxVnni => avx2 && is_x86_feature_detected!("avxvnni"),
                DotIsa::Avx512Vnni => vnni,
                DotIsa::Amx => vnni && amx::is_available(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = isa;
            self == DotIsa::Scalar
        }
    }
}

impl fmt::Display for DotIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DotIsa::Scalar => "scalar",
            DotIsa::Avx2 => "avx2",
            DotIsa::AvxVnni => "avx-vnni",
            DotIsa::Avx512Vnni => "avx512-vnni",
            DotIsa::Amx => "amx",
        })
    }
}

/// A [`DotIsa`] that this machine was seen to have: the proof that [`per_dot!`] relies on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DotTarget(DotIsa);

impl DotTarget {
    /// The sets that go with `isa`, the fastest first; scalar always does.
    pub(crate) fn available(isa: Isa) -> impl Iterator<Item = DotTarget> {
        DotIsa::ALL.into_iter().filter(move |dot| dot.is_available(isa)).map(DotTarget)
    }

    /// The fastest that goes with `isa`.
    pub(crate) fn best(isa: Isa) -> DotTarget {
        DotTarget::available(isa).next().unwrap_or(DotTarget(DotIsa::Scalar))
    }

    pub(crate) fn isa(self) -> DotIsa {
        self.0
    }
}

/// Compiles an unsafe function that is generic over [`Dot`] once for each instruction set, and
/// defines a function of the same arguments that calls the right one.
macro_rules! per_dot {
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:ident) => {
        $(#[$doc])*
        #[inline]
        $vis unsafe fn $name(target: $crate::dot::DotTarget, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(
                    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
                )]
                unsafe fn avx512($($arg: $ty),*) {
                    // SAFETY: the caller keeps the contract of the generic function.
                    unsafe { $generic::<$crate::dot::Avx512Dot>($($arg),*) }
                }
                #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
                unsafe fn avx_vnni($($arg: $ty),*) {
                    // SAFETY: the caller keeps the contract of the generic function.
                    unsafe { $generic::<$crate::dot::AvxVnniDot>($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2($($arg: $ty),*) {
                    // SAFETY: the caller keeps the contract of the generic function.
                    unsafe { $generic::<$crate::dot::Avx2Dot>($($arg),*) }
                }
                match target.isa() {
                    $crate::DotIsa::Amx | $crate::DotIsa::Avx512Vnni => {
                        // SAFETY: a `DotTarget` exists only for instruction sets this machine has.
                        return unsafe { avx512($($arg),*) };
                    }
                    // SAFETY: as above.
                    $crate::DotIsa::AvxVnni => return unsafe { avx_vnni($($arg),*) },
                    // SAFETY: as above.
                    $crate::DotIsa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::DotIsa::Scalar => {}
                }
            }
            let _ = target;
            // SAFETY: the caller keeps the contract of the generic function.
            unsafe { $generic::<$crate::dot::ScalarDot>($($arg),*) }
        }
    };
}
pub(crate) use per_dot;
