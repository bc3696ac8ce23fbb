//! `muster demo`: runs a complete fleet on this machine and shows it.
//!
//! ```text
//! load --pipelines--> coordinator --runner API--> manager --scaler--> plugin `local` --> instances --> jobs
//!                         | events                   | HTTP: status, explain
//!                         +----------> screen <------+
//! ```
//! The coordinator and the manager share a process and a temporary directory. The demo needs no settings, no network,
//! no privileges and no programs except `sh` and `sleep`.

mod load;
mod render;
mod screen;
mod stack;
mod tracker;

use std::process::ExitCode;
use std::time::Duration;

use muster_coordinator::views::Event;
use muster_taskscaler::fleet::{ExplanationSet, Reports};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::ci::{CiError, Interrupts, ui};
use crate::fleet::query;
use crate::runner::{EXPLAIN_PATH, STATUS_PATH};
use load::{Load, Wave};
use render::{Frame, MAX_DECISIONS, render};
use screen::Screen;
use stack::{DemoStack, Size};
use tracker::{CostMeter, JobTracker};

const POLL_INTERVAL: Duration = Duration::from_millis(150);
/// Number of polls of the status after which the latest decisions are queried once.
const POLLS_PER_DECISIONS: u32 = 5;
const MAX_POINTS: usize = 400;
const PRICE_PER_HOUR: f64 = 0.08;
/// Files that every demo opens: 33, plus a reserve of 15.
const BASE_FILES: u64 = 48;
/// Files for each slot: both ends of the job's request, and its log.
const FILES_PER_SLOT: u64 = 3;
const HEADLESS_JOBS: usize = 40;

