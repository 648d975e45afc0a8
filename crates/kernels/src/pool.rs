//! A fixed set of worker threads that runs the tasks of one operation at a time.
//!
//! Thread t owns the contiguous tasks `[t n / T, (t + 1) n / T)` and takes them in ascending
//! order, so that the same thread always streams the same part of a weight. A thread that runs
//! out takes tasks from the end of another's range: a preempted thread delays nobody for long.
//!
//! Workers look for the next job for a short while, then sleep; so does the caller while the
//! last tasks finish. Endless spinning would be faster on an idle machine and ruinous on a
//! shared one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks for work before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Tasks of one thread, in one word so that taking one is one compare-and-swap:
/// the number of the job (32 bits), the next task and the end of the range (16 bits each).
///
/// The job number makes a late worker harmless: it can only take a task of the job whose closure
/// it has read, because a later job has another number in the word.
#[repr(align(128))]
struct TaskRange(AtomicU64);

impl TaskRange {
    const MAX: usize = u16::MAX as usize;

    fn pack(job: u32, next: u16, end: u16) -> u64 {
        u64::from(job) << 32 | u64::from(next) << 16 | u64::from(end)
    }

    fn unpack(word: u64) -> (u32, u16, u16) {
        ((word >> 32) as u32, (word >> 16) as u16, word as u16)
    }
}

/// The closure of a job, without its lifetime: the job is over before `Pool::run` returns.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Number of the current job.
    job: AtomicU32,
    /// The current job's closure (a pointer to a fat reference on the stack of `run`).
    task: AtomicPtr<Task<'static>>,
    /// First task and tasks, by thread.
    ranges: Box<[TaskRange]>,
    starts: Box<[AtomicUsize]>,
    /// Tasks of the current job that have not finished.
    unfinished: AtomicUsize,
    /// First panic of the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers asleep, under `lock` with `work_ready`.
    n_asleep: AtomicUsize,
    caller_asleep: AtomicBool,
    stop: AtomicBool,
    lock: Mutex<()>,
    work_ready: Condvar,
    work_done: Condvar,
}

/// Locks a mutex whose data cannot be left inconsistent by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Shared {
    /// Takes a task of thread `owner`, from the front (the owner) or the back (others), and runs
    /// it. False if there was none.
    fn run_one(&self, owner: usize, from_front: bool) -> bool {
        let range = &self.ranges[owner].0;
        let mut word = range.load(Acquire);
        loop {
            let (job, next, end) = TaskRange::unpack(word);
            if next >= end {
                return false;
            }
            let task = self.task.load(Relaxed);
            let start = self.starts[owner].load(Relaxed);
            let (taken, rest) = if from_front {
                (next, TaskRange::pack(job, next + 1, end))
            } else {
                (end - 1, TaskRange::pack(job, next, end - 1))
            };
            match range.compare_exchange_weak(word, rest, SeqCst, Acquire) {
                Err(seen) => word = seen,
                Ok(_) => {
                    // SAFETY: the exchange succeeded, so a task of this job was untaken and
                    // `run` of this job had not returned; it returns only after the task taken
                    // here is finished. `task` was stored before this job's word (release) and
                    // is next stored after `run` returned, so the pointer read between the two
                    // accesses to the word is this job's and alive until `finish`.
                    let task = unsafe { &**task };
                    let outcome = catch_unwind(AssertUnwindSafe(|| task(start + taken as usize)));
                    self.finish(outcome.err());
                    return true;
                }
            }
        }
    }

    fn finish(&self, panic: Option<Box<dyn Any + Send>>) {
        if panic.is_some() {
            let mut first = lock(&self.panic);
            if first.is_none() {
                *first = panic;
            }
        }
        if self.unfinished.fetch_sub(1, SeqCst) == 1 && self.caller_asleep.load(SeqCst) {
            drop(lock(&self.lock));
            self.work_done.notify_one();
        }
    }

    /// Runs the tasks of thread `me`, then what the others have left.
    fn work(&self, me: usize) {
        while self.run_one(me, true) {}
        let n_threads = self.ranges.len();
        for other in (1..n_threads).map(|i| (me + i) % n_threads) {
            while self.run_one(other, false) {}
        }
    }

    fn worker(&self, me: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_job(seen);
            if self.stop.load(SeqCst) {
                return;
            }
            self.work(me);
        }
    }

    /// Waits until there is another job than `seen`, or the pool stops.
    fn next_job(&self, seen: u32) -> u32 {
        let changed = || {
            let job = self.job.load(SeqCst);
            (job != seen || self.stop.load(SeqCst)).then_some(job)
        };
        if let Some(job) = spin(changed) {
            return job;
        }
        let mut guard = lock(&self.lock);
        self.n_asleep.fetch_add(1, SeqCst);
        let job = loop {
            if let Some(job) = changed() {
                break job;
            }
            guard = self.work_ready.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        };
        self.n_asleep.fetch_sub(1, SeqCst);
        job
    }

    fn wake_workers(&self) {
        if self.n_asleep.load(SeqCst) > 0 {
            drop(lock(&self.lock));
            self.work_ready.notify_all();
        }
    }

    fn wait_until_finished(&self) {
        let finished = || (self.unfinished.load(SeqCst) == 0).then_some(());
        if spin(finished).is_some() {
            return;
        }
        let mut guard = lock(&self.lock);
        self.caller_asleep.store(true, SeqCst);
        while finished().is_none() {
            guard = self.work_done.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        self.caller_asleep.store(false, SeqCst);
    }
}

