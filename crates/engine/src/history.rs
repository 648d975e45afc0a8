//! Which tokens occurred, for the penalties.

use std::collections::HashMap;

use crate::request::Sampling;

/// Counts of the tokens of one sequence; keeps nothing when no penalty is set.
pub(crate) struct History {
    counts: Option<HashMap<u32, Count>>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    in_prompt: bool,
    n_generated: u32,
}

impl History {
    /// The history before the first token is generated.
    pub(crate) fn new(sampling: &Sampling, prompt: &[u32], max_tokens: usize) -> History {
        let penalised = sampling.repetition_penalty != 1.0
            || sampling.presence_penalty != 0.0
            || sampling.frequency_penalty != 0.0;
        let counts = penalised.then(|| {
            let mut counts = HashMap::<u32, Count>::new();
            for &token in prompt {
                counts.entry(token).or_default().in_prompt = true;
            }
            counts.reserve(max_tokens);
            counts
        });
        History { counts }
    }

    /// Whether any penalty applies to any token.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.as_ref().is_none_or(HashMap::is_empty)
    }

    /// A token was generated.
    pub(crate) fn push(&mut self, token: u32) {
        if let Some(counts) = &mut self.counts {
            counts.entry(token).or_default().n_generated += 1;
        }
    }

    /// Undoes the last `push` of the token and leaves no trace of it.
    pub(crate) fn pop(&mut self, token: u32) {
        let Some(counts) = &mut self.counts else { return };
        let count = counts.get_mut(&token).expect("only pushed tokens are popped");
        count.n_generated -= 1;
        if count.n_generated == 0 && !count.in_prompt {
            counts.remove(&token);
        }
    }

    /// Applies the penalties to a row of logits. Each token is changed alone, so the order of the map
    /// does not matter.
    pub(crate) fn penalise(&self, sampling: &Sampling, logits: &mut [f32]) {
        for (&token, count) in self.counts.iter().flatten() {
            let logit = &mut logits[token as usize];
            if *logit > 0.0 {
                *logit /= sampling.repetition_penalty;
            } else {
                *logit *= sampling.repetition_penalty;
            }
            if count.n_generated > 0 {
                *logit -= sampling.presence_penalty
                    + sampling.frequency_penalty * count.n_generated as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(history: &History, sampling: &Sampling) -> Vec<f32> {
        let mut logits = vec![2.0, -2.0, 1.0, 1.0];
        history.penalise(sampling, &mut logits);
        logits
    }

    #[test]
    fn repetition_counts_the_prompt_and_the_others_do_not() {
        let all = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Sampling::greedy()
        };
        let mut history = History::new(&all, &[0, 1], 8);
        assert_eq!(penalised(&history, &all), [1.0, -4.0, 1.0, 1.0]);
        history.push(2);
        history.push(2);
        assert_eq!(penalised(&history, &all), [1.0, -4.0, 0.5 - 0.5 - 0.5, 1.0]);
        history.push(0);
        assert_eq!(penalised(&history, &all)[0], 1.0 - 0.75);
    }

    #[test]
    fn a_popped_token_leaves_no_trace() {
        let all = Sampling { repetition_penalty: 2.0, presence_penalty: 1.0, ..Sampling::greedy() };
        let mut history = History::new(&all, &[0], 8);
        let before = penalised(&history, &all);
        for token in [0, 3, 3] {
            history.push(token);
        }
        for token in [3, 3, 0] {
            history.pop(token);
        }
        assert_eq!(penalised(&history, &all), before);
    }

    #[test]
    fn nothing_is_counted_without_penalties() {
        let mut history = History::new(&Sampling::greedy(), &[1, 2], 8);
        history.push(1);
        assert!(history.is_empty());
    }
}
