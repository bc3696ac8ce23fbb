use std::time::Duration;

use muster_agent_api::builtin::{Checkout, Prepare, Script};
use muster_agent_api::plan::Step;
use muster_job::Variable;

use super::*;

fn lowered_for(runner: RunnerSettings, extra: Value) -> Result<LoweredJob, LowerError> {
    lower(&payload(extra), &JobContext { runner: Arc::new(runner), ..context() })
}

fn lowered_with(change: impl FnOnce(&mut RunnerSettings), extra: Value) -> LoweredJob {
    let mut runner = runner();
    change(&mut runner);
    lowered_for(runner, extra).unwrap()
}

fn lower_error(change: impl FnOnce(&mut RunnerSettings), extra: Value) -> String {
    let mut runner = runner();
    change(&mut runner);
    let error = lowered_for(runner, extra).unwrap_err();
    format!("{}: {}", error.reason, error.message)
}

fn step<'a>(job: &'a LoweredJob, name: &str) -> &'a Step {
    job.plan.steps.iter().find(|step| step.name == name).unwrap()
}

fn checkout(job: &LoweredJob) -> Checkout {
    step(job, "get_sources").call.inputs().unwrap()
}

fn script(job: &LoweredJob, name: &str) -> Script {
    step(job, name).call.inputs().unwrap()
}

fn executor_lines(job: &LoweredJob) -> Vec<String> {
    step(job, "prepare_executor").call.inputs::<Prepare>().unwrap().lines
}

#[test]
fn job_variables_override_runner_variables() {
    let environment = |runner: &mut RunnerSettings| {
        runner.environment = vec![
            Variable::public("OWN", "of the runner, in $CI_PROJECT_DIR"),
            Variable::public("BOTH", "runner"),
            Variable::public("CI_PROJECT_DIR", "elsewhere"),
        ];
    };
    let job = lowered_with(environment, variables(&[("BOTH", "job")]));
    let dir = "/builds/shorttoke/1/group/project";
    assert_eq!(value(&job, "OWN").unwrap(), format!("of the runner, in {dir}"));
    assert_eq!(value(&job, "BOTH").unwrap(), "job");
    assert_eq!(value(&job, "CI_PROJECT_DIR").unwrap(), dir);
}

#[test]
fn c105_configured_flag_overrides_job_with_note() {
    let fixed = |runner: &mut RunnerSettings| {
        runner.feature_flags.insert("FF_TIMESTAMPS".to_owned(), false);
        runner.feature_flags.insert("FF_FROM_THE_FUTURE".to_owned(), true);
    };
    let job = lowered_with(fixed, variables(&[("FF_TIMESTAMPS", "true"), ("FF_SCRIPT_SECTIONS", "1")]));
    assert!(!job.plan.timestamps && script(&job, "step_script").sections);
    assert_eq!(value(&job, "FF_TIMESTAMPS").unwrap(), "false");
    assert!(job.plan.header.iter().any(|line| line == "  feature flags: FF_TIMESTAMPS:false, FF_SCRIPT_SECTIONS:true"));
    let note = "NOTE: the job's FF_TIMESTAMPS is ignored, because the runner sets it to false";
    assert!(executor_lines(&job).contains(&note.to_owned()), "{:?}", executor_lines(&job));
}

#[test]
fn flags_come_from_job_then_runner_and_invalid_value_warns() {
    let environment = |runner: &mut RunnerSettings| {
        runner.environment = ["FF_TIMESTAMPS", "FF_ENABLE_BASH_EXIT_CODE_CHECK", "FF_USE_JOB_ROUTER"]
            .map(|name| Variable::public(name, if name == "FF_TIMESTAMPS" { "false" } else { "true" }))
            .to_vec();
    };
    let job = lowered_with(environment, variables(&[("FF_TIMESTAMPS", "T"), ("FF_SCRIPT_SECTIONS", "perhaps")]));
    assert!(job.plan.timestamps && script(&job, "step_script").check_exit_codes);
    assert_eq!(value(&job, "FF_USE_JOB_ROUTER").unwrap(), "false", "`environment` must not set a flag of the manager");
    assert_eq!(job.plan.warnings, ["FF_SCRIPT_SECTIONS: expected a boolean, got \"perhaps\", using false"]);
}

