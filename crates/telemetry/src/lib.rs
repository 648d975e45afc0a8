//! Step and request records, counters, Prometheus text and log lines.

pub mod record;
