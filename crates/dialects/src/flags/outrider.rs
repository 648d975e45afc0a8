//! Outrider's own names, where it has one beside SGLang's. Everything else is read from SGLang's table.

use super::{Flag, n, value};
use crate::factor::Factor as F;

pub(super) const FLAGS: &[Flag] =
    &[value(F::ModelQuant, None, &[n("--quant")]), value(F::ExecThreads, None, &[n("--threads")])];
