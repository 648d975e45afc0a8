//! Tests of the public interface, on tiny checkpoints that are made up on the spot.

mod config;
mod damage;
mod golden;
mod incomplete;
mod made_up;
