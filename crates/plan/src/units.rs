//! Byte counts as people read them.

use std::fmt;

/// Shown in the largest binary unit that leaves a whole part.
#[derive(Clone, Copy)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..0x400 => write!(f, "{} B", self.0),
            0x400..0x10_0000 => write!(f, "{:.1} KiB", bytes / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", bytes / 1024.0 / 1024.0),
            _ => write!(f, "{:.2} GiB", bytes / 1024.0 / 1024.0 / 1024.0),
        }
    }
}
