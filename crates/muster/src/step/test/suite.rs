//! Runs tests at one agent. Several tests run at the same time, each in a separate directory.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use muster_agent_api::plan::JobPlan;
use muster_job::{Variable, error_chain};
use tokio::signal::unix::{SignalKind, signal};

use super::super::local::{LocalAgent, LocalError};
use super::super::request::{StepCall, record_calls, request};
use super::super::run::CommandError;
use super::check::{Mismatch, check};
use super::file::{Case, Test};

#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) case: Case,
    pub(super) mismatches: Vec<Mismatch>,
    pub(super) log: String,
    pub(super) duration: Duration,
}

/// Runs the tests, at most `jobs` at once, and calls `report` when a test has ended. The returned verdicts are in the
/// order of `cases`.
pub(super) async fn run(
    cases: Vec<Case>,
    jobs: usize,
    report: impl Fn(&Verdict),
) -> Result<Vec<Verdict>, CommandError> {
    let agent = LocalAgent::start().await?;
    let mut running = futures::stream::iter(cases.into_iter().enumerate())
        .map(|(number, case)| {
            let agent = &agent;
            async move { (number, run_case(agent, number, case).await) }
        })
        .buffer_unordered(jobs);
    let mut verdicts = Vec::new();
    let mut failure = None;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(LocalError::Signals)?;
    loop {
        let next = tokio::select! {
            next = running.next() => next,
            _ = interrupt.recv() => {
                failure = Some(CommandError::Interrupted);
                break;
            }
        };
        match next {
            Some((number, Ok(verdict))) => {
                report(&verdict);
                verdicts.push((number, verdict));
            }
            Some((_, Err(error))) => {
                failure = Some(error);
                break;
            }
            None => break,
        }
    }
    drop(running);
    agent.stop().await;
    if let Some(error) = failure {
        return Err(error);
    }
    verdicts.sort_by_key(|(number, _)| *number);
    Ok(verdicts.into_iter().map(|(_, verdict)| verdict).collect())
}

async fn run_case(agent: &LocalAgent, number: usize, case: Case) -> Result<Verdict, CommandError> {
    let started = Instant::now();
    let id = format!("test-{number}");
    let work_dir = agent.temp_dir().join(&id);
    let verdict = |mismatches, log| Verdict { case: case.clone(), mismatches, log, duration: started.elapsed() };
    let invalid = |message: String| verdict(vec![Mismatch { line: case.line, message }], String::new());
    if let Err((path, error)) = create_files(&work_dir, &case.test) {
        return Ok(invalid(format!("failed to create the file {path:?}: {error}")));
    }
    let plan = match plan(&case, &work_dir) {
        Ok(plan) => plan,
        Err(error) => return Ok(invalid(error_chain(&error))),
    };
    let variables = case.test.variables.iter().map(|(name, value)| Variable::public(name, value));
    let request = request(&id, &plan, &variables.collect::<Vec<_>>())?;
    let mut log = Vec::new();
    let result = agent.run(request, |bytes| log.extend_from_slice(bytes)).await?;
    let log = String::from_utf8_lossy(&log).into_owned();
    let mismatches = check(&case, &result, &log, &work_dir);
    agent.connection.close(&id).await.map_err(LocalError::from)?;
    // If this fails, the directory is removed later, together with the agent's directory that contains it.
    let _ = muster_files::remove_tree(&work_dir);
    Ok(verdict(mismatches, log))
}

fn plan(case: &Case, work_dir: &Path) -> Result<JobPlan, super::super::request::RequestError> {
    let Test { step, inputs, env, fakes, timeout_s, .. } = &*case.test;
    let directory = case.path.parent().unwrap_or(Path::new("."));
    let local = directory.join(step);
    let step = if local.exists() { local.to_string_lossy().into_owned() } else { step.clone() };
    let mut call = StepCall::new(&step, &[], &[])?;
    call.inputs.clone_from(inputs);
    call.env = env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let mut plan = call.plan(work_dir);
    plan.timeout_ms = timeout_s.saturating_mul(1000);
    plan.output_limit = 0;
    plan.development.fakes.clone_from(fakes);
    record_calls(&mut plan, true);
    Ok(plan)
}

/// Creates the files of a test in its working directory. The error has the path that cannot be created.
fn create_files(work_dir: &Path, test: &Test) -> Result<(), (PathBuf, io::Error)> {
    std::fs::create_dir_all(work_dir).map_err(|error| (work_dir.to_owned(), error))?;
    for (name, content) in &test.files {
        let path = Path::new(name);
        let is_inside = path.components().all(|component| matches!(component, std::path::Component::Normal(_)));
        let created = || {
            if !is_inside {
                return Err(io::Error::other("use a relative path without `..`"));
            }
            let target = work_dir.join(path);
            std::fs::create_dir_all(target.parent().unwrap_or(work_dir))?;
            std::fs::write(target, content)
        };
        created().map_err(|error| (path.to_owned(), error))?;
    }
    Ok(())
}
