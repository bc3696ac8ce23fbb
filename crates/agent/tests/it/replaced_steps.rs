//! Steps of the operator in place of built-in steps.

use std::path::PathBuf;

use muster_agent_api::builtin::{
    ArtifactsUpload, ArtifactsUploadList, CacheEntry, CacheObject, CacheRestore, Checkout, Inputs, Script,
};
use muster_agent_api::plan::{ArtifactEndpoint, Call, JobPlan, Step, When};
use muster_agent_api::result::{JobResult, Outcome, StepStatus};
use muster_job::{Secret, StepPolicy};
use serde_json::{Value, json};

use crate::harness::*;

fn write_step_file(agent: &Agent, name: &str, text: &str) -> String {
    let dir = agent.dir.path().join("steps").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("step.yml"), text).unwrap();
    dir.to_string_lossy().into_owned()
}

fn replacing_call<I: Inputs>(inputs: &I, reference: String, with: Value) -> Call {
    Call::Replaced {
        name: I::BUILTIN.to_owned(),
        inputs: serde_json::to_value(inputs).unwrap(),
        step: reference,
        with: with.as_object().unwrap().clone(),
    }
}

fn checkout(call: Call) -> Step {
    step("get_sources", When::OnSuccess, call)
}

fn plan(agent: &Agent, steps: Vec<Step>) -> JobPlan {
    JobPlan { steps, retry_wait_ms: (1, 1), ..agent.plan(Vec::new()) }
}

#[tokio::test]
async fn replacement_of_the_checkout_gets_its_declared_inputs_and_those_of_the_operator() {
    let mut agent = Agent::start().await;
    let text = "spec:\n  inputs:\n    ref: {type: string}\n    refspecs: {type: array}\n    depth: {type: number}\n    \
                mirror: {type: string}\n    extra: {type: string, default: unset}\n---\nenv:\n  REF: ${{ inputs.ref }}\n  \
                REFSPECS: ${{ inputs.refspecs }}\nexec:\n  command:\n    - sh\n    - -c\n    - |\n      \
                echo \"$REF $REFSPECS $1 $2 $3\" >sources; pwd; env | grep -c '^OF_THE_JOB=' || true\n    - sh\n    \
                - ${{ inputs.depth }}\n    - ${{ inputs.mirror }}\n    - ${{ inputs.extra }}\n";
    let reference = write_step_file(&agent, "checkout", text);
    let inputs = Checkout {
        ref_name: "${{ vars.OF_THE_JOB }}".to_owned(),
        refspecs: vec!["+refs/heads/main".to_owned()],
        depth: 3,
        sha: "not declared by the step".to_owned(),
        ..Checkout::default()
    };
    let with = json!({ "mirror": "for ${{ vars.OF_THE_JOB }}", "depth": 7 });
    let call = replacing_call(&inputs, reference, with);
    let mut plan = plan(&agent, vec![checkout(call), script(&["cat sources"])]);
    // The step policy and the lock file do not apply to steps of the operator.
    plan.step_policy = Some(StepPolicy { denied_by_default: Some(1), ..StepPolicy::default() });
    let variables =
        [variable("OF_THE_JOB", "it"), variable("CI_STEPS_DIALECT", "legacy"), variable("CI_STEPS_LOG_LEVEL", "loud")];
    agent.run("1-1", &plan, &variables).await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let line = "\n${{ vars.OF_THE_JOB }} [\"+refs/heads/main\"] 7 for it unset\n";
    assert!(log.contains(line), "{log}");
    assert!(
        log.contains(&format!("\n{}\n0\n", agent.project().display())),
        "the step must get no variable of the job: {log}"
    );
    assert_eq!(states(&result), [("get_sources", StepStatus::Success), ("step_script", StepStatus::Success)]);
    let inner: Vec<_> = result.tree.steps[0].steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(inner, ["checkout"]);
}

