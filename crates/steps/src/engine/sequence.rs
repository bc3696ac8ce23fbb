//! Runs the steps of a sequence under their policies: one after the other, or several at the same time.
//!
//! ```text
//! entries --adjacent `parallel`--> group --matrix--> runs of a step --condition--> section --attempts, timeout--> step
//! ```
//!
//! A step without Muster's own keys is a separate group with one run.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use indexmap::IndexMap;
use muster_agent_api::plan::When;
use muster_agent_api::result::StepNode;
use muster_job::{TerminationCause, error_chain};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::debug::StepState;
use super::inputs::expression_error;
use super::matrix::{StepRun, outputs_of, paths, runs_of};
use super::policy::{Attempts, close_section, open_section, retry_warning, run_until, wait_until_postponed};
use super::results::StepResult;
use super::turns::Turns;
use super::user_steps::{Frame, Record, StepError, UserSteps};
use super::{StartTime, StepEnd};
use crate::definition::StepEntry;
use crate::expression::{to_text, truthy};
use crate::log::{Log, Stream};
use crate::process::{Usage, measure_usage};
use crate::style;

const MIN_STACK: usize = 512 * 1024;
const NEW_STACK: usize = 2 * 1024 * 1024;

const OTHER_FAILED: &str = "another of the parallel steps has failed";

pub(super) struct Sequence<'s> {
    steps: &'s UserSteps<'s>,
    frame: Frame<'s>,
    /// First failure. Only `on_failure` and `always` steps follow it.
    failure: Option<StepError>,
}

type PathEntry<'e> = (&'e StepEntry, String);

struct EndedStep {
    node: StepNode,
    results: Vec<StepResult>,
    /// Outputs of the step, or its failure. A failed step with `allow_failure` has no outputs. A skipped step has no
    /// outputs either, but if it was skipped because of a stop, its result is [`StepError::Stopped`].
    result: Result<Map<String, Value>, StepError>,
}

/// Position of the run among the runs of its group, the ended step, and its exports.
type ParallelEnd = (usize, EndedStep, Arc<Mutex<IndexMap<String, String>>>);

type ParallelFuture<'f> = Pin<Box<dyn Future<Output = ParallelEnd> + Send + 'f>>;

type EndedFuture<'f> = Pin<Box<dyn Future<Output = EndedStep> + Send + 'f>>;

impl<'s> Sequence<'s> {
    /// Runs the steps. Returns the outputs of all steps by name.
    ///
    /// # Errors
    /// The first failure.
    pub(super) async fn run(
        steps: &'s UserSteps<'s>,
        entries: &[StepEntry],
        frame: Frame<'s>,
        record: &mut Record,
    ) -> Result<Map<String, Value>, StepError> {
        let paths = paths(&frame.path, entries);
        for (entry, path) in entries.iter().zip(&paths) {
            steps.check_reference(entry, path).map_err(|error| error.within(&entry.name))?;
        }
        if let Some(debugger) = steps.debugger {
            debugger.add_steps(&frame.path, paths.clone());
        }
        let mut sequence = Self { steps, frame, failure: None };
        let entries: Vec<PathEntry<'_>> = entries.iter().zip(paths).collect();
        for group in entries.chunk_by(|(entry, _), (next, _)| is_parallel(entry) && is_parallel(next)) {
            if let Some(cause) = steps.stop.cause() {
                return Err(sequence.failure.unwrap_or(StepError::Stopped(cause)));
            }
            sequence.run_group(group, record).await;
        }
        sequence.failure.map_or(Ok(sequence.frame.steps), Err)
    }

