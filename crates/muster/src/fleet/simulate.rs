//! `muster fleet simulate`.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use muster_taskscaler::config::Config;
use muster_taskscaler::sim::cloud::{CloudConfig, Spread};
use muster_taskscaler::sim::report::Report;
use muster_taskscaler::sim::scenario::Scenario;
use muster_taskscaler::sim::simulation::Simulation;
use muster_taskscaler::sim::trace::{self, Job, Pattern, Shape};
use muster_taskscaler::time::Time;

use crate::ci::{self, ui};

const TIMELINE_POINTS: u64 = 600;
/// Time to simulate after the last job has finished.
const SETTLE_TIME: Duration = Duration::from_secs(1800);
/// A simulation with more idle instances would take minutes.
const MAX_IDLE_INSTANCES: u64 = 20_000;
const DAY_S: u64 = 86_400;
/// More jobs would take gigabytes of memory.
const MAX_JOBS: usize = 5_000_000;
/// A trace with [`MAX_JOBS`] jobs is smaller.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// Arguments of `muster fleet simulate`.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct SimulateArgs {
    /// Policy to simulate: TOML with the keys of `[runners.autoscaler]`. Repeat to compare policies.
    #[arg(long = "policy", value_name = "FILE", required = true)]
    policies: Vec<PathBuf>,
    /// Recorded jobs: lines of `ARRIVAL,DURATION` in seconds, or JSON `[{"arrival_s": .., "duration_s": ..}]`.
    #[arg(long, value_name = "FILE", conflicts_with = "pattern")]
    trace: Option<PathBuf>,
    /// Pattern of generated jobs, if no trace is given.
    #[arg(long, value_enum, default_value_t = PatternName::Day)]
    pattern: PatternName,
    /// Days of generated jobs.
    #[arg(long, default_value_t = 1)]
    days: u32,
    /// Generated jobs per hour at the busiest time.
    #[arg(long, default_value_t = 300.0)]
    peak_rate: f64,
    /// Generated jobs per hour at the quietest time.
    #[arg(long, default_value_t = 10.0)]
    off_peak_rate: f64,
    /// Median duration of generated jobs, in seconds.
    #[arg(long, default_value_t = 180.0)]
    duration: f64,
    /// Average number of generated jobs that arrive together; at least 20 with --pattern burst.
    #[arg(long, default_value_t = 1)]
    burst: u32,
    /// Factor by which generated days differ: at 1.6, one day in forty has more than 1.6 times the usual jobs.
    #[arg(long, default_value_t = 1.0)]
    daily_variation: f64,
    /// Cloud model, in TOML: boot times, limits, quota, stockouts, spot preemptions. Default: 40 s boot time, no limits.
    #[arg(long, value_name = "FILE")]
    cloud: Option<PathBuf>,
    /// Days at the beginning that are left out of the results; a forecast learns from them.
    #[arg(long, default_value_t = 0)]
    skip_days: u32,
    /// Seed of the random numbers. The same seed gives the same result.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write an SVG chart of waiting jobs, running jobs and instances over time.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PatternName {
    /// Office hours, the same each day.
    Day,
    /// Office hours, with quiet weekends.
    Week,
    /// Pipelines of many jobs at once, at random times.
    Burst,
    /// Constant rate.
    Flat,
}

#[derive(Debug, thiserror::Error)]
enum SimulateError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is larger than the maximum of {} MiB", path.display(), MAX_FILE_BYTES >> 20)]
    Large { path: PathBuf },
    #[error("{}: line {line} is not UTF-8; save the file as plain text in UTF-8", path.display())]
    Encoding { path: PathBuf, line: usize },
    #[error("failed to write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("failed to parse {}", path.display())]
    Toml { path: PathBuf, source: toml::de::Error },
    #[error("{}: {problem}", path.display())]
    Unsupported { path: PathBuf, problem: String },
    #[error("{} is not a valid policy:\n{}", path.display(), problems.join("").trim_end())]
    Invalid { path: PathBuf, problems: Vec<String> },
    #[error("{} is not a valid trace", path.display())]
    Trace { path: PathBuf, source: trace::TraceError },
    #[error("{flag} must be {expected}, not {value}")]
    Number { flag: &'static str, value: String, expected: &'static str },
    #[error(
        "the pattern generates no jobs or more than {MAX_JOBS}; change --peak-rate, --off-peak-rate, --days or --burst"
    )]
    Jobs,
    #[error("--skip-days {days} skips all jobs: the last one arrives on day {last}")]
    Skipped { days: u32, last: u64 },
    #[error("the engine violated an invariant (this is a bug, please report it with the policy and the seed)")]
    Engine(#[from] muster_taskscaler::engine::Violation),
}

pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) report: Report,
    has_price: bool,
}

pub(super) fn run(args: &SimulateArgs) -> ExitCode {
    match simulate(args) {
        Ok(text) => ci::print_styled(&text),
        Err(error) => {
            ui::report(&error);
            ExitCode::from(2)
        }
    }
}

