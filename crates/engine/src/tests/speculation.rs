//! Speculation changes the speed and nothing else.

use testkit::scripted::DraftHead;

use super::rig::{EOS, Rig, config, request, scripted};
use crate::config::{EngineConfig, Speculation};
use crate::request::{Event, Finish, FinishReason, Gone, Request, Sampling};

const DEPTHS: [Speculation; 6] = [
    Speculation::Fixed(1),
    Speculation::Fixed(2),
    Speculation::Fixed(3),
    Speculation::Fixed(5),
    Speculation::Fixed(8),
    Speculation::Auto { max_depth: 8 },
];
const HEADS: [DraftHead; 3] =
    [DraftHead::AlwaysRight, DraftHead::AlwaysWrong, DraftHead::Random(60)];

fn rig(speculation: Speculation, head: DraftHead) -> Rig {
    Rig::new(EngineConfig { speculation, ..config() }, head)
}

/// Tokens, log-probabilities and end of one request that has the engine for itself.
fn answer(rig: &mut Rig, request: Request) -> (Vec<u32>, Vec<f32>, Finish) {
    let heard = rig.submit(request);
    rig.run();
    let heard = heard.lock().expect("not poisoned");
    match &heard.ends[..] {
        [Event::Finished(finish)] => (heard.tokens.clone(), heard.logprobs.clone(), finish.clone()),
        ends => panic!("{ends:?}"),
    }
}

/// Every kind of control, at every temperature.
fn samplings() -> Vec<Sampling> {
    let mut all = Vec::new();
    for temperature in [0.0, 0.7, 1.5] {
        let plain = Sampling { temperature, seed: 77, ..Sampling::greedy() };
        all.extend([
            Sampling { ignore_eos: true, logprobs: Some(3), ..plain.clone() },
            Sampling { top_k: 20, top_p: 0.9, min_p: 0.05, ..plain.clone() },
            Sampling {
                repetition_penalty: 1.3,
                presence_penalty: 0.5,
                frequency_penalty: 0.8,
                ..plain.clone()
            },
            Sampling { logit_bias: vec![(EOS, 3.0), (5, 2.0)], min_tokens: 17, ..plain.clone() },
            Sampling { stop_token_ids: vec![9, 23, 54], ..plain },
        ]);
    }
    all
}

#[test]
fn no_depth_and_no_head_changes_a_token() {
    for (i, sampling) in samplings().into_iter().enumerate() {
        let request = Request { sampling, ..request(i as u64, 70, 90) };
        let plain = answer(&mut rig(Speculation::Off, HEADS[0]), request.clone());
        for (speculation, head) in DEPTHS.iter().flat_map(|&d| HEADS.map(|head| (d, head))) {
            let (tokens, logprobs, finish) = answer(&mut rig(speculation, head), request.clone());
            let case = format!("{speculation:?} {head:?} {:?}", request.sampling);
            assert_eq!((&tokens, &logprobs), (&plain.0, &plain.1), "{case}");
            assert_eq!(finish.reason, plain.2.reason, "{case}");
        }
    }
}

#[test]
fn a_right_head_is_always_believed_and_a_wrong_one_never() {
    for (i, sampling) in samplings().into_iter().enumerate() {
        let request = Request { sampling, ..request(i as u64, 70, 90) };
        let (tokens, _, right) = answer(&mut rig(Speculation::Fixed(3), HEADS[0]), request.clone());
        let counts = right.speculation;
        // The first token comes from the prompt; each round then gives four, the last maybe fewer.
        assert_eq!(
            counts.n_decode_rounds,
            (tokens.len() - 1).div_ceil(4),
            "{:?}",
            request.sampling
        );
        assert_eq!(counts.n_accepted + counts.n_decode_rounds + 1, tokens.len());
        if request.sampling.temperature == 0.0 {
            let (_, _, wrong) = answer(&mut rig(Speculation::Fixed(3), HEADS[1]), request);
            assert_eq!(wrong.speculation.n_accepted, 0);
            assert_eq!(wrong.speculation.n_decode_rounds, tokens.len() - 1);
        }
    }
}

