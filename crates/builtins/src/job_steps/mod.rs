//! Built-in steps that lists of steps may call: `builtin://checkout`, `builtin://cache/restore` and others.
//!
//! Authors of lists of steps must not set inputs such as URLs and tokens. So these calls have other inputs, which often
//! select from what the job [declares](crate::declared::Declared).

mod inputs;
mod transfers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::builtin::HostService;
use muster_job::{GoDuration, milliseconds};
use muster_steps::bundled::{BundledCall, BundledSteps};
use muster_steps::definition::Spec;
use muster_steps::engine::Job as _;
use muster_steps::failure::{Failure, PortError};
use muster_steps::stop::StopToken;
use serde_json::{Map, Value};

use crate::context::{Context, FIRST_STEP_SERVICE};
use crate::oci_steps::OciSteps;
use crate::script_legacy;
use crate::service;
use inputs::{ServiceCall, parsed};

type Output = Result<Map<String, Value>, PortError>;

/// Maximum number of services that lists of steps of one job start.
const MAX_STEP_SERVICES: u32 = 32;

/// Steps with which a job without network could send files elsewhere.
const UPLOADS: [&str; 5] =
    ["artifacts/upload", "cache/save", "step/oci/build", "step/oci/promote", "function/oci/publish"];

pub(crate) fn bundled_steps(context: &Arc<Context>) -> Arc<dyn BundledSteps> {
    Arc::new(JobSteps { context: Arc::clone(context), oci: OciSteps::new(context.step_fetcher()) })
}

struct JobSteps {
    context: Arc<Context>,
    oci: OciSteps,
}

impl JobSteps {
    /// Runs a built-in step of this crate. `None` means another step.
    async fn run_step(&self, call: &BundledCall<'_>, stop: &StopToken) -> Option<Result<(), Failure>> {
        let context = &self.context;
        if UPLOADS.contains(&call.name) && context.processes.have_no_network_now() {
            return Some(Err(Failure::Configuration(format!(
                "the step policy of the runner has the limit `network = \"none\"` for this step, so it cannot call `{}`, which stores files \
                 outside of the job; use the keywords of the job, such as `cache` and `artifacts`",
                call.name
            ))));
        }
        Some(match call.name {
            "checkout" => transfers::check_out(context, call.inputs, stop).await,
            "cache/restore" => transfers::restore_caches(context, call.inputs, stop).await,
            "cache/save" => transfers::save_caches(context, call.inputs, stop).await,
            "artifacts/download" => transfers::download_artifacts(context, call.inputs, stop).await,
            "artifacts/upload" => transfers::upload_artifacts(context, call.inputs, stop).await,
            "service" => start_service(context, call.inputs, stop).await,
            _ => return None,
        })
    }
}

#[async_trait]
impl BundledSteps for JobSteps {
    fn spec(&self, name: &str) -> Option<Spec> {
        if name == script_legacy::NAME {
            return Some(script_legacy::spec());
        }
        inputs::spec(name).or_else(|| self.oci.spec(name))
    }

    fn commands(&self, call: &BundledCall<'_>) -> Option<Result<String, PortError>> {
        (call.name == script_legacy::NAME).then(|| script_legacy::commands(call))
    }

    async fn run(&self, call: BundledCall<'_>, stop: &StopToken) -> Output {
        if self.context.declared.reserved.iter().any(|name| name == call.name) {
            return Err(PortError::Failed(format!(
                "the operator of this runner has a step for `builtin://{}`, so no step can call it; use keywords of the job such as `cache` \
                 and `artifacts`, or do this work in the step itself",
                call.name
            )));
        }
        match self.run_step(&call, stop).await {
            None => self.oci.run(call, stop).await,
            Some(Ok(())) => Ok(Map::new()),
            Some(Err(Failure::Stopped(cause))) => Err(PortError::Stopped(cause)),
            Some(Err(Failure::System(message))) => Err(PortError::System(message)),
            Some(Err(failure)) => Err(PortError::Failed(failure.to_string())),
        }
    }
}

/// Starts a program for the rest of the job.
async fn start_service(context: &Arc<Context>, inputs: &Map<String, Value>, stop: &StopToken) -> Result<(), Failure> {
    let ServiceCall { command, name, port, env, timeout } = parsed(inputs)?;
    let Some(program) = command.first().filter(|program| !program.is_empty()) else {
        return Err(Failure::Step("the input `command` is empty; write the program and its arguments".to_owned()));
    };
    check_job_permits_services(context)?;
    let timeout: Duration = match GoDuration::parse(&timeout) {
        Some(GoDuration::NonNegative(timeout)) if !timeout.is_zero() => timeout,
        _ => {
            return Err(Failure::Step(format!(
                "the input `timeout` is not a valid duration: {timeout:?}; write for example \"30s\""
            )));
        }
    };
    let title = if name.is_empty() {
        Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    } else {
        name
    };
    let index = context.next_step_service.fetch_add(1, Ordering::Relaxed);
    if index >= FIRST_STEP_SERVICE + MAX_STEP_SERVICES {
        return Err(Failure::Step(format!(
            "the job has already started {MAX_STEP_SERVICES} services, which is the maximum; start several programs in one service, or in \
             the background of a script"
        )));
    }
    let service = HostService { title, index, command, env, port, timeout_ms: milliseconds(timeout) };
    service::start_for_step(&service, context, stop).await.map_err(|failure| match failure {
        // The author of the job chose the program.
        Failure::System(message) => Failure::Step(message),
        other => other,
    })
}

fn check_job_permits_services(context: &Context) -> Result<(), Failure> {
    let limits = context.step_policy();
    if limits.is_some_and(|policy| !policy.limits.is_empty() || policy.rules.iter().any(|rule| !rule.limits.is_empty()))
    {
        return Err(Failure::Configuration(
            "the step policy of the runner has limits, which cannot be enforced for `builtin://service`; start the program in the \
             background of a script"
                .to_owned(),
        ));
    }
    if context.has_share() {
        return Err(Failure::Configuration(
            "the job runs in the cgroup of its slot, which cannot contain the processes of `builtin://service`; start the program in the \
             background of a script"
                .to_owned(),
        ));
    }
    Ok(())
}
