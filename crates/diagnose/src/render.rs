//! The report as JSON, text, Markdown and HTML: four views of one value.

mod html;
mod json;
mod markdown;
mod text;

pub use html::html;
pub use json::json;
pub use markdown::markdown;
pub use text::text;
