//! `muster demo`: a fleet on this machine, to look at.
//!
//! ```text
//! load --pipelines--> coordinator --runner API--> manager --scaler--> plugin `local` --> instances --> jobs
//!                         | events                   | HTTP: status, explain
//!                         +----------> picture <-----+
//! ```
//! Everything is the real thing, in one process and a temporary folder: it needs no settings, no network, no privileges and no
//! other program but `sh` and `sleep`. At its end nothing is left, and that is checked.

mod books;
mod load;
mod picture;
mod screen;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use muster_coordinator::views::Event;
use muster_taskscaler::fleet::{ExplanationSet, Reports};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::ci::{CiError, Interrupts, ui};
use crate::fleet::query;
use crate::runner::{EXPLAIN_PATH, STATUS_PATH};
use books::{Jobs, Meter};
use load::{Load, Wave};
use picture::{DECISIONS, Frame, draw};
use screen::Screen;
use world::{Size, World};

/// Between two looks at the fleet.
const LOOK: Duration = Duration::from_millis(150);
/// Looks between two readings of the decisions.
const DECISIONS_EVERY: u32 = 5;
/// Points of the curves.
const PAST_MAX: usize = 400;
/// What an instance costs in an hour here, so that there is a cost to see.
const PRICE_PER_HOUR: f64 = 0.08;
/// Open files of a demo: whatever its size (33, and some room), and for each slot.
const FILES_ALWAYS: u64 = 48;
const FILES_OF_A_SLOT: u64 = 3;
/// Jobs where nobody looks on and none are asked for.
const JOBS_HEADLESS: usize = 40;

/// How the demo runs.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    /// Draw nothing: run the jobs, print a summary, and fail unless all jobs are done and no instance is left.
    #[arg(long)]
    headless: bool,
    /// Jobs in all; without it, waves of jobs come until you end the demo (headless: 40).
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// The most instances.
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    instances: u32,
    /// Slots of an instance.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    slots: u32,
    /// Milliseconds until an instance boots.
    #[arg(long, value_name = "MS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(..=600_000))]
    boot: u64,
    /// Where the randomness comes from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds after which a headless demo is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
}