#[tokio::test]
async fn failed_replacement_is_repeated_and_is_then_a_failure_of_the_runner() {
    let mut agent = Agent::start().await;
    let failing =
        write_step_file(&agent, "failing", "{}\n---\nexec: {command: [sh, -c, 'echo tried >>../tried; exit 9']}\n");
    let mut sources = checkout(replacing_call(&Checkout::default(), failing.clone(), json!({})));
    sources.policy.attempts = 3;
    let (log, result) = agent.complete(&plan(&agent, vec![sources, script(&["echo never"])])).await;
    assert_eq!(failure(&result), ("runner_system_failure".to_owned(), None));
    let text = format!(
        "ERROR: Job failed (system failure): the step `{failing}` that the operator of this runner put in place of \
         `builtin://checkout` failed: exit status 9"
    );
    assert!(log.contains(&text) && !log.contains("\nnever\n"), "{log}");
    let tried = std::fs::read_to_string(agent.dir.path().join("builds/tried")).unwrap();
    assert_eq!(tried.lines().count(), 3, "{log}");

    let caches = CacheRestore { caches: vec![CacheEntry { key: "deps".to_owned(), ..CacheEntry::default() }] };
    let mut restore = step("restore_cache", When::OnSuccess, replacing_call(&caches, failing, json!({})));
    restore.policy.allow_failure = true;
    let (log, result) = agent.complete(&agent.plan(vec![restore, script(&["echo continues"])])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("WARNING: restore_cache failed, but the job continues: the step `/"), "{log}");
    assert!(log.contains("\ncontinues\n"), "{log}");

    let missing = checkout(replacing_call(&Checkout::default(), "/nonexistent/step".to_owned(), json!({})));
    let (log, result) = agent.complete(&plan(&agent, vec![missing])).await;
    assert_eq!(failure(&result).0, "runner_system_failure");
    assert!(log.contains("`/nonexistent/step` that the operator") && log.contains("failed to load: "), "{log}");

    let script = Script { commands: vec!["true".to_owned()], ..Script::default() };
    let call = replacing_call(&script, "/nonexistent/step".to_owned(), json!({}));
    let missing = step("step_script", When::OnSuccess, call);
    let (log, result) = agent.complete(&plan(&agent, vec![missing])).await;
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(1)));
    assert!(log.contains("failed to load: ") && log.contains("/nonexistent/step"), "{log}");
}

#[tokio::test]
async fn replacements_of_script_and_after_script_keep_exit_code_and_environment() {
    let mut agent = Agent::start().await;
    let text = "spec:\n  inputs:\n    commands: {type: array}\n    after_script: {type: boolean}\n---\nexec:\n  command:\n    - python3\n    \
                - -c\n    - |\n      import json, subprocess, sys\n      print('after' if sys.argv[2] == 'true' else 'wrapped', flush=True)\n      \
                sys.exit(subprocess.call(['sh', '-ec', '\\n'.join(json.loads(sys.argv[1]))]))\n    - ${{ inputs.commands }}\n    \
                - ${{ inputs.after_script }}\n";
    let wrapper = write_step_file(&agent, "wrapper", text);
    let call = |commands: &[&str], after_script| {
        let commands = commands.iter().map(ToString::to_string).collect();
        replacing_call(&Script { commands, after_script, ..Script::default() }, wrapper.clone(), json!({}))
    };
    let mut after = step("after_script", When::Always, call(&["echo \"$CI_JOB_STATUS $NAME\""], true));
    after.policy.allow_failure = true;
    let variables = [variable("NAME", "x y"), variable("CI_STEPS_LOG_LEVEL", "loud")];
    let main =
        step("step_script", When::OnSuccess, call(&["echo \"hello $NAME at $CI_STEPS_LOG_LEVEL\"", "exit 7"], false));
    agent.run("1-1", &agent.plan(vec![main, after.clone()]), &variables).await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(7)), "{log}");
    assert!(log.contains("\nwrapped\nhello x y at info\n") && log.contains("\nafter\nfailed x y\n"), "{log}");

    let endless = step("step_script", When::OnSuccess, call(&["echo ready; sleep 600"], false));
    agent.run("2-1", &agent.plan(vec![endless, after]), &[variable("NAME", "z")]).await;
    agent.log_until("2-1", "\nready\n").await;
    agent.cancel("2-1").await;
    let (result, log) = (agent.wait("2-1").await, agent.log("2-1").await);
    assert_eq!(failure(&result).0, "job_canceled");
    assert!(log.contains("\nafter\ncanceled z\n"), "{log}");
}

