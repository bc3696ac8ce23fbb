mod containers;
mod images;
mod volumes;

use std::sync::Arc;

use muster_agent_api::builtin::{Checkout, DockerVolume, Prepare};
use muster_agent_api::plan::When;
use muster_config::settings::{ContainerSettings, Device, DockerService, GpuRequest, Ulimit};
use muster_executor::SlotShare;
use serde_json::{Value, json};

use super::*;
use crate::lower::LoweredJob;
use crate::lower::lower;
use crate::lower::tests::{context, payload, plan, runner, value, variables};

fn settings() -> DockerSettings {
    DockerSettings { image: "alpine:3".to_owned(), wait_for_services_s: 30, ..DockerSettings::default() }
}

fn context_with(change: impl FnOnce(&mut DockerSettings)) -> JobContext {
    let mut docker = settings();
    change(&mut docker);
    let runner = RunnerSettings {
        executor: "docker".to_owned(),
        custom_build_dir: None,
        docker: Some(Box::new(docker)),
        ..runner()
    };
    let directories = Directories { builds: "/srv/builds".into(), cache: "/srv/cache".into(), shared: true };
    JobContext { runner: Arc::new(runner), directories, ..context() }
}

fn share(slot: u32) -> SlotShare {
    SlotShare {
        slot,
        slots: 1,
        memory_bytes: 0,
        measured: false,
        sticky: None,
        is_exclusive: false,
        shares_host: false,
    }
}

/// Returns the inputs of the docker step, and the steps inside the container.
fn inside(job: &LoweredJob) -> (DockerContainer, Vec<Step>) {
    let [step] = job.plan.steps.as_slice() else { panic!("{:?}", job.plan.steps) };
    let Call::Delegate { name, inputs, steps, .. } = &step.call else { panic!("{step:?}") };
    assert_eq!(name, "docker/container");
    (serde_json::from_value(inputs.clone()).unwrap(), steps.clone())
}

fn services_of(job: &LoweredJob) -> Vec<ServiceContainer> {
    let [Step { call: Call::Delegate { beside, .. }, .. }] = job.plan.steps.as_slice() else { panic!("{job:?}") };
    beside.iter().map(|step| step.call.inputs().unwrap()).collect()
}

fn lowered(change: impl FnOnce(&mut DockerSettings), more: Value) -> (DockerContainer, LoweredJob) {
    let job = lower(&payload(more), &context_with(change)).unwrap();
    (inside(&job).0, job)
}

fn container(change: impl FnOnce(&mut DockerSettings), more: Value) -> DockerContainer {
    lowered(change, more).0
}

fn services(change: impl FnOnce(&mut DockerSettings), more: Value) -> Vec<ServiceContainer> {
    services_of(&lowered(change, more).1)
}

/// Returns the lines and the error of a payload that cannot be lowered.
fn refused(change: impl FnOnce(&mut DockerSettings), more: Value) -> String {
    let error = lower(&payload(more), &context_with(change)).unwrap_err();
    let lines: String = error.trace_lines.iter().map(|line| format!("{line}\n")).collect();
    format!("{lines}{}: {}", error.reason, error.message)
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn plain_job_in_a_container() {
    let job = lower(&payload(json!({})), &context_with(|_| ())).unwrap();
    let mut plan = plan(&job);
    plan["steps"][0]["call"]["delegate"]["inputs"]["build"]["env"] = json!("[all variables of the job]");
    insta::assert_json_snapshot!(plan);
}

#[test]
fn all_steps_run_inside_one_step_that_prepares_the_executor() {
    let job = lower(&payload(json!({})), &context_with(|_| ())).unwrap();
    let policy = &job.plan.steps[0].policy;
    assert_eq!(
        (policy.section.as_str(), policy.title.as_str()),
        ("prepare_executor", "Preparing the \"docker\" executor")
    );
    assert_eq!((policy.attempts, policy.when), (3, When::OnSuccess));
    let (container, steps) = inside(&job);
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["prepare_script", "get_sources", "step_script", "cleanup_file_variables"]);
    let prepare: Prepare = steps[0].call.inputs().unwrap();
    assert_eq!(prepare.echoed, ["Running on runner-shorttoke-project-5-concurrent-1 via host..."]);
    let lines = [
        LogLine::Info("Using default image".to_owned()),
        LogLine::Plain("Using Docker executor with image alpine:3 ...".to_owned()),
    ];
    assert_eq!(container.lines, lines);
}