#[test]
fn operator_commands_surround_checkout_and_script() {
    let texts = |runner: &mut RunnerSettings| {
        runner.scripts.pre_get_sources = Some("pre get".to_owned());
        runner.scripts.post_get_sources = Some("post get".to_owned());
        runner.scripts.pre_build = Some("pre build".to_owned());
        runner.scripts.post_build = Some("  \n".to_owned());
    };
    let hooks = json!({
        "hooks": [{ "name": "pre_get_sources_script", "script": ["job pre"] },
                  { "name": "post_get_sources_script", "script": ["job post"] }],
        "steps": [{ "name": "script", "script": ["make"] }, { "name": "after_script", "script": ["clean"] }]
    });
    let job = lowered_with(texts, hooks.clone());
    assert_eq!(checkout(&job).pre_script, ["pre get", "job pre"]);
    assert_eq!(checkout(&job).post_script, ["job post", "post get"]);
    assert_eq!(script(&job, "step_script").before, ["pre build"]);
    assert!(script(&job, "step_script").after.is_empty(), "an empty text is not a command");
    assert!(script(&job, "after_script").before.is_empty());
    let mut without = hooks;
    without["variables"] = variables(&[("GIT_STRATEGY", "none")])["variables"].clone();
    assert!(checkout(&lowered_with(texts, without)).pre_script.is_empty(), "no hook runs without a repository");
}

#[test]
fn runner_timeouts_apply_if_shorter_than_job_timeout() {
    let limited =
        |limit| lowered_with(|runner| runner.get_sources_timeout = Some(Duration::from_secs(limit)), json!({}));
    assert_eq!(step(&limited(60), "get_sources").policy.timeout_ms, 60_000);
    assert_eq!(step(&limited(7200), "get_sources").policy.timeout_ms, 0);
    let warned =
        lowered_with(|runner| runner.prepare_timeout = Some(Duration::from_secs(90_000)), json!({})).plan.warnings;
    assert_eq!(warned, ["prepare_timeout = 90000 s is ignored; the job's timeout of 3600 s applies"]);
    let job = lowered_with(|runner| runner.artifact.upload = Duration::from_secs(5), json!({}));
    assert_eq!((job.plan.coordinator.upload_timeout_ms, job.plan.coordinator.response_timeout_ms), (5_000, 600_000));
    assert_eq!(job.plan.unpack.max_bytes, 0, "the agent's default applies");
    let job = lowered_with(|runner| runner.unpack.max_bytes = 7, json!({}));
    assert_eq!(job.plan.unpack.max_bytes, 7);
}

#[test]
fn debug_trace_can_be_disabled() {
    let debug_trace = || variables(&[("CI_DEBUG_TRACE", "true")]);
    assert!(script(&lowered_with(|_| {}, debug_trace()), "step_script").debug);
    let job = lowered_with(|runner| runner.debug_trace_disabled = true, debug_trace());
    assert!(!script(&job, "step_script").debug);
    assert_eq!(job.plan.warnings, ["CI_DEBUG_TRACE: usage is disabled on this Runner"]);
}

#[test]
fn git_clone_path_requires_custom_build_dir() {
    let clone_path = || variables(&[("GIT_CLONE_PATH", "$CI_BUILDS_DIR/$CI_CONCURRENT_ID/x")]);
    assert_eq!(lowered_with(|_| {}, clone_path()).plan.project_dir, "/builds/2/x");
    assert_eq!(
        lower_error(|runner| runner.custom_build_dir = None, clone_path()),
        "runner_configuration_error: setting GIT_CLONE_PATH is not allowed, enable `custom_build_dir` feature"
    );
}

#[test]
fn remote_and_submodules_use_job_token() {
    let by_payload = lowered_with(|_| {}, json!({}));
    assert_eq!(checkout(&by_payload).repo_url, "https://gitlab.example/group/project.git");
    let cloned = |url: &str| {
        let settings = [
            ("CI_PROJECT_PATH", "group/project"),
            ("GIT_SUBMODULE_FORCE_HTTPS", "true"),
            ("CI_SERVER_HOST", "gitlab.example"),
        ];
        let job = lowered_with(|runner| runner.clone_url = Some(url.to_owned()), variables(&settings));
        let Checkout { repo_url, rewrites, .. } = checkout(&job);
        let rewrites = rewrites.iter().map(|rewrite| format!("{} <- {}", rewrite.to, rewrite.from));
        (repo_url, rewrites.collect::<Vec<_>>())
    };
    let (url, rewrites) = cloned("https://inner.example:8443/");
    let with_token = "https://gitlab-ci-token:glcbt-secret@inner.example:8443";
    assert_eq!(url, format!("{with_token}/group/project.git"));
    assert_eq!(
        rewrites,
        [
            format!("{with_token} <- https://inner.example:8443"),
            format!("{with_token}/ <- git@gitlab.example:"),
            format!("{with_token} <- ssh://git@gitlab.example"),
        ]
    );
    assert_eq!(cloned("ssh://inner.example").0, "ssh://git@inner.example/group/project.git");
}