#[test]
fn a_stop_inside_an_accepted_block_ends_exactly_there() {
    let ignoring = Sampling { ignore_eos: true, ..Sampling::greedy() };
    let free = rig(Speculation::Off, HEADS[0]).alone(request(1, 10, 40));
    for depth in [3, 8] {
        for k in 1..30 {
            let stop = free[k - 1];
            let first = free.iter().position(|&t| t == stop).expect("it is there") + 1;
            for max_tokens in [first - 1, first, first + 1, first + 3] {
                if max_tokens == 0 {
                    continue;
                }
                let sampling = Sampling { stop_token_ids: vec![stop], ..ignoring.clone() };
                let request =
                    Request { sampling, max_tokens: max_tokens as u32, ..request(1, 10, 40) };
                let (tokens, _, finish) =
                    answer(&mut rig(Speculation::Fixed(depth), HEADS[0]), request);
                let stopped = max_tokens >= first;
                assert_eq!(tokens, free[..if stopped { first } else { max_tokens }]);
                let stop = FinishReason::Stop { token: Some(stop) };
                assert_eq!(finish.reason, if stopped { stop } else { FinishReason::Length });
            }
        }
    }
}

#[test]
fn company_scarcity_and_departures_change_nothing_either() {
    let requests: Vec<Request> = (0..8)
        .map(|i| Request {
            sampling: samplings()[3 * i as usize % 15].clone(),
            ..request(i, 20 + 29 * i as usize, 200)
        })
        .collect();
    let alone: Vec<_> =
        requests.iter().map(|r| rig(Speculation::Off, HEADS[0]).alone(r.clone())).collect();
    let mut n_preempted = 0;
    for (speculation, head) in DEPTHS.iter().flat_map(|&d| HEADS.map(|head| (d, head))) {
        let config =
            EngineConfig { speculation, n_blocks: 7, chunked_prefill_size: 64, ..config() };
        let mut rig = Rig::new(config, head);
        let heard: Vec<_> = requests.iter().map(|r| rig.submit(r.clone())).collect();
        heard[2].lock().expect("fine").leaves_at = Some((5, Gone::Disconnected));
        for _ in 0..6 {
            rig.engine.turn();
        }
        rig.handle.cancel(1);
        rig.run();
        n_preempted += rig.engine.snapshot.totals.n_preempted;
        for (i, (heard, alone)) in heard.iter().zip(&alone).enumerate() {
            let heard = heard.lock().expect("not poisoned");
            let expected = if i == 1 || i == 2 { &alone[..heard.tokens.len()] } else { alone };
            assert_eq!(heard.tokens, expected, "request {i}: {speculation:?} {head:?}");
        }
    }
    assert!(n_preempted > 0, "blocks were not scarce");
}

#[test]
fn the_counts_agree_with_each_other() {
    let mut rig = rig(Speculation::Fixed(4), DraftHead::Random(70));
    let (tokens, _, finish) = answer(&mut rig, request(3, 40, 200));
    let (totals, counts) = (rig.engine.snapshot.totals, finish.speculation);
    assert_eq!(tokens.len(), 1 + counts.n_decode_rounds + counts.n_accepted);
    assert_eq!(counts.n_accepted_at.iter().sum::<usize>(), counts.n_accepted);
    assert_eq!(totals.n_accepted, counts.n_accepted as u64);
    assert_eq!(totals.n_accepted_at.iter().sum::<u64>(), totals.n_accepted);
    assert_eq!(totals.n_drafted_at.iter().sum::<u64>(), totals.n_drafted);
    assert_eq!(totals.n_drafted, counts.n_drafted as u64);
    assert_eq!(totals.n_decode_rows, totals.n_decode_rounds + totals.n_drafted);
    assert!(counts.n_accepted_at.is_sorted_by(|a, b| a >= b), "{:?}", counts.n_accepted_at);
    assert!(rig.engine.snapshot.depth <= 4);
}

#[test]
fn a_head_that_is_not_used_for_long_catches_up() {
    // With depth 0 nearly always, the carry fills up and must be flushed; the scripted model checks that
    // the head has read every row whenever it drafts.
    let mut rig = rig(Speculation::Auto { max_depth: 2 }, DraftHead::AlwaysWrong);
    let (tokens, ..) = answer(&mut rig, request(5, 20, 600));
    assert_eq!(tokens.len(), 600);
    assert!(rig.engine.snapshot.totals.n_drafted < 200);
}

#[test]
fn a_draft_that_is_not_a_number_is_only_wrong() {
    let config = EngineConfig { speculation: Speculation::Fixed(2), ..config() };
    let poison = Rig::new(config.clone(), HEADS[0]).alone(request(0, 30, 8))[3];
    let mut rig = Rig::over(scripted(&config, HEADS[0]).with_nan_after(poison), config);
    let heard = rig.submit(request(0, 30, 8));
    rig.run();
    let heard = heard.lock().expect("not poisoned");
    assert!(matches!(&heard.ends[..], [Event::Failed(why)] if why.contains("not numbers")));
    assert!(heard.tokens.len() <= 4);
}
