//! Brings the work of all sessions into common steps.
//!
//! Each session's thread hands in a [`Job`] (its prompt's remaining tokens, or one new token) and waits. There is no
//! thread of the scheduler's own: one of the waiting threads runs the step for all, the others sleep.
//!
//! A step takes every single token first, then prompts as far as its rows reach, oldest first; while others generate,
//! a prompt gets only an eighth of a step's rows, so that it does not hold them up. A prompt that got no row in one step
//! comes first in the next.

use crate::CancelToken;
use crate::error::StepError;
use crate::runner::StepRunner;
use cupola_graph::{Span, Step};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tokens that one sequence wants evaluated. A step may take only the first of them.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// At least one.
    pub tokens: Vec<u32>,
    /// Position of the first.
    pub start: usize,
    /// The sequence's block table; it has room for all tokens.
    pub blocks: Vec<u32>,
    /// See [`Span::rope_length`].
    pub rope_length: usize,
    /// Which logits are wanted.
    pub wanted: Wanted,
    /// A block to copy first.
    pub copy: Option<(u32, u32)>,
}

/// Rows of a job whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// None: the tokens only go into the cache.
    Nothing,
    /// The last, if the step comes that far.
    Last,
    /// Every one.
    All,
}

/// What a step did for a job.
#[derive(Debug)]
pub(crate) struct Done {
    /// Tokens that it took, at least one.
    pub rows: usize,
    /// Logits of the wanted rows among them, `[wanted, logits]`.
    pub logits: Vec<f32>,
}

/// See the module.
pub(crate) struct Scheduler {
    queue: Mutex<Queue>,
    changed: Condvar,
    runner: Mutex<Box<dyn StepRunner>>,
    max_rows: usize,
    logits: usize,
}

#[derive(Default)]
struct Queue {
    /// In the order of arrival.
    waiting: Vec<Waiting>,
    results: HashMap<u64, Result<Done, StepError>>,
    /// Whether a thread is preparing or running a step.
    running: bool,
    /// Sequences that are likely to hand in another job soon.
    active: usize,
    next: u64,
    last_step: Duration,
}

struct Waiting {
    id: u64,
    job: Job,
    /// Whether the last step had no row left for it.
    skipped: bool,
}

/// Says that a sequence is being generated: until it is dropped, steps wait a moment for its jobs.
pub(crate) struct Active<'a>(&'a Scheduler);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.lock().active -= 1;
        self.0.changed.notify_all();
    }
}

impl Scheduler {
    pub fn new(runner: Box<dyn StepRunner>, max_rows: usize) -> Scheduler {
        let logits = runner.shape().logits;
        Scheduler { queue: Mutex::default(), changed: Condvar::new(), runner: Mutex::new(runner), max_rows, logits }
    }

