//! `builtin://script_legacy`, with requests of gitlab-runner.

use muster_agent_api::plan::{Call, When};
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::{Job, RunRequest, Variable};
use muster_job::{PolicyRule, StepPolicy};
use serde_json::{Value, json};

use crate::harness::*;

async fn run(agent: &mut Agent, list: Value, variables: &[Variable]) -> (String, JobResult) {
    let work = agent.dir.path().join("work").to_string_lossy().into_owned();
    let request = RunRequest {
        id: "1".to_owned(),
        steps: format!("{{}}\n---\n{}", json!({ "run": list })),
        job: Some(Job { variables: variables.to_vec(), build_dir: work }),
        ..RunRequest::default()
    };
    agent.steps.run(request).await.unwrap();
    let ended = (agent.log("1").await, agent.wait("1").await);
    agent.close("1").await;
    ended
}

/// Returns a list with one step: a script with all inputs that gitlab-runner sends. `more` adds or replaces inputs.
fn user_script(commands: &[&str], more: Value) -> Value {
    let mut inputs = json!({
        "script": commands, "debug_trace": false, "check_for_errors": false, "posix_escape": true, "trace_sections": false,
    });
    inputs.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!([{ "name": "user_script", "func": "builtin://script_legacy", "inputs": inputs, "env": { "OF_STEP": "own" } }])
}

async fn run_script(agent: &mut Agent, commands: &[&str]) -> (String, JobResult) {
    run(agent, user_script(commands, json!({})), &[]).await
}

fn echoed_line(command: &str) -> String {
    format!("\u{1b}[1;32m$ {command}\u{1b}[0m\n")
}

#[tokio::test]
async fn commands_are_printed_and_get_the_variables_of_step_and_job() {
    let mut agent = Agent::start().await;
    let commands = ["echo \"$OF_STEP $OF_JOB\"", "  echo it\\'s\necho two", " ", "pwd"];
    let list = user_script(&commands, json!({}));
    let (log, result) = run(&mut agent, list, &[variable("OF_JOB", "a job's")]).await;
    let work = agent.dir.path().join("work");
    let expected = [
        "Running step name=user_script\n".to_owned(),
        echoed_line(commands[0]) + "own a job's\n",
        echoed_line("echo it\\'s # collapsed multi-line command") + "it's\ntwo\n",
        "\n".to_owned(),
        echoed_line("pwd") + &format!("{}\n", work.display()),
    ];
    assert_eq!(log, expected.concat());
    assert_eq!(result.message, "");
}

#[tokio::test]
async fn first_failure_ends_the_script_with_its_exit_code() {
    let mut agent = Agent::start().await;
    for (commands, code) in [
        (&["(exit 3)", "echo never"][..], 3),
        (&["exit 4"], 4),
        (&["(exit 5) | cat", "echo never"], 5),
        (&["kill -TERM $$", "echo never"], 1),
    ] {
        let (log, result) = run_script(&mut agent, commands).await;
        assert!(result.message.ends_with(&format!("exit status {code}")), "{commands:?}: {}: {log}", result.message);
        assert!(!log.contains("\nnever"), "{log}");
    }
    // `errexit` ignores a failure before `&&`.
    let (log, result) = run_script(&mut agent, &["false && true"]).await;
    assert_eq!(result.message, "", "{log}");
}

#[tokio::test]
async fn exit_code_is_checked_after_each_command_on_request() {
    let mut agent = Agent::start().await;
    let commands = ["set +e", "(exit 3)", "echo after"];
    let (log, result) = run_script(&mut agent, &commands).await;
    assert!(log.ends_with("after\n") && result.message.is_empty(), "{log}");
    let list = user_script(&commands, json!({ "check_for_errors": true }));
    let (log, result) = run(&mut agent, list, &[]).await;
    assert!(!log.contains("\nafter") && result.message.ends_with("exit status 3"), "{log}");
}

