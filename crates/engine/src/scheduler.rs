//! Who runs, and which rows: admission in arrival order, chunked prefill beside decodes, preemption.
//!
//! `running` and `waiting` together are always in arrival order: sequences are admitted from the front of
//! the queue, and it is the newest running one that is preempted, back to the front of the queue. So the
//! oldest sequence is never preempted and always gets rows; it ends, and then the next one is the oldest:
//! nobody starves.

use std::collections::VecDeque;

use cache::{BLOCK_LEN, Cache, CopyOf, blocks_for};

use crate::config::{EngineConfig, PrefixCache};
use crate::sequence::{Running, Sequence};
use crate::snapshots::SnapshotPoints;

/// All sequences, and the blocks and slots they run on.
pub(crate) struct Scheduler {
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) running: Vec<Running>,
    cache: Cache,
    max_running: usize,
    max_drafts: usize,
    chunked_prefill_size: usize,
    prefix_cache: Option<PrefixCache>,
}

/// The rows that one step computes.
#[derive(Default)]
pub(crate) struct Schedule {
    /// In the order of `running`, each sequence at most once.
    pub(crate) claims: Vec<Claim>,
    pub(crate) n_admitted: usize,
    pub(crate) n_preempted: usize,
    pub(crate) n_cached_tokens: usize,
    /// Drafts that the step still has room for, beside the rows that sequences replay.
    n_drafts_free: usize,
}

/// The rows of one sequence in one step: known tokens, then drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Index into `running`.
    pub(crate) running: usize,
    /// Tokens from `n_computed` on that are fed.
    pub(crate) n_known: usize,
    /// Drafts after them; only a decode has any.
    pub(crate) depth: usize,
    /// Whether this is a decode: the one known token is the newest of the answer.
    pub(crate) decodes: bool,
    /// Whether the state after the last known token is kept; there are no drafts then.
    pub(crate) keeps_state: bool,
}

impl Scheduler {
    pub(crate) fn new(config: &EngineConfig) -> Scheduler {
        let n_snapshots_max =
            config.prefix_cache.map_or(0, |_| config.n_slots - config.max_running);
        Scheduler {
            waiting: VecDeque::with_capacity(config.max_queued + config.max_running),
            running: Vec::with_capacity(config.max_running),
            cache: Cache::new(config.n_blocks, config.n_slots, n_snapshots_max),
            max_running: config.max_running,
            max_drafts: config.max_drafts,
            chunked_prefill_size: config.chunked_prefill_size,
            prefix_cache: config.prefix_cache,
        }
    }

    /// A new request, behind all others.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(crate) fn n_never_admitted(&self) -> usize {
        self.waiting.iter().filter(|s| s.clock.first_scheduled.is_none()).count()
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Claims the rows of the next step. `depths` are the drafts wished for each decode, in
    /// the order of `running`. `copy` brings what is cached to who resumes from it.
    pub(crate) fn schedule(&mut self, depths: &[usize], copy: &mut dyn FnMut(CopyOf)) -> Schedule {
        let n_replay: usize = self.running.iter().map(|running| running.n_replay).sum();
        let mut schedule =
            Schedule { n_drafts_free: self.max_drafts - n_replay, ..Schedule::default() };
        let mut budget = self.chunked_prefill_size;
        let mut depths = depths.iter();
        let mut index = 0;
        while index < self.running.len() {
            let running = &self.running[index];
            let claim = if running.is_decoding() {
                let depth = depths.next().expect("one for each decode");
                self.claim_decode(index, *depth, &mut schedule)
            } else {
                claim_chunk(index, running, &mut budget)
            };
            schedule.claims.extend(claim);
            index += 1;
        }
        self.admit(&mut budget, &mut schedule, copy);
        schedule
    }

    /// One row and at most `depth` drafts for a decode. Drafts never preempt anybody; for its one row the
    /// newest sequences are preempted, which may be the decode itself.
    fn claim_decode(
        &mut self,
        index: usize,
        depth: usize,
        schedule: &mut Schedule,
    ) -> Option<Claim> {
        loop {
            let Running { lease, n_computed, n_replay, snapshots, .. } =
                self.running.get_mut(index)?;
            let end = *n_computed + 1;
            if self.cache.grow(lease, blocks_for(end)) {
                let next_point = snapshots.next(*n_computed);
                let keeps_state = next_point == Some(end);
                // A pass that ends on the next point has no drafts, and those before must not pass by
                // it: their last draft ends before the row of that pass.
                let depth_max = next_point.map_or(depth, |point| (point - end).saturating_sub(1));
                // Drafts take the places of the rows that are replayed before them.
                let mut depth = depth.min(depth_max).min(*n_replay + schedule.n_drafts_free);
                if !self.cache.grow(lease, blocks_for(end + depth)) {
                    depth = lease.n_positions() - end;
                }
                schedule.n_drafts_free -= depth.saturating_sub(*n_replay);
                let claim = Claim { running: index, n_known: 1, depth, decodes: true, keeps_state };
                return Some(claim);
            }
            self.preempt_newest();
            schedule.n_preempted += 1;
        }
    }

    /// The newest running sequence gives up everything computed and waits before all others.
    fn preempt_newest(&mut self) {
        let Running { sequence, lease, .. } = self.running.pop().expect("a sequence is running");
        self.cache.release(lease);
        self.waiting.push_front(sequence);
    }

