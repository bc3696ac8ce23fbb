//! The resources that a job requests, and its share of a machine with several slots.
//!
//! In a sticky context, jobs of one runner, project and protection level leave files for each other.

use muster_agent_api::builtin::{ResourceShare, StickyContext};
use muster_config::settings::RunnerSettings;
use muster_executor::{EnvironmentRequest, SlotShare};
use muster_job::expand;
use muster_runner_api::payload::JobPayload;
use sha2::{Digest, Sha256};

use super::JobContext;
use super::protection;
use super::suspension::{self, ResumeRefused};
use super::vm_image::vm_image;

/// Variables with the requested CPUs. The first one that is set is used. The second one is from gitlab-runner's
/// Kubernetes executor.
const CPU: [&str; 2] = ["MUSTER_CPU_REQUEST", "KUBERNETES_CPU_REQUEST"];
const MEMORY: [&str; 2] = ["MUSTER_MEMORY_REQUEST", "KUBERNETES_MEMORY_REQUEST"];
/// Variable whose value `false` declines a sticky context.
const STICKY: &str = "MUSTER_STICKY_CONTEXT";
const DEFAULT_CGROUP_TEMPLATE: &str = "gitlab-runner/slot-${slot}";
/// Number of digits of the runner's hash in the name of a sticky context.
const RUNNER_DIGITS: usize = 12;

fn value<'a>(payload: &'a JobPayload, names: &[&'static str]) -> Option<(&'static str, &'a str)> {
    names.iter().find_map(|name| {
        let variable = payload.variables.iter().rfind(|variable| variable.key == *name)?;
        Some((*name, variable.value.as_str())).filter(|(_, value)| !value.trim().is_empty())
    })
}

/// Fails if the job cannot resume the environment that it requests.
pub(crate) fn environment_request(
    payload: &JobPayload,
    runner: &RunnerSettings,
) -> Result<EnvironmentRequest, ResumeRefused> {
    let resume = suspension::resume_request(payload, runner)?;
    Ok(EnvironmentRequest { resume, ..request_without_resume(payload, runner) })
}

fn request_without_resume(payload: &JobPayload, runner: &RunnerSettings) -> EnvironmentRequest {
    EnvironmentRequest {
        name: payload.job_info.name.clone(),
        protected: protection::of_ref(payload).unwrap_or_default(),
        cpu_milli: value(payload, &CPU).and_then(|(_, text)| EnvironmentRequest::parse_cpu(text)),
        memory_bytes: value(payload, &MEMORY).and_then(|(_, text)| EnvironmentRequest::parse_memory(text)),
        // Jobs of an unknown protection level and jobs in containers get no context.
        sticky: !runner.uses_containers()
            && protection::of_ref(payload).is_some()
            && value(payload, &[STICKY]).is_none_or(|(_, text)| text != "false"),
        image: vm_image(payload, runner),
        ..EnvironmentRequest::new(payload.id)
    }
}

/// Returns warnings about invalid requests, which only matter if jobs share machines.
pub(super) fn problems(payload: &JobPayload, context: &JobContext) -> Vec<String> {
    if context.share.is_none() {
        return Vec::new();
    }
    let cpu = value(payload, &CPU).filter(|(_, text)| EnvironmentRequest::parse_cpu(text).is_none());
    let memory = value(payload, &MEMORY).filter(|(_, text)| EnvironmentRequest::parse_memory(text).is_none());
    let invalid = |(name, text): (&str, &str), example: &str| {
        format!("{name} `{text}` is not a valid quantity and is ignored; use for example {example}")
    };
    cpu.map(|cpu| invalid(cpu, "500m or 2"))
        .into_iter()
        .chain(memory.map(|memory| invalid(memory, "512Mi or 2g")))
        .collect()
}

/// `None` means that the slot has no cgroup.
pub(super) fn cgroup(context: &JobContext) -> Option<String> {
    let share = context.share.as_ref()?;
    (context.runner.use_slot_cgroups || share.measured).then(|| slot_cgroup(context, share, None))
}

/// `None` means that containers are not in the slot's cgroup. `template` takes precedence over the runner's template.
pub(super) fn container_cgroup(context: &JobContext, template: Option<&str>) -> Option<String> {
    let share = context.share.as_ref().filter(|_| context.runner.use_slot_cgroups)?;
    Some(slot_cgroup(context, share, template))
}

fn slot_cgroup(context: &JobContext, share: &SlotShare, template: Option<&str>) -> String {
    let of_runner = context.runner.slot_cgroup_template.as_deref().filter(|template| !template.is_empty());
    let template = template.or(of_runner).unwrap_or(DEFAULT_CGROUP_TEMPLATE);
    expand(template, |name| if name == "slot" { share.slot.to_string() } else { String::new() })
}

pub(super) fn resource_share(payload: &JobPayload, context: &JobContext) -> Option<ResourceShare> {
    let share = context.share.as_ref()?;
    let request = request_without_resume(payload, &context.runner);
    let sticky_context = share.sticky.as_ref().filter(|_| request.sticky).map(|sticky| StickyContext {
        root: sticky.root.display().to_string(),
        name: sharing_group_name(&context.runner, payload.job_info.project_id, request.protected),
        max_size_bytes: sticky.max_size_bytes,
        max_age_s: sticky.max_age.as_secs(),
    });
    Some(ResourceShare {
        cgroup: cgroup(context).unwrap_or_default(),
        slots: share.slots,
        memory_bytes: share.memory_bytes,
        measure: true,
        context: sticky_context,
    })
}

/// Returns the name of the group of jobs that have the same runner, project and protection level.
///
/// The jobs of a group share sticky contexts and suspended environments.
pub(super) fn sharing_group_name(runner: &RunnerSettings, project_id: i64, protected: bool) -> String {
    let digest = format!("{:x}", Sha256::digest(runner.key.as_str()));
    let runner = digest.get(..RUNNER_DIGITS).unwrap_or(&digest);
    let level = if protected { "protected" } else { "unprotected" };
    format!("{runner}-{project_id}-{level}")
}
