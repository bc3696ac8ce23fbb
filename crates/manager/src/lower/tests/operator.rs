use std::time::Duration;

use muster_agent_api::builtin::{DockerContainer, HostService, Prepare, Script};
use muster_agent_api::plan::{Call, UploadRole, When};
use muster_config::settings::{DockerSettings, HostServiceSettings, OperatorAction, OperatorStep, StepsSettings};
use muster_job::{PolicyRule, StepLimits, StepPolicy};

use super::*;

fn step(name: &str, action: OperatorAction, required: bool) -> OperatorStep {
    let env = [("LEVEL".to_owned(), "2".to_owned())].into();
    OperatorStep {
        name: name.to_owned(),
        action,
        env,
        timeout: Duration::from_secs(30),
        required,
        exports: BTreeMap::new(),
    }
}

fn lowered(steps: StepsSettings, extra: Value) -> Result<LoweredJob, LowerError> {
    let runner = RunnerSettings { steps, ..runner() };
    lower(&payload(extra), &JobContext { runner: Arc::new(runner), ..context() })
}

#[test]
fn operator_steps_surround_everything_that_the_job_controls() {
    let reference = OperatorAction::Step {
        reference: "/opt/steps/report".to_owned(),
        inputs: [("status".to_owned(), json!("${{ vars.CI_JOB_STATUS }}"))].into_iter().collect(),
    };
    let steps = StepsSettings {
        before: vec![step("audit", OperatorAction::Script(vec!["id".to_owned()]), true)],
        after: vec![step("report", reference, false)],
        ..StepsSettings::default()
    };
    let job = lowered(steps, json!({})).unwrap();
    let names: Vec<_> = job.plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names[..4], ["prepare_executor", "prepare_script", "operator_before_audit", "get_sources"]);
    assert_eq!(names[names.len() - 2..], ["operator_after_report", "cleanup_file_variables"]);
    let before = &job.plan.steps[2];
    let script: Script = before.call.inputs().unwrap();
    assert_eq!((script.commands, &script.env["LEVEL"]), (vec!["id".to_owned()], &"2".to_owned()));
    assert_eq!(
        (before.policy.by_operator, before.policy.allow_failure, before.policy.timeout_ms),
        (true, false, 30_000)
    );
    let after = &job.plan.steps[names.len() - 2];
    assert_eq!((after.policy.when, after.policy.allow_failure), (When::Finally, true));
    let Call::Run(list) = &after.call else { panic!("{after:?}") };
    assert_eq!(list[0]["step"], "/opt/steps/report");
}

#[test]
fn steps_before_the_upload_guard_each_upload() {
    let sign = OperatorAction::Step { reference: "/opt/steps/sign".to_owned(), inputs: serde_json::Map::new() };
    let steps = || StepsSettings { before_upload: vec![step("sign", sign.clone(), true)], ..StepsSettings::default() };
    let artifacts =
        |when: &str| json!({ "artifacts": [{ "paths": ["out"], "when": when, "artifact_type": "archive" }] });
    let guarded = |extra| {
        let plan = lowered(steps(), extra).unwrap().plan;
        let steps = plan.steps.into_iter().filter(|step| step.policy.upload_role != UploadRole::None);
        steps.map(|step| (step.name, step.policy.when, step.policy.upload_role)).collect::<Vec<_>>()
    };
    let group = |when, upload: &str| {
        let names = ["operator_list_artifacts", "operator_before_upload_sign", upload];
        let roles = [UploadRole::Check, UploadRole::Check, UploadRole::Upload];
        names.into_iter().zip(roles).map(move |(name, role)| (name.to_owned(), when, role)).collect::<Vec<_>>()
    };
    let success = group(When::OnSuccess, "upload_artifacts_on_success");
    let failure = group(When::OnFailure, "upload_artifacts_on_failure");
    assert_eq!(guarded(artifacts("on_success")), success);
    assert_eq!(guarded(artifacts("always")), [failure, success].concat());
    assert_eq!(guarded(json!({})), []);
    for required in [false, true] {
        let steps =
            StepsSettings { before_upload: vec![step("sign", sign.clone(), required)], ..StepsSettings::default() };
        let steps = lowered(steps, artifacts("on_success")).unwrap().plan.steps;
        let guards: Vec<_> = steps.iter().filter(|step| step.policy.upload_role == UploadRole::Check).collect();
        assert_eq!(guards.len(), 2);
        assert!(guards.iter().all(|step| step.policy.allow_failure != required), "{guards:?}");
        assert!(!guards[0].policy.by_operator, "a file name of the job must not cause a system failure");
    }
    let plain = lowered(StepsSettings::default(), artifacts("always")).unwrap().plan;
    assert!(plain.steps.iter().all(|step| step.policy.upload_role == UploadRole::None));
}

