//! `muster ci show`: shows past runs, their jobs, and a job's log, step results and artifacts.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use muster_agent_api::result::{ResourceUsage, StepNode, StepStatus, StepUsage};
use muster_archive::{Entry, EntryKind, Meter, Root, Tree, create_root};
use muster_builtins::{Extraction, LimitsFrom};
use muster_coordinator::History;
use muster_coordinator::views::{ArtifactView, JobView, PipelineView};
use muster_job::JobStatus;
use muster_steps::stop::StopToken;

use super::args::ShowArgs;
use super::config::Config;
use super::error::{CiError, ExitStatus};
use super::prepare::locate;
use super::record::RunRecord;
use super::run::{TraceLines, failure_message, job_duration, tree_of, usage_of};
use super::state::ProjectState;
use super::ui::{self, Table};
use crate::unpack::UnpackArgs;

pub(super) async fn show(args: ShowArgs) -> Result<ExitStatus, CiError> {
    let project = locate(&args.repository.directory)?;
    let (run, job) = match (args.run.as_deref(), args.job) {
        (None, _) => {
            show_runs(&project);
            return Ok(ExitStatus::Passed);
        }
        (Some(run), job) => match run_number(&project, run) {
            Some(number) => (number, job),
            // `muster ci show JOB` shows a job of the last run.
            None if job.is_none() => (last_run(&project)?, Some(run.to_owned())),
            None => return Err(CiError::Usage(format!("run `{run}` does not exist; `muster ci show` lists the runs"))),
        },
    };
    let directory = existing_run(&project, run)?;
    let history = History::open(&directory.join("coordinator")).await?;
    let pipelines = pipelines(&history).await?;
    let Some(name) = job else {
        let options = [args.log, args.timestamps, args.raw, args.usage, args.results, args.extract.is_some()];
        if options.contains(&true) {
            return Err(CiError::Usage(format!(
                "`--log`, `--timestamps`, `--raw`, `--usage`, `--results` and `--extract` require a job, as in `muster ci show {run} JOB`"
            )));
        }
        ui::out(&run_text(run, &pipelines, project.is_active(run)));
        return Ok(ExitStatus::Passed);
    };
    let job = find_job(&pipelines, &name, run)?;
    if let Some(target) = &args.extract {
        return extract(&history, job, target, &Config::load()?.unpack).await;
    }
    if args.results {
        ui::out(&results_text(job)?);
        return Ok(ExitStatus::Passed);
    }
    if args.raw {
        raw_log(&history, job).await?;
        return Ok(ExitStatus::Passed);
    }
    if !args.log {
        ui::outln(&job_text(job, &pipelines, project.is_active(run), args.usage));
    }
    show_log(&history, job, args.timestamps).await?;
    Ok(ExitStatus::Passed)
}

/// Parses the number of a run, or `last`. Returns `None` for other text, or for `last` without runs.
fn run_number(project: &ProjectState, text: &str) -> Option<u64> {
    if text == "last" { project.run_numbers().last().copied() } else { text.parse().ok() }
}

pub(super) fn last_run(project: &ProjectState) -> Result<u64, CiError> {
    let no_runs = || CiError::Failed("this repository has no past runs; start one with `muster ci`".to_owned());
    project.run_numbers().last().copied().ok_or_else(no_runs)
}

pub(super) fn existing_run(project: &ProjectState, run: u64) -> Result<PathBuf, CiError> {
    let directory = project.run_directory(run);
    if directory.join("coordinator").is_dir() {
        return Ok(directory);
    }
    let text = format!("run {run} does not exist or was deleted; `muster ci show` lists the existing runs");
    Err(CiError::Usage(text))
}

/// Returns all pipelines of the run, the root first.
pub(super) async fn pipelines(history: &History) -> Result<Vec<PipelineView>, CiError> {
    let mut views = Vec::new();
    for summary in history.pipelines(None, usize::MAX).await? {
        views.push(history.pipeline(summary.id).await?);
    }
    Ok(views)
}

/// Returns the job with this name in the root pipeline, or else in a child pipeline, or else the job with this ID.
pub(super) fn find_job<'a>(pipelines: &'a [PipelineView], name: &str, run: u64) -> Result<&'a JobView, CiError> {
    let by_id = |job: &&JobView| job.id.to_string() == name;
    let found = pipelines.iter().find_map(|pipeline| pipeline.job(name));
    let found = found.or_else(|| pipelines.iter().flat_map(|pipeline| &pipeline.jobs).find(by_id));
    found.ok_or_else(|| {
        let names = pipelines.iter().flat_map(|pipeline| pipeline.jobs.iter().map(|job| job.name.as_str()));
        let help = muster_pipeline::suggest::did_you_mean(name, names);
        let help = help.unwrap_or_else(|| format!("`muster ci show {run}` lists its jobs"));
        CiError::Usage(format!("run {run} has no job `{name}`; {help}"))
    })
}

