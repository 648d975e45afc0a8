//! Stores that stay small however long the log is.

use serde::{Deserialize, Serialize};

use super::window::Window;

/// The most windows kept of one run; beyond it neighbours are merged.
const MOST_WINDOWS: usize = 8192;
/// The most values kept of one quantity.
const MOST_VALUES: usize = 4096;

/// Values of one quantity, evenly thinned: every `stride`-th is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thinned {
    /// The kept values in order.
    pub values: Vec<f32>,
    /// How many values there were.
    pub seen: u64,
    stride: u64,
}

impl Thinned {
    /// Takes a value.
    pub fn push(&mut self, value: f32) {
        self.stride = self.stride.max(1);
        if self.seen.is_multiple_of(self.stride) {
            if self.values.len() == MOST_VALUES {
                let mut i = 0;
                self.values.retain(|_| {
                    i += 1;
                    i % 2 == 1
                });
                self.stride *= 2;
            }
            if self.seen.is_multiple_of(self.stride) {
                self.values.push(value);
            }
        }
        self.seen += 1;
    }

    /// The kept values as numbers.
    pub fn iter(&self) -> impl Iterator<Item = f64> + '_ {
        self.values.iter().map(|x| f64::from(*x))
    }
}

/// Makes room: neighbours that agree in validity and running count become one; when that frees too little, all do.
pub(super) fn compact(windows: &mut Vec<Window>) {
    if windows.len() < MOST_WINDOWS {
        return;
    }
    let halved = |windows: &[Window], all: bool| {
        let mut out: Vec<Window> = Vec::with_capacity(windows.len());
        let mut i = 0;
        while i < windows.len() {
            match windows.get(i + 1) {
                Some(next)
                    if all
                        || (next.validity == windows[i].validity
                            && next.running == windows[i].running) =>
                {
                    out.push(windows[i].merge(next));
                    i += 2;
                }
                _ => {
                    out.push(windows[i]);
                    i += 1;
                }
            }
        }
        out
    };
    let mut fewer = halved(windows, false);
    if fewer.len() > MOST_WINDOWS * 3 / 4 {
        fewer = halved(windows, true);
    }
    *windows = fewer;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::Validity;

    #[test]
    fn long_series_stay_short_and_even() {
        let mut thinned = Thinned::default();
        for i in 0..100_000u32 {
            thinned.push(i as f32);
        }
        assert!(thinned.values.len() <= MOST_VALUES && thinned.values.len() > MOST_VALUES / 4);
        assert_eq!(thinned.seen, 100_000);
        let mean = thinned.iter().sum::<f64>() / thinned.values.len() as f64;
        assert!((mean - 50_000.0).abs() < 500.0, "{mean}");
    }

    #[test]
    fn merged_windows_keep_their_means() {
        let window = Window {
            t: Some(0.0),
            seconds: None,
            running: 2.0,
            queue: Some(0.0),
            tok_s: 10.0,
            accept_len: Some(2.0),
            steps_per_s: Some(5.0),
            prompt_tok_s: None,
            kv_usage: None,
            state_usage: None,
            hit_rate: None,
            graph: Some(1.0),
            validity: Validity::Clean,
            line: 1,
            n: 1,
        };
        let mut windows: Vec<Window> =
            (0..MOST_WINDOWS).map(|i| Window { tok_s: i as f32, ..window }).collect();
        compact(&mut windows);
        assert_eq!(windows.len(), MOST_WINDOWS / 2);
        assert_eq!((windows[1].tok_s, windows[1].n), (2.5, 2));
    }
}