fn simulate(args: &SimulateArgs) -> Result<String, SimulateError> {
    let jobs = jobs(args)?;
    // A simulation may take minutes, so fail first if the chart cannot be written.
    let svg = args.svg.as_deref().map(ChartFile::create).transpose()?;
    let cloud: CloudConfig = match &args.cloud {
        Some(path) => {
            toml::from_str(&read(path)?).map_err(|source| SimulateError::Toml { path: path.clone(), source })?
        }
        None => CloudConfig::default(),
    };
    if let (Some(problem), Some(path)) = (cloud.problem(), &args.cloud) {
        return Err(SimulateError::Unsupported { path: path.clone(), problem });
    }
    let last = jobs.last().map_or(Time::ZERO, |job| job.at);
    let measured_from = Time::ZERO + Duration::from_secs(u64::from(args.skip_days) * DAY_S);
    if last < measured_from {
        return Err(SimulateError::Skipped { days: args.skip_days, last: last.as_millis() / 1000 / DAY_S + 1 });
    }
    let max_running = max_running(&jobs);
    let mut outcomes = Vec::new();
    for path in &args.policies {
        let config = policy(path)?;
        if let Some(problem) = too_large(&config, &cloud, max_running) {
            return Err(SimulateError::Unsupported { path: path.clone(), problem });
        }
        let has_price = config.groups.iter().any(|group| group.price_per_hour > 0.0);
        let clouds = vec![cloud.clone(); config.groups.len()];
        let mut scenario = Scenario::fault_free(config, clouds, args.seed, last + Duration::from_secs(DAY_S));
        scenario.settle_time = Some(SETTLE_TIME);
        scenario.measured_from = measured_from;
        scenario.sample_interval = Some(Duration::from_millis((last.as_millis() / TIMELINE_POINTS).max(1000)));
        let report = Simulation::new(&scenario, &jobs).run()?;
        outcomes.push(Outcome { name: name_of(path, &args.policies), report, has_price });
    }
    if let Some(svg) = svg {
        svg.write(&super::svg::svg(&outcomes))?;
    }
    Ok(if args.json { json(&outcomes, args, jobs.len()) } else { table(&outcomes, args, jobs.len()) })
}

/// Reads a policy from a file. A group without a name is called `main`.
fn policy(path: &Path) -> Result<Config, SimulateError> {
    let invalid = |problems| SimulateError::Invalid { path: path.to_owned(), problems };
    let scaling = muster_config::parse_scaling(&read(path)?)
        .map_err(|problems| invalid(problems.iter().map(|problem| problem.render(path)).collect()))?;
    scaling.named("main").map_err(|problems| invalid(problems.to_vec()))
}

struct ChartFile {
    path: PathBuf,
    file: std::fs::File,
}

impl ChartFile {
    fn create(path: &Path) -> Result<Self, SimulateError> {
        let write_error = |source| SimulateError::Write { path: path.to_owned(), source };
        // The previous content is kept until the new content is complete.
        let mut options = std::fs::File::options();
        options.write(true).create(true).truncate(false);
        Ok(Self { path: path.to_owned(), file: options.open(path).map_err(write_error)? })
    }

    fn write(mut self, text: &str) -> Result<(), SimulateError> {
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|source| SimulateError::Write { path: self.path, source })
    }
}

/// Returns the file name of the policy, or its path if another policy has the same file name.
fn name_of(path: &Path, all: &[PathBuf]) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = stem(path);
    if all.iter().filter(|other| stem(other) == name).count() > 1 { path.display().to_string() } else { name }
}

/// Returns the maximum number of jobs that run at once if no job waits.
fn max_running(jobs: &[Job]) -> u64 {
    let starts = jobs.iter().map(|job| (job.at, true));
    let mut changes: Vec<(Time, bool)> = starts.chain(jobs.iter().map(|job| (job.at + job.duration, false))).collect();
    changes.sort_unstable();
    let (mut running, mut max) = (0_u64, 0);
    for (_, starts) in changes {
        running = if starts { running + 1 } else { running.saturating_sub(1) };
        max = max.max(running);
    }
    max
}

/// Returns why a simulation would take too long, or `None`.
fn too_large(config: &Config, cloud: &CloudConfig, max_running: u64) -> Option<String> {
    let idle = config.policies.max_idle(max_running).div_ceil(u64::from(config.capacity.get()));
    let max = config.groups.iter().map(|group| Some(u64::from(group.max_instances)).filter(|max| *max > 0));
    let max: Option<u64> = max.sum();
    let quota = cloud.quota.map(|quota| u64::from(quota) * config.groups.len() as u64);
    let machines = [max, quota].into_iter().flatten().fold(idle, u64::min);
    (machines > MAX_IDLE_INSTANCES).then(|| {
        format!(
                "idle_count or scale_factor retains {machines} idle instances, but a simulation supports at most {MAX_IDLE_INSTANCES}; set max_instances \
                 below that"
        )
    })
}