    async fn run_group(&mut self, group: &[PathEntry<'_>], record: &mut Record) {
        let has_failed_before = self.failure.is_some();
        let mut runs = Vec::new();
        for (entry, path) in group {
            let when = entry.extension.policy.when;
            // The steps of a group start together, so `when` depends only on failures before the group.
            let ended = if when.allows(has_failed_before) {
                match runs_of(entry, path, &self.steps.scope(&self.frame), &|text| self.steps.log.mask(text)) {
                    Ok(found) if found.is_empty() => Some(self.skip(&entry.name, path, "its matrix has no values")),
                    Ok(found) => {
                        if let (Some(debugger), false) = (self.steps.debugger, entry.extension.matrix.is_empty()) {
                            debugger.add_steps(path, found.iter().map(|run| run.path.clone()));
                        }
                        runs.extend(found);
                        None
                    }
                    Err(error) => Some(failed_to_start(self.steps, entry, (&entry.name, path), error)),
                }
            } else if when == When::OnFailure {
                Some(self.skip(&entry.name, path, "no earlier step has failed"))
            } else {
                // A step that is skipped because of an earlier failure has no node in the result.
                self.steps.set_state(path, StepState::Skipped);
                None
            };
            if let Some(ended) = ended {
                self.record(record, &entry.name, ended);
            }
        }
        if self.failure.is_some() && !has_failed_before {
            // A step could not be started, so only steps that run after a failure start.
            for run in runs.extract_if(.., |run: &mut StepRun<'_>| !runs_after_failure(run)) {
                let skipped = self.skip(&run.name, &run.path, OTHER_FAILED);
                self.record(record, &run.name, skipped);
            }
        }
        let limit = group.iter().filter_map(|(entry, _)| entry.extension.parallel).min();
        let ended = match limit {
            Some(limit) if runs.len() > 1 => self.run_parallel(&runs, limit).await,
            _ => self.run_serial(&runs).await,
        };
        let mut outputs: Vec<Vec<Map<String, Value>>> = group.iter().map(|_| Vec::new()).collect();
        for (run, ended) in runs.iter().zip(ended) {
            let entry = group.iter().position(|(entry, _)| std::ptr::eq(*entry, run.entry));
            if let Some(outputs) = entry.and_then(|entry| outputs.get_mut(entry)) {
                outputs.push(ended.result.as_ref().cloned().unwrap_or_default());
            }
            self.record(record, &run.name, ended);
        }
        for ((entry, _), outputs) in group.iter().zip(outputs) {
            let outputs = Map::from_iter([("outputs".to_owned(), Value::Object(outputs_of(entry, outputs)))]);
            self.frame.steps.insert(entry.name.clone(), Value::Object(outputs));
        }
    }

    /// Records an ended step. Failures after the first failure are only printed.
    fn record(&mut self, record: &mut Record, name: &str, ended: EndedStep) {
        let EndedStep { node, mut results, result } = ended;
        record.nodes.push(node);
        record.results.append(&mut results);
        let Err(error) = result else { return };
        if self.failure.is_none() {
            self.failure = Some(error.within(name));
        } else if !is_stop(&error) {
            print(self.steps, &style::warning(&format!("{name} failed, too: {}", masked_message(self.steps, &error))));
        }
    }

    fn skip(&self, name: &str, path: &str, reason: &str) -> EndedStep {
        self.steps.set_state(path, StepState::Skipped);
        let end = StepEnd::skipped(self.steps.log.mask(reason));
        let node = StartTime::now().node(name, end, Usage::default(), Vec::new());
        EndedStep { node, results: Vec::new(), result: Ok(Map::new()) }
    }

    /// Returns a step that is skipped because the job or a step around it was stopped. It counts as a failure of the
    /// sequence.
    fn skip_stopped(&self, run: &StepRun<'_>, cause: TerminationCause) -> EndedStep {
        let reason = match cause {
            TerminationCause::CanceledByUser => "the job was canceled before the step started",
            TerminationCause::TimedOut => "a timeout expired before the step started",
            _ => "the job was stopped before the step started",
        };
        EndedStep { result: Err(StepError::Stopped(cause)), ..self.skip(&run.name, &run.path, reason) }
    }

    /// Runs steps in order. After a failure, only `always` and `on_failure` steps run. After a stop, no step starts.
    async fn run_serial(&self, runs: &[StepRun<'_>]) -> Vec<EndedStep> {
        let mut all = Vec::new();
        for run in runs {
            if let Some(cause) = self.steps.stop.cause() {
                all.push(self.skip_stopped(run, cause));
                break;
            }
            let ended = self.run_step(self.steps, run).await;
            let has_failed = ended.result.is_err();
            all.push(ended);
            if has_failed && !runs_after_failure(run) {
                break;
            }
        }
        all
    }

    /// Runs steps at the same time. A failure does not end running steps. Waiting steps are skipped, unless they also
    /// run after a failure.
    async fn run_parallel(&self, runs: &[StepRun<'_>], limit: usize) -> Vec<EndedStep> {
        let steps = self.steps;
        steps.log.flush();
        let turns = Turns::new(steps.log.inner(), steps.temp_dir.to_owned(), runs.len());
        let has_failed = AtomicBool::new(false);
        let mut waiting: Vec<ParallelFuture<'_>> = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            waiting.push(self.run_in_turn(run, index, &turns, &has_failed));
        }
        let mut all: Vec<_> = stream::iter(waiting).buffer_unordered(limit).collect().await;
        all.sort_by_key(|(index, ..)| *index);
        // If several steps export a variable, the last step in the list takes effect, not the step that ended last.
        for (_, _, own) in &all {
            steps.export(&own.lock());
        }
        all.into_iter().map(|(_, ended, _)| ended).collect()
    }

    /// Runs a parallel step, whose log waits for its turn. Boxed, because the compiler cannot prove that a stream of
    /// the futures is `Send`.
    fn run_in_turn<'f>(
        &'f self,
        run: &'f StepRun<'_>,
        index: usize,
        turns: &'f Arc<Turns>,
        has_failed: &'f AtomicBool,
    ) -> ParallelFuture<'f> {
        Box::pin(async move {
            let own = self.steps.for_parallel_step(turns.log(index));
            let ended = match self.steps.stop.cause() {
                Some(cause) => self.skip_stopped(run, cause),
                None if has_failed.load(Ordering::Relaxed) && !runs_after_failure(run) => {
                    self.skip(&run.name, &run.path, OTHER_FAILED)
                }
                None => self.run_step(&own, run).await,
            };
            has_failed.fetch_or(ended.result.is_err(), Ordering::Relaxed);
            own.log.end_lines();
            turns.end(index).await;
            (index, ended, own.own_exports)
        })
    }

