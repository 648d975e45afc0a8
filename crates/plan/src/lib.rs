//! Bytes and times: every size the server uses, decided before it starts.

pub mod engines;
