//! From evidence to a ranked, explained report.
