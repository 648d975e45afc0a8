//! How requests begin and end: one by one, each way out once.

use std::sync::{Arc, Mutex};

use model::batch::{Batch, Forward, Span};
use telemetry::record::Snapshot;
use testkit::scripted::DraftHead;

use super::rig::{EOS, Rig, VOCAB, config, listener, prompt, request, scripted};
use crate::config::{EngineConfig, Speculation};
use crate::error::SubmitError;
use crate::handle::Shared;
use crate::history::History;
use crate::request::{Event, EventSink, FinishReason, Gone, Request, Sampling};
use crate::sampler::{Draw, Sampler};

fn rig() -> Rig {
    Rig::new(config(), DraftHead::AlwaysRight)
}

fn finish(heard: &super::rig::Heard) -> FinishReason {
    match &heard.ends[..] {
        [Event::Finished(finish)] => {
            assert_eq!(finish.n_generated, heard.tokens.len());
            finish.reason
        }
        ends => panic!("not one proper end: {ends:?}"),
    }
}

/// The tokens by definition: the whole history in one pass for each token, no engine.
fn by_definition(request: &Request) -> Vec<u32> {
    let one_pass = EngineConfig { chunked_prefill_size: 1024, ..config() };
    let mut model = scripted(&one_pass, DraftHead::AlwaysRight);
    let blocks: Vec<u32> = (0..16).collect();
    let (mut tokens, mut sampler) = (request.prompt.clone(), Sampler::new(VOCAB));
    let mut history = History::new(&request.sampling, &request.prompt, 0);
    while tokens.len() < request.prompt.len() + request.max_tokens as usize {
        let n_rows = tokens.len();
        let span = Span {
            row: 0,
            n_rows,
            pos: 0,
            blocks: &blocks,
            slot: 0,
            n_replay: 0,
            n_commit: n_rows,
        };
        let last = [n_rows as u32 - 1];
        let logits = model.logits(&Batch { tokens: &tokens, spans: &[span], logit_rows: &last });
        let draw = Draw {
            sampling: &request.sampling,
            ends: &[],
            history: &history,
            n_generated: n_rows - request.prompt.len(),
            position: n_rows,
        };
        let token = sampler.draw(&logits, &draw).expect("numbers");
        tokens.push(token);
        history.push(token);
    }
    tokens.split_off(request.prompt.len())
}

#[test]
fn the_tokens_are_those_of_the_definition() {
    for (n_prompt, temperature) in [(1, 0.0), (63, 0.7), (64, 0.0), (65, 1.5), (300, 0.7)] {
        let mut request = request(3, n_prompt, 90);
        request.sampling =
            Sampling { temperature, repetition_penalty: 1.1, seed: 5, ..request.sampling };
        assert_eq!(rig().alone(request.clone()), by_definition(&request), "{n_prompt} tokens");
    }
}

#[test]
fn company_chunks_and_scarcity_do_not_change_tokens() {
    let requests: Vec<Request> = (0..9).map(|i| request(i, 20 + 37 * i as usize, 70)).collect();
    let alone: Vec<_> = requests.iter().map(|r| rig().alone(r.clone())).collect();
    for (max_running, n_blocks, chunked_prefill_size) in
        [(1, 64, 64), (4, 64, 64), (9, 64, 512), (4, 9, 128), (9, 7, 64)]
    {
        let n_slots = max_running;
        let config =
            EngineConfig { max_running, n_blocks, n_slots, chunked_prefill_size, ..config() };
        let mut rig = Rig::new(config, DraftHead::AlwaysRight);
        let heard: Vec<_> = requests.iter().map(|r| rig.submit(r.clone())).collect();
        rig.run();
        for (heard, alone) in heard.iter().zip(&alone) {
            assert_eq!(&heard.lock().expect("not poisoned").tokens, alone);
        }
        assert_eq!(n_blocks < 16, rig.engine.snapshot.totals.n_preempted > 0);
    }
}

#[test]
fn stop_tokens_end_and_the_limit_ends() {
    let free = rig().alone(request(1, 10, 40));
    let stop = free[17];
    let first = free.iter().position(|&t| t == stop).expect("it is there");
    let check = |max_tokens: u32, sampling: Sampling, reason, n_tokens| {
        let mut rig = rig();
        let heard = rig.submit(Request { max_tokens, sampling, ..request(1, 10, 40) });
        rig.run();
        let heard = heard.lock().expect("not poisoned");
        assert_eq!(finish(&heard), reason);
        assert_eq!(heard.tokens, free[..n_tokens]);
    };
    let ignoring = Sampling { ignore_eos: true, ..Sampling::greedy() };
    let stopping = Sampling { stop_token_ids: vec![stop], ..ignoring.clone() };
    let stopped = FinishReason::Stop { token: Some(stop) };
    check(40, stopping.clone(), stopped, first + 1);
    check(first as u32 + 1, stopping.clone(), stopped, first + 1);
    check(first as u32, stopping, FinishReason::Length, first);
    check(1, ignoring, FinishReason::Length, 1);
}

