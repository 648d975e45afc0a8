//! Who owns which KV block and which recurrent-state slot.
//!
//! Only ids live here; the bytes behind them are the model's. A sequence holds its blocks and its slot
//! through a [`Lease`]; prefixes that may be wanted again live in a radix tree, with snapshots of the
//! recurrent state in slots of their own. Every id is at any time free, or owned by one lease, or by the
//! tree.

pub mod pool;
mod radix_tree;

use pool::Pool;
use radix_tree::{Evicted, Found, NodeId, Publication, RadixTree};

/// Token positions in one KV block.
pub const BLOCK_LEN: usize = 64;

/// Blocks that hold `n_positions` token positions.
pub fn blocks_for(n_positions: usize) -> usize {
    n_positions.div_ceil(BLOCK_LEN)
}

/// The pools of blocks and slots, and the cached prefixes.
#[derive(Debug)]
pub struct Cache {
    blocks: Pool,
    slots: Pool,
    tree: RadixTree,
    n_snapshots_max: usize,
    n_leases: usize,
}

/// The only right to blocks and a slot, until [`Cache::release`] takes it back.
#[derive(Debug)]
pub struct Lease {
    blocks: Vec<u32>,
    /// The first blocks are the tree's, the path to `node`; the others are the lease's own.
    n_shared: usize,
    slot: u32,
    node: Option<NodeId>,
    released: bool,
}

/// What the cache knows of the beginning of some tokens.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    node: Option<NodeId>,
    /// Tokens that need not be computed again: there is a snapshot after them, at a block edge or not.
    pub n_tokens: usize,
    /// Tokens that another sequence had in common, in whole blocks: where the two part is a place for a
    /// snapshot, since a third may come.
    pub n_common: usize,
    snapshot: Option<u32>,
    /// The block that holds what is left after whole blocks.
    tail: Option<u32>,
}

/// Bytes that must be copied, of which only the model knows what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOf {
    /// The recurrent state of a slot.
    State {
        /// The slot to copy.
        from: u32,
        /// The slot to overwrite.
        to: u32,
    },
    /// The KV of a block.
    Block {
        /// The block to copy.
        from: u32,
        /// The block to overwrite.
        to: u32,
    },
}

impl Cache {
    /// Pools of `n_blocks` and `n_slots` ids, all free. At most `n_snapshots_max` slots hold snapshots.
    pub fn new(n_blocks: usize, n_slots: usize, n_snapshots_max: usize) -> Cache {
        Cache {
            blocks: Pool::new(n_blocks),
            slots: Pool::new(n_slots),
            tree: RadixTree::new(),
            n_snapshots_max,
            n_leases: 0,
        }
    }

    /// The pool of KV blocks.
    pub fn blocks(&self) -> &Pool {
        &self.blocks
    }

    /// The pool of recurrent-state slots.
    pub fn slots(&self) -> &Pool {
        &self.slots
    }

    /// Blocks that only cached prefixes hold: they give way to whoever needs them.
    pub fn n_blocks_cached(&self) -> usize {
        self.tree.n_evictable_blocks()
    }

    /// Slots that hold snapshots.
    pub fn n_snapshots(&self) -> usize {
        self.tree.n_snapshots()
    }

    /// Whether there is room for snapshots at all.
    pub fn keeps_snapshots(&self) -> bool {
        self.n_snapshots_max > 0
    }

    /// The longest cached prefix that leaves at least one of `tokens` to compute.
    pub fn match_prefix(&self, tokens: &[u32]) -> Prefix {
        let (found, n_common) = self.tree.find(&tokens[..tokens.len().saturating_sub(1)]);
        let none = Prefix { node: None, n_tokens: 0, n_common, snapshot: None, tail: None };
        found.map_or(none, |Found { node, snapshot, tail, n_tokens }| Prefix {
            node: Some(node),
            n_tokens,
            n_common,
            snapshot: Some(snapshot),
            tail,
        })
    }