    /// Runs a step under its policy. Boxed, because this function is recursive.
    fn run_step<'f>(&'f self, steps: &'f UserSteps<'_>, run: &'f StepRun<'_>) -> EndedFuture<'f> {
        Box::pin(self.run_under_policy(steps, run))
    }

    async fn run_under_policy(&self, steps: &UserSteps<'_>, run: &StepRun<'_>) -> EndedStep {
        let StepRun { entry, name, path, .. } = run;
        let frame = Frame {
            env: self.frame.env.clone(),
            inputs: self.frame.inputs.clone(),
            steps: self.frame.steps.clone(),
            matrix: run.matrix.clone(),
            path: self.frame.path.clone(),
            ..self.frame
        };
        match is_condition_met(entry, &frame, steps) {
            Ok(true) => {}
            Ok(false) => {
                let condition = entry.extension.condition.as_ref().map(to_text).unwrap_or_default();
                return self.skip(name, path, &format!("its condition is not met: {condition}"));
            }
            Err(error) => return failed_to_start(steps, entry, (name, path), error),
        }
        let start = StartTime::now();
        steps.set_state(path, StepState::Running);
        let title = run.section_title();
        open_section(&*steps.log, steps.has_section_markers, &run.section, &title);
        let mut record = Record::default();
        let ((result, attempts), used) =
            measure_usage(steps.network, run_attempts(steps, run, &frame, &mut record)).await;
        if !title.is_empty() {
            steps.log.end_lines();
            close_section(&*steps.log, steps.has_section_markers, &run.section, &title);
        }
        steps.set_state(path, StepState::from_end(result.is_ok()));
        let mut node = start.node(name, StepEnd::from(&result), used, record.nodes);
        node.attempts = (attempts > 1).then_some(attempts);
        node.message = steps.log.mask(&node.message);
        node.call = record.call.map(|call| Box::new(call.masked(&|text| steps.log.mask(text))));
        EndedStep { node, results: record.results, result: tolerated(steps, entry, name, result) }
    }
}