#[test]
fn denied_builtin_step_is_refused_with_its_rule() {
    let rule = PolicyRule { line: 7, pattern: "builtin:cache/*".to_owned(), ..PolicyRule::default() };
    let policy = StepPolicy { file: "/p.toml".to_owned(), rules: vec![rule], ..StepPolicy::default() };
    let steps = StepsSettings { policy: Some(policy), ..StepsSettings::default() };
    let cache = json!([{ "key": "a", "paths": ["x"], "policy": "pull-push", "when": "on_success" }]);
    let error = lowered(steps.clone(), json!({ "cache": cache })).unwrap_err();
    assert_eq!(error.reason, FailureReason::RunnerConfigurationError);
    assert!(error.message.starts_with("step \"restore_cache\": the step policy"), "{error}");
    assert!(error.message.contains("`builtin:cache/restore`: `deny = \"builtin:cache/*\"` at /p.toml:7"), "{error}");
    lowered(steps, json!({})).unwrap();
}

#[test]
fn container_gets_the_limits_of_the_policy() {
    let limits = StepLimits {
        no_network: true,
        cpu_milli: Some(1500),
        memory_bytes: Some(1 << 30),
        file_bytes: Some(1 << 20),
        disk_bytes: Some(1 << 40),
    };
    let policy = StepPolicy { limits: limits.clone(), ..StepPolicy::default() };
    let docker = DockerSettings { image: "busybox".to_owned(), ..DockerSettings::default() };
    let runner = RunnerSettings {
        executor: "docker".to_owned(),
        docker: Some(Box::new(docker)),
        steps: StepsSettings { policy: Some(policy), ..StepsSettings::default() },
        ..runner()
    };
    let job = lower(&payload(json!({})), &JobContext { runner: Arc::new(runner), ..context() }).unwrap();
    let Call::Delegate { inputs, .. } = &job.plan.steps[0].call else { panic!("{:?}", job.plan.steps) };
    let container: DockerContainer = serde_json::from_value(inputs.clone()).unwrap();
    assert_eq!(container.build.host_config["Memory"], 1 << 30);
    assert_eq!(container.build.host_config["NanoCpus"], 1_500_000_000);
    let inside = StepLimits { cpu_milli: None, memory_bytes: None, ..limits };
    assert_eq!(job.plan.step_policy.unwrap().limits, inside);
}

#[test]
fn service_without_containers_is_a_step_if_the_operator_has_a_program() {
    let program = HostServiceSettings {
        image: "postgres:*".to_owned(),
        command: vec!["/usr/local/bin/postgres".to_owned()],
        env: [("PGDATA".to_owned(), "data".to_owned())].into(),
        port: 5432,
        timeout: Duration::from_secs(20),
    };
    let steps = StepsSettings { services: vec![program], ..StepsSettings::default() };
    let password = json!([{ "key": "POSTGRES_PASSWORD", "value": "for $CI_SHARED" }]);
    let services = json!([{ "name": "postgres:16", "variables": password }, { "name": "redis:7" }]);
    let job = lowered(steps, json!({ "services": services })).unwrap();
    let lines = job.plan.steps[0].call.inputs::<Prepare>().unwrap().lines;
    assert!(lines.iter().any(|line| line.contains("1 service(s) are not used")), "{lines:?}");
    let step = &job.plan.steps[2];
    assert_eq!((step.name.as_str(), step.policy.allow_failure), ("service postgres:16", true));
    let service: HostService = step.call.inputs().unwrap();
    assert_eq!((service.port, service.timeout_ms), (5432, 20_000));
    assert_eq!(service.env["POSTGRES_PASSWORD"], "for ");
    assert_eq!(service.env["PGDATA"], "data");
}