fn show_runs(project: &ProjectState) {
    let mut numbers = project.run_numbers();
    numbers.reverse();
    if numbers.is_empty() {
        ui::note("this repository has no past runs; start one with `muster ci`");
        return;
    }
    let mut table = Table::new(&["RUN", "STARTED (UTC)", "EVENT", "REF", "COMMIT", "RESULT", "TIME"]);
    let plain = anstyle::Style::new();
    for number in numbers {
        let Some(record) = RunRecord::read(&project.run_directory(number)) else { continue };
        let (style, outcome) = match record.outcome.as_deref() {
            Some("passed") => (ui::GOOD, "passed"),
            Some("failed") => (ui::BAD, "failed"),
            Some("blocked") => (ui::WARN, "blocked"),
            Some("error") => (ui::BAD, "error"),
            Some(_) => (ui::WARN, "canceled"),
            None if project.is_active(number) => (ui::BUSY, "running"),
            None => (ui::WARN, "killed"),
        };
        let commit = record.head_sha.get(..8).unwrap_or(&record.head_sha);
        let commit = if record.dirty { format!("{commit} + changes") } else { commit.to_owned() };
        let started = record.started_at.get(..19).unwrap_or(&record.started_at).replace('T', " ");
        let time = record.duration_ms.map(|ms| ui::duration(std::time::Duration::from_millis(ms)));
        table.row([
            (number.to_string(), plain),
            (started, ui::DIM),
            (record.source, plain),
            (record.ref_name, plain),
            (commit, plain),
            (outcome.to_owned(), style),
            (time.unwrap_or_default(), plain),
        ]);
    }
    ui::out(&table.to_string());
}

/// Returns the status of a job. An unfinished job of a run that is no longer active is `unknown` or `not run`.
fn status_text(job: &JobView, is_active: bool) -> &'static str {
    match job.status {
        JobStatus::Pending | JobStatus::Running | JobStatus::Canceling if !is_active => "unknown",
        JobStatus::Created | JobStatus::WaitingForResource | JobStatus::Scheduled if !is_active => "not run",
        status => status.as_str(),
    }
}

/// Returns why a job failed. For a bridge, also names the failed jobs of the child pipeline.
fn reason(job: &JobView, pipelines: &[PipelineView]) -> Option<String> {
    let reason = failure_message(job)?;
    let child = pipelines.iter().filter(|view| Some(view.summary.id) == job.downstream);
    let failed = child.flat_map(|view| &view.jobs).filter(|inner| inner.status == JobStatus::Failed);
    let names: Vec<_> =
        failed.filter(|inner| !inner.retried && !inner.allow_failure).map(|inner| inner.name.as_str()).collect();
    Some(if names.is_empty() { reason } else { format!("{reason}: {}", names.join(", ")) })
}

fn status_style(job: &JobView, is_active: bool) -> anstyle::Style {
    match job.status {
        _ if status_text(job, is_active) == "unknown" => ui::WARN,
        JobStatus::Success => ui::GOOD,
        JobStatus::Failed if job.allow_failure => ui::WARN,
        JobStatus::Failed => ui::BAD,
        JobStatus::Running => ui::BUSY,
        _ => ui::DIM,
    }
}

fn run_text(run: u64, pipelines: &[PipelineView], is_active: bool) -> String {
    let mut text = String::new();
    for view in pipelines {
        let title = match view.summary.parent {
            None => format!("run {run}"),
            Some(parent) => format!("child pipeline {} of job {}", view.summary.id, parent.bridge),
        };
        let state =
            if is_active || view.summary.status.is_complete() { view.summary.status.as_str() } else { "stopped" };
        let name = view.summary.name.as_deref().map(|name| format!(" {}", ui::plain(name))).unwrap_or_default();
        let _ = writeln!(text, "{}  {state}", ui::paint(ui::BOLD, &format!("{title}{name}")));
        let mut table = Table::new(&["ID", "JOB", "STAGE", "STATUS", "TIME", "ARTIFACTS", ""]);
        let plain = anstyle::Style::new();
        for job in &view.jobs {
            let artifacts: Vec<_> = job.artifacts.iter().map(artifact_kind).collect();
            let retried = if job.retried { "retried" } else { "" };
            table.row([
                (job.id.to_string(), ui::DIM),
                (job.name.clone(), plain),
                (job.stage.clone(), plain),
                (status_text(job, is_active).to_owned(), status_style(job, is_active)),
                (job_duration(job).map(ui::duration).unwrap_or_default(), plain),
                (artifacts.join(", "), plain),
                (reason(job, pipelines).unwrap_or_else(|| retried.to_owned()), ui::DIM),
            ]);
        }
        let _ = writeln!(text, "{table}");
    }
    text
}

