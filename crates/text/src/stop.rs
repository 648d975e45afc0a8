//! Stop strings in a stream of text.
//!
//! Every stop string is matched by a Knuth-Morris-Pratt automaton over bytes, so a push costs its
//! length times the number of stop strings and matches across any cutting of the text.
//! The first stop string to be *complete* wins (of several that end at the same place, the
//! longest): this choice needs no look ahead and does not depend on how the text was cut.
//! What could still become a stop string is held back, nothing else.

/// Why a set of stop strings is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// An empty string occurs everywhere and would end the answer before it begins.
    #[error("a stop string must not be empty")]
    Empty,
}

/// Incremental search for the first stop string.
#[derive(Debug)]
pub struct StopMatcher {
    automata: Vec<Automaton>,
    /// Show the stop string itself too.
    keep: bool,
    /// Text that may be the beginning of a stop string.
    held: String,
    matched: Option<usize>,
}

#[derive(Debug)]
struct Automaton {
    stop: Box<[u8]>,
    /// `fallback[n]`: length of the longest proper prefix of `stop` that ends its first `n + 1`
    /// bytes.
    fallback: Box<[u32]>,
    /// Length of the longest prefix of `stop` that ends the text so far.
    n: usize,
}

impl StopMatcher {
    /// A matcher for `stops`; with `keep` the matched stop string is shown (SGLang's
    /// `no_stop_trim`).
    pub fn new(stops: &[String], keep: bool) -> Result<StopMatcher, StopError> {
        if stops.iter().any(String::is_empty) {
            return Err(StopError::Empty);
        }
        let automata = stops.iter().map(|stop| Automaton::new(stop.as_bytes())).collect();
        Ok(StopMatcher { automata, keep, held: String::new(), matched: None })
    }

    /// Takes the next piece of text and appends to `out` what is safe to show.
    /// Returns the index of the stop string that is complete now (or was before); text after it is
    /// dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.automata.is_empty() {
            out.push_str(text);
            return None;
        }
        if self.matched.is_some() {
            return self.matched;
        }
        let n_before = self.held.len();
        self.held.push_str(text);
        for i in n_before..self.held.len() {
            let byte = self.held.as_bytes()[i];
            let mut longest: Option<(usize, usize)> = None;
            for (index, automaton) in self.automata.iter_mut().enumerate() {
                if automaton.step(byte) && longest.is_none_or(|(len, _)| automaton.stop.len() > len)
                {
                    longest = Some((automaton.stop.len(), index));
                }
            }
            if let Some((len, index)) = longest {
                let end = i + 1;
                out.push_str(&self.held[..if self.keep { end } else { end - len }]);
                self.held.clear();
                self.matched = Some(index);
                return self.matched;
            }
        }
        let n_hold = self.automata.iter().map(|automaton| automaton.n).max().unwrap_or(0);
        out.extend(self.held.drain(..self.held.len() - n_hold));
        None
    }

    /// Ends the text: what was held back did not become a stop string.
    pub fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

impl Automaton {
    fn new(stop: &[u8]) -> Automaton {
        let mut fallback = vec![0; stop.len()];
        let mut n = 0;
        for i in 1..stop.len() {
            while n > 0 && stop[i] != stop[n] {
                n = fallback[n - 1] as usize;
            }
            n += usize::from(stop[i] == stop[n]);
            fallback[i] = n as u32;
        }
        Automaton { stop: stop.into(), fallback: fallback.into(), n: 0 }
    }

    /// Takes one byte; true when the stop string is complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.n > 0 && byte != self.stop[self.n] {
            self.n = self.fallback[self.n - 1] as usize;
        }
        self.n += usize::from(byte == self.stop[self.n]);
        self.n == self.stop.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: the first end of a stop string in the whole text, and the longest stop
    /// string that ends there.
    fn naive<'a>(text: &'a str, stops: &[String], keep: bool) -> (&'a str, Option<usize>) {
        for end in text.char_indices().map(|(i, c)| i + c.len_utf8()) {
            let ending = (0..stops.len()).filter(|&i| text[..end].ends_with(&stops[i]));
            if let Some(i) = ending.max_by_key(|&i| (stops[i].len(), std::cmp::Reverse(i))) {
                return (&text[..if keep { end } else { end - stops[i].len() }], Some(i));
            }
        }
        (text, None)
    }

    /// Pushes the pieces; also checks that what was shown never has to be taken back.
    fn run(pieces: &[&str], stops: &[String], keep: bool) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops, keep).unwrap();
        let (mut shown, mut matched) = (String::new(), None);
        for piece in pieces {
            matched = matcher.push(piece, &mut shown);
        }
        matcher.flush(&mut shown);
        (shown, matched)
    }

    fn strings(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|stop| stop.to_string()).collect()
    }

    #[test]
    fn a_stop_string_over_several_pieces_is_never_shown() {
        let stops = strings(&["river"]);
        let mut matcher = StopMatcher::new(&stops, false).unwrap();
        let mut shown = String::new();
        assert_eq!(matcher.push("a long ri", &mut shown), None);
        assert_eq!(shown, "a long ");
        assert_eq!(matcher.push("v", &mut shown), None);
        assert_eq!(shown, "a long ");
        assert_eq!(matcher.push("er and", &mut shown), Some(0));
        matcher.push("more", &mut shown);
        matcher.flush(&mut shown);
        assert_eq!(shown, "a long ");
    }

    #[test]
    fn held_text_is_released_as_soon_as_the_match_fails() {
        let stops = strings(&["half~@~"]);
        let mut matcher = StopMatcher::new(&stops, false).unwrap();
        let mut shown = String::new();
        matcher.push("half", &mut shown);
        assert_eq!(shown, "");
        matcher.push("w", &mut shown);
        assert_eq!(shown, "halfw");
        matcher.push("ay half", &mut shown);
        assert_eq!(shown, "halfway ");
        matcher.flush(&mut shown);
        assert_eq!(shown, "halfway half");
    }

    #[test]
    fn the_first_complete_stop_string_wins() {
        assert_eq!(run(&["xabcdy"], &strings(&["abcd", "bc"]), false), ("xa".into(), Some(1)));
        assert_eq!(run(&["xabcy"], &strings(&["c", "abc", "bc"]), false), ("x".into(), Some(1)));
        assert_eq!(run(&["xabcy"], &strings(&["abc"]), true), ("xabc".into(), Some(0)));
    }

    #[test]
    fn empty_stop_strings_are_refused() {
        assert_eq!(StopMatcher::new(&strings(&["a", ""]), false).err(), Some(StopError::Empty));
        assert_eq!(run(&["as it is"], &[], false), ("as it is".into(), None));
    }

    #[test]
    fn a_long_repetitive_stop_string_costs_no_more_than_its_length() {
        let stops = vec!["a".repeat(20_000) + "b"];
        let pieces = vec!["aaaa"; 50_000];
        assert_eq!(run(&pieces, &stops, false), ("a".repeat(200_000), None));
    }

    proptest! {
        #[test]
        fn any_cutting_equals_the_search_in_the_whole_text(
            text in "[abé]{0,30}",
            stops in prop::collection::vec("[abé]{1,5}", 0..4),
            cuts in prop::collection::vec(0usize..60, 0..10),
            keep in any::<bool>(),
        ) {
            let inside = cuts.into_iter().filter(|&cut| text.is_char_boundary(cut));
            let mut cuts: Vec<usize> = inside.chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let (shown, matched) = run(&pieces, &stops, keep);
            let (want, want_matched) = naive(&text, &stops, keep);
            prop_assert_eq!(shown, want);
            prop_assert_eq!(matched, want_matched);
        }
    }
}
