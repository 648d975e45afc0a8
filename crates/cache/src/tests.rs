//! Leases, the tree and the pools together.

use super::*;

/// Tokens of `n_blocks` blocks; `marks` are what differs between one sequence and another.
fn tokens(marks: &[u32]) -> Vec<u32> {
    marks.iter().flat_map(|&mark| (0..BLOCK_LEN as u32).map(move |i| mark * 1000 + i)).collect()
}

/// Matches, leases and "computes" a prompt of whole blocks and one more token; publishes at `ends`
/// (in blocks).
fn run(cache: &mut Cache, marks: &[u32], ends: &[usize]) -> (Lease, usize) {
    let mut prompt = tokens(marks);
    prompt.push(7);
    let prefix = cache.match_prefix(&prompt);
    let n_blocks = blocks_for(prompt.len());
    let mut lease = cache.lease(&prefix, n_blocks, 0, n_blocks).expect("there is room");
    for &end in ends {
        cache.publish(&mut lease, &prompt[..end * BLOCK_LEN], |_| {});
    }
    (lease, prefix.n_tokens / BLOCK_LEN)
}

fn n_matched(cache: &Cache, marks: &[u32]) -> (usize, usize) {
    let mut prompt = tokens(marks);
    prompt.push(7);
    let prefix = cache.match_prefix(&prompt);
    (prefix.n_tokens / BLOCK_LEN, prefix.n_common / BLOCK_LEN)
}

fn nothing() -> Prefix {
    Prefix { node: None, n_tokens: 0, n_common: 0, snapshot: None, tail: None }
}

#[test]
fn a_lease_is_all_or_nothing() {
    let mut cache = Cache::new(4, 2, 0);
    let a = cache.lease(&nothing(), 3, 1, 4).expect("three of four");
    assert!(cache.lease(&nothing(), 2, 0, 2).is_none());
    assert!(cache.lease(&nothing(), 1, 1, 2).is_none());
    assert_eq!(cache.slots().n_free(), 1, "the refused lease took no slot");
    let b = cache.lease(&nothing(), 1, 0, 1).expect("the last one");
    assert!(cache.lease(&nothing(), 0, 0, 0).is_none(), "no slot is left");
    cache.check_integrity([&a, &b].into_iter());
    cache.release(a);
    cache.release(b);
    cache.check_integrity([].into_iter());
    assert_eq!((cache.blocks().n_free(), cache.slots().n_free()), (4, 2));
}

#[test]
fn growing_past_the_pool_changes_nothing() {
    let mut cache = Cache::new(3, 2, 0);
    let mut a = cache.lease(&nothing(), 1, 0, 3).expect("fits");
    let b = cache.lease(&nothing(), 1, 0, 1).expect("fits");
    assert!(!cache.grow(&mut a, 3));
    assert_eq!(a.blocks().len(), 1);
    assert!(cache.grow(&mut a, 2));
    assert!(cache.grow(&mut a, 1), "already large enough");
    assert_eq!(a.n_positions(), 2 * BLOCK_LEN);
    cache.check_integrity([&a, &b].into_iter());
    cache.release(b);
    cache.release(a);
}

#[test]
#[should_panic(expected = "dropped without being released")]
#[cfg(debug_assertions)]
fn a_lost_lease_is_noticed() {
    drop(Cache::new(1, 1, 0).lease(&nothing(), 1, 0, 1));
}

#[test]
#[should_panic(expected = "a lease is lost")]
fn integrity_counts_leases() {
    let mut cache = Cache::new(1, 1, 0);
    let _lease = cache.lease(&nothing(), 1, 0, 1);
    cache.check_integrity([].into_iter());
}