    /// A slot and `n_blocks` blocks that begin with those of `prefix`, or nothing if there are not so
    /// many, `n_spare` left over. `n_blocks_max` is how far the lease may grow. [`Cache::restore`] must
    /// follow at once.
    pub fn lease(
        &mut self,
        prefix: &Prefix,
        n_blocks: usize,
        n_spare: usize,
        n_blocks_max: usize,
    ) -> Option<Lease> {
        // Locked first, so that its blocks are not counted as free to take.
        if let Some(node) = prefix.node {
            self.tree.lock(node);
        }
        let n_shared = prefix.n_tokens / BLOCK_LEN;
        let n_available = self.blocks.n_free() + self.tree.n_evictable_blocks();
        let enough = n_available >= n_blocks.saturating_sub(n_shared) + n_spare;
        let slot = if enough { self.slots.take() } else { None };
        let Some(slot) = slot else {
            self.unlock(prefix.node);
            return None;
        };
        // The last to give way to this lease, if the prefix ends with a tail.
        prefix.snapshot.into_iter().for_each(|snapshot| self.tree.touch(snapshot));
        self.n_leases += 1;
        let mut lease = Lease {
            blocks: Vec::with_capacity(n_blocks_max.max(n_blocks)),
            n_shared,
            slot,
            node: prefix.node,
            released: false,
        };
        if let Some(node) = prefix.node {
            lease.blocks.extend(self.tree.path_blocks(node));
        }
        let grown = self.grow(&mut lease, n_blocks);
        debug_assert!(grown, "the blocks were counted");
        Some(lease)
    }

    /// Copies what `prefix` keeps into the lease that begins with it, before anything else is written: where
    /// blocks were scarce, the lease took even those of the prefix's own tail.
    pub fn restore(&self, prefix: &Prefix, lease: &Lease, mut copy: impl FnMut(CopyOf)) {
        if let Some(from) = prefix.snapshot {
            copy(CopyOf::State { from, to: lease.slot });
        }
        let own = lease.blocks.get(lease.n_shared);
        if let (Some(from), Some(&to)) = (prefix.tail, own)
            && from != to
        {
            copy(CopyOf::Block { from, to });
        }
    }

    /// Makes the lease hold at least `n_blocks` blocks, if need be at the cost of cached prefixes; takes
    /// nothing and returns false if there are not so many.
    pub fn grow(&mut self, lease: &mut Lease, n_blocks: usize) -> bool {
        let n_missing = n_blocks.saturating_sub(lease.blocks.len());
        if self.blocks.n_free() < n_missing
            && self.blocks.n_free() + self.tree.n_evictable_blocks() < n_missing
        {
            return false;
        }
        for _ in 0..n_missing {
            lease.blocks.push(self.take_block().expect("evictable blocks were counted"));
        }
        true
    }

    /// A block, if need be at the cost of cached prefixes.
    fn take_block(&mut self) -> Option<u32> {
        while self.blocks.n_free() == 0 {
            let evicted = self.tree.evict_leaf()?;
            self.take_back(evicted);
        }
        self.blocks.take()
    }