#[test]
fn an_end_token_waits_for_min_tokens() {
    // The bias makes the end token the winner of every row.
    let eager = Sampling { logit_bias: vec![(EOS, 50.0)], ..Sampling::greedy() };
    for min_tokens in [0, 1, 5] {
        let sampling = Sampling { min_tokens, ..eager.clone() };
        let tokens = rig().alone(Request { sampling, ..request(1, 10, 40) });
        assert_eq!(tokens.len(), min_tokens as usize + 1);
        assert_eq!(tokens.iter().position(|&t| t == EOS), Some(min_tokens as usize));
    }
    let ignoring = Sampling { ignore_eos: true, ..eager };
    assert_eq!(rig().alone(Request { sampling: ignoring, ..request(1, 10, 6) }), [EOS; 6]);
}

#[test]
fn a_listener_that_leaves_ends_its_request_within_a_step() {
    for (gone, reason) in [
        (Gone::Disconnected, FinishReason::Cancelled),
        (Gone::Satisfied, FinishReason::Stop { token: None }),
    ] {
        let mut rig = rig();
        let heard = rig.submit(request(1, 10, 40));
        heard.lock().expect("not poisoned").leaves_at = Some((7, gone));
        rig.run();
        let heard = heard.lock().expect("not poisoned");
        assert_eq!((finish(&heard), heard.tokens.len()), (reason, 7));
    }
}

#[test]
fn cancel_reaches_the_queue_and_the_running() {
    let mut rig = Rig::new(EngineConfig { max_running: 1, ..config() }, DraftHead::AlwaysRight);
    let heard: Vec<_> = (0..3).map(|id| rig.submit(request(id, 200, 40))).collect();
    rig.engine.turn();
    rig.handle.cancel(0);
    rig.handle.cancel(2);
    rig.handle.cancel(77);
    rig.run();
    let reasons: Vec<_> = heard.iter().map(|h| finish(&h.lock().expect("not poisoned"))).collect();
    assert_eq!(reasons, [FinishReason::Cancelled, FinishReason::Length, FinishReason::Cancelled]);
    assert!(heard[2].lock().expect("not poisoned").tokens.is_empty());
}

#[test]
fn a_panic_fails_what_ran_and_nothing_else() {
    let mut rig = Rig::new(EngineConfig { max_running: 2, ..config() }, DraftHead::AlwaysRight);
    let heard: Vec<_> = (0..3).map(|id| rig.submit(request(id, 30, 8))).collect();
    rig.faults.panic_in(3);
    rig.run();
    for (heard, fails) in heard.iter().zip([true, true, false]) {
        let heard = heard.lock().expect("not poisoned");
        match &heard.ends[..] {
            [Event::Failed(why)] if fails => assert!(why.contains("an injected fault"), "{why}"),
            [Event::Finished(_)] if !fails => assert_eq!(heard.tokens.len(), 8),
            ends => panic!("{ends:?}"),
        }
    }
    assert_eq!(rig.engine.snapshot.totals.n_failed, 2);
}

#[test]
fn logits_that_are_not_numbers_fail_one_request() {
    let poison = rig().alone(request(0, 30, 8))[3];
    let mut rig =
        Rig::over(scripted(&config(), DraftHead::AlwaysRight).with_nan_after(poison), config());
    let heard = rig.submit(request(0, 30, 8));
    rig.run();
    let heard = heard.lock().expect("not poisoned");
    assert!(heard.tokens.len() <= 4);
    assert!(matches!(&heard.ends[..], [Event::Failed(why)] if why.contains("not numbers")));
}