    pub fn activate(&self) -> Active<'_> {
        self.lock().active += 1;
        Active(self)
    }

    /// Uses the runner between steps.
    pub fn with_runner<T>(&self, f: impl FnOnce(&mut dyn StepRunner) -> T) -> Result<T, StepError> {
        // A panic inside a step leaves the device in a state that nobody knows.
        let mut runner = self.runner.lock().map_err(|_| StepError::Broken)?;
        Ok(f(runner.as_mut()))
    }

    /// Runs the job, or its first tokens, in some step. Absent if it was cancelled before it was in one.
    pub fn run(&self, job: Job, cancel: &CancelToken) -> Result<Option<Done>, StepError> {
        let mut queue = self.lock();
        let id = queue.next;
        queue.next += 1;
        queue.waiting.push(Waiting { id, job, skipped: false });
        self.changed.notify_all();
        loop {
            if let Some(result) = queue.results.remove(&id) {
                return result.map(Some);
            }
            if cancel.is_cancelled() && queue.waiting.iter().any(|w| w.id == id) {
                queue.waiting.retain(|w| w.id != id);
                return Ok(None);
            }
            queue = if queue.running {
                // Cancelling does not wake anybody, so look now and then.
                self.changed.wait_timeout(queue, Duration::from_millis(10)).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.lead(queue)
            };
        }
    }

    /// Runs one step for everybody who waits.
    fn lead<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.running = true;
        let mut lead = Lead { scheduler: self, ids: vec![] };
        queue = self.gather(queue);
        let batch = queue.compose(self.max_rows);
        lead.ids = batch.iter().map(|(id, ..)| *id).collect();
        drop(queue);

        let started = Instant::now();
        let results = self.step(&batch);
        let time = started.elapsed();

        let mut queue = self.lock();
        queue.last_step = time;
        queue.results.extend(lead.ids.drain(..).zip(results));
        drop(queue);
        drop(lead);
        self.lock()
    }

    /// Waits for the sequences that were in the last step and are choosing their next token, but no longer than a
    /// quarter of that step's time. Without this, two sequences would take turns instead of sharing steps.
    fn gather<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let end = Instant::now() + queue.last_step / 4;
        while queue.waiting.len() < queue.active {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) else { break };
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue
    }

    /// The result of each job of the batch.
    fn step(&self, batch: &[(u64, Job, usize)]) -> Vec<Result<Done, StepError>> {
        let mut tokens = vec![];
        let mut wanted = vec![];
        let mut spans = vec![];
        let mut outputs = vec![];
        for (_, job, rows) in batch {
            let first = tokens.len() as u32;
            let end = first + *rows as u32;
            let rows_wanted = match job.wanted {
                Wanted::All => first..end,
                Wanted::Last if *rows == job.tokens.len() => end - 1..end,
                Wanted::Last | Wanted::Nothing => end..end,
            };
            outputs.push(rows_wanted.len());
            wanted.extend(rows_wanted);
            tokens.extend_from_slice(&job.tokens[..*rows]);
            spans.push(Span { rows: *rows, start: job.start, blocks: &job.blocks, rope_length: job.rope_length });
        }
        let step = Step { tokens: &tokens, spans: &spans, wanted: &wanted };
        let ran = self.with_runner(|runner| {
            for (from, to) in batch.iter().filter_map(|(_, job, _)| job.copy) {
                runner.copy_block(from, to)?;
            }
            runner.run(&step)
        });
        let logits = match ran.and_then(|r| r.map_err(StepError::from)) {
            Ok(logits) if logits.len() == wanted.len() * self.logits => logits,
            Ok(logits) => {
                let error = StepError::Logits { expected: wanted.len() * self.logits, found: logits.len() };
                return batch.iter().map(|_| Err(error.clone())).collect();
            }
            Err(error) => return batch.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut rest = logits.as_slice();
        let done = batch.iter().zip(outputs).map(|((_, _, rows), outputs)| {
            let (own, others) = rest.split_at(outputs * self.logits);
            rest = others;
            Ok(Done { rows: *rows, logits: own.to_vec() })
        });
        done.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic happens between changes of the queue that belong together.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Takes the jobs of the next step out, with the number of rows that each gets.
    fn compose(&mut self, max_rows: usize) -> Vec<(u64, Job, usize)> {
        let singles = self.waiting.iter().filter(|w| w.job.tokens.len() == 1).count();
        let prompt_rows = if singles > 0 { (max_rows / 8).max(1) } else { max_rows };
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        // A stable sort keeps the order of arrival within each kind.
        order.sort_by_key(|i| {
            let w = &self.waiting[*i];
            if w.skipped { 0 } else { 1 + usize::from(w.job.tokens.len() > 1) }
        });
        let (mut left, mut left_for_prompts) = (max_rows, prompt_rows);
        let mut rows = vec![0; self.waiting.len()];
        for i in order {
            let length = self.waiting[i].job.tokens.len();
            rows[i] = length.min(left);
            if length > 1 {
                rows[i] = rows[i].min(left_for_prompts);
                left_for_prompts -= rows[i];
            }
            left -= rows[i];
        }
        let mut batch = vec![];
        for (mut w, rows) in std::mem::take(&mut self.waiting).into_iter().zip(rows) {
            if rows > 0 {
                batch.push((w.id, w.job, rows));
            } else {
                w.skipped = true;
                self.waiting.push(w);
            }
        }
        batch
    }
}

/// Gives the lead back, also if the step panicked: then the jobs of its batch fail instead of waiting for ever.
struct Lead<'a> {
    scheduler: &'a Scheduler,
    /// Jobs of the batch that have no result yet.
    ids: Vec<u64>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut queue = self.scheduler.lock();
        queue.results.extend(self.ids.drain(..).map(|id| (id, Err(StepError::Broken))));
        queue.running = false;
        drop(queue);
        self.scheduler.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(lengths: &[usize]) -> Queue {
        let job = |n: &usize| Job {
            tokens: vec![0; *n],
            start: 0,
            blocks: vec![],
            rope_length: *n,
            wanted: Wanted::Last,
            copy: None,
        };
        let waiting = lengths.iter().enumerate().map(|(i, n)| Waiting { id: i as u64, job: job(n), skipped: false });
        Queue { waiting: waiting.collect(), ..Queue::default() }
    }

    /// Ids and rows of the next step.
    fn next(queue: &mut Queue, max_rows: usize) -> Vec<(u64, usize)> {
        queue.compose(max_rows).iter().map(|(id, _, rows)| (*id, *rows)).collect()
    }

    #[test]
    fn a_prompt_alone_gets_whole_steps() {
        assert_eq!(next(&mut queue(&[1000]), 512), [(0, 512)]);
        assert_eq!(next(&mut queue(&[300]), 512), [(0, 300)]);
        assert_eq!(next(&mut queue(&[300, 300]), 512), [(0, 300), (1, 212)]);
    }

    #[test]
    fn single_tokens_go_with_every_step_and_prompts_leave_them_time() {
        assert_eq!(next(&mut queue(&[1000, 1, 1]), 512), [(0, 64), (1, 1), (2, 1)]);
        assert_eq!(next(&mut queue(&[1000, 1, 1000]), 512), [(0, 64), (1, 1)]);
    }

    #[test]
    fn who_was_skipped_comes_first() {
        // Steps of two rows, always two sequences that generate.
        let mut q = queue(&[1, 1, 50]);
        assert_eq!(next(&mut q, 2), [(0, 1), (1, 1)]);
        let more = queue(&[1, 1]).waiting.into_iter().map(|w| Waiting { id: w.id + 10, ..w });
        q.waiting.extend(more);
        assert_eq!(next(&mut q, 2), [(2, 1), (10, 1)]);
        assert_eq!(next(&mut q, 2), [(11, 1)]);
        assert_eq!(next(&mut q, 2), []);
    }

    #[test]
    fn one_row_steps_serve_everybody_in_turn() {
        let mut q = queue(&[9, 1, 9]);
        let served: Vec<_> = (0..3).flat_map(|_| next(&mut q, 1)).collect();
        assert_eq!(served, [(1, 1), (0, 1), (2, 1)]);
    }
}
