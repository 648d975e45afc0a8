//! The real binary with the model inside it, from outside: processes, sockets, signals, files.
//!
//! Whatever a request meets (drafts, cached prefixes, batch mates, chunks, preemption, threads,
//! instruction sets), its tokens must be those of a plain run alone.
//! What a scripted engine can show is tested in the crate `api`.

mod answers;
mod archaeology;
mod baseline;
mod checkpoints;
mod commands;
mod concurrency;
mod eval;
mod fix;
mod followers;
mod gguf;
mod host;
mod ledger;
mod lifecycle;
mod limits;
mod plan;
mod prefixes;
mod probe;
mod prompts;
mod restarts;
mod server;
mod smollm2;
mod speculation;
mod ssh;
mod stand_in;
mod stops;
mod variants;