#[test]
fn what_can_never_run_is_refused_with_numbers() {
    let config = EngineConfig { n_blocks: 4, max_queued: 1, ..config() };
    let rig = Rig::new(config, DraftHead::AlwaysRight);
    let refuse = |request: Request, expected: &str| {
        let (heard, sink) = listener();
        let error = rig.handle.submit(request, sink).expect_err("it must be refused");
        assert_eq!(error.to_string(), expected);
        assert!(heard.lock().expect("not poisoned").ends.is_empty());
    };
    refuse(
        request(1, 1000, 25),
        "the prompt has 1000 tokens and asks for 25 more, the context length is 1024",
    );
    refuse(request(1, 250, 8), "258 tokens need 5 KV blocks, the pool has 4 (256 tokens)");
    refuse(request(1, 0, 8), "prompt: is empty");
    refuse(request(1, 8, 0), "max_tokens: must be at least 1");
    refuse(Request { prompt: vec![1, 97], ..request(1, 1, 1) }, "prompt: token 97 is not below 97");
    let sampling = Sampling { temperature: f32::NAN, ..Sampling::greedy() };
    refuse(Request { sampling, ..request(1, 8, 8) }, "temperature: is out of range");
    let _waits = rig.submit(request(1, 250, 7));
    refuse(request(2, 8, 8), "the queue is full: 1 requests wait, the limit is 1");
    rig.handle.shutdown(crate::handle::Shutdown::Drain);
    let (_, sink) = listener();
    assert_eq!(rig.handle.submit(request(3, 8, 8), sink), Err(SubmitError::ShuttingDown));
}

#[test]
fn a_recomputed_answer_goes_on_where_it_was() {
    // Two sequences of four blocks each in five blocks: the newer one must be preempted while decoding.
    let config = EngineConfig { n_blocks: 5, ..config() };
    let alone: Vec<_> = (0..2).map(|id| rig().alone(request(id, 100, 120))).collect();
    let mut rig = Rig::new(config, DraftHead::AlwaysRight);
    let heard: Vec<_> = (0..2).map(|id| rig.submit(request(id, 100, 120))).collect();
    rig.run();
    assert!(rig.engine.snapshot.totals.n_preempted > 0);
    for (heard, alone) in heard.iter().zip(alone) {
        assert_eq!(heard.lock().expect("not poisoned").tokens, alone);
    }
}

#[test]
fn log_probabilities_come_only_when_asked() {
    let mut rig = rig();
    let plain = rig.submit(request(1, 10, 5));
    let sampling = Sampling { logprobs: Some(2), ..request(1, 10, 5).sampling };
    let asked = rig.submit(Request { sampling, id: 2, prompt: prompt(10, 1), ..request(1, 10, 5) });
    rig.run();
    let (plain, asked) = (plain.lock().expect("fine"), asked.lock().expect("fine"));
    assert_eq!(plain.tokens, asked.tokens);
    assert_eq!((plain.logprobs.len(), asked.logprobs.len()), (0, 5));
    assert!(asked.logprobs.iter().all(|p| p.is_finite() && *p < 0.0));
}

/// A listener that looks at the measurements when it hears of its end.
struct Asking {
    shared: Arc<Shared>,
    seen: Arc<Mutex<Vec<Snapshot>>>,
}

impl EventSink for Asking {
    fn send(&mut self, event: Event) -> Result<(), Gone> {
        if !matches!(event, Event::Tokens(_)) {
            self.seen.lock().expect("not poisoned").push(self.shared.stats());
        }
        Ok(())
    }
}

#[test]
fn who_asks_after_an_answer_finds_it_counted() {
    for (fault, cancel) in [(false, false), (true, false), (false, true)] {
        let config = EngineConfig { speculation: Speculation::Fixed(3), ..config() };
        let mut rig = Rig::new(config, DraftHead::AlwaysRight);
        let seen = Arc::default();
        let sink = Asking { shared: rig.engine.shared(), seen: Arc::clone(&seen) };
        rig.handle.submit(request(1, 30, 40), Box::new(sink)).expect("admissible");
        rig.engine.turn();
        rig.faults.panic_in(u64::from(fault));
        if cancel {
            rig.handle.cancel(1);
        }
        rig.run();
        let seen = seen.lock().expect("not poisoned");
        let [Snapshot { totals, gauges, .. }] = seen[..] else { panic!("{seen:?}") };
        let ends = (totals.n_failed, totals.n_cancelled, totals.n_length);
        assert_eq!(ends, (fault.into(), cancel.into(), (!fault && !cancel).into()));
        assert_eq!((gauges.n_running, gauges.n_slots_used, gauges.n_blocks_used), (0, 0, 0));
        if !fault && !cancel {
            assert_eq!((totals.n_generated, totals.n_accepted, totals.n_steps), (40, 29, 11));
            assert_eq!(totals, rig.engine.snapshot.totals, "nothing is counted afterwards");
        }
    }
}