    /// Keeps the first `tokens` of a lease for other sequences. `copy` is told what to copy for it: nothing
    /// if there is a snapshot already, or no room for one.
    ///
    /// The lease must hold the computed KV of these tokens, and its slot the state right after them. Whole
    /// blocks are shared from now on: where another sequence has published the same tokens before, the
    /// lease goes on with the other's blocks, since KV depends on nothing but the tokens. What is left
    /// after them is copied into a block of its own.
    pub fn publish(&mut self, lease: &mut Lease, tokens: &[u32], mut copy: impl FnMut(CopyOf)) {
        if self.tree.has_snapshot(tokens) {
            return;
        }
        if self.tree.n_snapshots() >= self.n_snapshots_max {
            let Some(evicted) = self.tree.evict_snapshot() else { return };
            self.take_back(evicted);
        }
        let n_blocks = tokens.len() / BLOCK_LEN;
        let ends_inside = !tokens.len().is_multiple_of(BLOCK_LEN);
        let tail = if ends_inside { self.take_block() } else { None };
        let slot = if tail.is_some() == ends_inside { self.slots.take() } else { None };
        let Some(slot) = slot else {
            tail.into_iter().for_each(|block| self.blocks.give_back(block));
            return;
        };
        let blocks = &lease.blocks[..n_blocks];
        let published = self.tree.publish(&Publication { tokens, blocks, tail, slot });
        if published.first_new < n_blocks {
            let path = self.tree.path_blocks(published.node);
            let twice = lease.n_shared..published.first_new;
            for (own, shared) in lease.blocks[twice.clone()].iter_mut().zip(&path[twice]) {
                self.blocks.give_back(std::mem::replace(own, *shared));
            }
            lease.n_shared = n_blocks;
            self.tree.lock(published.node);
            let before = lease.node.replace(published.node);
            self.unlock(before);
        }
        copy(CopyOf::State { from: lease.slot, to: slot });
        if let Some(to) = tail {
            copy(CopyOf::Block { from: lease.blocks[n_blocks], to });
        }
    }

    /// Takes everything back that is the lease's own.
    pub fn release(&mut self, mut lease: Lease) {
        for block in lease.blocks.drain(..).skip(lease.n_shared) {
            self.blocks.give_back(block);
        }
        self.slots.give_back(lease.slot);
        self.unlock(lease.node.take());
        self.n_leases -= 1;
        lease.released = true;
    }

    /// Forgets every prefix that no lease holds.
    pub fn flush(&mut self) {
        while let Some(evicted) = self.tree.evict_leaf() {
            self.take_back(evicted);
        }
    }

    fn unlock(&mut self, node: Option<NodeId>) {
        let blocks = node.map_or(Vec::new(), |node| self.tree.unlock(node));
        blocks.into_iter().for_each(|block| self.blocks.give_back(block));
    }

    fn take_back(&mut self, evicted: Evicted) {
        evicted.blocks.into_iter().for_each(|block| self.blocks.give_back(block));
        evicted.slot.into_iter().for_each(|slot| self.slots.give_back(slot));
    }

    /// Panics unless every id is free, or owned by exactly one of `leases` or by the tree, and these
    /// leases are all there are.
    pub fn check_integrity<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let (mut blocks, mut slots) = self.tree.ids();
        assert!(slots.len() <= self.n_snapshots_max, "more snapshots than the budget");
        let (mut n_leases, mut n_locks) = (0, 0);
        for lease in leases {
            let path = lease.node.map_or(Vec::new(), |node| self.tree.path_blocks(node));
            let (shared, owned) = lease.blocks.split_at(lease.n_shared);
            assert_eq!(shared, path, "a lease shares other blocks than its node keeps");
            blocks.extend_from_slice(owned);
            slots.push(lease.slot);
            n_leases += 1;
            n_locks += usize::from(lease.node.is_some());
        }
        assert_eq!(self.n_leases, n_leases, "a lease is lost or was made twice");
        self.tree.check_integrity(n_locks);
        self.blocks.check_integrity(&mut blocks);
        self.slots.check_integrity(&mut slots);
    }
}

impl Lease {
    /// Block table: position `p` lives in block `blocks[p / 64]` at offset `p % 64`.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The recurrent-state slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Token positions that the blocks hold.
    pub fn n_positions(&self) -> usize {
        self.blocks.len() * BLOCK_LEN
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A panic elsewhere may drop leases on its way; only a lease lost in peace is a bug.
        debug_assert!(
            self.released || std::thread::panicking(),
            "a lease was dropped without being released: slot {} and {} blocks are lost",
            self.slot,
            self.blocks.len()
        );
    }
}

#[cfg(test)]
mod tests;
