//! All that the outside sees of a running engine: submit, cancel, stats, shutdown.
//!
//! The handle and the engine's thread share two things: an inbox, locked only to move small values,
//! and a snapshot of the measurements, which the engine skips writing when a reader holds it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Instant;

use telemetry::record::Snapshot;

use crate::config::EngineConfig;
use crate::error::SubmitError;
use crate::request::{EventSink, Request, Sampling};

/// A running engine. Dropping it shuts the engine down at once and waits for the thread.
pub struct EngineHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

/// How requests that are not done are treated by a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    /// They run to their end; only new ones are refused.
    Drain,
    /// They end now, as `FinishReason::Shutdown`.
    Now,
}

impl EngineHandle {
    /// Hands a request to the engine. Its events go to `sink`, and exactly one of them is an end.
    ///
    /// Errors: the request is invalid, can never fit, or cannot wait; the sink is not called then.
    pub fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        check(&request, &self.shared.config, self.shared.vocab_size)?;
        let mut inbox = self.shared.inbox();
        if inbox.shutdown.is_some() || inbox.ended {
            return Err(SubmitError::ShuttingDown);
        }
        let (n_queued, max_queued) = (inbox.n_queued(), self.shared.config.max_queued);
        if n_queued >= max_queued {
            inbox.n_refused += 1;
            return Err(SubmitError::QueueFull { n_queued, max_queued });
        }
        inbox.submitted.push_back(Submission { request, sink, at: Instant::now() });
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Ends a request as `Cancelled`, wherever it is, within a step. Unknown ids are ignored: the
    /// request may just have ended.
    pub fn cancel(&self, id: u64) {
        self.shared.inbox().cancelled.push(id);
        self.shared.wake.notify_all();
    }

    /// Forgets every cached prefix that no running sequence holds.
    pub fn flush_cache(&self) {
        self.shared.inbox().flush = true;
        self.shared.wake.notify_all();
    }

    /// The measurements as of the last step; never waits for a step.
    pub fn stats(&self) -> Snapshot {
        self.shared.stats()
    }

    /// Refuses new requests from now on and lets the engine end. Does not wait; may be called again to
    /// turn a drain into an end now.
    pub fn shutdown(&self, how: Shutdown) {
        let mut inbox = self.shared.inbox();
        inbox.shutdown = inbox.shutdown.max(Some(how));
        self.shared.wake.notify_all();
    }

    /// Waits until the engine's thread has ended every request and itself, after `shutdown`.
    pub fn wait(&self) {
        let mut inbox = self.shared.inbox();
        while !inbox.ended {
            inbox = self.shared.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Now);
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics; if one escaped, it was printed and nothing is left to do.
            let _ = thread.join();
        }
    }
}

/// What handle and engine share.
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) vocab_size: usize,
    inbox: Mutex<Inbox>,
    /// Notified when the inbox has something for the engine, and when the engine has ended.
    wake: Condvar,
    snapshot: Mutex<Snapshot>,
}

/// What the outside has asked for since the engine last looked.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) submitted: VecDeque<Submission>,
    pub(crate) cancelled: Vec<u64>,
    pub(crate) flush: bool,
    pub(crate) shutdown: Option<Shutdown>,
    /// Requests that the engine has taken in and not yet admitted once; it keeps this up to date.
    pub(crate) n_never_admitted: usize,
    n_refused: u64,
    ended: bool,
}

/// A request on its way into the engine.
pub(crate) struct Submission {
    pub(crate) request: Request,
    pub(crate) sink: Box<dyn EventSink>,
    pub(crate) at: Instant,
}

impl Shared {
    pub(crate) fn new(config: EngineConfig, vocab_size: usize) -> Shared {
        Shared {
            config,
            vocab_size,
            inbox: Mutex::new(Inbox::default()),
            wake: Condvar::new(),
            snapshot: Mutex::new(Snapshot::default()),
        }
    }