    /// Admits from the front of the queue while slots, blocks and prefill rows last. Blocks for all that
    /// is known of a sequence are reserved at once, so a prefill never stops half way; and one more
    /// block for each running sequence must stay free, so that an admission is not the cause of a
    /// preemption right after it.
    fn admit(&mut self, budget: &mut usize, schedule: &mut Schedule, copy: &mut dyn FnMut(CopyOf)) {
        while self.running.len() < self.max_running {
            let Some(sequence) = self.waiting.front() else { return };
            let n_tokens = sequence.tokens.len();
            let prefix = self.cache.match_prefix(&sequence.tokens);
            let none_fits = chunk(n_tokens - prefix.n_tokens, *budget) == 0;
            if none_fits || self.is_coming(&sequence.tokens, prefix.n_tokens) {
                return;
            }
            let n_blocks_max = blocks_for(sequence.n_positions_max());
            let n_spare = self.running.len();
            let lease = self.cache.lease(&prefix, blocks_for(n_tokens), n_spare, n_blocks_max);
            let Some(lease) = lease else { return };
            self.cache.restore(&prefix, &lease, &mut *copy);
            let mut sequence = self.waiting.pop_front().expect("looked at above");
            if sequence.clock.first_scheduled.is_none() {
                sequence.n_cached = prefix.n_tokens;
                schedule.n_cached_tokens += prefix.n_tokens;
            }
            schedule.n_admitted += 1;
            let running = Running {
                snapshots: SnapshotPoints::new(self.prefix_cache, &sequence, &prefix),
                sequence,
                lease,
                n_computed: prefix.n_tokens,
                n_replay: 0,
                carried_from: prefix.n_tokens,
            };
            schedule.claims.extend(claim_chunk(self.running.len(), &running, budget));
            self.running.push(running);
        }
    }

    /// Whether a running prefill is about to publish at least a block more of these tokens than is cached:
    /// to compute it twice at the same time gains nothing. Answers to one prompt wait for each other so.
    fn is_coming(&self, tokens: &[u32], n_cached: usize) -> bool {
        self.cache.keeps_snapshots()
            && self.running.iter().any(|Running { sequence, n_computed, snapshots, .. }| {
                let point = snapshots.next(*n_computed).unwrap_or(0);
                let shared = sequence.tokens.get(..point);
                point >= n_cached + BLOCK_LEN
                    && shared.is_some()
                    && shared == tokens.get(..point)
                    && point < tokens.len()
            })
    }

    /// Keeps the state of a running sequence, which must stand exactly after its computed tokens.
    pub(crate) fn keep_state(&mut self, index: usize, copy: impl FnMut(CopyOf)) {
        let Running { sequence, lease, n_computed, n_replay, .. } = &mut self.running[index];
        assert_eq!(*n_replay, 0, "the state of accepted drafts is still pending");
        self.cache.publish(lease, &sequence.tokens[..*n_computed], copy);
    }

    /// Forgets the cached prefixes that nobody holds.
    pub(crate) fn flush_cache(&mut self) {
        self.cache.flush();
    }

    /// Takes a running sequence out; its blocks and slot are free again.
    pub(crate) fn remove(&mut self, index: usize) -> Sequence {
        let Running { sequence, lease, .. } = self.running.remove(index);
        self.cache.release(lease);
        sequence
    }

    /// Takes a sequence out wherever it is.
    pub(crate) fn remove_by_id(&mut self, id: u64) -> Option<Sequence> {
        if let Some(index) = self.running.iter().position(|r| r.sequence.id == id) {
            return Some(self.remove(index));
        }
        let index = self.waiting.iter().position(|s| s.id == id)?;
        self.waiting.remove(index)
    }

    /// Takes the newest sequence out: called until none is left, it empties the engine.
    pub(crate) fn remove_newest(&mut self) -> Option<Sequence> {
        self.waiting.pop_back().or_else(|| {
            let index = self.running.len().checked_sub(1)?;
            Some(self.remove(index))
        })
    }

    /// Panics if a block, a slot or a lease is lost or held twice.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_integrity(&self) {
        self.cache.check_integrity(self.running.iter().map(|r| &r.lease));
        for Running { sequence, lease, n_computed, n_replay, .. } in &self.running {
            assert!(*n_computed < sequence.tokens.len() && *n_computed <= lease.n_positions());
            assert!(n_replay <= n_computed && sequence.n_remaining() > 0);
        }
    }
}

/// The next chunk of a prefill, if the budget holds one. It ends at the next point where state is kept.
fn claim_chunk(index: usize, running: &Running, budget: &mut usize) -> Option<Claim> {
    let Running { sequence, n_computed, snapshots, .. } = running;
    let next_point = snapshots.next(*n_computed);
    let end = next_point.map_or(sequence.tokens.len(), |point| point.min(sequence.tokens.len()));
    let n_known = chunk(end - n_computed, *budget);
    *budget -= n_known;
    let keeps_state = next_point == Some(n_computed + n_known);
    let claim = Claim { running: index, n_known, depth: 0, decodes: false, keeps_state };
    (n_known > 0).then_some(claim)
}

/// Rows of the next chunk of `n_missing`: whole blocks, except the last one.
fn chunk(n_missing: usize, budget: usize) -> usize {
    if n_missing <= budget { n_missing } else { budget - budget % BLOCK_LEN }
}
