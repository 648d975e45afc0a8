//! Products of sixteen rows or more on the matrix tiles of AMX.
//!
//! The sums are exact 32-bit integers like those of the vectors, so they are the same. The
//! intrinsics are not stable in Rust, so the instructions are written as assembly, one block for
//! each product: no tile lives across blocks but the configuration.

use std::arch::asm;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// The configuration that `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Tiles 0 to 3: sums; 4 and 5: activations `[16][columns]`; 6 and 7: weights
    /// `[columns / 4][16][4]`.
    const fn new(columns: usize) -> Config {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut tile = 0;
        while tile < 8 {
            config.row_bytes[tile] = if tile == 4 || tile == 5 { columns as u16 } else { 64 };
            config.rows[tile] = if tile < 6 { 16 } else { (columns / 4) as u8 };
            tile += 1;
        }
        config
    }
}

static WIDE: Config = Config::new(64);
static NARROW: Config = Config::new(32);

/// Whether this machine has AMX for bytes and the system lets this process use it.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        let (amx_tile, amx_int8) = (1 << 24, 1 << 25);
        leaf.edx & amx_tile != 0 && leaf.edx & amx_int8 != 0 && permitted()
    })
}

/// Asks the system for the tile registers, for all threads of this process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: i32 = 0x1023;
    const XFEATURE_XTILEDATA: i32 = 18;
    // SAFETY: the call changes nothing but which registers this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The tile registers of this thread, configured; they are given back at the end, so that the
/// system need not save them.
pub(crate) struct Tiles(());

impl Tiles {
    /// For products of 64 columns at a time, or of 32.
    ///
    /// # Safety
    /// [`is_available`] must have said so.
    pub(crate) unsafe fn configure(wide: bool) -> Tiles {
        let config = if wide { &raw const WIDE } else { &raw const NARROW };
        // SAFETY: the configuration is valid, and the instructions exist by the contract.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
        Tiles(())
    }

    /// Sums of the products of 32 rows and 32 outputs: `steps` times 64 (or 32) columns.
    ///
    /// # Safety
    /// `x` must be readable for 32 rows of `x_stride` bytes, `w` for all columns of 64 outputs in
    /// quads, of which it takes the first 32; `sums` writable for 32 rows of 64 sums.
    #[inline(always)]
    pub(crate) unsafe fn product_32x32(
        &self,
        w: *const u8,
        x: *const i8,
        steps: Steps,
        sums: *mut i32,
    ) {
        // SAFETY: passed on from the caller; all tile registers are declared.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{x} + {x_stride}]",
                "tileloadd tmm6, [{w} + {w_stride}]",
                "tileloadd tmm5, [{x2} + {x_stride}]",
                "tileloadd tmm7, [{w} + {w_stride} + 64]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tdpbsud tmm1, tmm4, tmm7",
                "tdpbsud tmm2, tmm5, tmm6",
                "tdpbsud tmm3, tmm5, tmm7",
                "add {x}, {x_step}",
                "add {x2}, {x_step}",
                "add {w}, {w_step}",
                "dec {n}",
                "jnz 2b",
                "tilestored [{sums} + {w_stride}], tmm0",
                "tilestored [{sums} + {w_stride} + 64], tmm1",
                "tilestored [{sums2} + {w_stride}], tmm2",
                "tilestored [{sums2} + {w_stride} + 64], tmm3",
                x = inout(reg) x => _,
                x2 = inout(reg) x.add(TILE_ROWS * steps.x_stride) => _,
                w = inout(reg) w => _,
                n = inout(reg) steps.n => _,
                x_stride = in(reg) steps.x_stride,
                w_stride = in(reg) 256usize,
                x_step = in(reg) steps.columns,
                w_step = in(reg) steps.columns * 64,
                sums = in(reg) sums,
                sums2 = in(reg) sums.add(TILE_ROWS * 64),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Sums of the products of 16 rows and 64 outputs.
    ///
    /// # Safety
    /// As for 32 rows, but 16 of them and all 64 outputs.
    #[inline(always)]
    pub(crate) unsafe fn product_16x64(
        &self,
        w: *const u8,
        x: *const i8,
        steps: Steps,
        sums: *mut i32,
    ) {
        // SAFETY: passed on from the caller; all tile registers are declared.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{x} + {x_stride}]",
                "tileloadd tmm6, [{w} + {w_stride}]",
                "tileloadd tmm7, [{w} + {w_stride} + 64]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tileloadd tmm6, [{w} + {w_stride} + 128]",
                "tdpbsud tmm1, tmm4, tmm7",
                "tileloadd tmm7, [{w} + {w_stride} + 192]",
                "tdpbsud tmm2, tmm4, tmm6",
                "tdpbsud tmm3, tmm4, tmm7",
                "add {x}, {x_step}",
                "add {w}, {w_step}",
                "dec {n}",
                "jnz 2b",
                "tilestored [{sums} + {w_stride}], tmm0",
                "tilestored [{sums} + {w_stride} + 64], tmm1",
                "tilestored [{sums} + {w_stride} + 128], tmm2",
                "tilestored [{sums} + {w_stride} + 192], tmm3",
                x = inout(reg) x => _,
                w = inout(reg) w => _,
                n = inout(reg) steps.n => _,
                x_stride = in(reg) steps.x_stride,
                w_stride = in(reg) 256usize,
                x_step = in(reg) steps.columns,
                w_step = in(reg) steps.columns * 64,
                sums = in(reg) sums,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: this thread configured them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// How a product runs over its columns.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    /// Number of steps, at least one.
    pub(crate) n: usize,
    /// Columns of a step: 64 or 32, as configured.
    pub(crate) columns: usize,
    /// Bytes from one row of activations to the next.
    pub(crate) x_stride: usize,
}