/// Why there is no demo.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error(
        "too few open files are permitted: {permitted}, where this demo takes {takes}; raise the limit (`ulimit -n {takes}`), \
         or ask for fewer --instances and --slots"
    )]
    OpenFiles { permitted: u64, takes: u64 },
    #[error("cannot make a temporary folder; TMPDIR can name another place for it")]
    Folder(#[source] std::io::Error),
    #[error("cannot listen on the loopback interface")]
    Listen(#[source] std::io::Error),
    #[error("cannot find this program's own file")]
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
    Ask(#[from] query::QueryError),
    #[error(transparent)]
    Load(#[from] load::LoadError),
    #[error("a defect of the demo, please report it: {0}")]
    Defect(String),
}

/// What came of it.
struct Outcome {
    headless: bool,
    demo: Demo,
    left: usize,
    took: Duration,
    /// What a headless demo was to do: jobs, within so many seconds.
    asked: Option<(usize, u64)>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> ExitCode {
    let screen = if args.headless { None } else { Screen::take() };
    // Whatever the log says would stand in the middle of the picture.
    crate::logging::of_command(if screen.is_some() { "off" } else { "error" });
    // Coordinator, manager and the connections to all instances are this one process.
    crate::open_files::raise();
    // Later, what was begun could not even be removed.
    if let Err(error) = check_open_files(crate::open_files::permitted(), args.instances, args.slots) {
        drop(screen);
        ui::report(&error);
        return ExitCode::FAILURE;
    }
    crate::runtime::block_on(async {
        let outcome = play(&args, screen.as_ref()).await;
        drop(screen);
        match outcome {
            Ok(outcome) => outcome.tell(),
            Err(error) => {
                ui::report(&error);
                ExitCode::FAILURE
            }
        }
    })
}

/// Whether a demo of this size can do with so many open files: what it always has open and some room, both ends of a slot's
/// request and its log, and an instance's connection.
fn check_open_files(permitted: Option<u64>, instances: u32, slots: u32) -> Result<(), DemoError> {
    let (instances, slots) = (u64::from(instances), u64::from(slots));
    let takes = FILES_ALWAYS + instances * (1 + FILES_OF_A_SLOT * slots);
    match permitted {
        Some(permitted) if permitted < takes => Err(DemoError::OpenFiles { permitted, takes }),
        _ => Ok(()),
    }
}

/// The demo while it runs.
struct Demo {
    jobs: Jobs,
    meter: Meter,
    frame: Frame,
    /// All jobs that were to come have come, and ended.
    complete: bool,
    client: reqwest::Client,
    looks: u32,
}

async fn play(args: &Args, screen: Option<&Screen>) -> Result<Outcome, DemoError> {
    let interrupts = Interrupts::new()?;
    let boot = Duration::from_millis(args.boot);
    let size = Size { instances: args.instances, slots: args.slots, boot, seed: args.seed };
    let jobs = args.jobs.map(usize::from).or(screen.is_none().then_some(JOBS_HEADLESS));
    let load = Load::new(args.seed, jobs, usize::try_from(args.instances * args.slots).unwrap_or(1));
    let began = Instant::now();
    let until = screen.is_none().then(|| began + Duration::from_secs(args.limit));
    let world = World::start(size).await?;
    let mut demo = Demo {
        jobs: Jobs::default(),
        meter: Meter::default(),
        frame: Frame { address: world.address.clone(), ..Frame::default() },
        complete: false,
        client: query::client()?,
        looks: 0,
    };
    let played = demo.watch(&world, load, screen, interrupts, until).await;
    demo.frame.ending = true;
    demo.draw(screen);
    let left = world.end().await?;
    played?;
    let asked = jobs.filter(|_| screen.is_none()).map(|jobs| (jobs, args.limit));
    Ok(Outcome { headless: screen.is_none(), demo, left, took: began.elapsed(), asked })
}

impl Demo {
    async fn watch(
        &mut self,
        world: &World,
        mut load: Load,
        screen: Option<&Screen>,
        mut interrupts: Interrupts,
        until: Option<Instant>,
    ) -> Result<(), DemoError> {
        let began = Instant::now();
        let mut events = world.coordinator.subscribe();
        let mut keys = screen.map(Screen::keys);
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = load.next();
        let mut due = began;
        loop {
            // Each branch is cancel-safe: it only waits.
            tokio::select! {
                event = events.recv() => match event {
                    Ok(event) => self.jobs.take(&event, Instant::now()),
                    Err(RecvError::Lagged(_)) => self.read_anew(world).await?,
                    Err(RecvError::Closed) => return Err(DemoError::Defect("the coordinator has ended".to_owned())),
                },
                () = sleep_until(due), if next.is_some() => {
                    if let Some(wave) = next.take() {
                        world.coordinator.create_pipeline(load::pipeline(&wave)?).await?;
                    }
                    next = load.next();
                    due = Instant::now() + next.as_ref().map_or(Duration::ZERO, |wave: &Wave| wave.after);
                }
                _ = look.tick() => {
                    self.look(world).await?;
                    self.frame.elapsed = began.elapsed();
                    self.draw(screen);
                    if until.is_some_and(|until| Instant::now() >= until) {
                        return Ok(());
                    }
                }
                () = interrupts.next() => return Ok(()),
                () = quit(&mut keys) => return Ok(()),
            }
            if next.is_none() && self.jobs.have_ended() {
                // What was told so far may be the half of a batch.
                self.read_anew(world).await?;
                if self.jobs.have_ended() {
                    self.complete = true;
                    return Ok(());
                }
            }
        }
    }

    /// All jobs, as the coordinator has them.
    async fn read_anew(&mut self, world: &World) -> Result<(), DemoError> {
        for pipeline in world.coordinator.pipelines(None, usize::MAX).await? {
            for job in world.coordinator.pipeline(pipeline.id).await?.jobs {
                self.jobs.take(&Event::JobChanged(job.into()), Instant::now());
            }
        }
        Ok(())
    }

    /// Asks the manager, as `muster fleet status` does.
    async fn look(&mut self, world: &World) -> Result<(), DemoError> {
        let mut reports: Reports = query::get(&self.client, &world.address, STATUS_PATH, &[]).await?;
        let report = reports.fleets.pop();
        let status = report.as_ref().and_then(|report| report.status.as_ref());
        let names = status.into_iter().flat_map(|status| &status.instances).map(|instance| instance.id.as_str());
        self.meter.look(names, Instant::now());
        let frame = &mut self.frame;
        if self.looks.is_multiple_of(DECISIONS_EVERY) {
            let mut told: ExplanationSet = query::get(&self.client, &world.address, EXPLAIN_PATH, &[]).await?;
            let decisions = told.fleets.pop().map(|fleet| fleet.decisions).unwrap_or_default();
            let latest = decisions.iter().rev().take(DECISIONS).rev();
            frame.decisions = latest.map(|told| told.text.clone()).collect();
        }
        self.looks = self.looks.wrapping_add(1);
        frame.counts = self.jobs.counts();
        frame.waits = self.jobs.waits();
        frame.cost = self.meter.cost(PRICE_PER_HOUR);
        frame.cost_per_hour = f64::from(u32::try_from(self.meter.now).unwrap_or(u32::MAX)) * PRICE_PER_HOUR;
        frame.past.push_back((frame.counts.waiting, self.meter.now));
        if frame.past.len() > PAST_MAX {
            frame.past.pop_front();
        }
        frame.report = report;
        Ok(())
    }

    fn draw(&self, screen: Option<&Screen>) {
        let Some(screen) = screen else { return };
        let (width, height) = Screen::size();
        screen.show(&draw(&self.frame, width, height));
    }
}

/// Waits for the key that ends the demo; for ever where there are no keys.
async fn quit(keys: &mut Option<tokio::sync::mpsc::Receiver<u8>>) {
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
    /// The summary; all is well where every job ended well, or the demo was ended before.
    fn tell(&self) -> ExitCode {
        let Demo { jobs, meter, complete, .. } = &self.demo;
        let (counts, waits) = (jobs.counts(), jobs.waits());
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        ui::outln(&format!(
            "jobs       {} of {} done, {} failed, in {}",
            counts.succeeded,
            counts.created,
            counts.failed,
            seconds(self.took)
        ));
        let waited = format!(
            "waits      half within {}, 95 % within {}, longest {}, from the queue to the first line",
            seconds(waits.half),
            seconds(waits.p95),
            seconds(waits.most)
        );
        // Of no job there are no waits.
        ui::outln(if counts.succeeded + counts.failed > 0 { &waited } else { "waits      no job has ended" });
        ui::outln(&format!("instances  {} made, at most {} at once, {} left", meter.seen(), meter.most, self.left));
        ui::outln(&format!(
            "cost       {:.5}, at {PRICE_PER_HOUR} for an instance and hour (a model price)",
            meter.cost(PRICE_PER_HOUR)
        ));
        if let Some((jobs, limit)) =
            self.asked.filter(|(_, limit)| !complete && self.took >= Duration::from_secs(*limit))
        {
            ui::error(&format!(
                "the demo was given up at its limit of {limit} s, with {} of {jobs} jobs done; --limit gives it more time",
                counts.succeeded
            ));
        }
        if self.left > 0 || counts.failed > 0 || (self.headless && !complete) {
            return ExitCode::FAILURE;
        }
        crate::ci::with_output(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_are_told_with_the_number_that_suffices() {
        let error = check_open_files(Some(89), 6, 2).unwrap_err().to_string();
        assert!(error.contains("permitted: 89") && error.contains("`ulimit -n 90`"), "{error}");
        check_open_files(Some(90), 6, 2).unwrap();
        check_open_files(None, 100, 16).unwrap();
    }
}