#[test]
fn certificates_are_file_variables_and_used_by_git() {
    let certificates = Certificates { ca: Some(Secret::new("PEM $X")), ..Certificates::default() };
    let job = lower(&payload(json!({})), &JobContext { certificates, ..context() }).unwrap();
    let file = job.variables.iter().find(|variable| variable.key == "CI_SERVER_TLS_CA_FILE").unwrap();
    assert!(file.file && file.value == "PEM $X", "references in certificates are not expanded");
    assert_eq!(checkout(&job).tls.ca.as_deref(), Some("CI_SERVER_TLS_CA_FILE"));
    assert_eq!(job.plan.coordinator.tls, checkout(&job).tls);
    assert!(checkout(&job).tls.key.is_none());
}

#[test]
fn errors_name_the_unsupported_feature() {
    let errors = [
        json!({ "secrets": { "PASSWORD": { "vault": {}, "file": false }, "KEY": { "azure_key_vault": {} } } }),
        json!({ "secrets": { "PASSWORD": { "vault": {} } } }),
        json!({ "image": { "name": "x", "executor_opts": { "docker": { "user": "1", "privileged": true } } } }),
        json!({ "services": [{ "name": "x", "executor_opts": { "podman": { "user": "1" } } }] }),
        variables(&[("GIT_SUBMODULE_STRATEGY", "normal"), ("GIT_SUBMODULE_PATHS", "lib :(exclude) x")]),
    ]
    .map(|extra| lower_error(|_| {}, extra));
    insta::assert_json_snapshot!(errors);
}

#[test]
fn options_of_other_executors_and_unknown_fields_are_ignored() {
    let job = lowered(json!({
        "image": { "name": "x", "executor_opts": { "docker": { "user": 1, "platform": "linux" } }, "new": [1] },
        "from_the_future": { "a": 1 }, "suspend_options": { "suspend_on_success": true }, "secrets": null
    }));
    assert!(executor_lines(&job)[1].starts_with("NOTE: the job's image `x` is not used"));
}

#[test]
fn only_job_inputs_are_interpolated() {
    let inputs = json!([
        { "key": "who", "value": { "type": "string", "content": "all" } },
        { "key": "count", "value": { "type": "number", "content": 3 } }
    ]);
    let extra = |script: &str, flag: &str| {
        let mut extra = variables(&[("FF_ENABLE_JOB_INPUTS_INTERPOLATION", flag)]);
        extra["inputs"] = inputs.clone();
        extra["steps"] = json!([{ "name": "script", "script": [script] }]);
        extra
    };
    let command = |extra| script(&lowered(extra), "step_script").commands[0].clone();
    let text = "echo ${{ job.inputs.who }} ${{job.inputs.count}} ${{ other }} $${{";
    assert_eq!(command(extra(text, "true")), "echo all 3 ${{ other }} $${{");
    assert_eq!(command(extra(text, "false")), text);
    let unknown = lower_error(|_| {}, extra("${{ job.inputs.missing }}", "true"));
    assert!(unknown.starts_with("runner_configuration_error: `${{ job.inputs.missing }}` names an input"), "{unknown}");
    for value in [
        json!({ "type": "number", "content": "3" }),
        json!({ "type": "string", "content": "x", "sensitive": true }),
        json!({ "type": "string", "content": null }),
    ] {
        let mut extra = extra("true", "true");
        extra["inputs"][0]["value"] = value;
        let error = lower_error(|_| {}, extra);
        assert!(error.starts_with("runner_configuration_error: the job's input `who`"), "{error}");
    }
}

#[test]
fn job_of_an_execution_policy_has_notices() {
    let policy = json!({ "policy_options": {
        "execution_policy_job": true, "policy_name": "scan", "policy_variables_override_allowed": true,
        "policy_variables_override_exceptions": ["A", "B"]
    } });
    assert_eq!(
        lowered(policy).plan.notices,
        ["Job triggered by policy \"scan\".", "User-defined CI/CD variables are allowed (with exceptions: A, B)."]
    );
}