#[test]
fn a_prefix_is_matched_where_a_snapshot_is() {
    let mut cache = Cache::new(32, 8, 4);
    let (lease, n) = run(&mut cache, &[1, 2, 3, 4], &[2, 3]);
    assert_eq!(n, 0);
    cache.release(lease);
    assert_eq!(n_matched(&cache, &[1, 2, 3, 4]), (3, 3));
    assert_eq!(n_matched(&cache, &[1, 2, 3]), (3, 3));
    assert_eq!(n_matched(&cache, &[1, 2, 9]), (2, 2));
    assert_eq!(n_matched(&cache, &[1, 9]), (0, 1), "known, but not resumable");
    assert_eq!(n_matched(&cache, &[9, 2]), (0, 0));
    // One token must be left to compute: three blocks exactly resume after two.
    assert_eq!(cache.match_prefix(&tokens(&[1, 2, 3])).n_tokens, 2 * BLOCK_LEN);
    assert_eq!(cache.blocks().n_used(), 3, "blocks after the last snapshot are of no use");
    assert_eq!(cache.n_blocks_cached(), 3);
}

#[test]
fn sequences_share_blocks_and_branch() {
    let mut cache = Cache::new(32, 8, 8);
    let (a, _) = run(&mut cache, &[1, 2, 3, 4], &[4]);
    assert_eq!(n_matched(&cache, &[1, 2, 5, 6]), (0, 2));
    // The second one publishes where it parts from the first, and its own end.
    let (b, n) = run(&mut cache, &[1, 2, 5, 6], &[2, 4]);
    assert_eq!(n, 0);
    cache.check_integrity([&a, &b].into_iter());
    // The third resumes at the branch, in the blocks of the first.
    let (c, n) = run(&mut cache, &[1, 2, 7], &[3]);
    assert_eq!(n, 2);
    assert_eq!(c.blocks()[..2], a.blocks()[..2]);
    cache.check_integrity([&a, &b, &c].into_iter());
    assert_eq!(n_matched(&cache, &[1, 2, 5, 6]), (4, 4));
    assert_eq!(n_matched(&cache, &[1, 2, 3, 4]), (4, 4));
    for lease in [b, a, c] {
        cache.release(lease);
        assert!(cache.blocks().n_used() >= cache.n_blocks_cached());
    }
    cache.check_integrity([].into_iter());
    cache.flush();
    assert_eq!((cache.blocks().n_used(), cache.slots().n_used()), (0, 0));
}

#[test]
fn the_same_prompt_computed_twice_is_kept_once() {
    let mut cache = Cache::new(32, 8, 8);
    let empty = cache.match_prefix(&tokens(&[1]));
    let mut a = cache.lease(&empty, 4, 0, 4).expect("room");
    let mut b = cache.lease(&empty, 4, 0, 4).expect("room");
    let prompt = tokens(&[1, 2, 3]);
    cache.publish(&mut a, &prompt[..BLOCK_LEN], |_| {});
    cache.publish(&mut b, &prompt[..BLOCK_LEN], |_| panic!("it is there"));
    // The second goes on where the first stopped: the tree takes its later blocks only.
    cache.publish(&mut b, &prompt, |what| assert_eq!(what, CopyOf::State { from: 1, to: 3 }));
    cache.check_integrity([&a, &b].into_iter());
    let n_before = cache.blocks().n_used();
    cache.release(b);
    assert_eq!(n_before - cache.blocks().n_used(), 1, "its last block: the first was given back");
    cache.check_integrity([&a].into_iter());
    cache.release(a);
    assert_eq!(n_matched(&cache, &[1, 2, 3]), (3, 3));
}

#[test]
fn the_least_recently_used_gives_way_and_what_is_held_stays() {
    let mut cache = Cache::new(8, 8, 4);
    for marks in [[1, 2], [3, 4], [5, 6]] {
        let (lease, _) = run(&mut cache, &marks, &[2]);
        cache.release(lease);
    }
    let (held, n) = run(&mut cache, &[1, 2, 7], &[]);
    assert_eq!((n, cache.blocks().n_free()), (2, 0));
    // Two more blocks: the prefix of 3 4 is the oldest that nobody holds.
    let mut other = cache.lease(&cache.match_prefix(&[9]), 1, 0, 3).expect("by eviction");
    assert_eq!(n_matched(&cache, &[3, 4]).0, 0);
    assert_eq!(n_matched(&cache, &[5, 6]).0, 2);
    assert!(cache.grow(&mut other, 3));
    assert_eq!(n_matched(&cache, &[5, 6]).0, 0);
    assert!(!cache.grow(&mut other, 5), "only held blocks are left");
    assert_eq!(n_matched(&cache, &[1, 2]).0, 2);
    cache.check_integrity([&held, &other].into_iter());
    cache.release(held);
    cache.release(other);
}

