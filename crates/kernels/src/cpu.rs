//! The handle through which all operations run.

use std::ops::Range;

use crate::Isa;
use crate::dot::{DotIsa, DotTarget};
use crate::isa::Target;
use crate::pool::Pool;

/// About how many multiply-adds one thread does while another is asked to help: jobs smaller than
/// twice this run on the calling thread.
const WORTH_A_TASK: usize = 32 * 1024;

/// An instruction set and a pool of threads. All operations are methods of it.
///
/// The operations panic on shapes that do not fit together: those are errors of the program.
pub struct Cpu {
    target: Target,
    dot: DotTarget,
    pool: Pool,
}

impl Cpu {
    /// Uses the calling thread and `n_threads - 1` workers.
    ///
    /// # Panics
    /// If `n_threads` is 0 or this machine lacks the instruction set.
    pub fn new(n_threads: usize, isa: Isa) -> Cpu {
        Cpu { target: Target::new(isa), dot: DotTarget::best(isa), pool: Pool::new(n_threads) }
    }

    /// The same with other instructions for integer products than the fastest.
    #[cfg(test)]
    pub(crate) fn with_dot(n_threads: usize, isa: Isa, dot: DotTarget) -> Cpu {
        Cpu { dot, ..Cpu::new(n_threads, isa) }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.target.isa()
    }

    /// The instructions for integer products in use.
    pub fn dot_isa(&self) -> DotIsa {
        self.dot.isa()
    }

    /// Number of threads, the calling one included.
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    pub(crate) fn target(&self) -> Target {
        self.target
    }

    pub(crate) fn dot(&self) -> DotTarget {
        self.dot
    }

    /// Runs `n_tasks` tasks, on all threads where the `cost` of one (in multiply-adds) makes
    /// that worth while.
    pub(crate) fn run(&self, n_tasks: usize, cost: usize, task: &(dyn Fn(usize) + Sync)) {
        if n_tasks.saturating_mul(cost) < 2 * WORTH_A_TASK {
            (0..n_tasks).for_each(task);
        } else {
            self.pool.run(n_tasks, task);
        }
    }

    /// Splits `n_rows` independent rows of the given cost into ranges and runs `task` on them.
    pub(crate) fn run_rows(
        &self,
        n_rows: usize,
        row_cost: usize,
        task: &(dyn Fn(Range<usize>) + Sync),
    ) {
        let rows_per_task = (WORTH_A_TASK / row_cost.max(1)).max(1);
        let n_tasks = n_rows.div_ceil(rows_per_task);
        self.run(n_tasks, rows_per_task * row_cost, &|i| {
            task(i * rows_per_task..n_rows.min((i + 1) * rows_per_task));
        });
    }
}