fn job_text(job: &JobView, pipelines: &[PipelineView], is_active: bool, with_usage: bool) -> String {
    let mut text = String::new();
    let time = job_duration(job).map(|time| format!(" in {}", ui::duration(time))).unwrap_or_default();
    let status = ui::paint(status_style(job, is_active), status_text(job, is_active));
    let _ = writeln!(text, "{}  {status}{time}", ui::paint(ui::BOLD, &ui::plain(&job.name)));
    if let Some(reason) = reason(job, pipelines) {
        let _ = writeln!(text, "  {}", ui::plain(&reason));
    }
    if let Some(line) = usage_of(job).as_ref().and_then(usage_text) {
        let _ = writeln!(text, "  {line}");
    }
    if let Some(coverage) = job.coverage {
        let _ = writeln!(text, "  coverage {coverage}%");
    }
    if let Some(environment) = &job.environment {
        let url = environment.url.as_deref().map(|url| format!(" at {url}")).unwrap_or_default();
        let _ = writeln!(text, "  environment {}{}", ui::plain(&environment.name), ui::plain(&url));
    }
    if let Some(tree) = tree_of(job) {
        add_steps(&mut text, &tree, 1, with_usage);
    }
    for artifact in &job.artifacts {
        let _ = writeln!(
            text,
            "  artifact {} {} ({}{})",
            artifact.kind,
            ui::plain(&artifact.filename),
            ui::size(artifact.size),
            if artifact.deleted { ", expired" } else { "" }
        );
    }
    text
}

fn artifact_kind(artifact: &ArtifactView) -> String {
    if artifact.deleted { format!("{} (expired)", artifact.kind) } else { artifact.kind.clone() }
}

fn results_text(job: &JobView) -> Result<String, CiError> {
    let tree = job.result_tree.as_ref().ok_or_else(|| {
        let name = ui::plain(&job.name);
        CiError::Failed(format!("job `{name}` has no result tree; only a job that an agent has run to its end has one"))
    })?;
    Ok(ui::json(tree))
}

fn usage_text(usage: &ResourceUsage) -> Option<String> {
    let of_processes = StepUsage {
        cpu_ms: usage.cpu_ms,
        memory_bytes: usage.memory_bytes,
        read_bytes: usage.read_bytes,
        written_bytes: usage.written_bytes,
        received_bytes: usage.received_bytes,
        sent_bytes: usage.sent_bytes,
    };
    amounts_text(of_processes, if usage.counted_by_process { " in its largest process" } else { "" })
}

fn step_usage_text(usage: StepUsage) -> Option<String> {
    amounts_text(usage, "")
}

/// Returns the known amounts, such as `used 1.2s of CPU, 3.0 MB of memory`, or `None` if there are none. Writes
/// `memory_suffix` after the amount of memory.
fn amounts_text(usage: StepUsage, memory_suffix: &str) -> Option<String> {
    let size = |bytes: Option<u64>| bytes.filter(|bytes| *bytes > 0).map(ui::size);
    let cpu = usage.cpu_ms.map(|ms| format!("{} of CPU", ui::duration(std::time::Duration::from_millis(ms))));
    let memory = size(usage.memory_bytes).map(|size| format!("{size} of memory{memory_suffix}"));
    let read = size(usage.read_bytes).map(|size| format!("{size} read"));
    let written = size(usage.written_bytes).map(|size| format!("{size} written"));
    let received = size(usage.received_bytes).map(|size| format!("{size} received"));
    let sent = size(usage.sent_bytes).map(|size| format!("{size} sent"));
    let parts: Vec<String> = [cpu, memory, read, written, received, sent].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("used {}", parts.join(", ")))
}

