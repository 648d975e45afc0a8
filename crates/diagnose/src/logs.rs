//! Logs as windows: what a server did, a few seconds at a time, and what it said about itself.

mod reader;
mod runs;
mod store;
mod table;
mod window;

pub use reader::{LogReader, read_file, read_stream, read_text};
pub use runs::{LogSummary, Run, Sizes, WarningSeen};
pub use store::Thinned;
pub use table::{Shown, render_json, render_text};
pub use window::{Validity, Window};
