//! Tokens come with the probabilities of the target's softmax, drafts or not: the real model through the
//! whole engine against an enumeration of what could be drawn.

use std::collections::HashMap;

use model::batch::{Batch, Forward, Span};
use model::network::Model;

use super::real;
use super::rig::{Rig, config};
use crate::config::{EngineConfig, Speculation};
use crate::request::{Request, Sampling};

/// Requests of one experiment, each with a seed of its own.
const N_REQUESTS: u64 = 1000;
/// Tokens of each: the first from the prompt, the others from rounds that verify drafts.
const N_TOKENS: usize = 4;
/// Tokens that are looked at.
const N_TOLD: usize = 3;
/// Outcomes that are expected less often count as one.
const EXPECTED_MIN: f64 = 8.0;

fn prompt() -> Vec<u32> {
    (0..12).map(|i| 300 + i * i * 5).collect()
}

fn experiment_config(speculation: Speculation) -> EngineConfig {
    EngineConfig {
        max_running: 16,
        n_slots: 16,
        max_queued: N_REQUESTS as usize,
        speculation,
        ..config()
    }
}

/// Probabilities of the next token by definition: filters over everything, sorted.
fn softmax(logits: &[f32], sampling: &Sampling) -> Vec<(u32, f64)> {
    let mut ranked: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&x| f64::from(x))).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let top = ranked[0].1;
    ranked.iter_mut().for_each(|(_, x)| *x = ((*x - top) / f64::from(sampling.temperature)).exp());
    if sampling.top_k > 0 {
        ranked.truncate(sampling.top_k as usize);
    }
    let sum: f64 = ranked.iter().map(|(_, p)| p).sum();
    let mut reached = 0.0;
    let nucleus = ranked.iter().position(|(_, p)| {
        reached += p / sum;
        reached >= f64::from(sampling.top_p)
    });
    ranked.truncate(nucleus.map_or(ranked.len(), |last| last + 1));
    let sum: f64 = ranked.iter().map(|(_, p)| p).sum();
    ranked.into_iter().map(|(id, p)| (id, p / sum)).collect()
}

/// The beginnings that are expected often enough to be told apart, each with how many answers are expected
/// to begin with it and with none of the longer ones.
fn expected(model: &mut Model, sampling: &Sampling) -> HashMap<Vec<u32>, f64> {
    let mut open = vec![(Vec::new(), N_REQUESTS as f64)];
    let mut beginnings = HashMap::new();
    while let Some((begin, n)) = open.pop() {
        if begin.len() == N_TOLD {
            beginnings.insert(begin, n);
            continue;
        }
        let tokens = [&prompt()[..], &begin[..]].concat();
        let n_rows = tokens.len();
        let span =
            Span { row: 0, n_rows, pos: 0, blocks: &[0], slot: 0, n_replay: 0, n_commit: n_rows };
        let batch = Batch { tokens: &tokens, spans: &[span], logit_rows: &[n_rows as u32 - 1] };
        let next = softmax(&model.logits(&batch), sampling);
        let longer = next.into_iter().map(|(id, p)| ([&begin[..], &[id]].concat(), n * p));
        let often: Vec<_> = longer.filter(|(_, n)| *n >= EXPECTED_MIN).collect();
        beginnings.insert(begin, n - often.iter().map(|(_, n)| n).sum::<f64>());
        open.extend(often);
    }
    beginnings
}

/// How often each answer came, and how many drafts were accepted.
fn drawn(speculation: Speculation, sampling: &Sampling) -> (HashMap<Vec<u32>, f64>, u64) {
    let config = experiment_config(speculation);
    let mut rig = Rig::with_model(Box::new(real::model(&config)), config);
    let request = |seed| Request {
        id: seed,
        prompt: prompt(),
        max_tokens: N_TOKENS as u32,
        sampling: Sampling { seed, ..sampling.clone() },
        boundaries: Vec::new(),
    };
    let heard: Vec<_> = (0..N_REQUESTS).map(|seed| rig.submit(request(seed))).collect();
    rig.run();
    let mut counts = HashMap::new();
    for heard in heard {
        *counts.entry(heard.lock().expect("not poisoned").tokens.clone()).or_default() += 1.0;
    }
    (counts, rig.engine.snapshot.totals.n_accepted)
}

/// The value that chi-square with this many degrees of freedom exceeds once in a thousand times (the
/// approximation of Wilson and Hilferty).
fn once_in_a_thousand(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + 3.09 * spread.sqrt()).powi(3)
}

#[test]
fn answers_come_as_often_as_the_softmax_says() {
    let free = Sampling { ignore_eos: true, ..Sampling::greedy() };
    for sampling in [
        Sampling { temperature: 1.0, ..free.clone() },
        Sampling { temperature: 0.7, top_k: 12, top_p: 0.9, ..free.clone() },
    ] {
        let mut model = real::model(&experiment_config(Speculation::Off));
        let expected = expected(&mut model, &sampling);
        let mut answers = Vec::new();
        for speculation in [Speculation::Fixed(3), Speculation::Auto { max_depth: 8 }] {
            let (counts, n_accepted) = drawn(speculation, &sampling);
            assert!(n_accepted > 0 || speculation != Speculation::Fixed(3));
            let mut seen: HashMap<&[u32], f64> = HashMap::new();
            for (answer, n) in &counts {
                let told = (0..=N_TOLD).rev().map(|n| &answer[..n]);
                let begin = told.into_iter().find(|begin| expected.contains_key(*begin));
                *seen.entry(begin.expect("the empty one is there")).or_default() += n;
            }
            let (mut chi_square, mut n_bins, mut rare) = (0.0, 0.0, (0.0, 0.0));
            for (begin, &e) in &expected {
                let n = seen.get(&begin[..]).copied().unwrap_or(0.0);
                if e < EXPECTED_MIN {
                    rare = (rare.0 + n, rare.1 + e);
                } else {
                    chi_square += (n - e).powi(2) / e;
                    n_bins += 1.0;
                }
            }
            chi_square += (rare.0 - rare.1).powi(2) / rare.1.max(1.0);
            let limit = once_in_a_thousand(n_bins);
            println!("{n_bins} outcomes and rare ones: {chi_square:.1}, limit {limit:.1}");
            assert!(n_bins > 20.0, "too few outcomes to tell anything: {n_bins}");
            assert!(chi_square < limit, "{chi_square} > {limit}: {speculation:?}, {sampling:?}");
            answers.push(counts);
        }
        assert_eq!(answers[0], answers[1], "the same seeds, the same answers");
    }
}