fn read(path: &Path) -> Result<String, SimulateError> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|source| SimulateError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(SimulateError::Large { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        SimulateError::Encoding { path: path.to_owned(), line }
    })
}

fn jobs(args: &SimulateArgs) -> Result<Vec<Job>, SimulateError> {
    if let Some(path) = &args.trace {
        return trace::read(&read(path)?).map_err(|source| SimulateError::Trace { path: path.clone(), source });
    }
    for (flag, value) in [
        ("--peak-rate", args.peak_rate),
        ("--off-peak-rate", args.off_peak_rate),
        ("--duration", args.duration),
        ("--daily-variation", args.daily_variation),
    ] {
        if !(value.is_finite() && (0.0..=1e6).contains(&value)) {
            return Err(SimulateError::Number { flag, value: value.to_string(), expected: "from 0 to 1000000" });
        }
    }
    if args.daily_variation < 1.0 {
        return Err(SimulateError::Number {
            flag: "--daily-variation",
            value: args.daily_variation.to_string(),
            expected: "at least 1",
        });
    }
    if args.peak_rate < args.off_peak_rate {
        let expected = "at least --off-peak-rate";
        return Err(SimulateError::Number { flag: "--peak-rate", value: args.peak_rate.to_string(), expected });
    }
    if args.burst == 0 {
        return Err(SimulateError::Number { flag: "--burst", value: args.burst.to_string(), expected: "at least 1" });
    }
    if !(1..=365).contains(&args.days) {
        return Err(SimulateError::Number { flag: "--days", value: args.days.to_string(), expected: "from 1 to 365" });
    }
    if args.skip_days >= args.days {
        return Err(SimulateError::Number {
            flag: "--skip-days",
            value: args.skip_days.to_string(),
            expected: "below --days",
        });
    }
    let shape = match args.pattern {
        PatternName::Day => Shape::Day,
        PatternName::Week => Shape::Week,
        PatternName::Burst => Shape::Burst,
        PatternName::Flat => Shape::Flat,
    };
    let burst = if args.pattern == PatternName::Burst { args.burst.max(20) } else { args.burst };
    let duration = Spread::new(args.duration.max(0.1), 4.0);
    let (peak_per_hour, off_peak_per_hour) = (args.peak_rate, args.off_peak_rate);
    if args.peak_rate.max(args.off_peak_rate) * 24.0 * f64::from(args.days) > MAX_JOBS as f64 {
        return Err(SimulateError::Jobs);
    }
    let pattern = Pattern {
        shape,
        days: args.days,
        peak_per_hour,
        off_peak_per_hour,
        duration,
        burst,
        daily_variation: args.daily_variation,
    };
    let jobs = pattern.jobs(args.seed, MAX_JOBS + 1);
    if jobs.is_empty() || jobs.len() > MAX_JOBS { Err(SimulateError::Jobs) } else { Ok(jobs) }
}

fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds >= 120.0 { format!("{:.1} min", seconds / 60.0) } else { format!("{seconds:.1} s") }
}

fn table(outcomes: &[Outcome], args: &SimulateArgs, jobs: usize) -> String {
    let heading = [
        "policy",
        "done",
        "not done",
        "wait p50",
        "p95",
        "p99",
        "max",
        "cost",
        "instance h",
        "idle",
        "instances",
        "rescheduled",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for Outcome { name, report, has_price } in outcomes {
        rows.push(vec![
            name.clone(),
            report.done.to_string(),
            report.unfinished.to_string(),
            seconds(report.wait(0.5)),
            seconds(report.wait(0.95)),
            seconds(report.wait(0.99)),
            seconds(report.wait(1.0)),
            if *has_price { format!("{:.2}", report.cost) } else { "-".to_owned() },
            format!("{:.1}", report.machine_hours),
            format!("{:.0} %", report.idle_share() * 100.0),
            report.machines.to_string(),
            report.rescheduled.to_string(),
        ]);
    }
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let s = if jobs == 1 { "" } else { "s" };
    let mut text = format!("{jobs} job{s}, seed {}\n", args.seed);
    for row in rows {
        let cells: Vec<String> = (row.iter().zip(&widths).enumerate())
            .map(
                |(column, (cell, width))| {
                    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn json(outcomes: &[Outcome], args: &SimulateArgs, jobs: usize) -> String {
    let policies: Vec<serde_json::Value> = outcomes
        .iter()
        .map(|Outcome { name, report, .. }| {
            let wait = |quantile| report.wait(quantile).as_secs_f64();
            serde_json::json!({
                "policy": name,
                "wait_s": { "mean": report.mean_wait().as_secs_f64(), "p50": wait(0.5), "p95": wait(0.95), "p99": wait(0.99), "max": wait(1.0) },
                "idle_share": report.idle_share(),
                "report": report,
            })
        })
        .collect();
    ui::json(&serde_json::json!({ "seed": args.seed, "jobs": jobs, "policies": policies }))
}