fn add_steps(text: &mut String, step: &StepNode, depth: usize, with_usage: bool) {
    let (style, sign) = match step.status {
        StepStatus::Success => (ui::GOOD, "✓"),
        StepStatus::Failure => (ui::BAD, "✗"),
        StepStatus::Cancelled => (ui::WARN, "-"),
        StepStatus::Skipped => (ui::DIM, "-"),
    };
    let time = ui::duration(std::time::Duration::from_millis(step.duration_ms));
    let code = step.exit_code.filter(|code| *code != 0).map(|code| format!("  exit status {code}"));
    // The message often contains the exit status already.
    let code = code.filter(|code| !step.message.contains(code.trim_start())).unwrap_or_default();
    let message = if step.message.is_empty() { String::new() } else { format!("  {}", ui::plain(&step.message)) };
    // The usage of the whole job has a separate line.
    let used = step.used.filter(|_| with_usage && depth > 1).and_then(step_usage_text);
    let used = used.map(|used| format!("  {used}")).unwrap_or_default();
    let attempts = step.attempts.map(|attempts| format!("  {attempts} attempts")).unwrap_or_default();
    let detail = ui::paint(ui::DIM, &format!("{time}{attempts}{used}"));
    let line = format!("{} {}  {detail}{code}{message}", ui::paint(style, sign), ui::plain(&step.name));
    let _ = writeln!(text, "{:1$}{line}", "", depth * 2);
    step.steps.iter().for_each(|inner| add_steps(text, inner, depth + 1, with_usage));
}

async fn show_log(history: &History, job: &JobView, timestamps: bool) -> Result<(), CiError> {
    let mut lines = TraceLines::with_times(timestamps);
    let mut offset = 0;
    loop {
        let bytes = history.read_trace(job.id, offset).await?;
        offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let ready = if bytes.is_empty() { lines.finish() } else { lines.push(&bytes) };
        let text: String = ready.into_iter().map(|line| format!("{line}\u{1b}[0m\n")).collect();
        if ui::out_while_read(&text).is_break() || bytes.is_empty() {
            return Ok(());
        }
    }
}

async fn raw_log(history: &History, job: &JobView) -> Result<(), CiError> {
    let mut offset = 0;
    loop {
        let bytes = history.read_trace(job.id, offset).await?;
        offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if ui::out_raw_while_read(&bytes).is_break() || bytes.is_empty() {
            return Ok(());
        }
    }
}

async fn extract(history: &History, job: &JobView, target: &Path, limits: &UnpackArgs) -> Result<ExitStatus, CiError> {
    if job.artifacts.is_empty() {
        return Err(CiError::Failed(format!("job `{}` has no artifacts", job.name)));
    }
    let (expired, existing): (Vec<_>, Vec<_>) = job.artifacts.iter().partition(|artifact| artifact.deleted);
    if existing.is_empty() {
        return Err(CiError::Failed(format!("the artifacts of job `{}` have expired; run the job again", job.name)));
    }
    for artifact in expired {
        ui::warning(&format!("`{}` has expired, and is not extracted", ui::plain(&artifact.filename)));
    }
    for artifact in existing {
        let content = history.open_artifact(job.id, artifact).await?;
        unpack(artifact, content, target, limits)?;
    }
    ui::outln(&format!("extracted to {}", target.display()));
    Ok(ExitStatus::Passed)
}

fn unpack(artifact: &ArtifactView, mut content: File, target: &Path, limits: &UnpackArgs) -> Result<(), CiError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CiError::System { action: format!("extract to `{}`", path.display()), source }
    };
    if artifact.kind == "archive" {
        return unpack_archive(content, target, limits);
    }
    let name = Path::new(&artifact.filename).file_name().unwrap_or(artifact.kind.as_ref());
    let dir = create_root(target, &Root::Chosen).map_err(failed(target))?;
    // An archive may contain a symlink with the report's name, which must not be followed.
    let report = Entry { path: name.into(), kind: EntryKind::File, mode: None, modified: None, size: None };
    let meter = Meter::new(limits.limits(), &|| false);
    let mut tree = Tree::new(&dir, &meter);
    let added = tree.add(&report, &mut content).and_then(|()| tree.finish());
    let skipped = added.map_err(|error| failed(target)(std::io::Error::other(error)))?;
    skipped.lines().for_each(|line| ui::warning(&line));
    Ok(())
}

/// Unpacks an archive that a job created. Its entries are not trusted: none is written outside `target`.
pub(super) fn unpack_archive(archive: File, target: &Path, limits: &UnpackArgs) -> Result<(), CiError> {
    let extraction =
        Extraction { limits: limits.limits(), limits_from: LimitsFrom::CiConfig, ..Extraction::new(target.to_owned()) };
    let result = extraction.run(archive, &StopToken::new());
    let skipped = result.map_err(|failure| CiError::System {
        action: format!("extract to `{}`", target.display()),
        source: std::io::Error::other(failure),
    })?;
    skipped.lines().for_each(|line| ui::warning(&line));
    Ok(())
}
