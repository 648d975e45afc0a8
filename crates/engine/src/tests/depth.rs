//! The choice of depths in worlds whose truth is known.

use super::*;
use crate::noise::philox4x32;

/// What is true: acceptance of each draft, and costs as shares of a step of one row.
#[derive(Clone, Copy, Default)]
struct Truth {
    rate: f64,
    /// Of a row beyond the first.
    row: f64,
    /// Once a sequence has more than four rows.
    jump: f64,
    /// Of a pass of the draft head.
    pass: f64,
    /// Of drafting at all.
    start: f64,
}

impl Truth {
    fn step_s(&self, n_decodes: usize, depth: usize) -> f64 {
        self.rows_s(n_decodes, n_decodes * (1 + depth))
    }

    fn rows_s(&self, n_decodes: usize, n_rows: usize) -> f64 {
        let jump = if n_rows > 4 * n_decodes { self.jump } else { 0.0 };
        0.02 * (1.0 + jump + self.row * (n_rows - 1) as f64)
    }

    fn draft_s(&self, depth: usize) -> f64 {
        let start = if depth > 0 { self.start } else { 0.0 };
        0.02 * (start + self.pass * depth as f64)
    }

    fn tokens_per_s(&self, n_decodes: usize, depth: usize) -> f64 {
        let tokens: f64 = (0..=depth).map(|i| self.rate.powi(i as i32)).sum();
        n_decodes as f64 * tokens / (self.step_s(n_decodes, depth) + self.draft_s(depth))
    }

    fn best(&self, n_decodes: usize) -> f64 {
        (0..=8).map(|depth| self.tokens_per_s(n_decodes, depth)).fold(0.0, f64::max)
    }
}

fn config(max_running: usize, max_drafts: usize) -> EngineConfig {
    let speculation = Speculation::Auto { max_depth: 8 };
    EngineConfig { speculation, max_running, max_drafts, ..crate::tests::rig::config() }
}

/// A policy at work, with its own luck.
struct World {
    policy: DepthPolicy,
    states: Vec<SequenceDepth>,
    n_draws: u32,
    seed: u32,
}

impl World {
    fn new(n_decodes: usize, seed: u32) -> World {
        let policy = DepthPolicy::new(&config(n_decodes, 8 * n_decodes));
        World { policy, states: vec![SequenceDepth::default(); n_decodes], n_draws: 0, seed }
    }

    fn unit(&mut self) -> f64 {
        self.n_draws += 1;
        f64::from(philox4x32([self.n_draws, 0, 0, 0], [self.seed, 0])[0]) / f64::from(u32::MAX)
    }

    /// Tokens per second over some steps.
    fn run(&mut self, truth: Truth, n_steps: usize) -> f64 {
        let (mut tokens, mut seconds) = (0, 0.0);
        for _ in 0..n_steps {
            let mut states = std::mem::take(&mut self.states);
            let mut decodes: Vec<_> =
                states.iter_mut().map(|state| Decode { depth_max: 100, state }).collect();
            let depths = self.policy.choose(&mut decodes);
            for (state, &depth) in states.iter_mut().zip(&depths) {
                let n_accepted = (0..depth).take_while(|_| self.unit() < truth.rate).count();
                tokens += 1 + n_accepted;
                if depth > 0 {
                    self.policy.accepted(state, depth, n_accepted);
                }
            }
            let (n_decodes, n_rows) = (depths.len(), depths.len() + depths.iter().sum::<usize>());
            let depth = depths.into_iter().max().expect("somebody decodes");
            // A step takes up to a tenth longer than it should.
            let noise = 1.0 + 0.1 * self.unit();
            let step_s = truth.rows_s(n_decodes, n_rows) * noise;
            let draft_s = truth.draft_s(depth) * noise;
            self.policy.timed(&StepTime { n_decodes, n_rows, depth, step_s, draft_s });
            seconds += step_s + draft_s;
            self.states = states;
        }
        tokens as f64 / seconds
    }
}

/// After a start, the policy must come near the best fixed depth, whatever is true; and the start, in
/// which it tries what it does not know, must not be long.
#[test]
fn the_best_depth_is_found() {
    let none = Truth::default();
    for (seed, truth) in [
        Truth { rate: 0.9, row: 0.03, pass: 0.05, ..none },
        Truth { rate: 0.6, row: 0.04, pass: 0.08, ..none },
        Truth { rate: 0.95, row: 0.5, pass: 0.1, ..none },
        Truth { rate: 0.5, row: 0.9, pass: 0.3, ..none },
        Truth { rate: 0.05, row: 0.04, pass: 0.1, ..none },
        Truth { rate: 0.0, row: 0.1, pass: 0.1, ..none },
        Truth { rate: 0.85, row: 0.02, pass: 0.1, start: 0.25, ..none },
        Truth { rate: 0.8, row: 0.02, pass: 0.05, jump: 0.4, ..none },
        Truth { rate: 0.95, row: 0.02, pass: 0.05, jump: 0.4, start: 0.2 },
    ]
    .into_iter()
    .enumerate()
    {
        for n_decodes in [1, 4] {
            let mut world = World::new(n_decodes, seed as u32);
            // The noise costs five in a hundred by itself.
            let mut share = |n| 1.05 * world.run(truth, n) / truth.best(n_decodes);
            let (start, rest) = (share(50), share(2000));
            let what = format!("{n_decodes} decodes in world {seed}: {start:.3}, then {rest:.3}");
            println!("{what}");
            assert!(start > 0.75 && rest > 0.96, "{what}");
        }
    }
}

