//! Evidence as numbers: for each side of the comparison, every quantity that its evidence gives, with interval and source.

mod choose;
mod measure;
mod side;

pub use choose::{Case, InForce};
pub use side::{Fact, Facts, SideView};

pub(crate) use choose::case;
