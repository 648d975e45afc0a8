//! The prefix cache changes what is computed and nothing else.

use testkit::scripted::DraftHead;

use super::rig::{Listener, Rig, config, prompt, request};
use crate::config::{EngineConfig, PrefixCache, Speculation};
use crate::request::{Event, Finish, Gone, Request};

fn cached(speculation: Speculation) -> EngineConfig {
    EngineConfig {
        n_slots: 16,
        speculation,
        prefix_cache: Some(PrefixCache { snapshot_interval: 192 }),
        ..config()
    }
}

fn rig(speculation: Speculation) -> Rig {
    Rig::new(cached(speculation), DraftHead::Random(60))
}

fn cold(request: &Request) -> Vec<u32> {
    Rig::new(config(), DraftHead::AlwaysRight).alone(request.clone())
}

fn finish(heard: &Listener) -> (Vec<u32>, Finish) {
    let heard = heard.lock().expect("not poisoned");
    match &heard.ends[..] {
        [Event::Finished(finish)] => (heard.tokens.clone(), finish.clone()),
        ends => panic!("{ends:?}"),
    }
}

/// Runs a request, compares it with a cold run, and returns how many of its tokens were cached.
fn run(rig: &mut Rig, request: &Request) -> usize {
    let heard = rig.submit(request.clone());
    rig.run();
    let (tokens, finish) = finish(&heard);
    assert_eq!(tokens, cold(request), "prompt of {}", request.prompt.len());
    finish.n_cached
}

const SPECULATIONS: [Speculation; 3] =
    [Speculation::Off, Speculation::Fixed(3), Speculation::Auto { max_depth: 4 }];

#[test]
fn a_prompt_sent_again_resumes_at_its_last_edge() {
    for speculation in SPECULATIONS {
        let mut rig = rig(speculation);
        let request = request(1, 300, 40);
        assert_eq!(run(&mut rig, &request), 0);
        assert_eq!(run(&mut rig, &request), 256);
        let totals = rig.engine.snapshot.totals;
        assert_eq!((totals.n_cached_tokens, totals.n_prefill_rows), (256, 300 + 44));
        rig.handle.flush_cache();
        assert_eq!(run(&mut rig, &request), 0);
    }
}

#[test]
fn a_conversation_resumes_where_the_last_turn_began() {
    for speculation in SPECULATIONS {
        let mut rig = rig(speculation);
        // The last five tokens of each prompt are the generation prompt: the next turn parts there.
        let mut talk = prompt(500, 3);
        let turn = |talk: &[u32]| Request {
            prompt: talk.to_vec(),
            boundaries: vec![400, talk.len() - 5],
            ..request(9, 1, 50)
        };
        assert_eq!(run(&mut rig, &turn(&talk)), 0);
        talk.truncate(495);
        talk.extend(prompt(120, 4));
        assert_eq!(run(&mut rig, &turn(&talk)), 495);
        talk.truncate(610);
        talk.extend(prompt(80, 5));
        assert_eq!(run(&mut rig, &turn(&talk)), 610);
        // The same prompt again: only the generation prompt is computed.
        assert_eq!(run(&mut rig, &turn(&talk)), 685);
    }
}

/// Turns of a few tokens, less than a block: each goes on exactly where the last one began.
#[test]
fn a_talk_of_short_turns_reuses_all_of_its_past() {
    for speculation in SPECULATIONS {
        for n_first in [3, 40, 62, 63, 64, 65, 127, 128, 150] {
            let mut rig = rig(speculation);
            let (mut talk, mut boundaries) = (prompt(n_first, 7), vec![0]);
            for turn in 0..10 {
                let n_kept = talk.len();
                talk.extend(prompt(4, 50));
                boundaries.push(n_kept);
                let request = Request {
                    prompt: talk.clone(),
                    boundaries: boundaries.clone(),
                    ..request(turn, 1, 9)
                };
                let n_cached = run(&mut rig, &request);
                let expected = if turn == 0 { 0 } else { boundaries[turn as usize] };
                assert_eq!(n_cached, expected, "turn {turn} of a talk of {n_first}");
                // The answer is shown again without its generation prompt, then the next message.
                talk.truncate(n_kept);
                talk.extend(prompt(1 + 7 * turn as usize % 30, turn as u32));
            }
        }
    }
}

/// Prompts that part from a cached one at, before and after every border, at every length around it.
#[test]
fn prompts_of_every_length_around_borders_agree_with_a_cold_run() {
    for speculation in [Speculation::Off, Speculation::Fixed(3)] {
        let mut rig = rig(speculation);
        for n in [1, 2, 62, 63, 64, 65, 66, 127, 128, 129, 191, 192, 193, 255, 256, 257, 258] {
            for boundary in [n - 1, n - n.min(2), n / 2] {
                let request = Request { boundaries: vec![boundary], ..request(1, n, 6) };
                let n_cached = run(&mut rig, &request);
                assert!(n_cached < n);
                let again = run(&mut rig, &request);
                assert!(again >= boundary.max(n_cached), "{n} tokens, {boundary}: {again}");
            }
        }
        assert!(rig.engine.snapshot.totals.n_cached_tokens > 0);
    }
}

