//! The thread that owns all inference state: take in, step, publish, until told to end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use cache::BLOCK_LEN;
use model::batch::{CARRY_ROWS, Forward};
use telemetry::record::{Gauges, MAX_DEPTH, Snapshot, StepRecord};

use crate::config::EngineConfig;
use crate::depth::DepthPolicy;
use crate::draft::Drafts;
use crate::handle::{EngineHandle, Shared, Shutdown, Submission};
use crate::request::FinishReason;
use crate::sampler::Sampler;
use crate::scheduler::Scheduler;
use crate::sequence::{End, Sequence};
use crate::step::Rows;

/// Called with the record of every step, on the engine's thread: must not block.
pub type Observer = Box<dyn FnMut(&StepRecord) + Send>;

/// All inference state.
pub struct Engine {
    pub(crate) model: Box<dyn Forward + Send>,
    pub(crate) scheduler: Scheduler,
    pub(crate) sampler: Sampler,
    pub(crate) depth: DepthPolicy,
    pub(crate) drafts: Drafts,
    pub(crate) rows: Rows,
    pub(crate) snapshot: Snapshot,
    observer: Observer,
    shared: Arc<Shared>,
    shutdown: Option<Shutdown>,
    /// Sequences that have left and whose listeners are not told yet.
    ended: Vec<(Sequence, End)>,
}