#[test]
fn inner_directories_are_in_the_container_and_outer_directories_on_the_host() {
    let (container, job) = lowered(|_| (), json!({ "cache": [{ "key": "k", "paths": ["x"] }] }));
    assert_eq!(container.project_dir, "/builds/group/project");
    assert_eq!(value(&job, "CI_PROJECT_DIR").unwrap(), "/builds/group/project");
    assert_eq!(value(&job, "CI_BUILDS_DIR").unwrap(), "/builds");
    assert_eq!(value(&job, "CI_DISPOSABLE_ENVIRONMENT").unwrap(), "true");
    assert_eq!(
        (job.plan.project_dir.as_str(), job.plan.builds_dir.as_str()),
        ("/srv/builds/shorttoke/containers-2", "/srv/builds")
    );
    let directories = [
        "/builds",
        "/builds/group",
        "/builds/group/project",
        "/builds/group/project.tmp",
        "/cache",
        "/cache/group",
        "/cache/group/project",
    ];
    assert_eq!(container.directories, directories);
    let mut configured = context_with(|_| ());
    let runner = Arc::make_mut(&mut configured.runner);
    (runner.builds_dir, runner.cache_dir) = (Some("/work".into()), Some("/kept".into()));
    let job = lower(&payload(json!({})), &configured).unwrap();
    assert_eq!(inside(&job).0.project_dir, "/work/group/project");
}

#[test]
fn sources_come_from_the_server_and_git_trusts_the_directory() {
    let more = json!({ "muster": { "local_repository": "/state/snapshot.git", "result_tree": true } });
    let job = lower(&payload(more), &context_with(|_| ())).unwrap();
    let (_, steps) = inside(&job);
    let checkout: Checkout = steps[1].call.inputs().unwrap();
    assert_eq!((checkout.local_repository, checkout.safe_directory, checkout.clean_config), (None, true, true));
    let path = variables(&[("GIT_CLONE_PATH", "$CI_BUILDS_DIR/go")]);
    assert_eq!(container(|_| (), path).project_dir, "/builds/go");
}

#[test]
fn cache_uses_of_job_on_the_host_have_the_same_keys_as_its_plan() {
    let mut context = context_with(|docker| docker.host_without_image = true);
    Arc::make_mut(&mut context.runner).cache.shared = true;
    let payload = payload(json!({ "cache": [{ "key": "$CI_PROJECT_DIR", "paths": ["a"] }] }));
    let uses = crate::lower::cache_uses(&payload, &context).archives;
    assert_eq!(uses[0].object, "project/5/srv/builds/shorttoke/1/group/project");
    let plan = plan(&lower(&payload, &context).unwrap()).to_string();
    assert!(plan.contains(&format!("\"key\":\"{}\"", uses[0].key)), "{plan}");
}

#[test]
fn runner_without_docker_table_or_with_invalid_value_fails_the_job() {
    let mut missing = context_with(|_| ());
    Arc::make_mut(&mut missing.runner).docker = None;
    let error = lower(&payload(json!({})), &missing).unwrap_err();
    assert_eq!(error.to_string(), "missing docker configuration");
    let problem = refused(|docker| docker.problems = texts(&["memory is wrong"]), json!({}));
    assert_eq!(problem, "runner_configuration_error: memory is wrong");
}

#[test]
fn labels_describe_the_job() {
    let change = |docker: &mut DockerSettings| {
        docker.container_labels = [("team".to_owned(), "$TEAM".to_owned())].into();
    };
    let more = variables(&[("TEAM", "one"), ("CI_PIPELINE_ID", "7"), ("CI_JOB_URL", "https://gitlab.example/j/42")]);
    insta::assert_json_snapshot!(container(change, more).labels);
}

#[test]
fn engine_on_an_instance_is_reached_without_certificates() {
    let engine = |executor: &str| {
        let mut context = context_with(|docker| {
            docker.host = "tcp://engine:2376".to_owned();
            (docker.tls_cert_path, docker.tls_verify) = ("/certs".to_owned(), true);
        });
        executor.clone_into(&mut Arc::make_mut(&mut context.runner).executor);
        let job = lower(&payload(json!({})), &context).unwrap();
        let engine = inside(&job).0.engine;
        (engine.host, engine.cert_path, engine.tls_verify)
    };
    let expected = |host: &str, certificates: &str, verify| (host.to_owned(), certificates.to_owned(), verify);
    assert_eq!(engine("docker"), expected("tcp://engine:2376", "/certs", true));
    assert_eq!(engine("docker-autoscaler"), expected("tcp://engine:2376", "", false));
    assert_eq!(engine("docker+machine"), expected("", "", false));
}

#[test]
fn coordinator_at_a_loopback_address_is_relayed() {
    let relay_of = |url: &str| relay(&url.parse().unwrap());
    assert_eq!(relay_of("http://127.0.0.1:8080"), "127.0.0.1:8080");
    assert_eq!(relay_of("http://[::1]:8080"), "[::1]:8080");
    assert_eq!(relay_of("http://localhost"), "localhost:80");
    assert_eq!(relay_of("https://gitlab.example"), "");
}
