//! Runs a step file in this process, and prints the log of the steps to standard output.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use muster_agent_api::plan::{JobPlan, Policy};
use muster_agent_api::result::Outcome;
use muster_builtins::job::{self, JobOutcome};
use muster_builtins::trace::{Sink, Trace, TraceOptions};
use muster_builtins::{AgentResources, Context, JobVariable, Variables};
use muster_job::TerminationCause;
use muster_steps::builtin::{Call, Step};
use muster_steps::definition::StepFile;
use muster_steps::engine::JobCancellation;
use muster_steps::process::{Containment, ProcessManager};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::results::ResultsFile;

/// Name of the job, which is part of the tag in the environment of its processes.
const JOB_NAME: &str = "step-runner";

pub(super) struct Execution {
    pub(super) file: StepFile,
    pub(super) work_dir: PathBuf,
    pub(super) variables: Vec<(String, String)>,
    /// Whether the processes of the steps inherit an environment variable of this process.
    pub(super) is_inherited: fn(&OsStr) -> bool,
}

/// Runs the steps to their end, and writes their results to `results`. Prints the error if they fail.
pub(super) fn execute(execution: Execution, results: Option<&ResultsFile>) -> ExitCode {
    crate::logging::init_command("warn");
    crate::runtime::block_on(async {
        let received = Arc::new(Mutex::new(None));
        let outcome = match Box::pin(run(execution, Arc::clone(&received))).await {
            Ok(outcome) => outcome,
            Err(error) => return super::fail(format!("failed to run steps: {error}")),
        };
        let result = received.lock().take();
        if let (Some(file), Some(result)) = (results, result)
            && let Err(error) = file.write(result)
        {
            // The exit code still reports only the outcome of the steps.
            anstream::println!("{}", muster_job::error_chain(&error));
        }
        match outcome.outcome {
            Outcome::Success => ExitCode::SUCCESS,
            Outcome::Failed { .. } => super::fail(format!("failed to run steps: {}", outcome.message)),
        }
    })
}

async fn run(execution: Execution, result: Arc<Mutex<Option<Value>>>) -> io::Result<JobOutcome> {
    let Execution { file, work_dir, variables, is_inherited } = execution;
    let temp = tempfile::Builder::new().prefix("step-runner-").tempdir()?;
    let temp_dir = temp.path().canonicalize()?;
    let plan = JobPlan {
        project_dir: work_dir.to_string_lossy().into_owned(),
        builds_dir: temp_dir.to_string_lossy().into_owned(),
        bare: true,
        output_limit: u64::MAX,
        ..JobPlan::default()
    };
    let nonce = temp_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let mut processes = manager.new_job(JOB_NAME, &nonce, Arc::new(|_| Ok(())))?;
    processes.retain_environment(is_inherited);
    let cancellation = JobCancellation::default();
    let stop = cancellation.stop.clone();
    let on_fault = Box::new(move |error: &io::Error| {
        tracing::error!(%error, "failed to write the output of the steps, stopping them");
        stop.stop(TerminationCause::ResourceExhausted);
    });
    let trace =
        Trace::new(&TraceOptions { limit: u64::MAX, ..TraceOptions::default() }, Box::new(StandardOutput), 0, on_fault);
    let variable = |(key, value)| JobVariable { key, value, file: false, masked: false };
    let variables = Variables::new(variables.into_iter().map(variable).collect());
    let on_user_code =
        Box::new(|| -> futures::future::BoxFuture<'static, io::Result<()>> { Box::pin(async { Ok(()) }) });
    let resources = Arc::new(AgentResources::default());
    let mut context = Context::new(&plan, variables, processes, Arc::new(trace), resources, on_user_code);
    context.temp_dir = temp_dir.join("tmp");
    context.on_results = Some(Arc::new(move |value| *result.lock() = Some(value)));
    let steps = [Step {
        name: "run".to_owned(),
        policy: Policy::default(),
        call: Call::StepFile(Box::new(file)),
        record: None,
    }];
    let mut running = std::pin::pin!(job::run(Arc::new(context), &plan, &steps, &cancellation));
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let signaled = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::select! {
        outcome = &mut running => return Ok(outcome),
        () = signaled => cancellation.stop.stop(TerminationCause::CanceledByUser),
    }
    Ok(running.await)
}

struct StandardOutput;

impl Sink for StandardOutput {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }
}