#[test]
fn snapshots_keep_to_their_budget() {
    let mut cache = Cache::new(32, 8, 2);
    let (lease, _) = run(&mut cache, &[1, 2, 3, 4, 5], &[1, 2, 3, 4]);
    assert_eq!(cache.n_snapshots(), 2);
    // The older ones gave way; their blocks serve the younger.
    assert_eq!(n_matched(&cache, &[1, 2, 3, 4]), (4, 4));
    assert_eq!(n_matched(&cache, &[1, 2, 3, 9]), (3, 3));
    assert_eq!(n_matched(&cache, &[1, 2, 9]), (0, 2));
    cache.release(lease);
    assert_eq!(cache.blocks().n_used(), 4);
}

/// Publishes the first `n` tokens of a prompt that a lease of its own has computed.
fn keep(cache: &mut Cache, prompt: &[u32], n: usize) {
    let prefix = cache.match_prefix(prompt);
    let n_blocks = blocks_for(prompt.len());
    let mut lease = cache.lease(&prefix, n_blocks, 0, n_blocks).expect("there is room");
    cache.publish(&mut lease, &prompt[..n], |_| {});
    cache.check_integrity([&lease].into_iter());
    cache.release(lease);
    cache.check_integrity([].into_iter());
}

#[test]
fn a_prefix_may_end_inside_a_block() {
    let mut cache = Cache::new(32, 8, 8);
    let prompt = tokens(&[1, 2, 3]);
    for n in [100, 20, 110, 128] {
        keep(&mut cache, &prompt, n);
    }
    // Blocks 1 and 2, and three tails.
    assert_eq!((cache.blocks().n_used(), cache.n_snapshots()), (5, 4));
    let n_matched = |tokens: &[u32]| cache.match_prefix(tokens).n_tokens;
    assert_eq!(n_matched(&prompt), 128);
    assert_eq!(n_matched(&prompt[..128]), 110);
    assert_eq!(n_matched(&prompt[..110]), 100, "one token must be left to compute");
    assert_eq!(n_matched(&prompt[..100]), 20);
    assert_eq!(n_matched(&prompt[..20]), 0);
    let other = [&prompt[..105], &tokens(&[9])[..]].concat();
    assert_eq!(n_matched(&other), 100);
    cache.flush();
    assert_eq!((cache.blocks().n_used(), cache.slots().n_used()), (0, 0));
}

#[test]
fn a_tail_is_copied_and_held_by_nobody() {
    let mut cache = Cache::new(4, 4, 2);
    let prompt = tokens(&[1, 2, 3, 4]);
    keep(&mut cache, &prompt[..150], 100);
    // All four blocks: the tail gives way to the very lease that resumes from it.
    let prefix = cache.match_prefix(&prompt);
    assert_eq!((prefix.n_tokens, prefix.n_common), (100, 64));
    let lease = cache.lease(&prefix, 4, 0, 4).expect("the tail is no obstacle");
    let mut copies = Vec::new();
    cache.restore(&prefix, &lease, |what| copies.push(what));
    assert_eq!(
        copies[0],
        CopyOf::State { from: prefix.snapshot.expect("a hit"), to: lease.slot() }
    );
    let from = prefix.tail.expect("it ends inside a block");
    let kept_in_place = lease.blocks()[1] == from;
    let copied = copies.contains(&CopyOf::Block { from, to: lease.blocks()[1] });
    assert!(kept_in_place != copied, "{copies:?}");
    cache.check_integrity([&lease].into_iter());
    assert_eq!(cache.match_prefix(&prompt).n_tokens, 0, "it is gone");
    cache.release(lease);
    assert_eq!(cache.blocks().n_used(), 0, "its first block was kept by the lease alone");
}

