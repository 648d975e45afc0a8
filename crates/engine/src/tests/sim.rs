//! Seeded simulation: random arrivals, lengths, cancellations, departures, scarcity and panics.
//!
//! After every turn: no block, slot or lease is lost, nobody ended twice, and the oldest sequence moved.
//! At the end: every request ended once, with the tokens of a run alone, and all pools are full again.
//! `OUTRIDER_SIM_SEEDS=5000` runs more worlds than the default, `OUTRIDER_SIM_FIRST=123` starts there.

use cache::BLOCK_LEN;
use telemetry::record::Totals;
use testkit::scripted::DraftHead;

use super::rig::{self, EOS, Listener, Rig, VOCAB, config, listener};
use crate::config::{EngineConfig, PrefixCache, Speculation};
use crate::noise::philox4x32;
use crate::request::{Event, FinishReason, Gone, Request, Sampling};

/// A stream of random numbers, the same for the same seed.
struct Random {
    seed: u64,
    n: u32,
}

impl Random {
    fn next(&mut self) -> u32 {
        self.n += 1;
        philox4x32([self.n, 0, 0, 0], [self.seed as u32, (self.seed >> 32) as u32])[0]
    }

    /// Uniform in `range`.
    fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + self.next() as usize % (range.end() - range.start() + 1)
    }

    /// True in one of `n` cases.
    fn one_in(&mut self, n: usize) -> bool {
        self.within(1..=n) == 1
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.within(0..=of.len() - 1)].clone()
    }
}

/// A request in the world, and what is known of it.
struct Life {
    request: Request,
    heard: Listener,
    cancelled: bool,
}

fn world(seed: u64) -> (EngineConfig, DraftHead, Random) {
    let mut random = Random { seed, n: 0 };
    let max_running = random.within(1..=6);
    let config = EngineConfig {
        max_running,
        max_queued: random.within(1..=12),
        n_blocks: random.pick(&[6, 8, 10, 12, 30, 60]),
        n_slots: max_running + random.within(0..=6),
        context_length: 600,
        chunked_prefill_size: random.pick(&[64, 128, 256]),
        prefix_cache: random
            .pick(&[None, Some(64), Some(128), Some(256)])
            .map(|interval| PrefixCache { snapshot_interval: interval }),
        speculation: random.pick(&[
            Speculation::Off,
            Speculation::Fixed(1),
            Speculation::Fixed(3),
            Speculation::Fixed(8),
            Speculation::Auto { max_depth: 5 },
        ]),
        // From one deep draft to deep drafts for everybody.
        max_drafts: random.pick(&[8, 11, 48]),
        ..config()
    };
    let heads = [DraftHead::AlwaysRight, DraftHead::AlwaysWrong, DraftHead::Random(60)];
    (config, random.pick(&heads), random)
}

/// `talkative` answers end at their limit only.
fn sampling(talkative: bool, random: &mut Random) -> Sampling {
    let plain = random.one_in(2);
    Sampling {
        temperature: random.pick(&[0.0, 0.0, 0.7, 1.5]),
        top_k: random.pick(&[0, 20]),
        top_p: random.pick(&[1.0, 0.9]),
        repetition_penalty: if plain { 1.0 } else { random.pick(&[1.0, 1.2]) },
        frequency_penalty: if plain { 0.0 } else { random.pick(&[0.0, 0.7]) },
        logit_bias: if plain { vec![] } else { vec![(EOS, 1.5), (7, -3.0)] },
        seed: u64::from(random.next()),
        min_tokens: random.pick(&[0, 0, 12]),
        ignore_eos: talkative || random.one_in(3),
        stop_token_ids: if talkative {
            vec![]
        } else {
            random.pick(&[vec![], vec![11], vec![3, 40]])
        },
        logprobs: random.pick(&[None, None, Some(2)]),
        ..Sampling::greedy()
    }
}

/// A prompt of its own, or one that begins like others and may branch off where they end a message.
fn arrival(id: u64, talkative: bool, random: &mut Random) -> Request {
    let n_prompt = random.pick(&[1, 5, 63, 64, 65, 130, 200, 270]) + random.within(0..=20);
    let mut prompt: Vec<u32> = (0..n_prompt).map(|_| random.next() % VOCAB as u32).collect();
    let mut boundaries: Vec<usize> =
        (0..random.within(0..=2)).map(|_| random.within(0..=n_prompt)).collect();
    if !random.one_in(4) {
        let n_common = random.pick(&[64, 100, 128, 192, 260, 300]).min(n_prompt);
        prompt[..n_common].copy_from_slice(&rig::prompt(n_common, random.next() % 2));
        if random.one_in(2) {
            boundaries.retain(|boundary| *boundary < n_common);
            boundaries.push(n_common.saturating_sub(random.pick(&[0, 0, 1, 2])));
        }
    }
    boundaries.sort_unstable();
    let max_tokens = random.pick(&[1, 30, 90, 250]) + random.within(0..=40) as u32;
    Request { id, prompt, max_tokens, sampling: sampling(talkative, random), boundaries }
}

