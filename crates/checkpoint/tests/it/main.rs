//! Tests of the public interface, on tiny checkpoints that are made up on the spot.

mod config;
mod damage;
mod fp8;
mod gguf;
mod gguf_damage;
mod gguf_files;
mod golden;
mod hub;
mod hub_refusals;
mod incomplete;
mod made_up;
mod made_up_hub;
mod server;
