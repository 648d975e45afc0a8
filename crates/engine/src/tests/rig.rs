//! An engine turned by hand, and listeners that remember.

use std::sync::{Arc, Mutex};

use model::batch::Forward;
use testkit::scripted::{DraftHead, Faults, Scripted, Shape};

use crate::config::{EngineConfig, Speculation};
use crate::engine::Engine;
use crate::handle::EngineHandle;
use crate::request::{Event, EventSink, Gone, Request, Sampling};

pub(super) const VOCAB: usize = 97;
/// The end token of the scripted model.
pub(super) const EOS: u32 = 0;

/// An engine without a thread.
pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) handle: EngineHandle,
    pub(super) faults: Arc<Faults>,
}

/// What a listener heard, and what it answers.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    pub(super) ends: Vec<Event>,
    /// Answers this to the tokens that bring the count to the number or above.
    pub(super) leaves_at: Option<(usize, Gone)>,
}

pub(super) type Listener = Arc<Mutex<Heard>>;

struct Sink(Listener);

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> Result<(), Gone> {
        let mut heard = self.0.lock().expect("no test panics while listening");
        match event {
            Event::Tokens(tokens) => {
                assert!(heard.ends.is_empty(), "tokens after the end");
                assert!(!tokens.is_empty(), "an event without tokens");
                heard.tokens.extend(tokens.iter().map(|t| t.id));
                heard.logprobs.extend(tokens.iter().filter_map(|t| t.logprob));
            }
            end => heard.ends.push(end),
        }
        match heard.leaves_at {
            Some((n, gone)) if heard.tokens.len() >= n => Err(gone),
            _ => Ok(()),
        }
    }
}

/// A listener and the sink that feeds it.
pub(super) fn listener() -> (Listener, Box<dyn EventSink>) {
    let heard = Listener::default();
    (Arc::clone(&heard), Box::new(Sink(heard)))
}

/// Room for everything the tests ask, one sequence after another.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        max_running: 4,
        max_queued: 64,
        n_blocks: 64,
        n_slots: 4,
        context_length: 1024,
        chunked_prefill_size: 128,
        eos_token_ids: vec![EOS],
        speculation: Speculation::Off,
        max_drafts: 32,
        prefix_cache: None,
    }
}

pub(super) fn scripted(config: &EngineConfig, draft_head: DraftHead) -> Scripted {
    let shape = Shape {
        vocab_size: VOCAB,
        n_blocks: config.n_blocks,
        n_slots: config.n_slots,
        max_rows: config.max_rows(),
        max_drafts: config.max_drafts,
    };
    let drafts = config.speculation != Speculation::Off;
    Scripted::new(shape, drafts.then_some(draft_head))
}

impl Rig {
    pub(super) fn new(config: EngineConfig, draft_head: DraftHead) -> Rig {
        let model = scripted(&config, draft_head);
        Rig::over(model, config)
    }

    pub(super) fn over(model: Scripted, config: EngineConfig) -> Rig {
        let faults = model.faults();
        Rig { faults, ..Rig::with_model(Box::new(model), config) }
    }

    /// Over any model; its faults are connected to nothing.
    pub(super) fn with_model(model: Box<dyn Forward + Send>, config: EngineConfig) -> Rig {
        let engine = Engine::new(model, config, Box::new(|_| {}));
        let handle = EngineHandle { shared: engine.shared(), thread: None };
        Rig { engine, handle, faults: Arc::default() }
    }

    pub(super) fn submit(&self, request: Request) -> Listener {
        let (heard, sink) = listener();
        self.handle.submit(request, sink).expect("the request is admissible");
        heard
    }

    /// Turns until nothing is left to do.
    pub(super) fn run(&mut self) {
        while self.engine.turn() {
            self.engine.scheduler.check_integrity();
        }
        let cache = self.engine.scheduler.cache();
        let used = (cache.blocks().n_used(), cache.slots().n_used());
        assert_eq!(used, (cache.n_blocks_cached(), cache.n_snapshots()), "something leaked");
    }

    /// The tokens of a request that has the engine for itself.
    pub(super) fn alone(&mut self, request: Request) -> Vec<u32> {
        let heard = self.submit(request);
        self.run();
        let heard = heard.lock().expect("not poisoned");
        assert!(matches!(heard.ends[..], [Event::Finished(_)]), "{:?}", heard.ends);
        heard.tokens.clone()
    }
}

/// A prompt of `n` tokens, none of them the end token.
pub(super) fn prompt(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| 1 + (seed.wrapping_mul(31) + i * i * 7 + i) % (VOCAB as u32 - 1))
        .collect()
}

/// A greedy request that never ends early.
pub(super) fn request(id: u64, n_prompt: usize, max_tokens: u32) -> Request {
    Request {
        id,
        prompt: prompt(n_prompt, id as u32),
        max_tokens,
        sampling: Sampling { ignore_eos: true, ..Sampling::greedy() },
        boundaries: Vec::new(),
    }
}
