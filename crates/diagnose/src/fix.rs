//! From a fix to the text that puts it in force: a changed command line, or a drop-in of a unit.
//!
//! Nothing here writes or runs anything.

mod edit;
mod unit;
mod words;

pub use edit::{edited, inverse};
pub use unit::{DROP_IN, drop_in};
pub use words::{Quoting, Word};