    /// The inbox. Nothing that could panic runs under its lock, so poison means nothing.
    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the inbox holds something.
    pub(crate) fn wait_for_work(&self) {
        let mut inbox = self.inbox();
        while inbox.is_empty() {
            inbox = self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Shows new measurements, unless somebody is reading the old ones: a reader never delays a step.
    pub(crate) fn publish(&self, snapshot: &Snapshot) {
        match self.snapshot.try_lock() {
            Ok(mut shown) => *shown = *snapshot,
            Err(TryLockError::Poisoned(shown)) => *shown.into_inner() = *snapshot,
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// The measurements shown last, and what the engine has not taken in yet.
    pub(crate) fn stats(&self) -> Snapshot {
        let mut snapshot = *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let inbox = self.inbox();
        snapshot.gauges.n_waiting += inbox.submitted.len();
        snapshot.totals.n_refused = inbox.n_refused;
        snapshot
    }

    /// Shows measurements that must be seen, waiting for a reader if need be: one copies them and goes.
    pub(crate) fn publish_now(&self, snapshot: &Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = *snapshot;
    }

    /// Marks the engine as ended and releases who waits for it.
    pub(crate) fn end(&self) {
        self.inbox().ended = true;
        self.wake.notify_all();
    }
}

impl Inbox {
    fn n_queued(&self) -> usize {
        self.submitted.len() + self.n_never_admitted
    }

    fn is_empty(&self) -> bool {
        let asked = self.flush || self.shutdown.is_some();
        self.submitted.is_empty() && self.cancelled.is_empty() && !asked
    }
}

/// Refuses what the engine cannot serve, whatever else runs.
fn check(request: &Request, config: &EngineConfig, vocab_size: usize) -> Result<(), SubmitError> {
    let invalid = |field, reason: String| Err(SubmitError::Invalid { field, reason });
    let (n_prompt, max_tokens) = (request.prompt.len(), request.max_tokens as usize);
    if n_prompt == 0 {
        return invalid("prompt", "is empty".into());
    }
    if max_tokens == 0 {
        return invalid("max_tokens", "must be at least 1".into());
    }
    if let Some(token) = request.prompt.iter().find(|&&token| token as usize >= vocab_size) {
        return invalid("prompt", format!("token {token} is not below {vocab_size}"));
    }
    check_sampling(&request.sampling, vocab_size)?;
    let n_tokens = n_prompt.saturating_add(max_tokens);
    if n_tokens > config.context_length {
        let context_length = config.context_length;
        return Err(SubmitError::PromptTooLong { n_prompt, max_tokens, context_length });
    }
    // The last token is never fed back, so it needs no KV.
    let (n_blocks_needed, n_blocks) = (cache::blocks_for(n_tokens - 1), config.n_blocks);
    if n_blocks_needed > n_blocks {
        let n_positions = n_blocks * cache::BLOCK_LEN;
        return Err(SubmitError::NeverFits { n_tokens, n_blocks_needed, n_blocks, n_positions });
    }
    Ok(())
}

fn check_sampling(s: &Sampling, vocab_size: usize) -> Result<(), SubmitError> {
    let rules = [
        // A temperature too small to divide by would turn logits into infinities.
        (
            "temperature",
            s.temperature == 0.0
                || (s.temperature >= f32::MIN_POSITIVE && s.temperature.is_finite()),
        ),
        ("top_p", s.top_p > 0.0 && s.top_p <= 1.0),
        ("min_p", (0.0..=1.0).contains(&s.min_p)),
        ("repetition_penalty", s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite()),
        ("presence_penalty", s.presence_penalty.is_finite()),
        ("frequency_penalty", s.frequency_penalty.is_finite()),
        ("logit_bias", s.logit_bias.iter().all(|&(_, bias)| bias.is_finite())),
    ];
    if let Some((field, _)) = rules.iter().find(|(_, holds)| !holds) {
        return Err(SubmitError::Invalid { field, reason: "is out of range".into() });
    }
    if let Some((token, _)) = s.logit_bias.iter().find(|(token, _)| *token as usize >= vocab_size) {
        let reason = format!("token {token} is not below {vocab_size}");
        return Err(SubmitError::Invalid { field: "logit_bias", reason });
    }
    Ok(())
}
