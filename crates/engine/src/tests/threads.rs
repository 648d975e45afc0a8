//! The engine on its own thread.

use std::time::Duration;

use testkit::scripted::DraftHead;

use super::rig::{Listener, config, listener, request, scripted};
use crate::engine::Engine;
use crate::handle::{EngineHandle, Shutdown};
use crate::request::{Event, FinishReason};

fn start() -> EngineHandle {
    let model = scripted(&config(), DraftHead::AlwaysRight);
    Engine::start(Box::new(model), config(), Box::new(|_| {}))
}

fn submit(engine: &EngineHandle, id: u64, max_tokens: u32) -> Listener {
    let (heard, sink) = listener();
    engine.submit(request(id, 20, max_tokens), sink).expect("admissible");
    heard
}

fn reason(heard: &Listener) -> Option<FinishReason> {
    match &heard.lock().expect("not poisoned").ends[..] {
        [] => None,
        [Event::Finished(finish)] => Some(finish.reason),
        ends => panic!("{ends:?}"),
    }
}

#[test]
fn a_drain_lets_requests_end() {
    let engine = start();
    let heard: Vec<_> = (0..6).map(|id| submit(&engine, id, 30)).collect();
    engine.shutdown(Shutdown::Drain);
    engine.wait();
    assert!(heard.iter().all(|h| reason(h) == Some(FinishReason::Length)));
    let stats = engine.stats();
    assert_eq!((stats.totals.n_length, stats.totals.n_generated), (6, 180));
    assert_eq!((stats.gauges.n_running, stats.gauges.n_blocks_used), (0, 0));
    assert_eq!((stats.totals.n_ttft, stats.totals.n_itl), (6, 174));
}

#[test]
fn a_shutdown_now_ends_requests_and_a_dropped_handle_is_one() {
    let engine = start();
    let heard: Vec<_> = (0..6).map(|id| submit(&engine, id, 1000)).collect();
    engine.shutdown(Shutdown::Drain);
    drop(engine);
    for heard in &heard {
        let reason = reason(heard);
        assert!(
            matches!(reason, Some(FinishReason::Shutdown | FinishReason::Length)),
            "{reason:?}"
        );
    }
}

#[test]
fn an_idle_engine_wakes_for_each_request() {
    let engine = start();
    for id in 0..3 {
        let heard = submit(&engine, id, 2);
        while reason(&heard).is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    engine.shutdown(Shutdown::Now);
    engine.wait();
    assert_eq!(engine.stats().totals.n_requests, 3);
}
