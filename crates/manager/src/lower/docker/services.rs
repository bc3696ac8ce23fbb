//! Services: the containers beside the build container (docs/spec/job-execution.md, section 5.10).

use std::collections::{BTreeMap, BTreeSet};

use muster_agent_api::builtin::{ContainerSpec, ServiceContainer};
use muster_config::settings::{Device, DockerService, DockerSettings};
use muster_job::Variable;
use muster_runner_api::payload::{Image, JobPayload};

use super::super::steps::JobParts;
use super::super::variables::Variables;
use super::super::{LowerError, matches_pattern, share};
use super::host_config::{ContainerFacts, host_config};
use super::images::{self, AllowList};
use super::names::{LABEL, Names, label};

/// Maximum length of an image's name in a container's name.
const MAX_NAME_PART: usize = 100;

struct RequestedService<'a> {
    name: String,
    alias: String,
    command: Option<&'a [String]>,
    entrypoint: Option<&'a [String]>,
    variables: Vec<Variable>,
    /// `None` means a service of the configuration.
    of_job: Option<&'a Image>,
}

/// Returns the configured services, and then the job's. Adds warnings about unused aliases and entrypoints.
pub(super) fn services(
    parts: &JobParts<'_>,
    docker: &DockerSettings,
    names: &Names,
    warnings: &mut Vec<String>,
) -> Result<Vec<ServiceContainer>, LowerError> {
    let requested = requested_services(parts.payload, docker, parts.variables);
    let count = u32::try_from(requested.len()).unwrap_or(u32::MAX);
    if let Some(limit) = docker.services_limit.filter(|limit| count > *limit) {
        return Err(LowerError::configuration(format!("too many services requested: {count}, only {limit} allowed")));
    }
    let of_runner: BTreeSet<&str> =
        requested.iter().filter(|service| service.of_job.is_none()).map(|service| service.name.as_str()).collect();
    let mut used = BTreeSet::new();
    let mut services = Vec::new();
    for (index, service) in requested.iter().enumerate() {
        if service.of_job.is_some() && !of_runner.contains(service.name.as_str()) {
            images::check_allowed(&service.name, AllowList::Services, &docker.allowed_services)?;
        }
        let mut aliases = Vec::new();
        for alias in aliases_of(service) {
            if used.insert(alias.clone()) {
                aliases.push(alias);
            } else {
                warnings.push(format!(
                    "Skipping alias {alias:?} for service {:?} (services[{index}]): alias is already in use by another service.",
                    service.name
                ));
            }
        }
        services.push(service_spec(parts, docker, names, service, (index, aliases), warnings)?);
    }
    Ok(services)
}

pub(super) fn image_names(payload: &JobPayload, docker: &DockerSettings, variables: &Variables) -> Vec<String> {
    requested_services(payload, docker, variables).into_iter().map(|service| service.name).collect()
}

fn requested_services<'a>(
    payload: &'a JobPayload,
    docker: &'a DockerSettings,
    variables: &Variables,
) -> Vec<RequestedService<'a>> {
    let of_runner = docker.services.iter().map(|service: &DockerService| RequestedService {
        name: variables.expand(&service.name).trim().to_owned(),
        alias: variables.expand(&service.alias),
        command: Some(service.command.as_slice()),
        entrypoint: Some(service.entrypoint.as_slice()),
        variables: service.environment.iter().map(|(name, value)| Variable::public(name, value)).collect(),
        of_job: None,
    });
    let of_job = payload.services.iter().map(|service| RequestedService {
        name: variables.expand(&service.name).trim().to_owned(),
        alias: variables.expand(service.alias.as_deref().unwrap_or_default()),
        command: service.command.as_deref(),
        entrypoint: service.entrypoint.as_deref(),
        variables: service.variables.clone(),
        of_job: Some(service),
    });
    of_runner.chain(of_job).filter(|service| !service.name.is_empty()).collect()
}

