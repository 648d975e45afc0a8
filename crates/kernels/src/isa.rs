//! The instruction set, chosen once at run time.

use std::fmt;

/// An instruction set that the operations are compiled for.
///
/// The results are the same bits on all of them: [`Isa::Scalar`] is the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, one element after another.
    Scalar,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors (F, BW, DQ, VL).
    Avx512,
}

impl Isa {
    /// The widest instruction set of this machine.
    pub fn detect() -> Isa {
        [Isa::Avx512, Isa::Avx2].into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            match self {
                Isa::Scalar => true,
                Isa::Avx2 => avx2,
                Isa::Avx512 => {
                    avx2 && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Scalar
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2+fma",
            Isa::Avx512 => "avx512",
        })
    }
}

/// An [`Isa`] that this machine was seen to have: the proof that [`per_isa!`] relies on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target(Isa);

impl Target {
    /// # Panics
    /// If this machine lacks the instruction set.
    pub(crate) fn new(isa: Isa) -> Target {
        assert!(isa.is_available(), "this machine has no {isa}");
        Target(isa)
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }
}

/// Compiles a function that is generic over [`Lanes`](crate::lanes::Lanes) once for each
/// instruction set, and defines a function of the same arguments that calls the right one:
///
/// `per_isa!(fn name(x: &[f32]) = generic_name);` gives `fn name(target: Target, x: &[f32])`.
/// Written `unsafe fn`, it passes the contract of the generic function on.
macro_rules! per_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:ident) => {
        $(#[$doc])*
        #[inline]
        $vis fn $name(target: $crate::isa::Target, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $ty),*) {
                    $generic::<$crate::lanes::Avx512>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) {
                    $generic::<$crate::lanes::Avx2>($($arg),*)
                }
                match target.isa() {
                    // SAFETY: a `Target` exists only for instruction sets this machine has.
                    $crate::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::Isa::Scalar => {}
                }
            }
            let _ = target;
            $generic::<$crate::lanes::Scalar>($($arg),*)
        }
    };
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:ident) => {
        $(#[$doc])*
        #[inline]
        $vis unsafe fn $name(target: $crate::isa::Target, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                unsafe fn avx512($($arg: $ty),*) {
                    // SAFETY: the caller keeps the contract of the generic function.
                    unsafe { $generic::<$crate::lanes::Avx512>($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2($($arg: $ty),*) {
                    // SAFETY: the caller keeps the contract of the generic function.
                    unsafe { $generic::<$crate::lanes::Avx2>($($arg),*) }
                }
                match target.isa() {
                    // SAFETY: a `Target` exists only for instruction sets this machine has.
                    $crate::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::Isa::Scalar => {}
                }
            }
            let _ = target;
            // SAFETY: the caller keeps the contract of the generic function.
            unsafe { $generic::<$crate::lanes::Scalar>($($arg),*) }
        }
    };
}
pub(crate) use per_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_set_is_available_and_scalar_always_is() {
        assert!(Isa::detect().is_available());
        assert!(Isa::Scalar.is_available());
    }
}
