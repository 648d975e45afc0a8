//! The plan of our own server: known sizes, choices, refusals, and that it never over-commits.

mod choices;
mod models;
mod never_too_much;
mod sizes;