#[test]
fn an_answer_can_be_resumed_too() {
    for speculation in SPECULATIONS {
        let mut rig = rig(speculation);
        let first = request(1, 100, 400);
        run(&mut rig, &first);
        // The next prompt is the whole first exchange and more: points lie every 192 tokens.
        let mut longer = first.prompt.clone();
        longer.extend(cold(&first));
        longer.extend(prompt(40, 8));
        let n_cached = run(&mut rig, &Request { prompt: longer, ..request(2, 1, 30) });
        assert_eq!(n_cached, 384);
    }
}

#[test]
fn a_common_beginning_is_shared_from_the_third_time_on() {
    let mut rig = rig(Speculation::Fixed(2));
    let system = prompt(330, 6);
    let ask = |user: u32| Request {
        prompt: [&system[..], &prompt(200, user)].concat(),
        ..request(u64::from(user), 1, 20)
    };
    let n_cached: Vec<usize> = (20..24).map(|user| run(&mut rig, &ask(user))).collect();
    // The second parts from the first inside a stretch without a snapshot, and leaves one there.
    assert_eq!(n_cached, [0, 192, 320, 320]);
}

#[test]
fn an_abandoned_prefill_leaves_only_what_is_true() {
    let request = request(1, 900, 32);
    for n_turns in [1, 2, 4, 7, 10, 15] {
        for speculation in SPECULATIONS {
            let mut rig = rig(speculation);
            let abandoned = rig.submit(Request { id: 7, ..request.clone() });
            for _ in 0..n_turns {
                rig.engine.turn();
            }
            rig.handle.cancel(7);
            rig.engine.turn();
            assert_eq!(abandoned.lock().expect("fine").ends.len(), 1);
            assert!(rig.engine.scheduler.running.is_empty());
            let n_cached = run(&mut rig, &request);
            assert!(n_cached <= 128 * n_turns, "{n_cached} after {n_turns} chunks");
            assert!(n_turns < 4 || n_cached > 0);
        }
    }
}

#[test]
fn identical_prompts_at_the_same_time_agree() {
    for speculation in SPECULATIONS {
        let mut rig = rig(speculation);
        let heard: Vec<_> =
            (0..4).map(|id| rig.submit(Request { id, ..request(3, 500, 60) })).collect();
        heard[1].lock().expect("fine").leaves_at = Some((9, Gone::Disconnected));
        rig.run();
        let cold = cold(&request(3, 500, 60));
        for (i, heard) in heard.iter().enumerate() {
            let heard = heard.lock().expect("fine");
            assert_eq!(heard.tokens, cold[..heard.tokens.len()], "{i}");
        }
        // The others wait for the first, and compute what lies after its last point.
        assert_eq!(rig.engine.snapshot.totals.n_prefill_rows, 500 + 3 * (500 - 448));
        assert_eq!(run(&mut rig, &request(3, 500, 60)), 448);
    }
}

#[test]
fn preempted_sequences_resume_from_their_own_snapshots() {
    for speculation in SPECULATIONS {
        let config = EngineConfig { n_blocks: 14, ..cached(speculation) };
        let mut rig = Rig::new(config, DraftHead::Random(60));
        let heard: Vec<_> = (0..3).map(|id| rig.submit(request(id, 280, 300))).collect();
        rig.run();
        let totals = rig.engine.snapshot.totals;
        assert!(totals.n_preempted > 0);
        for (id, heard) in heard.iter().enumerate() {
            let (tokens, finish) = finish(heard);
            assert_eq!(tokens, cold(&request(id as u64, 280, 300)));
            assert_eq!(finish.n_cached, 0, "what was computed for the request itself is not a hit");
        }
    }
}

#[test]
fn a_panic_forgets_what_was_cached() {
    let mut rig = rig(Speculation::Off);
    run(&mut rig, &request(1, 300, 10));
    let _fails = rig.submit(request(2, 300, 10));
    rig.faults.panic_in(2);
    rig.run();
    assert_eq!(run(&mut rig, &request(1, 300, 10)), 0);
}

#[test]
fn without_a_prefix_cache_nothing_is_kept() {
    let mut rig = Rig::new(config(), DraftHead::AlwaysRight);
    assert_eq!(run(&mut rig, &request(1, 300, 10)), 0);
    assert_eq!(run(&mut rig, &request(1, 300, 10)), 0);
    assert_eq!(rig.engine.scheduler.cache().blocks().n_used(), 0);
}