/// Arguments of `muster demo`.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct DemoArgs {
    /// Run without a screen, and print a summary. Fails unless all jobs succeed and no instance is left.
    #[arg(long)]
    headless: bool,
    /// Number of jobs. By default, jobs keep coming until you quit; with --headless, there are 40.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Maximum number of instances.
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    instances: u32,
    /// Number of jobs that an instance runs at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    slots: u32,
    /// Milliseconds that an instance takes to boot.
    #[arg(long, value_name = "MS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(..=600_000))]
    boot_time_ms: u64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds after which a headless demo stops and fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error(
        "the limit of {permitted} open files is too low for this demo, which needs {required}; raise it (`ulimit -n {required}`), \
         or reduce --instances or --slots"
    )]
    OpenFiles { permitted: u64, required: u64 },
    #[error("failed to create a temporary directory; set TMPDIR to a writable directory")]
    TempDir(#[source] std::io::Error),
    #[error("failed to listen on the loopback interface")]
    Listen(#[source] std::io::Error),
    #[error("failed to determine the path of this executable")]
    Executable(#[source] std::io::Error),
    #[error(transparent)]
    Signals(#[from] CiError),
    #[error(transparent)]
    Open(#[from] muster_coordinator::OpenError),
    #[error(transparent)]
    Coordinator(#[from] muster_coordinator::CoordinatorError),
    #[error(transparent)]
    Observe(#[from] crate::observe::ObserveError),
    #[error(transparent)]
    Store(#[from] muster_manager::store::StoreError),
    #[error(transparent)]
    Environment(#[from] muster_executor::ExecutorError),
    #[error(transparent)]
    Manager(#[from] muster_manager::ManagerError),
    #[error(transparent)]
    Query(#[from] query::QueryError),
    #[error(transparent)]
    Load(#[from] load::LoadError),
    #[error("internal error in the demo (this is a bug, please report it): {0}")]
    Internal(String),
}

struct Outcome {
    headless: bool,
    demo: Demo,
    /// Instances that still exist. Any number except 0 is a bug.
    instances_left: usize,
    elapsed: Duration,
    /// Number of jobs, and timeout in seconds. `None` for a demo with a screen.
    goal: Option<(usize, u64)>,
}

pub(crate) fn run(args: DemoArgs) -> ExitCode {
    let screen = if args.headless { None } else { Screen::take() };
    // Log lines would overwrite the screen.
    crate::logging::init_command(if screen.is_some() { "off" } else { "error" });
    // This process also opens the files of the coordinator, and the connections to all instances.
    crate::open_files::raise();
    // A demo without free file descriptors could not even clean up.
    if let Err(error) = check_open_files(crate::open_files::limit(), args.instances, args.slots) {
        drop(screen);
        ui::report(&error);
        return ExitCode::FAILURE;
    }
    crate::runtime::block_on(async {
        let outcome = run_demo(&args, screen.as_ref()).await;
        drop(screen);
        match outcome {
            Ok(outcome) => outcome.print(),
            Err(error) => {
                ui::report(&error);
                ExitCode::FAILURE
            }
        }
    })
}

/// Fails if `limit` permits too few open files for a demo of this size. The demo opens [`BASE_FILES`], a connection for
/// each instance, and [`FILES_PER_SLOT`] for each slot.
fn check_open_files(limit: Option<u64>, instances: u32, slots: u32) -> Result<(), DemoError> {
    let (instances, slots) = (u64::from(instances), u64::from(slots));
    let required = BASE_FILES + instances * (1 + FILES_PER_SLOT * slots);
    match limit {
        Some(limit) if limit < required => Err(DemoError::OpenFiles { permitted: limit, required }),
        _ => Ok(()),
    }
}

struct Demo {
    jobs: JobTracker,
    meter: CostMeter,
    frame: Frame,
    /// Whether all jobs were created and have finished.
    complete: bool,
    client: reqwest::Client,
    polls: u32,
}

async fn run_demo(args: &DemoArgs, screen: Option<&Screen>) -> Result<Outcome, DemoError> {
    let interrupts = Interrupts::new()?;
    let boot_time = Duration::from_millis(args.boot_time_ms);
    let size = Size { instances: args.instances, slots: args.slots, boot_time, seed: args.seed };
    let jobs = args.jobs.map(usize::from).or(screen.is_none().then_some(HEADLESS_JOBS));
    let load = Load::new(args.seed, jobs, usize::try_from(args.instances * args.slots).unwrap_or(1));
    let started_at = Instant::now();
    let deadline = screen.is_none().then(|| started_at + Duration::from_secs(args.timeout));
    let stack = DemoStack::start(size).await?;
    let mut demo = Demo {
        jobs: JobTracker::default(),
        meter: CostMeter::default(),
        frame: Frame { address: stack.address.clone(), ..Frame::default() },
        complete: false,
        client: query::client()?,
        polls: 0,
    };
    let result = demo.watch(&stack, load, screen, interrupts, deadline).await;
    demo.frame.stopping = true;
    demo.draw(screen);
    let instances_left = stack.stop().await?;
    result?;
    let goal = jobs.filter(|_| screen.is_none()).map(|jobs| (jobs, args.timeout));
    Ok(Outcome { headless: screen.is_none(), demo, instances_left, elapsed: started_at.elapsed(), goal })
}

impl Demo {
    /// Creates and follows the jobs until all have finished, the user quits, or the deadline passes.
    async fn watch(
        &mut self,
        stack: &DemoStack,
        mut load: Load,
        screen: Option<&Screen>,
        mut interrupts: Interrupts,
        deadline: Option<Instant>,
    ) -> Result<(), DemoError> {
        let started_at = Instant::now();
        let mut events = stack.coordinator.subscribe();
        let mut keys = screen.map(Screen::keys);
        let mut poll = interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = load.next();
        let mut due = started_at;
        loop {
            // Each branch only waits, so it is cancel-safe.
            tokio::select! {
                event = events.recv() => match event {
                    Ok(event) => self.jobs.record(&event, Instant::now()),
                    Err(RecvError::Lagged(_)) => self.resync(stack).await?,
                    Err(RecvError::Closed) => return Err(DemoError::Internal("the coordinator has stopped".to_owned())),
                },
                () = sleep_until(due), if next.is_some() => {
                    if let Some(wave) = next.take() {
                        stack.coordinator.create_pipeline(load::pipeline(&wave)?).await?;
                    }
                    next = load.next();
                    due = Instant::now() + next.as_ref().map_or(Duration::ZERO, |wave: &Wave| wave.after);
                }
                _ = poll.tick() => {
                    self.poll(stack).await?;
                    self.frame.elapsed = started_at.elapsed();
                    self.draw(screen);
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Ok(());
                    }
                }
                () = interrupts.next() => return Ok(()),
                () = wait_for_quit_key(&mut keys) => return Ok(()),
            }
            if next.is_none() && self.jobs.all_finished() {
                // The events so far may be the first half of a batch, so check the complete state.
                self.resync(stack).await?;
                if self.jobs.all_finished() {
                    self.complete = true;
                    return Ok(());
                }
            }
        }
    }

    /// Records the current state of all jobs. Call this after events were lost, and before a decision that requires the
    /// complete state.
    async fn resync(&mut self, stack: &DemoStack) -> Result<(), DemoError> {
        for pipeline in stack.coordinator.pipelines(None, usize::MAX).await? {
            for job in stack.coordinator.pipeline(pipeline.id).await?.jobs {
                self.jobs.record(&Event::JobChanged(job.into()), Instant::now());
            }
        }
        Ok(())
    }

    async fn poll(&mut self, stack: &DemoStack) -> Result<(), DemoError> {
        let mut reports: Reports = query::get(&self.client, &stack.address, STATUS_PATH, &[]).await?;
        let report = reports.fleets.pop();
        let status = report.as_ref().and_then(|report| report.status.as_ref());
        let names = status.into_iter().flat_map(|status| &status.instances).map(|instance| instance.id.as_str());
        self.meter.record(names, Instant::now());
        let frame = &mut self.frame;
        if self.polls.is_multiple_of(POLLS_PER_DECISIONS) {
            let mut explanations: ExplanationSet = query::get(&self.client, &stack.address, EXPLAIN_PATH, &[]).await?;
            let decisions = explanations.fleets.pop().map(|fleet| fleet.decisions).unwrap_or_default();
            let latest = decisions.iter().rev().take(MAX_DECISIONS).rev();
            frame.decisions = latest.map(|entry| entry.text.clone()).collect();
        }
        self.polls = self.polls.wrapping_add(1);
        frame.counts = self.jobs.counts();
        frame.waits = self.jobs.waits();
        frame.cost = self.meter.cost(PRICE_PER_HOUR);
        frame.cost_per_hour = f64::from(u32::try_from(self.meter.current).unwrap_or(u32::MAX)) * PRICE_PER_HOUR;
        frame.points.push_back((frame.counts.waiting, self.meter.current));
        if frame.points.len() > MAX_POINTS {
            frame.points.pop_front();
        }
        frame.report = report;
        Ok(())
    }

    fn draw(&self, screen: Option<&Screen>) {
        let Some(screen) = screen else { return };
        let (width, height) = Screen::size();
        screen.show(&render(&self.frame, width, height));
    }
}

/// Waits until the user presses `q`. Never returns if there is no keyboard input.
async fn wait_for_quit_key(keys: &mut Option<tokio::sync::mpsc::Receiver<u8>>) {
    let Some(pressed) = keys else { return std::future::pending().await };
    loop {
        match pressed.recv().await {
            Some(b'q' | b'Q') => return,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

impl Outcome {
    /// Succeeds if no job failed and no instance is left. A headless demo must also have finished its jobs.
    fn print(&self) -> ExitCode {
        let Demo { jobs, meter, complete, .. } = &self.demo;
        let (counts, waits) = (jobs.counts(), jobs.waits());
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        ui::outln(&format!(
            "jobs       {} of {} succeeded, {} failed, in {}",
            counts.succeeded,
            counts.created,
            counts.failed,
            seconds(self.elapsed)
        ));
        let waited = format!(
            "waits      p50 {}, p95 {}, max {}, from the queue to the first log line",
            seconds(waits.p50),
            seconds(waits.p95),
            seconds(waits.max)
        );
        ui::outln(if counts.succeeded + counts.failed > 0 { &waited } else { "waits      no job has finished" });
        let (created, max, left) = (meter.total(), meter.max, self.instances_left);
        ui::outln(&format!("instances  {created} created, at most {max} at once, {left} left"));
        ui::outln(&format!(
            "cost       {:.5}, at {PRICE_PER_HOUR} per instance-hour (model price)",
            meter.cost(PRICE_PER_HOUR)
        ));
        if let Some((jobs, timeout)) =
            self.goal.filter(|(_, timeout)| !complete && self.elapsed >= Duration::from_secs(*timeout))
        {
            ui::error(&format!(
                "the demo timed out after {timeout} s with {} of {jobs} jobs succeeded; set --timeout to give it more time",
                counts.succeeded
            ));
        }
        if self.instances_left > 0 || counts.failed > 0 || (self.headless && !complete) {
            return ExitCode::FAILURE;
        }
        crate::ci::report_output_error(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_for_a_low_open_files_limit_names_the_required_limit() {
        let error = check_open_files(Some(89), 6, 2).unwrap_err().to_string();
        assert!(error.contains("limit of 89") && error.contains("`ulimit -n 90`"), "{error}");
        check_open_files(Some(90), 6, 2).unwrap();
        check_open_files(None, 100, 16).unwrap();
    }
}