#[tokio::test]
async fn background_processes_and_some_signals_to_the_shell_do_not_fail_the_script() {
    let mut agent = Agent::start().await;
    for signal in ["HUP", "PIPE", "USR1", "USR2"] {
        let (log, result) = run_script(&mut agent, &[&format!("kill -{signal} $$")]).await;
        assert_eq!(result.message, "", "{signal}: {log}");
    }
    let (log, result) = run_script(&mut agent, &["kill -KILL $$"]).await;
    assert!(result.message.ends_with("killed"), "{}: {log}", result.message);
    let (log, result) = run_script(&mut agent, &["sleep 1000 & echo $! >pid", "echo done"]).await;
    assert!(log.ends_with("done\n") && result.message.is_empty(), "{log}");
    let pid = std::fs::read_to_string(agent.dir.path().join("work/pid")).unwrap();
    assert!(!is_running(pid.trim()), "the background process must end with the job");
}

#[tokio::test]
async fn later_script_gets_the_variables_that_an_earlier_one_wrote_to_gitlab_env() {
    let mut agent = Agent::start().await;
    let temp = agent.dir.path().join("job's tmp");
    std::fs::create_dir(&temp).unwrap();
    let temp = temp.to_str().unwrap();
    let write = "printf 'FIRST=a=b c\\nno assignment\\n1X=y\\nUID=5\\nBAD-NAME=z\\nLAST=\\047$x' >>\"$GITLAB_ENV\"";
    let list: Vec<_> = [write, "echo \"<$FIRST> <$LAST> $GITLAB_ENV\""]
        .iter()
        .flat_map(|command| user_script(&[command], json!({})).as_array().unwrap().clone())
        .collect();
    let mut list = json!(list);
    list[1]["name"] = json!("later");
    let (log, result) = run(&mut agent, list, &[variable("RUNNER_TEMP_PROJECT_DIR", temp)]).await;
    assert!(log.ends_with(&format!("\n<a=b c> <'$x> {temp}/gitlab_runner_env\n")), "{log}");
    assert_eq!(result.message, "", "{log}");
}

#[tokio::test]
async fn long_commands_have_sections_and_a_traced_shell_prints_what_it_executes() {
    let mut agent = Agent::start().await;
    let list =
        user_script(&["echo one", "echo two\necho three"], json!({ "trace_sections": true, "debug_trace": true }));
    let (log, _) = run(&mut agent, list, &[]).await;
    assert!(log.contains(":section_script_step_1[hide_duration=true,collapsed=true]\r\u{1b}[0K"), "{log}");
    assert!(log.contains("\u{1b}[1;32m$ echo two\necho three\u{1b}[0m\n"), "{log}");
    assert!(log.contains("section_end:") && !log.contains(":section_script_step_0"), "{log}");
    assert!(log.contains("+ echo one\none\n"), "{log}");
}

#[tokio::test]
async fn empty_script_and_the_step_concrete_are_refused_with_a_remedy() {
    let mut agent = Agent::start().await;
    let (_, result) = run_script(&mut agent, &[]).await;
    assert!(result.message.contains("script input is empty; give the step"), "{}", result.message);
    let list = json!([
        { "name": "first", "script": "echo never" },
        { "name": "concrete", "func": "builtin://concrete", "inputs": { "config": "{}" } },
    ]);
    let (log, result) = run(&mut agent, list, &[]).await;
    let expected = "the step `builtin://concrete`, with which gitlab-runner sends a whole job, is not supported; \
                    set the variable FF_CONCRETE to false";
    assert!(result.message.contains(expected), "{}", result.message);
    assert!(!log.contains("never"), "{log}");
}

#[tokio::test]
async fn step_policy_sees_a_script() {
    let mut agent = Agent::start().await;
    let list = user_script(&["echo from the script"], json!({}));
    let mut plan = agent.plan(vec![step("step_run", When::OnSuccess, Call::Run(list))]);
    let policy =
        StepPolicy { file: "/etc/policy.toml".to_owned(), denied_by_default: Some(2), ..StepPolicy::default() };
    plan.step_policy = Some(policy.clone());
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "runner_configuration_error", "{log}");
    assert!(log.contains("does not allow `script`") && !log.contains("from the script"), "{log}");
    let rule = PolicyRule { pattern: "script".to_owned(), is_allowed: true, ..PolicyRule::default() };
    plan.step_policy = Some(StepPolicy { rules: vec![rule], ..policy });
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nfrom the script\n"), "{log}");
}
