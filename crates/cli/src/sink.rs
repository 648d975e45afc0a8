//! Events of one request, from the engine's thread to the one that waits for them.

use std::sync::mpsc::{Receiver, Sender, channel};

use engine::request::{Event, EventSink, Gone};

/// A sink and the end to read its events from.
pub(crate) fn events() -> (Box<dyn EventSink>, Receiver<Event>) {
    let (sender, receiver) = channel();
    (Box::new(Channel(sender)), receiver)
}

struct Channel(Sender<Event>);

impl EventSink for Channel {
    fn send(&mut self, event: Event) -> Result<(), Gone> {
        self.0.send(event).map_err(|_| Gone::Disconnected)
    }
}
