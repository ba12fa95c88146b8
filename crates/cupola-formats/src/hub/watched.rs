//! Work on a thread of its own, so that the caller can stop it and a silent server cannot hold the caller.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// How often the caller is asked whether to go on.
const TICK: Duration = Duration::from_millis(100);

/// What the working thread reports.
enum Event<T> {
    /// A file of that size begins.
    Start(u64),
    /// So many bytes more are there.
    Bytes(u64),
    /// The result, or none if the work broke down.
    Done(Option<T>),
}

/// Why there is no result.
pub(super) enum Stopped {
    /// The caller asked for it.
    Cancelled,
    /// Nothing happened for the time allowed.
    Stalled,
    /// The client library broke down.
    Broken,
}

/// The working thread's side. Reporting ends the work, by unwinding, once nobody waits for it: the client library has no
/// other way to be stopped.
pub(super) struct Reporter<T> {
    sender: SyncSender<Event<T>>,
    stop: Arc<AtomicBool>,
}

impl<T> Reporter<T> {
    fn send(&self, event: Event<T>) {
        if self.stop.load(Ordering::Relaxed) || self.sender.send(event).is_err() {
            // Without the message that a panic would print.
            resume_unwind(Box::new("stopped"));
        }
    }
}

impl<T> hf_hub::api::Progress for Reporter<T> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.send(Event::Start(size as u64));
    }

    fn update(&mut self, size: usize) {
        self.send(Event::Bytes(size as u64));
    }

    fn finish(&mut self) {}
}

/// Runs `work` on a new thread and waits for it. `watch` gets the bytes done and in total, ten times a second and more. A
/// thread that does not react when it is to stop is left behind; it ends when its connection does.
pub(super) fn run<T: Send + 'static>(
    stall: Duration,
    watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    work: impl FnOnce(Reporter<T>) -> T + Send + 'static,
) -> Result<T, Stopped> {
    // Few events in flight: a slow watcher slows the work down instead of filling memory.
    let (sender, receiver) = mpsc::sync_channel(64);
    let stop = Arc::new(AtomicBool::new(false));
    let reporter = Reporter { sender: sender.clone(), stop: stop.clone() };
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| work(reporter))).ok();
        // Nobody listens any more if the caller has given up.
        let _ = sender.send(Event::Done(result));
    });
    let (mut done, mut total) = (0, 0);
    let mut last = Instant::now();
    let stopped = loop {
        match receiver.recv_timeout(TICK) {
            Ok(Event::Done(Some(result))) => return Ok(result),
            Ok(Event::Done(None)) | Err(RecvTimeoutError::Disconnected) => return Err(Stopped::Broken),
            Ok(Event::Start(size)) => (done, total) = (0, size),
            Ok(Event::Bytes(bytes)) => {
                done += bytes;
                last = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) if last.elapsed() > stall => break Stopped::Stalled,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if watch(done, total).is_break() {
            break Stopped::Cancelled;
        }
    };
    stop.store(true, Ordering::Relaxed);
    Err(stopped)
}
