use muster_agent_api::builtin::{DriverPrepare, DriverStage};
use muster_agent_api::plan::{Call, Step, When};
use muster_config::settings::{CustomProgram, CustomSettings};

use super::*;

fn program(path: &str) -> Option<CustomProgram> {
    Some(CustomProgram { program: path.to_owned(), ..CustomProgram::default() })
}

fn custom(settings: Option<CustomSettings>) -> JobContext {
    let runner = RunnerSettings {
        executor: "custom".to_owned(),
        builds_dir: Some("/vm/builds".into()),
        cache_dir: Some("/vm/cache".into()),
        custom: settings.map(Box::new),
        ..runner()
    };
    JobContext { runner: Arc::new(runner), ..context() }
}

fn names(steps: &[Step]) -> Vec<&str> {
    steps.iter().map(|step| step.name.as_str()).collect()
}

#[test]
fn stages_are_between_preparation_and_cleanup_of_the_driver() {
    let settings = CustomSettings { run: program("/run"), ..CustomSettings::default() };
    let extra = json!({ "artifacts": [{ "name": "a", "paths": ["a"], "when": "always" }] });
    let job = lower(&payload(extra), &custom(Some(settings))).unwrap();
    let steps = &job.plan.steps;
    assert_eq!(names(steps), ["prepare_executor", "prepare_script", "stages", "cleanup"]);
    assert_eq!((steps[2].policy.when, steps[3].policy.when), (When::OnSuccess, When::Finally));
    let Call::Steps(stages) = &steps[2].call else { panic!("{:?}", steps[2]) };
    let uploads = ["upload_artifacts_on_failure", "upload_artifacts_on_success"];
    assert_eq!(names(stages), ["get_sources", "step_script", uploads[0], uploads[1], "cleanup_file_variables"]);
    let stage: DriverStage = stages[1].call.inputs().unwrap();
    assert_eq!((stage.stage.as_str(), stage.builtin.as_str()), ("step_script", "script"));
    // The plan has the directories of the agent, which runs on this host.
    assert_eq!((&*job.plan.project_dir, &*job.plan.builds_dir), ("/builds/shorttoke/custom-2", "/builds"));
    let prepare: DriverPrepare = steps[0].call.inputs().unwrap();
    assert_eq!((&*prepare.directories.builds, &*prepare.directories.shared_layout), ("/vm/builds", "/shorttoke/1"));
    assert_eq!(value(&job, "CI_BUILDS_DIR").unwrap(), "/vm/builds");
    assert_eq!(value(&job, "CI_SHARED_ENVIRONMENT").unwrap(), "true");
    assert!(prepare.payload.contains("\"id\":42"), "{}", prepare.payload);
    let answer = json!({ "muster": { "answer": "{\"id\": 42, \"not_known\": [1]}" } });
    let settings = CustomSettings { run: program("/run"), ..CustomSettings::default() };
    let job = lower(&payload(answer), &custom(Some(settings))).unwrap();
    let prepare: DriverPrepare = job.plan.steps[0].call.inputs().unwrap();
    assert_eq!(
        prepare.payload, "{\"id\": 42, \"not_known\": [1]}",
        "the driver must get the payload exactly as the server sent it"
    );
}

#[test]
fn driver_gets_first_alias_of_a_service() {
    let settings = CustomSettings { run: program("/run"), ..CustomSettings::default() };
    let alias_of = |alias: &str| {
        let extra = json!({ "services": [{ "name": "postgres", "alias": alias }] });
        let job = lower(&payload(extra), &custom(Some(settings.clone()))).unwrap();
        let prepare: DriverPrepare = job.plan.steps[0].call.inputs().unwrap();
        let services: serde_json::Value = serde_json::from_str(&prepare.services).unwrap();
        services[0]["alias"].as_str().unwrap().to_owned()
    };
    for alias in ["db", "db, sql", " db", ",db", "db\tsql", "\ndb\r"] {
        assert_eq!(alias_of(alias), "db", "{alias:?}");
    }
    assert_eq!(alias_of(" ,"), "");
}

#[test]
fn directories_are_placeholders_if_the_driver_has_a_configuration_stage() {
    let settings = CustomSettings { run: program("/run"), config: program("/config"), ..CustomSettings::default() };
    let job = lower(&payload(json!({})), &custom(Some(settings))).unwrap();
    let project = value(&job, "CI_PROJECT_DIR").unwrap();
    assert!(
        project.starts_with("/__muster_builds_dir__/__muster_layout__/") && project.ends_with("/group/project"),
        "{project}"
    );
}

#[test]
fn job_without_a_driver_or_with_the_run_keyword_is_refused_with_a_remedy() {
    let message = |settings, extra| lower(&payload(extra), &custom(settings)).unwrap_err().to_string();
    let text = message(None, json!({}));
    assert_eq!(text, "custom executor not configured; add [runners.custom] with run_exec");
    let text = message(Some(CustomSettings::default()), json!({}));
    assert_eq!(text, "custom executor is missing RunExec; set run_exec in [runners.custom]");
    let settings = CustomSettings { run: program("/run"), ..CustomSettings::default() };
    let text = message(Some(settings), json!({ "run": "[]", "steps": [] }));
    assert!(text.contains("does not support the `run` keyword") && text.ends_with("use `script`"), "{text}");
}
