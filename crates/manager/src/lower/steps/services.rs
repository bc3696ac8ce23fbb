//! Services of a job without containers: programs of the operator (`[[runners.steps.services]]`).

use std::collections::BTreeMap;

use muster_agent_api::builtin::{HostService, Inputs};
use muster_agent_api::plan::{Call, Step};
use muster_config::settings::{HostServiceSettings, RunnerSettings};
use muster_job::{matches_pattern, milliseconds};
use muster_runner_api::payload::Image;

use super::super::variables::Variables;
use super::JobParts;

/// `None` means that no program is configured for the image.
pub(in super::super) fn program<'a>(
    runner: &'a RunnerSettings,
    service: &Image,
    variables: &Variables,
) -> Option<&'a HostServiceSettings> {
    let image = variables.expand(&service.name);
    runner.steps.services.iter().find(|program| matches_pattern(&program.image, image.trim()))
}

pub(in super::super) fn step<I: Inputs>(title: &str, inputs: &I) -> Step {
    Step::new(&format!("service {title}"), "", Call::builtin(inputs))
}

/// As with containers, a service that does not start causes only a warning.
pub(super) fn steps(parts: &JobParts<'_>) -> Vec<Step> {
    let JobParts { payload, context, variables, .. } = *parts;
    let mut steps = Vec::new();
    for service in &payload.services {
        let Some(program) = program(&context.runner, service, variables) else { continue };
        let expanded = |value: &str, raw: bool| if raw { value.to_owned() } else { variables.expand(value) };
        let variables_of_job = service.variables.iter().map(|item| (item.key.clone(), expanded(&item.value, item.raw)));
        let env: BTreeMap<_, _> = variables_of_job.chain(program.env.clone()).collect();
        let title = variables.expand(&service.name).trim().to_owned();
        let inputs = HostService {
            title: title.clone(),
            index: u32::try_from(steps.len()).unwrap_or(u32::MAX),
            command: program.command.clone(),
            env,
            port: program.port,
            timeout_ms: milliseconds(program.timeout),
        };
        let mut step = step(&title, &inputs);
        step.policy.allow_failure = true;
        steps.push(step);
    }
    steps
}
