use muster_agent_api::builtin::{
    ArtifactsDownload, ArtifactsUploadList, CacheRestore, CacheSave, Checkout, Inputs, Script,
};
use muster_agent_api::plan::{Call, Step};
use muster_config::settings::{
    DockerSettings, OperatorAction, OperatorStep, RunnerSettings, StepReplacement, StepsSettings,
};
use muster_job::{PolicyRule, REPLACEABLE_BUILTINS, StepPolicy};
use serde_json::{Value, json};

use super::super::*;
use super::{context, payload, runner};

fn replacing(builtins: &[&str]) -> StepsSettings {
    let replacement = |builtin: &&str| StepReplacement {
        builtin: (*builtin).to_owned(),
        reference: format!("/opt/steps/{builtin}"),
        inputs: [("bucket".to_owned(), json!("${{ vars.BUCKET }}"))].into_iter().collect(),
    };
    StepsSettings { replace: builtins.iter().map(replacement).collect(), ..StepsSettings::default() }
}

/// Lowers a job that uses every replaceable built-in step.
fn lowered(change: impl FnOnce(&mut RunnerSettings)) -> Result<Vec<Step>, LowerError> {
    let extra = json!({
        "steps": [{ "name": "script", "script": ["make"] }, { "name": "after_script", "script": ["make clean"], "when": "always" }],
        "cache": [{ "key": "deps", "paths": ["vendor/"], "policy": "pull-push", "when": "always" }],
        "artifacts": [{ "name": "build", "paths": ["out/"], "artifact_type": "archive", "artifact_format": "zip" }],
        "dependencies": [{ "id": 40, "token": "t", "name": "build", "artifacts_file": { "filename": "a.zip", "size": 9 } }]
    });
    let mut runner = runner();
    change(&mut runner);
    let job = lower(&payload(extra), &JobContext { runner: Arc::new(runner), ..context() })?;
    Ok(job.plan.steps)
}

/// `None` means that the operator has replaced the step.
fn builtin(step: &Step) -> Option<(&str, &Value)> {
    if let Call::Builtin { name, inputs } = &step.call { Some((name, inputs)) } else { None }
}

#[test]
fn replaced_step_keeps_its_name_its_policy_and_its_inputs() {
    assert_eq!(
        REPLACEABLE_BUILTINS,
        [
            Checkout::BUILTIN,
            CacheRestore::BUILTIN,
            CacheSave::BUILTIN,
            ArtifactsDownload::BUILTIN,
            ArtifactsUploadList::BUILTIN,
            Script::BUILTIN
        ]
    );
    let plain = lowered(|_| ()).unwrap();
    for name in REPLACEABLE_BUILTINS {
        let steps = lowered(|runner| runner.steps = replacing(&[name])).unwrap();
        assert_eq!(steps.len(), plain.len());
        let mut replaced = 0;
        for (step, before) in steps.iter().zip(&plain) {
            assert_eq!((&step.name, &step.policy), (&before.name, &before.policy));
            let (called, passed) = builtin(before).unwrap();
            if called != name {
                assert_eq!(step, before);
                continue;
            }
            replaced += 1;
            let Call::Replaced { name: of, inputs, step: reference, with } = &step.call else { panic!("{step:?}") };
            assert_eq!((of.as_str(), inputs, reference), (name, passed, &format!("/opt/steps/{name}")));
            assert_eq!(with["bucket"], "${{ vars.BUCKET }}");
        }
        assert_ne!(replaced, 0, "{name}");
    }
}

#[test]
fn scripts_of_the_operator_are_not_replaced() {
    let audit = OperatorStep {
        name: "audit".to_owned(),
        action: OperatorAction::Script(vec!["id".to_owned()]),
        env: BTreeMap::new(),
        timeout: std::time::Duration::from_secs(30),
        required: true,
        exports: BTreeMap::new(),
    };
    let steps =
        lowered(|runner| runner.steps = StepsSettings { before: vec![audit], ..replacing(&["script"]) }).unwrap();
    let called = |name: &str| builtin(steps.iter().find(|step| step.name == name).unwrap()).map(|(called, _)| called);
    assert_eq!(called("operator_before_audit"), Some("script"));
    assert_eq!((called("step_script"), called("after_script")), (None, None));
}

#[test]
fn steps_in_a_container_are_replaced_there() {
    let docker = DockerSettings { image: "busybox".to_owned(), ..DockerSettings::default() };
    let steps = lowered(|runner| {
        "docker".clone_into(&mut runner.executor);
        runner.docker = Some(Box::new(docker));
        runner.steps = replacing(&["checkout", "cache/save"]);
    });
    let steps = steps.unwrap();
    let [Step { call: Call::Delegate { steps, .. }, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    let replaced: Vec<_> = steps.iter().filter(|step| builtin(step).is_none()).map(|step| step.name.as_str()).collect();
    assert_eq!(replaced, ["get_sources", "archive_cache_on_failure", "archive_cache"]);
}

#[test]
fn mirror_is_prepared_only_for_the_builtin_checkout() {
    let names = |steps: StepsSettings| {
        let steps = lowered(|runner| {
            runner.git_mirror.enabled = true;
            runner.steps = steps;
        });
        steps.unwrap().into_iter().map(|step| step.name).collect::<Vec<_>>()
    };
    assert!(names(StepsSettings::default()).contains(&"git_mirror".to_owned()));
    assert!(!names(replacing(&["checkout"])).contains(&"git_mirror".to_owned()));
}

#[test]
fn rule_that_denies_a_builtin_step_denies_its_replacement() {
    let rule = PolicyRule { line: 7, pattern: "builtin:cache/*".to_owned(), ..PolicyRule::default() };
    let policy = StepPolicy { file: "/p.toml".to_owned(), rules: vec![rule], ..StepPolicy::default() };
    let steps = StepsSettings { policy: Some(policy), ..replacing(&["cache/restore", "cache/save"]) };
    let error = lowered(|runner| runner.steps = steps).unwrap_err();
    assert!(error.message.starts_with("step \"restore_cache\": the step policy"), "{error}");
    assert!(error.message.contains("`deny = \"builtin:cache/*\"` at /p.toml:7"), "{error}");
}

#[test]
fn step_lists_must_not_call_builtins_that_are_replaced_or_preceded_by_an_operator_step() {
    let sign = OperatorStep {
        name: "sign".to_owned(),
        action: OperatorAction::Script(vec!["sign".to_owned()]),
        env: BTreeMap::new(),
        timeout: std::time::Duration::from_secs(30),
        required: true,
        exports: BTreeMap::new(),
    };
    let reserved = |steps: StepsSettings| {
        let runner = Arc::new(RunnerSettings { steps, ..runner() });
        // The job has neither caches nor artifacts.
        lower(&payload(json!({})), &JobContext { runner, ..context() }).unwrap().plan.reserved_builtins
    };
    assert!(reserved(StepsSettings::default()).is_empty());
    assert_eq!(reserved(replacing(&["script", "cache/save"])), ["cache/save", "script"]);
    let guarded = StepsSettings { before_upload: vec![sign], ..replacing(&["checkout"]) };
    assert_eq!(reserved(guarded), ["artifacts/upload", "checkout"]);
}
