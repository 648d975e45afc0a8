//! What stands behind the routes in tests.

use std::sync::{Arc, Mutex};

use api::backend::Backend;
use engine::config::{EngineConfig, PrefixCache, Speculation};
use engine::engine::Engine;
use engine::error::SubmitError;
use engine::handle::{EngineHandle, Shutdown};
use engine::request::{
    Event, EventSink, Finish, FinishReason, Request, SpeculationCounts, Timings, TokenOut,
};
use telemetry::record::Snapshot;
use testkit::scripted::{DraftHead, Scripted, Shape};

use crate::support::{CONTEXT_LEN, EOS, tokenizer};

/// Answers every request with the same tokens, at once, and remembers what was asked for.
pub(crate) struct Script {
    /// Steps of the answer; each is the tokens of one step.
    blocks: Vec<Vec<u32>>,
    /// The token that ends the request with a failure instead.
    fails: bool,
    /// What was submitted.
    pub requests: Mutex<Vec<Request>>,
}

impl Script {
    /// An answer that is `text`, one token per step, markers parsed.
    pub(crate) fn says(text: &str) -> Arc<Script> {
        let ids = tokenizer().encode(text, text::tokenizer::Markers::Parse).unwrap();
        Script::steps(ids.into_iter().map(|id| vec![id]).collect())
    }

    /// An answer in these steps.
    pub(crate) fn steps(blocks: Vec<Vec<u32>>) -> Arc<Script> {
        Arc::new(Script { blocks, fails: false, requests: Mutex::default() })
    }

    /// An answer that begins with these steps and then fails.
    pub(crate) fn fails_after(blocks: Vec<Vec<u32>>) -> Arc<Script> {
        Arc::new(Script { blocks, fails: true, requests: Mutex::default() })
    }