/// What a model would write: the hash of the history, per position of a block and per slot.
struct Bytes {
    blocks: Vec<[u64; BLOCK_LEN]>,
    slots: Vec<u64>,
}

impl Bytes {
    fn copy(&mut self, what: CopyOf) {
        match what {
            CopyOf::State { from, to } => self.slots[to as usize] = self.slots[from as usize],
            CopyOf::Block { from, to } => self.blocks[to as usize] = self.blocks[from as usize],
        }
    }

    fn compute(&mut self, lease: &Lease, tokens: &[u32], from: usize) {
        for (pos, &token) in tokens.iter().enumerate().skip(from) {
            let history = extend(self.slots[lease.slot() as usize], token);
            self.slots[lease.slot() as usize] = history;
            self.blocks[lease.blocks()[pos / BLOCK_LEN] as usize][pos % BLOCK_LEN] = history;
        }
    }

    /// Panics unless the lease holds these tokens and nothing else.
    fn check(&self, lease: &Lease, tokens: &[u32]) {
        let mut history = 0;
        for (pos, &token) in tokens.iter().enumerate() {
            history = extend(history, token);
            let block = lease.blocks()[pos / BLOCK_LEN] as usize;
            assert_eq!(self.blocks[block][pos % BLOCK_LEN], history, "position {pos}");
        }
        assert_eq!(self.slots[lease.slot() as usize], history, "the state");
    }
}

fn extend(history: u64, token: u32) -> u64 {
    (history ^ u64::from(token)).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

#[test]
fn random_walks_keep_the_form_and_the_bytes() {
    let mut state = 1_u64;
    let mut random = |n: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (n_blocks, n_slots) = (13, 7);
    let mut cache = Cache::new(n_blocks, n_slots, 4);
    let mut bytes = Bytes { blocks: vec![[0; BLOCK_LEN]; n_blocks], slots: vec![0; n_slots] };
    let mut leases: Vec<(Lease, Vec<u32>, usize)> = Vec::new();
    let (mut n_inside, mut n_refused) = (0, 0);
    for _ in 0..6000 {
        match random(4) {
            0 if leases.len() < 3 => {
                let marks: Vec<u32> = (0..=random(6)).map(|_| random(2) as u32).collect();
                let mut prompt = tokens(&marks);
                prompt.truncate(prompt.len() - [0, 1, 30, 63][random(4)]);
                prompt.push(7);
                let prefix = cache.match_prefix(&prompt);
                let n_blocks = blocks_for(prompt.len());
                let Some(lease) = cache.lease(&prefix, n_blocks, 0, n_blocks) else {
                    n_refused += 1;
                    continue;
                };
                cache.restore(&prefix, &lease, |what| bytes.copy(what));
                if prefix.n_tokens == 0 {
                    bytes.slots[lease.slot() as usize] = 0;
                }
                n_inside += usize::from(!prefix.n_tokens.is_multiple_of(BLOCK_LEN));
                leases.push((lease, prompt, prefix.n_tokens));
            }
            1 | 2 if !leases.is_empty() => {
                let index = random(leases.len());
                let (lease, prompt, n_done) = &mut leases[index];
                let before = *n_done;
                let step = [1, 10, BLOCK_LEN - before % BLOCK_LEN, 2 * BLOCK_LEN][random(4)];
                *n_done = (before + step).min(prompt.len());
                bytes.compute(lease, &prompt[..*n_done], before);
                cache.publish(lease, &prompt[..*n_done], |what| bytes.copy(what));
            }
            3 if !leases.is_empty() => {
                let (lease, ..) = leases.remove(random(leases.len()));
                cache.release(lease);
            }
            _ => {}
        }
        cache.check_integrity(leases.iter().map(|(lease, ..)| lease));
        for (lease, prompt, n_done) in &leases {
            bytes.check(lease, &prompt[..*n_done]);
        }
    }
    assert!(n_inside > 100 && n_refused > 10, "{n_inside} {n_refused}");
    leases.into_iter().for_each(|(lease, ..)| cache.release(lease));
    cache.flush();
    assert_eq!((cache.blocks().n_free(), cache.slots().n_free()), (n_blocks, n_slots));
}
