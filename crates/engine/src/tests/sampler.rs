//! The sampler against its definition, which sorts everything and skips nothing.

use super::*;
use crate::noise::philox4x32;

/// A small generator for test data, so that a failure can be named by its seed.
struct Random(u32, u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 += 1;
        philox4x32([self.0, 0, 0, 0], [self.1 as u32, 0])[0]
    }

    fn unit(&mut self) -> f32 {
        self.next() as f32 / u32::MAX as f32
    }
}

/// The definition: rank all, cut by each filter in turn, add noise to every survivor.
fn definition(row: &[f32], sampling: &Sampling, position: usize) -> u32 {
    let ids = 0..row.len() as u32;
    let mut ranked: Vec<Ranked> = ids.map(|id| Ranked { logit: row[id as usize], id }).collect();
    ranked.sort_by(Ranked::order);
    if sampling.temperature == 0.0 {
        return ranked[0].id;
    }
    let top = ranked[0];
    let z =
        |t: &Ranked| (f64::from(t.logit) - f64::from(top.logit)) / f64::from(sampling.temperature);
    if sampling.top_k > 0 {
        ranked.truncate(sampling.top_k as usize);
    }
    if sampling.top_p < 1.0 {
        let sum: f64 = ranked.iter().map(|t| z(t).exp()).sum();
        let mut reached = 0.0;
        let n = ranked.iter().position(|t| {
            reached += z(t).exp();
            reached >= f64::from(sampling.top_p) * sum
        });
        ranked.truncate(n.map_or(ranked.len(), |n| n + 1));
    }
    ranked.retain(|t| z(t).exp() >= f64::from(sampling.min_p) - 1e-12);
    let noise = Noise::new(sampling.seed, position);
    let score = |t: &Ranked| z(t) + noise.of(t.id);
    ranked.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.id.cmp(&b.id)));
    ranked[0].id
}

fn plain(logits: &[f32], sampling: &Sampling, position: usize) -> Result<u32, DrawError> {
    let history = History::new(sampling, &[], 0);
    let draw = Draw { sampling, ends: &[], history: &history, n_generated: 0, position };
    Sampler::new(logits.len()).draw(logits, &draw)
}

#[test]
fn every_combination_of_filters_agrees_with_the_definition() {
    for seed in 0..600 {
        let mut random = Random(0, seed);
        let vocab = 1 + random.next() as usize % 700;
        let spread = [0.0, 0.5, 4.0, 30.0][random.next() as usize % 4];
        // Few distinct values in every third row, so that ties occur at every cut.
        let coarse = random.next().is_multiple_of(3);
        let mut row: Vec<f32> = (0..vocab).map(|_| (random.unit() - 0.5) * spread).collect();
        if coarse {
            row.iter_mut().for_each(|x| *x = x.round());
        }
        if random.next().is_multiple_of(4) {
            row.iter_mut().skip(1).step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
        }
        let sampling = Sampling {
            temperature: [0.0, 0.1, 0.7, 1.5, 20.0][random.next() as usize % 5],
            top_k: [0, 0, 1, 2, 20, 64, 5000][random.next() as usize % 7],
            top_p: [1.0, 0.95, 0.5, 1e-6][random.next() as usize % 4],
            min_p: [0.0, 0.0, 0.1, 1.0][random.next() as usize % 4],
            seed,
            ..Sampling::greedy()
        };
        for position in 0..8 {
            let expected = definition(&row, &sampling, position);
            let got = plain(&row, &sampling, position);
            assert_eq!(got, Ok(expected), "seed {seed} position {position}: {sampling:?}");
        }
    }
}

#[test]
fn tokens_come_with_their_probabilities() {
    // Chi-square of 20 000 draws over the softmax of five logits; 18.47 is the 0.1 % point.
    let row = [1.0_f32, 0.0, 2.0, -1.0, 1.5];
    let sampling = Sampling { temperature: 0.8, seed: 11, ..Sampling::greedy() };
    let weights: Vec<f64> = row.iter().map(|&x| (f64::from(x) / 0.8).exp()).collect();
    let n_draws = 20_000;
    let mut counts = [0.0; 5];
    for position in 0..n_draws {
        counts[plain(&row, &sampling, position).expect("a token") as usize] += 1.0;
    }
    let sum: f64 = weights.iter().sum();
    let expected = weights.iter().map(|w| w / sum * n_draws as f64);
    let chi_square: f64 = counts.iter().zip(expected).map(|(n, e)| (n - e).powi(2) / e).sum();
    assert!(chi_square < 18.47, "{chi_square}: {counts:?}");
}

#[test]
fn what_is_not_a_number_is_an_error_and_not_a_token() {
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, ..Sampling::greedy() };
        for at in [0, 15, 16, 39] {
            let mut row = vec![0.0; 40];
            row[at] = f32::NAN;
            assert_eq!(plain(&row, &sampling, 0), Err(DrawError::NotANumber));
            row[at] = f32::INFINITY;
            assert_eq!(plain(&row, &sampling, 0), Err(DrawError::NothingLeft));
        }
        assert_eq!(plain(&[f32::NEG_INFINITY; 3], &sampling, 0), Err(DrawError::NothingLeft));
    }
}

#[test]
fn penalties_bias_and_the_mask_come_before_the_filters() {
    let check = |sampling: Sampling, n_generated, expected| {
        let mut history = History::new(&sampling, &[0], 4);
        history.push(1);
        let draw =
            Draw { sampling: &sampling, ends: &[3], history: &history, n_generated, position: 1 };
        let row = [4.0, 3.9, 3.8, 5.0, 0.0];
        assert_eq!(Sampler::new(5).draw(&row, &draw), Ok(expected), "{sampling:?}");
    };
    let greedy = Sampling::greedy;
    check(greedy(), 1, 3);
    check(Sampling { min_tokens: 2, ..greedy() }, 1, 0);
    check(Sampling { min_tokens: 2, ..greedy() }, 2, 3);
    check(Sampling { min_tokens: 2, repetition_penalty: 1.1, ..greedy() }, 1, 2);
    check(Sampling { min_tokens: 2, presence_penalty: 0.2, ..greedy() }, 1, 0);
    check(Sampling { logit_bias: vec![(4, 9.0)], ..greedy() }, 1, 4);
    check(Sampling { logit_bias: vec![(4, 9.0)], top_k: 1, temperature: 1.0, ..greedy() }, 1, 4);
    // The mask is the last word: no bias lifts an end token over it.
    check(Sampling { min_tokens: 2, logit_bias: vec![(3, 90.0)], ..greedy() }, 1, 0);
}

#[test]
fn reported_log_probabilities_are_of_the_raw_logits() {
    let row = [1.0_f32, 3.0, 2.0, 3.0];
    let mut sampler = Sampler::new(4);
    let out = sampler.report(&row, 2, Some(3));
    let sum: f32 = row.iter().map(|x| x.exp()).sum();
    assert!((out.logprob.expect("asked for") - (2.0 - sum.ln())).abs() < 1e-6);
    assert_eq!(out.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 3, 2]);
    assert_eq!(out.top[2].1, out.logprob.expect("asked for"));
    assert!(sampler.report(&row, 0, Some(0)).top.is_empty());
    assert_eq!(sampler.report(&row, 0, None).logprob, None);
}
