//! R202: a job has the same steps with every executor, and the agent executes all of them.

use muster_agent_api::builtin::DriverStage;
use muster_agent_api::plan::{Call, Step};
use muster_config::settings::{CustomProgram, CustomSettings, DockerSettings};

use super::*;

fn context_with(executor: &str) -> JobContext {
    let docker = DockerSettings { image: "alpine:3".to_owned(), ..DockerSettings::default() };
    let program = Some(CustomProgram { program: "/run".to_owned(), ..CustomProgram::default() });
    let runner = RunnerSettings {
        executor: executor.to_owned(),
        docker: executor.starts_with("docker").then(|| Box::new(docker)),
        custom: (executor == "custom").then(|| Box::new(CustomSettings { run: program, ..CustomSettings::default() })),
        // The defaults of these two settings depend on the executor.
        clean_git_config: Some(true),
        safe_directory_checkout: Some(true),
        builds_dir: Some("/builds".into()),
        cache_dir: Some("/cache".into()),
        ..runner()
    };
    let directories = Directories { builds: "/builds".into(), cache: "/cache".into(), shared: false };
    JobContext { directories, runner: Arc::new(runner), ..context() }
}

fn job_with_everything() -> JobPayload {
    payload(json!({
        "steps": [
            { "name": "script", "script": ["make"] },
            { "name": "after_script", "script": ["make clean"], "when": "always", "allow_failure": true }
        ],
        "cache": [{ "key": "k", "paths": ["x"] }],
        "artifacts": [{ "name": "build", "paths": ["out/"], "artifact_type": "archive", "artifact_format": "zip" }],
        "dependencies": [
            { "id": 40, "token": "secret", "name": "build", "artifacts_file": { "filename": "a.zip", "size": 9 } }
        ],
        "hooks": [{ "name": "pre_get_sources_script", "script": ["echo before"] }]
    }))
}

/// Returns the steps without those that create the environment.
fn steps_with(executor: &str) -> Vec<Step> {
    let job =
        lower(&job_with_everything(), &context_with(executor)).unwrap_or_else(|error| panic!("{executor}: {error}"));
    match job.plan.steps.as_slice() {
        [Step { call: Call::Delegate { steps, .. }, .. }] => steps.clone(),
        [Step { name, .. }, steps @ ..] if name == "prepare_executor" => steps.to_vec(),
        steps => panic!("{executor}: {steps:?}"),
    }
}

/// Omits the log line about the environment.
fn as_json(executor: &str) -> Vec<Value> {
    let mut steps: Vec<_> = steps_with(executor).iter().map(|step| serde_json::to_value(step).unwrap()).collect();
    assert_eq!(steps[0]["name"], "prepare_script", "{executor}");
    let echoed = steps[0]["call"]["builtin"]["inputs"]["echoed"].take();
    assert!(echoed.to_string().contains("Running on "), "{executor}: {echoed}");
    steps
}

#[test]
fn every_executor_runs_the_same_steps() {
    let supported = muster_config::EXECUTORS.iter().filter(|(_, is_supported)| *is_supported).map(|(name, _)| *name);
    let executors: Vec<&str> = supported.filter(|name| *name != "custom").collect();
    assert!(executors.len() >= 6 && executors.contains(&"ssh"), "{executors:?}");
    let expected = as_json("shell");
    let names: Vec<_> = steps_with("shell").into_iter().map(|step| step.name).collect();
    assert!(names.iter().any(|name| name == "step_script") && names.len() >= 9, "{names:?}");
    for executor in executors {
        let steps = as_json(executor);
        let different: Vec<_> = steps.iter().zip(&expected).filter(|(step, expected)| step != expected).collect();
        assert!(different.is_empty(), "{executor}: {different:#?}");
        assert_eq!(steps.len(), expected.len(), "{executor}");
    }
}

#[test]
fn stages_of_a_driver_are_the_steps_of_other_executors() {
    let [prepare_script, stages, cleanup] = &steps_with("custom")[..] else { panic!("{:?}", steps_with("custom")) };
    let Call::Steps(stages) = &stages.call else { panic!("{stages:?}") };
    let stages = std::iter::once(prepare_script).chain(stages);
    let stages = stages.map(|step| (step.name.clone(), step.call.inputs::<DriverStage>().map(|stage| stage.builtin)));
    let steps = steps_with("shell").into_iter().map(|step| match step.call {
        Call::Builtin { name, .. } => (step.name, Some(name)),
        call => panic!("{call:?}"),
    });
    assert_eq!(stages.collect::<Vec<_>>(), steps.collect::<Vec<_>>());
    assert_eq!(cleanup.name, "cleanup");
}
