//! Step and request records, counters, Prometheus text and log lines.

pub mod record;

pub mod histogram;
pub mod json_lines;
pub mod log_line;
pub mod metrics;
pub mod reporter;
pub mod window;