    /// The requests so far.
    pub(crate) fn taken(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn token_out(id: u32, request: &Request) -> TokenOut {
    match request.sampling.logprobs {
        None => TokenOut { id, logprob: None, top: Vec::new() },
        Some(n) => {
            let top = (0..n).map(|i| ((id + i) % 4000, -0.25 - i as f32)).collect();
            TokenOut { id, logprob: Some(-0.25), top }
        }
    }
}

impl Backend for Script {
    fn submit(&self, request: Request, mut sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        self.requests.lock().unwrap().push(request.clone());
        let ends = |id: u32| {
            (id == EOS && !request.sampling.ignore_eos)
                || request.sampling.stop_token_ids.contains(&id)
        };
        let (mut n_generated, mut reason) = (0, None);
        for block in &self.blocks {
            let mut tokens = Vec::new();
            for id in block {
                tokens.push(token_out(*id, &request));
                n_generated += 1;
                if ends(*id) {
                    reason = Some(FinishReason::Stop { token: Some(*id) });
                } else if n_generated == request.max_tokens as usize {
                    reason = Some(FinishReason::Length);
                }
                if reason.is_some() {
                    break;
                }
            }
            if sink.send(Event::Tokens(tokens)).is_err() {
                reason = Some(FinishReason::Stop { token: None });
            }
            if reason.is_some() {
                break;
            }
        }
        if self.fails {
            // The request may be gone, which nobody needs to know here.
            let _ = sink.send(Event::Failed("worker 3 at step.rs:17 is gone".into()));
            return Ok(());
        }
        let finish = Finish {
            reason: reason.unwrap_or(FinishReason::Length),
            n_prompt: request.prompt.len(),
            n_cached: 3,
            n_generated,
            timings: Timings { queue_wait_s: 0.5, prefill_s: 1.0, decode_s: 2.0 },
            speculation: SpeculationCounts {
                n_decode_rounds: 4,
                n_verify_rounds: 4,
                n_drafted: 8,
                n_accepted: 6,
                n_accepted_at: vec![4, 2],
            },
        };
        let _ = sink.send(Event::Finished(finish));
        Ok(())
    }

    fn cancel(&self, _: u64) {}

    fn flush_cache(&self) {}

    fn stats(&self) -> Snapshot {
        Snapshot::default()
    }

    fn shutdown(&self, _: Shutdown) {}

    fn wait(&self) {}
}

/// Takes requests and says nothing.
#[derive(Default)]
pub(crate) struct Silent {
    sinks: Mutex<Vec<Box<dyn EventSink>>>,
    /// Ids that were cancelled.
    pub cancelled: Mutex<Vec<u64>>,
}

impl Backend for Silent {
    fn submit(&self, _: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        self.sinks.lock().unwrap().push(sink);
        Ok(())
    }

    fn cancel(&self, id: u64) {
        self.cancelled.lock().unwrap().push(id);
    }

    fn flush_cache(&self) {}

    fn stats(&self) -> Snapshot {
        Snapshot::default()
    }

    fn shutdown(&self, _: Shutdown) {}

    fn wait(&self) {}
}

/// Breaks when it is asked for anything.
pub(crate) struct Broken;

impl Backend for Broken {
    fn submit(&self, _: Request, _: Box<dyn EventSink>) -> Result<(), SubmitError> {
        panic!("index out of bounds in step.rs")
    }

    fn cancel(&self, _: u64) {}

    fn flush_cache(&self) {}

    fn stats(&self) -> Snapshot {
        Snapshot::default()
    }

    fn shutdown(&self, _: Shutdown) {}

    fn wait(&self) {}
}

/// Takes nothing: as an engine does whose queue is full.
pub(crate) struct Full;

impl Backend for Full {
    fn submit(&self, _: Request, _: Box<dyn EventSink>) -> Result<(), SubmitError> {
        Err(SubmitError::QueueFull { n_queued: 8, max_queued: 8 })
    }

    fn cancel(&self, _: u64) {}

    fn flush_cache(&self) {}

    fn stats(&self) -> Snapshot {
        Snapshot::default()
    }

    fn shutdown(&self, _: Shutdown) {}

    fn wait(&self) {}
}

/// Drafts where a test does not say otherwise.
pub(crate) const DRAFTS: Speculation = Speculation::Fixed(3);

/// How the real engine is set up.
#[derive(Clone, Copy)]
pub(crate) struct EngineSetup {
    /// Sequences at once.
    pub max_running: usize,
    /// Requests that may wait.
    pub max_queued: usize,
    /// Drafts.
    pub speculation: Speculation,
}

impl Default for EngineSetup {
    fn default() -> EngineSetup {
        EngineSetup { max_running: 4, max_queued: 64, speculation: DRAFTS }
    }
}

/// The measurements when nothing runs: the engine shows a step after it has sent the step's tokens.
pub(crate) fn at_rest(backend: &Arc<EngineHandle>) -> Snapshot {
    loop {
        let stats = backend.stats();
        if stats.gauges.n_running + stats.gauges.n_waiting == 0 {
            return stats;
        }
        std::thread::yield_now();
    }
}

/// The real engine over the scripted model, whose answers are noise that depends on every token before.
pub(crate) fn engine(setup: EngineSetup) -> Arc<EngineHandle> {
    const CHUNK: usize = 256;
    let n_blocks = setup.max_running * CONTEXT_LEN.div_ceil(64);
    let n_slots = 2 * setup.max_running;
    let depth = setup.speculation.max_depth();
    let shape = Shape {
        vocab_size: tokenizer().n_vocab(),
        n_blocks,
        n_slots,
        max_rows: CHUNK + setup.max_running * (1 + depth),
        max_drafts: setup.max_running * depth,
    };
    let config = EngineConfig {
        max_running: setup.max_running,
        max_queued: setup.max_queued,
        n_blocks,
        n_slots,
        context_length: CONTEXT_LEN,
        chunked_prefill_size: CHUNK,
        eos_token_ids: vec![EOS],
        speculation: setup.speculation,
        max_drafts: setup.max_running * depth,
        prefix_cache: Some(PrefixCache { snapshot_interval: 256 }),
    };
    let model = Scripted::new(shape, (depth > 0).then_some(DraftHead::Random(60)));
    Arc::new(Engine::start(Box::new(model), config, Box::new(|_| {})))
}
