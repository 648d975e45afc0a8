//! A way to end a probe early from outside: what is measured so far stays.

use tokio::sync::watch;

/// Shared by a probe and whoever may interrupt it.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// A stop that nobody has asked for yet.
    #[must_use]
    pub fn new() -> Stop {
        Stop(watch::Sender::new(false))
    }

    /// Ends the probe: requests in flight are dropped, complete ones are kept.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the end is asked for.
    pub async fn stopped(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

impl Default for Stop {
    fn default() -> Stop {
        Stop::new()
    }
}
