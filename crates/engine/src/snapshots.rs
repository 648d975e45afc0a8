//! Where the recurrent state of a sequence is kept, for itself after a preemption and for others.
//!
//! A pass must end exactly there, so each point costs a chunk that is shorter than it could be, and a copy
//! of the state: points that save little are left out.

use cache::{BLOCK_LEN, Prefix};

use crate::config::PrefixCache;
use crate::sequence::Sequence;

/// A point that saves fewer tokens than this over its neighbour is not worth a pass.
const GAIN_MIN: usize = 2 * BLOCK_LEN;

/// The points of one sequence from where it resumed: at block edges, but for the last boundary of a prompt.
pub(crate) struct SnapshotPoints {
    /// Points among the tokens that were known at admission, ascending.
    known: Vec<usize>,
    /// Points after `n_known` tokens: every so many positions. `None` without a prefix cache.
    interval: Option<usize>,
    n_known: usize,
}

impl SnapshotPoints {
    /// The points of a sequence that resumes after `prefix`.
    pub(crate) fn new(
        cache: Option<PrefixCache>,
        sequence: &Sequence,
        prefix: &Prefix,
    ) -> SnapshotPoints {
        let n_known = sequence.tokens.len();
        let Some(PrefixCache { snapshot_interval: interval }) = cache else {
            return SnapshotPoints { known: Vec::new(), interval: None, n_known };
        };
        let edge = |offset: usize| offset / BLOCK_LEN * BLOCK_LEN;
        // The last token is computed in any case: a prefix ends before it.
        let useful = prefix.n_tokens + 1..n_known;
        // Where the next turn goes on, however little it saves: a talk of short turns adds up.
        let turn = sequence.boundaries.last().copied().filter(|turn| useful.contains(turn));
        let branch = Some(prefix.n_common).filter(|branch| useful.contains(branch));
        let last = [sequence.n_prompt - 1];
        let offsets = if sequence.boundaries.is_empty() { &last[..] } else { &sequence.boundaries };
        let mut points: Vec<usize> = offsets.iter().map(|&offset| edge(offset)).collect();
        points.retain(|point| useful.contains(point));
        points.extend(branch);
        points.extend(turn);
        points.sort_unstable();
        points.dedup();
        // Of two close points the later one serves nearly all that the earlier one would.
        let pays = |i: &usize| {
            let next = points.get(i + 1).copied().unwrap_or(usize::MAX);
            points[*i] - prefix.n_tokens >= GAIN_MIN && next - points[*i] >= GAIN_MIN
        };
        let must = |point| branch == Some(point) || turn == Some(point);
        let keep = |i: &usize| must(points[*i]) || pays(i);
        let mut known: Vec<usize> = (0..points.len()).filter(keep).map(|i| points[i]).collect();
        let far = |point: &usize| known.iter().all(|other| point.abs_diff(*other) >= GAIN_MIN);
        let regular = (useful.start.div_ceil(interval)..).map(|i| i * interval);
        let regular: Vec<usize> = regular.take_while(|p| *p < n_known).filter(far).collect();
        known.extend(regular);
        known.sort_unstable();
        SnapshotPoints { known, interval: Some(interval), n_known }
    }

    /// The first point after `n_computed` tokens.
    pub(crate) fn next(&self, n_computed: usize) -> Option<usize> {
        let known = self.known.iter().copied().find(|point| *point > n_computed);
        known.or_else(|| {
            let interval = self.interval?;
            Some((n_computed.max(self.n_known) / interval + 1) * interval)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::handle::Submission;
    use crate::request::{Event, EventSink, Gone, Request, Sampling};

    struct Deaf;

    impl EventSink for Deaf {
        fn send(&mut self, _: Event) -> Result<(), Gone> {
            Ok(())
        }
    }

    /// The first points of a prompt of `n_prompt` tokens after a prefix of (resumable, common) tokens.
    fn check(n_prompt: usize, boundaries: &[usize], prefix: (usize, usize), expected: &[usize]) {
        let request = Request {
            id: 0,
            prompt: vec![1; n_prompt],
            max_tokens: 5000,
            sampling: Sampling::greedy(),
            boundaries: boundaries.to_vec(),
        };
        let submission = Submission { request, sink: Box::new(Deaf), at: Instant::now() };
        let sequence = Sequence::new(submission, &[]);
        let mut found = cache::Cache::new(1, 1, 0).match_prefix(&[]);
        (found.n_tokens, found.n_common) = prefix;
        let cache = Some(PrefixCache { snapshot_interval: 1024 });
        let points = SnapshotPoints::new(cache, &sequence, &found);
        let mut at = prefix.0;
        for &point in expected {
            assert_eq!(points.next(at), Some(point), "{n_prompt} {boundaries:?} {prefix:?}");
            at = point;
        }
        assert!(points.next(at).is_some_and(|point| point > n_prompt), "one more point");
    }

    #[test]
    fn points_are_at_edges_and_worth_their_pass() {
        check(100, &[], (0, 0), &[1024]);
        check(300, &[], (0, 0), &[256, 1024, 2048]);
        check(300, &[], (192, 192), &[1024]);
        check(1000, &[200, 500, 560, 600], (0, 0), &[192, 600, 1024]);
    }

    #[test]
    fn the_last_boundary_is_kept_exactly_and_always() {
        check(300, &[290], (128, 128), &[290, 1024]);
        check(300, &[290], (280, 256), &[290, 1024]);
        check(300, &[290], (290, 256), &[1024]);
        check(30, &[0, 25], (0, 0), &[25, 1024]);
        check(1000, &[500, 560, 990], (0, 0), &[512, 990, 1024]);
        check(1000, &[990], (0, 576), &[576, 990, 1024]);
        check(1000, &[990], (576, 640), &[640, 990, 1024]);
        check(1000, &[641], (576, 640), &[640, 641, 1024]);
        check(2500, &[2490], (0, 0), &[1024, 2048, 2490, 3072]);
        check(2150, &[2140], (0, 0), &[1024, 2140, 3072]);
    }
}