/// Polls for at most [`SPIN`].
fn spin<R>(poll: impl Fn() -> Option<R>) -> Option<R> {
    let start = Instant::now();
    loop {
        // The clock costs more than a poll.
        for _ in 0..32 {
            if let Some(result) = poll() {
                return Some(result);
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return None;
        }
    }
}

/// The calling thread and `n_threads - 1` workers.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Held while a job runs.
    running: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// # Panics
    /// If `n_threads` is 0 or a thread cannot be started.
    pub(crate) fn new(n_threads: usize) -> Pool {
        assert!(n_threads > 0, "a pool needs at least the calling thread");
        let shared = Arc::new(Shared {
            job: AtomicU32::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
            ranges: (0..n_threads).map(|_| TaskRange(AtomicU64::new(0))).collect(),
            starts: (0..n_threads).map(|_| AtomicUsize::new(0)).collect(),
            unfinished: AtomicUsize::new(0),
            panic: Mutex::new(None),
            n_asleep: AtomicUsize::new(0),
            caller_asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            work_ready: Condvar::new(),
            work_done: Condvar::new(),
        });
        let workers = (1..n_threads)
            .map(|me| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("kernels-{me}"))
                    .spawn(move || shared.worker(me))
                    .expect("cannot start a worker thread")
            })
            .collect();
        Pool { shared, running: Mutex::new(()), workers }
    }

    pub(crate) fn n_threads(&self) -> usize {
        self.shared.ranges.len()
    }

    /// Calls `task(i)` for every i in `0..n_tasks`, each once, on all threads.
    ///
    /// A panic of a task is raised again here once no task is running. Called from inside a
    /// task, or while another thread's job runs, it works on the calling thread alone.
    pub(crate) fn run(&self, n_tasks: usize, task: Task<'_>) {
        let n_threads = self.n_threads();
        let running = match self.running.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        };
        if n_tasks <= 1 || n_threads == 1 || running.is_none() {
            return (0..n_tasks).for_each(task);
        }
        // Ranges count in 16 bits; longer lists run in groups.
        let group = n_tasks.div_ceil(n_threads * TaskRange::MAX);
        if group == 1 {
            return self.run_job(n_tasks, task);
        }
        self.run_job(n_tasks.div_ceil(group), &|i| {
            (i * group..n_tasks.min((i + 1) * group)).for_each(task);
        });
    }

    /// Runs one job; `running` is held.
    fn run_job(&self, n_tasks: usize, task: Task<'_>) {
        let shared = &*self.shared;
        let n_threads = self.n_threads();
        let job = shared.job.load(Relaxed).wrapping_add(1);
        // SAFETY: only the lifetime changes. `task` is used by `run_one` alone, for tasks of
        // this job, all of which are finished before this function returns.
        let erased: Task<'static> = unsafe { std::mem::transmute(task) };
        shared.task.store((&raw const erased).cast_mut(), Relaxed);
        shared.unfinished.store(n_tasks, Relaxed);
        for thread in 0..n_threads {
            let (start, end) = (thread * n_tasks / n_threads, (thread + 1) * n_tasks / n_threads);
            shared.starts[thread].store(start, Relaxed);
            let word = TaskRange::pack(job, 0, (end - start) as u16);
            shared.ranges[thread].0.store(word, Release);
        }
        shared.job.store(job, SeqCst);
        shared.wake_workers();
        shared.work(0);
        shared.wait_until_finished();
        if let Some(payload) = lock(&shared.panic).take() {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(lock(&self.shared.lock));
        self.shared.work_ready.notify_all();
        for worker in self.workers.drain(..) {
            // A worker cannot panic: tasks are caught.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_runs(pool: &Pool, n_tasks: usize) {
        let runs: Vec<AtomicU32> = (0..n_tasks).map(|_| AtomicU32::new(0)).collect();
        pool.run(n_tasks, &|i| {
            runs[i].fetch_add(1, Relaxed);
        });
        assert!(runs.iter().all(|n| n.load(Relaxed) == 1), "{n_tasks} tasks");
    }

    #[test]
    fn every_task_runs_once() {
        for n_threads in 1..=3 {
            let pool = Pool::new(n_threads);
            for n_tasks in [0, 1, 2, 3, 7, 64, 1000] {
                count_runs(&pool, n_tasks);
            }
            for round in 0..3000 {
                count_runs(&pool, round % 9);
            }
        }
    }

    #[test]
    fn long_lists_run_in_groups() {
        count_runs(&Pool::new(2), 3 * TaskRange::MAX + 5);
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(3);
        for _ in 0..5 {
            std::thread::sleep(4 * SPIN);
            count_runs(&pool, 10);
        }
    }

    #[test]
    fn other_threads_take_part() {
        let pool = Pool::new(2);
        let barrier = std::sync::Barrier::new(2);
        // Each task waits for the other: it ends only if two threads run them.
        pool.run(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        for n_threads in 1..=3 {
            let pool = Pool::new(n_threads);
            for bad in [0, 5, 9] {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(10, &|i| assert!(i != bad, "task {i} failed"));
                }));
                let payload = outcome.expect_err("the panic was lost");
                let message = payload.downcast_ref::<String>().expect("a message");
                assert_eq!(*message, format!("task {bad} failed"));
                count_runs(&pool, 10);
            }
        }
    }

    #[test]
    fn nested_and_concurrent_jobs_finish() {
        let pool = Pool::new(2);
        pool.run(4, &|_| count_runs(&pool, 5));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..200).for_each(|_| count_runs(&pool, 8)));
            }
        });
    }
}
