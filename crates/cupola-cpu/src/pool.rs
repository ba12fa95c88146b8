//! Threads that start a piece of work in well under a microsecond, and sleep when there is none.
//!
//! A model step is hundreds of parallel regions of tens of microseconds with little between them, so workers wait for
//! the next region by spinning; after `SPIN` they begin to yield to other processes, after `PARK` they sleep.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A waiting thread keeps its core this long.
const SPIN: Duration = Duration::from_micros(30);
/// A worker without work sleeps after this long.
const PARK: Duration = Duration::from_millis(1);

/// A part of a region: called once with every part number in `0..threads`.
type Part<'a> = &'a (dyn Fn(usize) + Sync);

/// On a cache line of its own (two, since processors fetch lines in pairs), so that spinning on it disturbs nothing else.
#[repr(align(128))]
struct Apart<T>(T);

struct Shared {
    /// Number of regions started.
    epoch: Apart<AtomicUsize>,
    /// Workers which have not finished the present region.
    left: Apart<AtomicUsize>,
    job: UnsafeCell<Option<Part<'static>>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written only by the thread that holds `Pool::turn`, while no worker reads it (`left` is 0), and is
// published by the release store of `epoch`. Everything else is Sync by itself.
unsafe impl Sync for Shared {}
// SAFETY: as above; the job itself is Sync, hence its reference is Send.
unsafe impl Send for Shared {}

/// A fixed set of threads, the calling one included. Regions started by several threads at once run one after the other; a
/// region started from inside another runs on its caller alone. The threads are joined on drop.
pub struct Pool {
    shared: Arc<Shared>,
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

thread_local! {
    /// Whether this thread is inside a region: to start another one from here would wait for itself.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of `threads` threads (at least one), the caller's included. Where the system refuses to start more
    /// threads the pool has fewer.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: Apart(AtomicUsize::new(0)),
            left: Apart(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut workers = Vec::new();
        for part in 1..threads {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("cupola-{part}"));
            match thread.spawn(move || work(&shared, part)) {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        Pool { shared, turn: Mutex::new(()), workers }
    }

    /// The number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(part)` for every part in `0..threads()`, each on a thread of its own, and returns when all are done.
    ///
    /// # Panics
    /// With the payload of the first part that panicked, after all others have ended.
    pub fn run(&self, f: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || INSIDE.get() {
            (0..self.threads()).for_each(f);
            return;
        }
        let panic = {
            let _turn = lock(&self.turn);
            let shared = &*self.shared;
            let job: Part<'_> = &f;
            // SAFETY: the lifetime is extended only in name: this function does not return before `left` is 0, after
            // which no worker uses the job. `left` is 0 now, so that no worker reads the cell that is written.
            unsafe { *shared.job.get() = Some(std::mem::transmute::<Part<'_>, Part<'static>>(job)) };
            shared.left.0.store(self.workers.len(), Relaxed);
            // SeqCst here and in `park`: either this thread sees the sleeper, or the sleeper sees the new epoch.
            shared.epoch.0.fetch_add(1, SeqCst);
            if shared.sleepers.load(SeqCst) > 0 {
                let _guard = lock(&shared.sleep);
                shared.wake.notify_all();
            }
            let mine = enter(|| f(0));
            let mut wait = Wait::new();
            while shared.left.0.load(Acquire) > 0 {
                wait.pause();
            }
            mine.err().or(lock(&shared.panic).take())
        };
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Splits `0..items` into chunks of `grain`, which threads take as they become free. `f` gets the number of its
    /// thread, in `0..threads()`, and the chunk.
    pub fn run_chunks(&self, items: usize, grain: usize, f: impl Fn(usize, Range<usize>) + Sync) {
        let grain = grain.max(1);
        if items <= grain {
            if items > 0 {
                f(0, 0..items);
            }
            return;
        }
        let next = AtomicUsize::new(0);
        self.run(|thread| {
            loop {
                let chunk = next.fetch_add(1, Relaxed);
                match chunk.checked_mul(grain).filter(|&start| start < items) {
                    Some(start) => f(thread, start..items.min(start.saturating_add(grain))),
                    None => break,
                }
            }
        });
    }

    /// Splits a slice into pieces of `len` (the last may be shorter), which threads take as they become free. `f` gets the
    /// number of the piece and the piece.
    pub fn run_slices<T: Send>(&self, data: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        struct Base<T>(*mut T);
        // SAFETY: threads get disjoint parts of a slice of Send values through it.
        unsafe impl<T: Send> Sync for Base<T> {}
        impl<T> Base<T> {
            fn get(&self) -> *mut T {
                self.0
            }
        }
        let (len, total) = (len.max(1), data.len());
        let base = Base(data.as_mut_ptr());
        self.run_chunks(total.div_ceil(len), 1, |_, pieces| {
            for i in pieces {
                let n = len.min(total - i * len);
                // SAFETY: every i is handed out once, so that the pieces are disjoint; all lie in `data`, which is
                // mutably borrowed for the whole call.
                f(i, unsafe { std::slice::from_raw_parts_mut(base.get().add(i * len), n) });
            }
        });
    }
}

impl Default for Pool {
    /// One thread for each physical core that this process may use.
    fn default() -> Self {
        Pool::new(default_threads())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.epoch.0.fetch_add(1, SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs: it cannot have panicked.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

/// Runs a part, marked as inside a region.
fn enter(f: impl FnOnce()) -> std::thread::Result<()> {
    INSIDE.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    INSIDE.set(false);
    result
}

fn work(shared: &Shared, part: usize) {
    let mut seen = 0;
    loop {
        let mut wait = Wait::new();
        while shared.epoch.0.load(Acquire) == seen {
            if wait.pause() > PARK {
                park(shared, seen);
            }
        }
        seen = seen.wrapping_add(1);
        if shared.stop.load(Relaxed) {
            return;
        }
        // SAFETY: the job was written before the epoch that this thread has just seen, and stays until `left` is 0.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job
            && let Err(payload) = enter(|| job(part))
        {
            lock(&shared.panic).get_or_insert(payload);
        }
        shared.left.0.fetch_sub(1, Release);
    }
}

/// Sleeps until the epoch is no longer `seen`.
fn park(shared: &Shared, seen: usize) {
    let mut guard = lock(&shared.sleep);
    shared.sleepers.fetch_add(1, SeqCst);
    while shared.epoch.0.load(SeqCst) == seen {
        guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
    shared.sleepers.fetch_sub(1, SeqCst);
}

/// A polite busy wait.
struct Wait {
    start: Option<Instant>,
    spins: u32,
    waited: Duration,
}

impl Wait {
    fn new() -> Self {
        Wait { start: None, spins: 0, waited: Duration::ZERO }
    }

    /// Waits a moment; says how long it has waited in all.
    fn pause(&mut self) -> Duration {
        std::hint::spin_loop();
        self.spins = self.spins.wrapping_add(1);
        // Reading the clock takes as long as a few spins.
        if self.spins.is_multiple_of(32) {
            self.waited = self.start.get_or_insert_with(Instant::now).elapsed();
            if self.waited > SPIN {
                std::thread::yield_now();
            }
        }
        self.waited
    }
}

/// One for each physical core that this process may use, as far as the system tells: the second thread of a core adds
/// little to products that fill the core's vector units, and costs when threads wait for the slowest.
pub fn default_threads() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, |n| n.get());
    physical_cores().map_or(logical, |n| n.clamp(1, logical))
}

/// Distinct cores among the processors of this process's affinity mask.
#[cfg(target_os = "linux")]
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = std::collections::BTreeSet::new();
    for cpu in cpu_list(allowed.trim())? {
        let read = |name: &str| -> Option<String> {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
            Some(std::fs::read_to_string(path).ok()?.trim().to_string())
        };
        cores.insert((read("physical_package_id")?, read("core_id")?));
    }
    Some(cores.len())
}

#[cfg(not(target_os = "linux"))]
fn physical_cores() -> Option<usize> {
    None
}

/// Parses the kernel's list notation, `0-3,8,10-11`.
#[cfg(target_os = "linux")]
fn cpu_list(list: &str) -> Option<Vec<usize>> {
    /// More processors than any kernel is built for.
    const LIMIT: usize = 1 << 16;
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= LIMIT {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once() {
        for n in [1, 2, 3, 5] {
            let pool = Pool::new(n);
            for _ in 0..200 {
                let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                pool.run(|i| {
                    hits[i].fetch_add(1, Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Relaxed) == 1));
            }
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        let pool = Pool::new(3);
        for (items, grain) in [(0, 4), (1, 4), (4, 4), (5, 4), (1000, 7), (10, 0), (3, usize::MAX)] {
            let hits: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool.run_chunks(items, grain, |thread, range| {
                assert!(thread < 3 && range.len() <= grain.max(1));
                range.for_each(|i| {
                    hits[i].fetch_add(1, Relaxed);
                });
            });
            assert!(hits.iter().all(|h| h.load(Relaxed) == 1), "{items} items in chunks of {grain}");
        }
    }

    #[test]
    fn slices_are_disjoint_and_complete() {
        let pool = Pool::new(3);
        let mut data = vec![0usize; 1001];
        pool.run_slices(&mut data, 10, |i, part| part.iter_mut().for_each(|v| *v += i + 1));
        assert!(data.iter().enumerate().all(|(at, &v)| v == at / 10 + 1));
    }

    #[test]
    fn workers_wake_after_sleeping() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            std::thread::sleep(PARK * 5);
            let sum = AtomicUsize::new(0);
            pool.run(|i| {
                sum.fetch_add(i + 1, Relaxed);
            });
            assert_eq!(sum.into_inner(), 3);
        }
    }

    #[test]
    fn nested_and_concurrent_regions() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(|_| {
                            pool.run(|_| {
                                sum.fetch_add(1, Relaxed);
                            })
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 50 * 9);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        for bad in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|i| assert!(i != bad, "part {i} fails"));
            }));
            let payload = caught.unwrap_err();
            assert_eq!(payload.downcast_ref::<String>().unwrap(), &format!("part {bad} fails"));
            let count = AtomicUsize::new(0);
            pool.run(|_| {
                count.fetch_add(1, Relaxed);
            });
            assert_eq!(count.into_inner(), 3);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn kernel_lists_of_processors() {
        assert_eq!(cpu_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list("5"), Some(vec![5]));
        assert_eq!(cpu_list("x"), None);
        assert_eq!(cpu_list("0-99999999999"), None);
    }

    #[test]
    fn the_default_never_exceeds_what_is_available() {
        let logical = std::thread::available_parallelism().unwrap().get();
        assert!((1..=logical).contains(&default_threads()));
    }
}
