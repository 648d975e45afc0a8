//! The seam to the engine: what the routes ask of it, and nothing else.

use engine::error::SubmitError;
use engine::handle::{EngineHandle, Shutdown};
use engine::request::{EventSink, Request};
use telemetry::record::Snapshot;

/// Something that generates: the engine, or a script in the tests of this crate.
pub trait Backend: Send + Sync {
    /// Hands over a request; its events go to `sink`, exactly one of them an end.
    ///
    /// # Errors
    /// When the request is not taken; the sink is not called then.
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError>;

    /// Ends a request, wherever it is; unknown ids are ignored.
    fn cancel(&self, id: u64);

    /// Drops the cached prefixes that no running sequence uses, within a step; does not wait.
    fn flush_cache(&self);

    /// The measurements as of the last step; never waits for a step.
    fn stats(&self) -> Snapshot;

    /// Refuses new requests; does not wait.
    fn shutdown(&self, how: Shutdown);

    /// Waits, after `shutdown`, until every request has ended.
    fn wait(&self);
}

impl Backend for EngineHandle {
    fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        EngineHandle::submit(self, request, sink)
    }

    fn cancel(&self, id: u64) {
        EngineHandle::cancel(self, id);
    }

    fn flush_cache(&self) {
        EngineHandle::flush_cache(self);
    }

    fn stats(&self) -> Snapshot {
        EngineHandle::stats(self)
    }

    fn shutdown(&self, how: Shutdown) {
        EngineHandle::shutdown(self, how);
    }

    fn wait(&self) {
        EngineHandle::wait(self);
    }
}
