//! Ids of equal things, each free or taken.

/// `n` ids from 0; the one given back last is taken first, while its bytes are warm.
#[derive(Debug)]
pub struct Pool {
    free: Vec<u32>,
    n: usize,
}

impl Pool {
    /// Ids `0..n`, all free.
    pub fn new(n: usize) -> Pool {
        let n_ids = u32::try_from(n).expect("ids are 32 bits");
        Pool { free: (0..n_ids).rev().collect(), n }
    }

    /// All ids.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Free ids.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Taken ids.
    pub fn n_used(&self) -> usize {
        self.n - self.free.len()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, id: u32) {
        debug_assert!((id as usize) < self.n, "id {id} was never in this pool");
        debug_assert!(self.free.len() < self.n, "id {id} is given back twice");
        self.free.push(id);
    }

    /// Panics unless every id is either free or once in `held`. Sorts `held`.
    pub(crate) fn check_integrity(&self, held: &mut Vec<u32>) {
        held.extend_from_slice(&self.free);
        held.sort_unstable();
        let all = 0..self.n as u32;
        assert!(
            held.iter().copied().eq(all),
            "of {} ids, these are free or held: {held:?}",
            self.n
        );
    }
}
