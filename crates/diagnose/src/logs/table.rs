//! x
use super::LogSummary;
/// x
pub fn render_text(_s: &LogSummary) -> String { String::new() }
/// x
pub fn render_json(_s: &LogSummary) -> String { String::new() }