#[test]
fn a_change_of_the_text_or_of_the_machine_is_noticed() {
    let good = Truth { rate: 0.9, row: 0.03, pass: 0.05, ..Truth::default() };
    let bad = Truth { rate: 0.02, ..good };
    let slow_rows = Truth { row: 0.9, ..good };
    let mut world = World::new(1, 9);
    for truth in [good, bad, good, slow_rows, good] {
        world.run(truth, 1000);
        let share = 1.05 * world.run(truth, 500) / truth.best(1);
        println!("rate {} row {}: {share:.3}", truth.rate, truth.row);
        assert!(share > 0.9, "rate {} row {}: {share:.3}", truth.rate, truth.row);
    }
}

/// Answers are short: a sequence begins with what others of its temperature have shown.
#[test]
fn temperatures_do_not_mislead_each_other() {
    let mut policy = DepthPolicy::new(&config(1, 8));
    for (n_rows, step_s) in [(1, 0.020), (9, 0.025)] {
        policy.timed(&StepTime { n_decodes: 1, n_rows, depth: 0, step_s, draft_s: 0.0 });
    }
    policy.timed(&StepTime { n_decodes: 1, n_rows: 9, depth: 8, step_s: 0.025, draft_s: 0.016 });
    for _ in 0..40 {
        policy.accepted(&mut SequenceDepth::at(0.0), 8, 8);
        policy.accepted(&mut SequenceDepth::at(1.0), 8, 0);
    }
    let mut depth_at = |temperature| {
        let mut state = SequenceDepth::at(temperature);
        policy.choose(&mut [Decode { depth_max: 8, state: &mut state }])[0]
    };
    assert_eq!([0.0, 1.0, 0.8].map(&mut depth_at), [8, 0, 0]);
    assert!(depth_at(0.6) > 0, "nothing is known of this one");
}

#[test]
fn one_sequence_drafts_while_another_does_not() {
    let mut policy = DepthPolicy::new(&config(2, 16));
    let (mut lucky, mut unlucky) = (SequenceDepth::default(), SequenceDepth::default());
    for _ in 0..40 {
        policy.accepted(&mut lucky, 4, 4);
        policy.accepted(&mut unlucky, 4, 0);
    }
    for (n_rows, depth, step_s) in [(2, 0, 0.020), (6, 4, 0.024), (10, 8, 0.040)] {
        let draft_s = 0.001 * depth as f64;
        for _ in 0..2 {
            policy.timed(&StepTime { n_decodes: 2, n_rows, depth, step_s, draft_s });
        }
    }
    let mut decodes = [&mut lucky, &mut unlucky].map(|state| Decode { depth_max: 8, state });
    let depths = policy.choose(&mut decodes);
    assert!(depths[0] >= 3 && depths[1] <= 1, "{depths:?}");
}

/// One slow step of one row must not make worthless drafts look like a way to faster steps.
#[test]
fn a_disturbed_time_makes_no_worthless_draft_pay() {
    let mut policy = DepthPolicy::new(&EngineConfig {
        speculation: Speculation::Auto { max_depth: 4 },
        ..config(1, 4)
    });
    let mut state = SequenceDepth::default();
    for _ in 0..40 {
        policy.accepted(&mut state, 2, 0);
    }
    for (n_rows, depth, step_s) in [(3, 2, 0.010), (2, 1, 0.010), (1, 0, 0.050)] {
        let draft_s = 0.002 * depth as f64;
        policy.timed(&StepTime { n_decodes: 1, n_rows, depth, step_s, draft_s });
    }
    let depths = policy.choose(&mut [Decode { depth_max: 8, state: &mut state }]);
    assert_eq!(depths, [0]);
}

/// What drafting costs cannot be known before it was tried.
#[test]
fn the_first_steps_draft() {
    let mut policy = DepthPolicy::new(&config(1, 8));
    let mut state = SequenceDepth::default();
    policy.timed(&StepTime { n_decodes: 1, n_rows: 1, depth: 0, step_s: 0.02, draft_s: 0.0 });
    let depths = policy.choose(&mut [Decode { depth_max: 8, state: &mut state }]);
    assert_eq!(depths, [8]);
}

#[test]
fn no_draft_goes_beyond_what_may_be_generated() {
    for speculation in [Speculation::Fixed(5), Speculation::Auto { max_depth: 8 }] {
        let mut policy = DepthPolicy::new(&EngineConfig { speculation, ..config(2, 16) });
        let mut states = [SequenceDepth::default(), SequenceDepth::default()];
        for _ in 0..200 {
            let [a, b] = &mut states;
            let mut decodes =
                [Decode { depth_max: 0, state: a }, Decode { depth_max: 2, state: b }];
            let depths = policy.choose(&mut decodes);
            assert!(depths[0] == 0 && depths[1] <= 2, "{depths:?}");
        }
    }
}

#[test]
fn drafts_are_shared_where_they_do_not_suffice() {
    let mut states = vec![SequenceDepth::default(); 5];
    let mut depths = |speculation, max_drafts| {
        let mut policy = DepthPolicy::new(&EngineConfig { speculation, ..config(5, max_drafts) });
        let mut decodes: Vec<_> =
            states.iter_mut().map(|state| Decode { depth_max: 100, state }).collect();
        policy.choose(&mut decodes)
    };
    assert_eq!(depths(Speculation::Fixed(8), 40), [8; 5]);
    assert_eq!(depths(Speculation::Fixed(8), 19), [3; 5]);
    assert_eq!(depths(Speculation::Fixed(8), 2), [1; 5]);
    assert_eq!(depths(Speculation::Auto { max_depth: 8 }, 7).iter().sum::<usize>(), 7);
}
