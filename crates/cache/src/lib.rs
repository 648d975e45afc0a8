//! Who owns which KV block and which recurrent-state slot.
//!
//! Only ids live here; the bytes behind them are the model's. A sequence holds its blocks and its slot
//! through a [`Lease`], and every id is at any time either free or held exactly once.

pub mod pool;

use pool::Pool;

/// Token positions in one KV block.
pub const BLOCK_LEN: usize = 64;

/// Blocks that hold `n_positions` token positions.
pub fn blocks_for(n_positions: usize) -> usize {
    n_positions.div_ceil(BLOCK_LEN)
}

/// The pools of blocks and slots.
#[derive(Debug)]
pub struct Cache {
    blocks: Pool,
    slots: Pool,
    n_leases: usize,
}

/// The only right to blocks and a slot, until [`Cache::release`] takes it back.
#[derive(Debug)]
pub struct Lease {
    blocks: Vec<u32>,
    slot: u32,
    released: bool,
}

impl Cache {
    /// Pools of `n_blocks` and `n_slots` ids, all free.
    pub fn new(n_blocks: usize, n_slots: usize) -> Cache {
        Cache { blocks: Pool::new(n_blocks), slots: Pool::new(n_slots), n_leases: 0 }
    }

    /// The pool of KV blocks.
    pub fn blocks(&self) -> &Pool {
        &self.blocks
    }

    /// The pool of recurrent-state slots.
    pub fn slots(&self) -> &Pool {
        &self.slots
    }

    /// A slot and `n_blocks` blocks, or nothing if one of them is short. `n_blocks_max` is how far
    /// the lease may grow.
    pub fn lease(&mut self, n_blocks: usize, n_blocks_max: usize) -> Option<Lease> {
        if self.blocks.n_free() < n_blocks {
            return None;
        }
        let slot = self.slots.take()?;
        let blocks = Vec::with_capacity(n_blocks_max.max(n_blocks));
        let mut lease = Lease { blocks, slot, released: false };
        self.n_leases += 1;
        let grown = self.grow(&mut lease, n_blocks);
        debug_assert!(grown, "the free blocks were counted");
        Some(lease)
    }

    /// Makes the lease hold at least `n_blocks` blocks; changes nothing and returns false if the pool
    /// is short of them.
    pub fn grow(&mut self, lease: &mut Lease, n_blocks: usize) -> bool {
        let n_missing = n_blocks.saturating_sub(lease.blocks.len());
        if self.blocks.n_free() < n_missing {
            return false;
        }
        lease.blocks.extend((0..n_missing).map_while(|_| self.blocks.take()));
        true
    }

    /// Takes everything back.
    pub fn release(&mut self, mut lease: Lease) {
        for block in lease.blocks.drain(..) {
            self.blocks.give_back(block);
        }
        self.slots.give_back(lease.slot);
        self.n_leases -= 1;
        lease.released = true;
    }

    /// Panics unless every id is free or held by exactly one of `leases`, and these are all there are.
    pub fn check_integrity<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let (mut blocks, mut slots, mut n_leases) = (Vec::new(), Vec::new(), 0);
        for lease in leases {
            blocks.extend_from_slice(&lease.blocks);
            slots.push(lease.slot);
            n_leases += 1;
        }
        assert_eq!(self.n_leases, n_leases, "a lease is lost or was made twice");
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
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_all_or_nothing() {
        let mut cache = Cache::new(4, 2);
        let a = cache.lease(3, 4).expect("three of four");
        assert!(cache.lease(2, 2).is_none());
        assert_eq!(cache.slots().n_free(), 1, "the refused lease took no slot");
        let b = cache.lease(1, 1).expect("the last one");
        assert!(cache.lease(0, 0).is_none(), "no slot is left");
        cache.check_integrity([&a, &b].into_iter());
        cache.release(a);
        cache.release(b);
        cache.check_integrity([].into_iter());
        assert_eq!((cache.blocks().n_free(), cache.slots().n_free()), (4, 2));
    }

    #[test]
    fn growing_past_the_pool_changes_nothing() {
        let mut cache = Cache::new(3, 2);
        let mut a = cache.lease(1, 3).expect("fits");
        let b = cache.lease(1, 1).expect("fits");
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
        drop(Cache::new(1, 1).lease(1, 1));
    }

    #[test]
    #[should_panic(expected = "a lease is lost")]
    fn integrity_counts_leases() {
        let mut cache = Cache::new(1, 1);
        let _lease = cache.lease(1, 1);
        cache.check_integrity([].into_iter());
    }
}