fn service_spec(
    parts: &JobParts<'_>,
    docker: &DockerSettings,
    names: &Names,
    service: &RequestedService<'_>,
    (index, aliases): (usize, Vec<String>),
    warnings: &mut Vec<String>,
) -> Result<ServiceContainer, LowerError> {
    let (name, version) = split_image(&service.name);
    let separator = if version.starts_with('@') { "" } else { ":" };
    let image = images::image_spec(service.name.clone(), service.of_job, docker, parts.variables)?;
    let privileged =
        docker.service.privileged && images::may_be_privileged(&service.name, &docker.allowed_privileged_services);
    let facts = ContainerFacts {
        privileged,
        cgroup_parent: cgroup_parent(parts, docker),
        devices: devices(docker, &service.name),
        init: parts.flags.is_on("FF_USE_INIT_WITH_DOCKER_EXECUTOR"),
    };
    let container = ContainerSpec {
        name: format!("{}-{}-{index}", names.job, name_part(&name)),
        labels: labels(parts, docker, &name, version),
        image,
        entrypoint: images::entrypoint(service.entrypoint, docker, warnings),
        command: service.command.filter(|command| !command.is_empty()).map(<[String]>::to_vec),
        user: service
            .of_job
            .and_then(|image| images::docker_option(image, "user", parts.variables))
            .unwrap_or_default(),
        env: environment(parts, service),
        host_config: host_config(&docker.service, &facts, &parts.context.docker)?,
        ..ContainerSpec::default()
    };
    Ok(ServiceContainer { title: format!("{name}{separator}{version}"), container, aliases })
}

/// Writes `_` for each character that engines do not accept, as gitlab-runner does.
fn name_part(image: &str) -> String {
    let accepted = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '_' };
    image.replace('/', "__").chars().map(accepted).take(MAX_NAME_PART).collect()
}

/// Returns the image's name without port, and its tag or digest.
fn split_image(reference: &str) -> (String, &str) {
    let (path, version) = match reference.split_once('@') {
        Some((path, _)) => (path, reference.get(path.len()..).unwrap_or_default()),
        None => match reference.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, tag),
            _ => (reference, "latest"),
        },
    };
    // A digest may follow a tag.
    let path = match path.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') && version.starts_with('@') => path,
        _ => path,
    };
    let name = match path.split_once('/') {
        Some((host, rest)) => format!("{}/{rest}", host.split_once(':').map_or(host, |(host, _)| host)),
        None => path.to_owned(),
    };
    (name, version)
}

/// Returns two forms of the image's name, and the configured aliases.
fn aliases_of(service: &RequestedService<'_>) -> Vec<String> {
    let (name, _) = split_image(&service.name);
    let mut aliases = vec![name.replace('/', "__")];
    let chosen = service.alias.split([',', ' ', '\t', '\n', '\r']).filter(|alias| !alias.is_empty());
    for alias in std::iter::once(name.replace('/', "-")).chain(chosen.map(str::to_owned)) {
        if !aliases.contains(&alias) {
            aliases.push(alias);
        }
    }
    aliases
}

/// Returns the job's public variables, and the variables of the service.
fn environment(parts: &JobParts<'_>, service: &RequestedService<'_>) -> Vec<String> {
    let of_job = parts.variables.resolved().filter(|(variable, _)| variable.public);
    let mut env: Vec<(String, String)> = of_job.map(|(variable, value)| (variable.key.clone(), value)).collect();
    for variable in &service.variables {
        let value = if variable.raw { variable.value.clone() } else { parts.variables.expand(&variable.value) };
        env.push((variable.key.clone(), value));
    }
    super::environment(env)
}

fn labels(parts: &JobParts<'_>, docker: &DockerSettings, name: &str, version: &str) -> BTreeMap<String, String> {
    let configured = docker.container_labels.iter();
    let configured = configured.map(|(name, value)| (format!("{LABEL}.{name}"), parts.variables.expand(value)));
    let own = [("type", "service"), ("service", name), ("service.version", version)];
    configured.chain(own.map(|(name, value)| (label(name), value.to_owned()))).collect()
}

fn devices(docker: &DockerSettings, image: &str) -> Vec<Device> {
    let fitting = docker.services_devices.iter().filter(|(pattern, _)| matches_pattern(pattern, image));
    fitting.flat_map(|(_, devices)| devices.clone()).collect()
}

fn cgroup_parent(parts: &JobParts<'_>, docker: &DockerSettings) -> String {
    let template = Some(docker.service_slot_cgroup_template.as_str()).filter(|template| !template.is_empty());
    share::container_cgroup(parts.context, template).unwrap_or_else(|| docker.service.cgroup_parent.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_references_have_name_and_version() {
        for (reference, name, version) in [
            ("mysql", "mysql", "latest"),
            ("mysql:8.4", "mysql", "8.4"),
            ("group/mysql:8", "group/mysql", "8"),
            ("registry.example:5000/group/mysql", "registry.example/group/mysql", "latest"),
            ("registry.example:5000/group/mysql:8", "registry.example/group/mysql", "8"),
            ("mysql@sha256:0123", "mysql", "@sha256:0123"),
            ("registry.example/mysql:8@sha256:0123", "registry.example/mysql", "@sha256:0123"),
        ] {
            assert_eq!(split_image(reference), (name.to_owned(), version), "{reference}");
        }
    }
}