async fn run_with_secrets(agent: &mut Agent) -> (String, JobResult) {
    let printing = |input: &str| {
        format!(
            "spec: {{inputs: {{{input}: {{type: string}}}}}}\n---\nexec: {{command: [sh, -c, 'echo \"got $1\"; printf %s \"$1\" >{input}', \
             sh, '${{{{ inputs.{input} }}}}']}}\n"
        )
    };
    let object = CacheObject {
        download: Secret::new("https://store.example/deps?signature=5ecret-0f-the-url"),
        ..CacheObject::default()
    };
    let cache =
        CacheEntry { key: "deps".to_owned(), objects: [("deps".to_owned(), object)].into(), ..CacheEntry::default() };
    let reference = write_step_file(agent, "cache", &printing("caches"));
    let restore = replacing_call(&CacheRestore { caches: vec![cache] }, reference, json!({}));
    let reference = write_step_file(agent, "upload", &printing("token"));
    let artifacts = vec![ArtifactsUpload { paths: vec!["out".to_owned()], ..ArtifactsUpload::default() }];
    let upload = replacing_call(&ArtifactsUploadList { artifacts }, reference, json!({}));
    let show = script(&["cat caches token; echo; cut -d? -f2 caches | cut -c1-27; grep -c 'signature=5ecret' caches"]);
    let mut plan = agent.plan(vec![
        step("restore_cache", When::OnSuccess, restore),
        step("upload_artifacts_on_success", When::OnSuccess, upload),
        show,
    ]);
    plan.record_calls = true;
    plan.coordinator = ArtifactEndpoint { token: "t0ken-of-the-job".to_owned(), ..ArtifactEndpoint::default() };
    agent.complete(&plan).await
}

#[tokio::test]
async fn secrets_that_a_replacement_gets_are_masked_in_log_and_result() {
    let mut agent = Agent::start().await;
    let (log, result) = run_with_secrets(&mut agent).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\ngot [MASKED]\n") && log.contains("\"url\":\"[MASKED]\""), "{log}");
    assert!(log.contains("\n[MASKED]\n1\n"), "the step must get the real URL, and the log must mask its query: {log}");
    let result = serde_json::to_string(&result).unwrap();
    assert!(result.contains("\"builtin:cache/restore\"") && result.contains("/steps/cache\""), "{result}");
    for secret in ["5ecret-0f-the-url", "t0ken-of-the-job"] {
        assert!(!log.contains(secret), "{log}");
        assert!(!result.contains(secret), "{result}");
    }
}

/// Returns the inputs of a built-in step in `docs/reference/replaceable-steps.md`.
fn documented_inputs(builtin: &str) -> Vec<String> {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/replaceable-steps.md");
    let text = std::fs::read_to_string(page).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with(&format!("`{builtin}`\n")));
    let section = section.unwrap_or_else(|| panic!("no section about {builtin}"));
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names =
        rows.flat_map(|row| row.split(" | ").next().unwrap().split("`, `").map(str::to_owned).collect::<Vec<_>>());
    names.map(|name| name.trim_end_matches('`').to_owned()).collect()
}

#[tokio::test]
async fn every_documented_input_reaches_the_replacement() {
    let mut agent = Agent::start().await;
    let caches = || vec![CacheEntry { key: "deps".to_owned(), ..CacheEntry::default() }];
    // The loop replaces this reference.
    let placeholder = String::new();
    let calls = [
        replacing_call(&Checkout::default(), placeholder.clone(), json!({})),
        replacing_call(&CacheRestore { caches: caches() }, placeholder.clone(), json!({})),
        replacing_call(&muster_agent_api::builtin::CacheSave { caches: caches() }, placeholder.clone(), json!({})),
        replacing_call(
            &muster_agent_api::builtin::ArtifactsDownload {
                from: vec![muster_agent_api::builtin::ArtifactSource::default()],
            },
            placeholder.clone(),
            json!({}),
        ),
        replacing_call(
            &ArtifactsUploadList { artifacts: vec![muster_agent_api::builtin::ArtifactsUpload::default()] },
            placeholder.clone(),
            json!({}),
        ),
        replacing_call(&Script { commands: vec!["true".to_owned()], ..Script::default() }, placeholder, json!({})),
    ];
    for mut call in calls {
        let Call::Replaced { name, step: reference, .. } = &mut call else { unreachable!() };
        let names = documented_inputs(name);
        assert!(!names.is_empty(), "{name}");
        // The step declares its inputs without defaults, so it fails if it does not get one of them.
        let inputs: Vec<_> = names.iter().map(|name| format!("{name}: {{type: string}}")).collect();
        let text = format!("spec: {{inputs: {{{}}}}}\n---\nexec: {{command: [echo, it ran]}}\n", inputs.join(", "));
        *reference = write_step_file(&agent, &name.replace('/', "-"), &text);
        let (log, _) = agent.complete(&plan(&agent, vec![step("step", When::OnSuccess, call)])).await;
        assert!(log.contains("\nit ran\n"), "{names:?}: {log}");
    }
}