/// Submits an arrival; refused ones must not fit, or the queue must be full.
fn arrive(rig: &Rig, id: u64, talkative: bool, random: &mut Random) -> Option<Life> {
    let request = arrival(id, talkative, random);
    let (heard, sink) = listener();
    if random.one_in(10) {
        let gone = random.pick(&[Gone::Disconnected, Gone::Satisfied]);
        heard.lock().expect("not poisoned").leaves_at = Some((random.within(1..=30), gone));
    }
    rig.handle.submit(request.clone(), sink).ok()?;
    Some(Life { request, heard, cancelled: false })
}

/// The oldest sequence and how many of its rows are computed; none for one that waits.
fn oldest(rig: &Rig) -> Option<(u64, Option<usize>)> {
    let scheduler = &rig.engine.scheduler;
    if let Some(running) = scheduler.running.first() {
        return Some((running.sequence.id, Some(running.n_computed)));
    }
    Some((scheduler.waiting.front()?.id, None))
}

/// One turn, and what must hold after each.
fn turn(rig: &mut Rig, faulty: bool) -> bool {
    let before = oldest(rig);
    let busy = rig.engine.turn();
    rig.engine.scheduler.check_integrity();
    if let (Some((id, n)), Some((now, m))) = (before, oldest(rig)) {
        assert!(id != now || m > n || faulty, "request {id} starves");
    }
    busy
}

/// Runs one world; returns what happened in it.
fn simulate(seed: u64) -> Totals {
    let (config, draft_head, mut random) = world(seed);
    let mut rig = Rig::new(config.clone(), draft_head);
    let (mut lives, n_requests, mut id) = (Vec::new(), random.within(3..=16), 0);
    let (with_panics, talkative) = (random.one_in(4), random.one_in(2));
    loop {
        while id < n_requests as u64 && random.one_in(2) {
            lives.extend(arrive(&rig, id, talkative, &mut random));
            id += 1;
        }
        if random.one_in(150) {
            rig.handle.flush_cache();
        }
        if random.one_in(60) && !lives.is_empty() {
            let index = random.within(0..=lives.len() - 1);
            lives[index].cancelled = true;
            rig.handle.cancel(lives[index].request.id);
        }
        let faulty = with_panics && random.one_in(60);
        if faulty {
            rig.faults.panic_in(1);
        }
        let busy = turn(&mut rig, faulty);
        rig.faults.panic_in(0);
        if !busy && id >= n_requests as u64 {
            break;
        }
    }
    rig.run();
    for life in &lives {
        check(life, with_panics, &config);
    }
    rig.engine.snapshot.totals
}

/// One end, allowed by what happened, and the tokens of a run alone.
fn check(life: &Life, with_panics: bool, config: &EngineConfig) {
    let heard = life.heard.lock().expect("not poisoned");
    let whole = match &heard.ends[..] {
        [Event::Failed(_)] if with_panics => false,
        [Event::Finished(finish)] => match finish.reason {
            FinishReason::Stop { token: Some(_) } | FinishReason::Length => true,
            FinishReason::Cancelled => {
                assert!(life.cancelled || heard.leaves_at.is_some());
                false
            }
            FinishReason::Stop { token: None } => {
                assert!(heard.leaves_at.is_some());
                false
            }
            FinishReason::Shutdown => panic!("nobody shut down"),
        },
        ends => panic!("not one end: {ends:?}"),
    };
    let roomy = EngineConfig {
        max_running: 1,
        n_slots: 1,
        n_blocks: 10,
        speculation: Speculation::Off,
        prefix_cache: None,
        ..config.clone()
    };
    let alone = Rig::new(roomy, DraftHead::AlwaysRight).alone(life.request.clone());
    let expected = if whole { &alone[..] } else { &alone[..heard.tokens.len()] };
    assert_eq!(heard.tokens, expected, "request {}", life.request.id);
}

fn env(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{name} is not a number: {v}")))
}

#[test]
fn worlds() {
    let first = env("OUTRIDER_SIM_FIRST", 0);
    let n_worlds = env("OUTRIDER_SIM_SEEDS", 100);
    let happened =
        |count: fn(&Totals) -> u64, worlds: &[Totals]| worlds.iter().any(|t| count(t) > 0);
    let worlds: Vec<Totals> = (first..first + n_worlds)
        .map(|seed| {
            println!("world {seed}");
            simulate(seed)
        })
        .collect();
    // A simulation in which nothing ever goes wrong proves nothing.
    for count in [
        |t: &Totals| t.n_preempted,
        |t: &Totals| t.n_cached_tokens,
        // A prefix that ended inside a block.
        |t: &Totals| t.n_cached_tokens % BLOCK_LEN as u64,
        |t: &Totals| t.n_accepted,
        |t: &Totals| t.n_cancelled,
        |t: &Totals| t.n_failed,
        |t: &Totals| t.n_stop,
        |t: &Totals| t.n_length,
    ] {
        assert!(n_worlds < 100 || happened(count, &worlds), "too tame a world");
    }
}