impl Engine {
    /// Starts the engine's thread.
    ///
    /// # Panics
    /// If the sizes contradict each other: the plan was wrong.
    pub fn start(
        model: Box<dyn Forward + Send>,
        config: EngineConfig,
        observer: Observer,
    ) -> EngineHandle {
        let engine = Engine::new(model, config, observer);
        let shared = Arc::clone(&engine.shared);
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || engine.run())
            .expect("the system can start a thread");
        EngineHandle { shared, thread: Some(thread) }
    }

    pub(crate) fn new(
        model: Box<dyn Forward + Send>,
        config: EngineConfig,
        observer: Observer,
    ) -> Engine {
        let chunk = config.chunked_prefill_size;
        assert!(chunk > 0 && chunk.is_multiple_of(BLOCK_LEN), "chunks end at block edges");
        assert!((1..=config.n_slots).contains(&config.max_running), "a slot for each sequence");
        if let Some(prefix_cache) = config.prefix_cache {
            let interval = prefix_cache.snapshot_interval;
            assert!(interval > 0 && interval.is_multiple_of(BLOCK_LEN), "snapshots at block edges");
        }
        // A verify may follow another pass before the draft head catches up with both.
        let depth_max = MAX_DEPTH.min(CARRY_ROWS / 2 - 1);
        assert!(config.speculation.max_depth() <= depth_max, "drafts deeper than {depth_max}");
        let depth_max = config.speculation.max_depth();
        assert!(config.max_drafts >= depth_max, "a step holds the drafts of one sequence");
        let vocab_size = model.vocab_size();
        Engine {
            scheduler: Scheduler::new(&config),
            sampler: Sampler::new(vocab_size),
            depth: DepthPolicy::new(&config),
            drafts: Drafts::new(&config),
            rows: Rows::default(),
            snapshot: Snapshot::default(),
            observer,
            shared: Arc::new(Shared::new(config, vocab_size)),
            shutdown: None,
            ended: Vec::new(),
            model,
        }
    }

    /// Turn after turn until the end.
    fn run(mut self) {
        loop {
            if self.turn() {
                continue;
            }
            self.snapshot.gauges = self.gauges();
            self.shared.publish_now(&self.snapshot);
            if self.shutdown.is_some() {
                return self.shared.end();
            }
            self.shared.wait_for_work();
        }
    }

    /// Takes in what was asked, then steps; false if there was nothing to do. A panic in a turn fails the
    /// requests that were running in it, and the engine goes on.
    pub(crate) fn turn(&mut self) -> bool {
        let turn = catch_unwind(AssertUnwindSafe(|| {
            self.take_in();
            self.tell_ends();
            let idle = self.scheduler.is_idle();
            if !idle {
                self.step();
                self.tell_ends();
            }
            !idle
        }));
        turn.unwrap_or_else(|panic| {
            self.recover(&*panic);
            self.tell_ends();
            true
        })
    }

    /// What the handle shares with this engine.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Reacts to submissions, cancellations and shutdown.
    fn take_in(&mut self) {
        let (submitted, cancelled) = {
            let mut inbox = self.shared.inbox();
            self.shutdown = inbox.shutdown;
            if std::mem::take(&mut inbox.flush) {
                self.scheduler.flush_cache();
            }
            let submitted: Vec<Submission> = inbox.submitted.drain(..).collect();
            inbox.n_never_admitted = self.scheduler.n_never_admitted() + submitted.len();
            (submitted, std::mem::take(&mut inbox.cancelled))
        };
        for submission in submitted {
            self.snapshot.totals.n_requests += 1;
            self.scheduler.enqueue(Sequence::new(submission, &self.shared.config.eos_token_ids));
        }
        for id in cancelled {
            if let Some(sequence) = self.scheduler.remove_by_id(id) {
                self.end(sequence, End::Finished(FinishReason::Cancelled));
            }
        }
        if self.shutdown == Some(Shutdown::Now) {
            while let Some(sequence) = self.scheduler.remove_newest() {
                self.end(sequence, End::Finished(FinishReason::Shutdown));
            }
        }
    }

    /// The only way out for a sequence: counts its end; its listener hears of it once the step is shown.
    pub(crate) fn end(&mut self, sequence: Sequence, end: End) {
        let totals = &mut self.snapshot.totals;
        *match &end {
            End::Finished(FinishReason::Stop { .. }) => &mut totals.n_stop,
            End::Finished(FinishReason::Length) => &mut totals.n_length,
            End::Finished(FinishReason::Cancelled) => &mut totals.n_cancelled,
            End::Finished(FinishReason::Shutdown) => &mut totals.n_shutdown,
            End::Failed(_) => &mut totals.n_failed,
        } += 1;
        self.ended.push((sequence, end));
    }

    /// Tells the listeners of what has ended, after everything that was counted is shown: who asks for
    /// the sums after an answer finds the answer in them.
    fn tell_ends(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        self.snapshot.gauges = self.gauges();
        self.shared.publish_now(&self.snapshot);
        let now = Instant::now();
        for (sequence, end) in self.ended.drain(..) {
            sequence.end(end, now);
        }
    }

    /// After a panic: what was running cannot be trusted and fails, and what was cached is forgotten; what
    /// waits has touched nothing. If nothing was running, the queue itself must be at fault, and going on
    /// would panic for ever.
    fn recover(&mut self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let why = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let failed = || End::Failed(format!("the engine panicked: {why}"));
        let none_ran = self.scheduler.running.is_empty();
        while !self.scheduler.running.is_empty() {
            let sequence = self.scheduler.remove(self.scheduler.running.len() - 1);
            self.end(sequence, failed());
        }
        self.scheduler.flush_cache();
        while none_ran && let Some(sequence) = self.scheduler.remove_newest() {
            self.end(sequence, failed());
        }
    }

    /// Adds a step to the totals and shows both.
    pub(crate) fn measured(&mut self, mut record: StepRecord) {
        record.gauges = self.gauges();
        self.snapshot.gauges = record.gauges;
        self.snapshot.totals.add(&record);
        if record.n_decode_sequences > 0 {
            let depth = record.n_drafted_at.iter().position(|&n| n == 0);
            self.snapshot.depth = depth.unwrap_or(MAX_DEPTH);
        }
        self.shared.publish(&self.snapshot);
        (self.observer)(&record);
        #[cfg(debug_assertions)]
        self.scheduler.check_integrity();
    }

    fn gauges(&self) -> Gauges {
        let (scheduler, cache) = (&self.scheduler, self.scheduler.cache());
        Gauges {
            n_running: scheduler.running.len(),
            n_waiting: scheduler.waiting.len(),
            n_blocks_used: cache.blocks().n_used(),
            n_blocks: cache.blocks().n(),
            n_blocks_cached: cache.n_blocks_cached(),
            n_slots_used: cache.slots().n_used() - cache.n_snapshots(),
            n_slots_snapshot: cache.n_snapshots(),
            n_slots: cache.slots().n(),
            n_tokens_held: scheduler.running.iter().map(|r| r.n_computed).sum(),
        }
    }
}