fn failed_to_start(
    steps: &UserSteps<'_>,
    entry: &StepEntry,
    (name, path): (&str, &str),
    error: StepError,
) -> EndedStep {
    steps.set_state(path, StepState::from_end(false));
    let result = Err(error);
    let mut node = StartTime::now().node(name, StepEnd::from(&result), Usage::default(), Vec::new());
    node.message = steps.log.mask(&node.message);
    EndedStep { node, results: Vec::new(), result: tolerated(steps, entry, name, result) }
}

/// Returns the result of a step for its sequence. A failure that is allowed is only printed.
fn tolerated(
    steps: &UserSteps<'_>,
    entry: &StepEntry,
    name: &str,
    result: Result<Map<String, Value>, StepError>,
) -> Result<Map<String, Value>, StepError> {
    match result {
        Err(error) if entry.extension.policy.allow_failure && !is_stop(&error) => {
            let message = masked_message(steps, &error);
            print(steps, &style::warning(&format!("{name} failed, but the job continues: {message}")));
            Ok(Map::new())
        }
        result => result,
    }
}

async fn run_attempts(
    steps: &UserSteps<'_>,
    run: &StepRun<'_>,
    frame: &Frame<'_>,
    record: &mut Record,
) -> (Result<Map<String, Value>, StepError>, u32) {
    let extension = &run.entry.extension;
    let stop = steps.stop.child();
    let own = steps.with_stop(&stop);
    let (first, longest) = steps.retry_backoff;
    let first = extension.retry_delay.unwrap_or(first);
    let mut attempts = Attempts::new(extension.policy.attempts, (first, longest.max(first)));
    let result = {
        let work = async {
            loop {
                *record = Record::default();
                // Boxed, because this function is recursive.
                let attempt = on_growing_stack(Box::pin(own.run_entry(run.entry, &run.path, frame, record)));
                let error = match attempt.await {
                    Ok(outputs) => return Ok(outputs),
                    Err(error) => error,
                };
                let announce = || {
                    own.log.end_lines();
                    print(&own, &retry_warning(&run.name, &masked_message(&own, &error)));
                };
                if !error.may_pass_later() || !attempts.next(&stop, announce).await.map_err(StepError::Stopped)? {
                    return Err(error);
                }
            }
        };
        let timeout = Duration::from_millis(extension.policy.timeout_ms);
        let deadline = if timeout.is_zero() { None } else { Instant::now().checked_add(timeout) };
        let expired = wait_until_postponed(steps.debugger, deadline);
        let running = run_until(&stop, expired, std::future::pending(), work);
        let ended = if timeout.is_zero() {
            running.await
        } else {
            // The timeout must not end the processes of steps that run at the same time.
            Box::pin(steps.processes.in_own_set(&stop, steps.grace, running)).await
        };
        match ended {
            (Err(error), true) if is_stop(&error) && steps.stop.cause().is_none() => Err(StepError::Timeout(timeout)),
            (result, _) => result,
        }
    };
    (result, attempts.number)
}

fn is_parallel(entry: &StepEntry) -> bool {
    entry.extension.parallel.is_some()
}

fn runs_after_failure(run: &StepRun<'_>) -> bool {
    run.entry.extension.policy.when.allows(true)
}

fn is_stop(error: &StepError) -> bool {
    matches!(error.cause(), StepError::Stopped(_))
}

fn is_condition_met(entry: &StepEntry, frame: &Frame<'_>, steps: &UserSteps<'_>) -> Result<bool, StepError> {
    let Some(condition) = &entry.extension.condition else { return Ok(true) };
    steps.scope(frame).expand(condition).map(|value| truthy(&value)).map_err(expression_error("if"))
}

fn masked_message(steps: &UserSteps<'_>, error: &StepError) -> String {
    steps.log.mask(&error_chain(error))
}

fn print(steps: &UserSteps<'_>, line: &str) {
    steps.log.write(Stream::Runner, line.as_bytes());
}

/// Polls a future on an additional stack if the thread has little stack left, because steps can be deeply nested.
async fn on_growing_stack<T>(mut future: Pin<Box<impl Future<Output = T>>>) -> T {
    poll_fn(|context| stacker::maybe_grow(MIN_STACK, NEW_STACK, || future.as_mut().poll(context))).await
}
