//! Shells of jobs: profiles of login shells, tracing, and values that the log must not show.

use std::fs;

use muster_agent_api::builtin::{CacheEntry, CacheSave, Script};
use muster_agent_api::plan::{Call, Step, When};
use muster_agent_api::result::Outcome;
use muster_agent_api::step_runner::Variable;

use crate::harness::*;

fn in_shell(shell: &Script, commands: &[&str]) -> Step {
    let commands = commands.iter().map(ToString::to_string).collect();
    step("step_script", When::OnSuccess, Call::builtin(&Script { commands, ..shell.clone() }))
}

fn login_shell() -> Script {
    Script { shell: "bash".to_owned(), login: true, ..Script::default() }
}

fn create_home(agent: &Agent, profile: &str) -> String {
    let home = agent.dir.path().join("home");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join(".bash_profile"), profile).unwrap();
    home.to_string_lossy().into_owned()
}

#[tokio::test]
async fn job_variables_override_the_profile() {
    let mut agent = Agent::start().await;
    let home = create_home(&agent, "export A=of-the-profile FROM_PROFILE=yes\n");
    let plan = agent.plan(vec![in_shell(&login_shell(), &["echo \"$A $FROM_PROFILE $QUOTED\""])]);
    let variables = [variable("HOME", &home), variable("A", "of-the-job"), variable("QUOTED", "it's $A\\n")];
    agent.run("1-1", &plan, &variables).await;
    let log = agent.log("1-1").await;
    assert!(log.contains("\nof-the-job yes it's $A\\n\n"), "{log}");
}

#[tokio::test]
async fn profile_that_exits_fails_the_job_with_a_reason() {
    for (profile, status, code) in [("exit 3\n", "exit status 3", Some(3)), ("exit 0\n", "exit status 0", None)] {
        let mut agent = Agent::start().await;
        let home = create_home(&agent, profile);
        let upload = step("upload_artifacts_on_failure", When::OnFailure, script(&["echo never"]).call);
        let plan = agent.plan(vec![in_shell(&login_shell(), &["echo never"]), after_script(&["echo never"]), upload]);
        agent.run("1-1", &plan, &[variable("HOME", &home)]).await;
        let log = agent.log("1-1").await;
        assert_eq!(failure(&agent.wait("1-1").await), ("script_failure".to_owned(), code));
        let last =
            format!("ERROR: Job failed: prepare environment: {status}. Check https://docs.gitlab.com/runner/shells/");
        assert!(log.contains(&last) && !log.contains("\nnever\n"), "{log}");
    }
}

#[tokio::test]
async fn failing_command_is_not_blamed_on_the_profile() {
    let mut agent = Agent::start().await;
    let home = create_home(&agent, "");
    let plan = agent.plan(vec![in_shell(&login_shell(), &["exit 4"])]);
    agent.run("1-1", &plan, &[variable("HOME", &home)]).await;
    assert_eq!(failure(&agent.wait("1-1").await), ("script_failure".to_owned(), Some(4)));
    assert!(agent.log("1-1").await.ends_with("ERROR: Job failed: exit status 4\x1b[0;m\n"));
}

#[tokio::test]
async fn debug_trace_shows_commands_without_masked_values() {
    let mut agent = Agent::start().await;
    let traced = Script { debug: true, ..Script::default() };
    let plan = agent.plan(vec![in_shell(&traced, &["test \"$SECRET\" = x || true"])]);
    let secret = muster_agent_api::step_runner::Variable { masked: true, ..variable("SECRET", "hunter22hunter") };
    agent.run("1-1", &plan, &[variable("SHOWN", "plainly"), secret]).await;
    let log = agent.log("1-1").await;
    assert!(log.contains("export SHOWN=plainly") && log.contains("export SECRET=[MASKED]"), "{log}");
    assert!(log.contains("+ test '[MASKED]' = x") || log.contains("+ test [MASKED] = x"), "{log}");
    assert!(!log.contains("hunter22hunter"), "{log}");
}

#[tokio::test]
async fn bash_env_of_a_job_applies_only_to_shells_that_its_script_starts() {
    let mut agent = Agent::start().await;
    let startup = agent.dir.path().join("startup.sh");
    fs::write(&startup, "echo sourced\n").unwrap();
    let plan = agent.plan(vec![script(&["echo own", "bash -c 'echo child'"])]);
    agent.run("1-1", &plan, &[variable("BASH_ENV", &startup.to_string_lossy())]).await;
    let log = agent.log("1-1").await;
    assert_eq!(log.matches("sourced\n").count(), 1, "only the shell that the script starts may read the file: {log}");
    assert!(log.contains("\nown\n") && log.contains("sourced\nchild\n"), "{log}");
}

#[tokio::test]
async fn unknown_shell_is_a_configuration_error() {
    let mut agent = Agent::start().await;
    let fish = Script { shell: "fish".to_owned(), ..Script::default() };
    let (log, result) = agent.complete(&agent.plan(vec![in_shell(&fish, &["echo never"])])).await;
    assert_eq!(failure(&result).0, "runner_configuration_error");
    assert!(log.contains("the shell `fish` is not supported; use `bash`, `sh`, `pwsh` or `powershell`"), "{log}");
}

#[tokio::test]
async fn operator_commands_run_before_and_after_the_script_and_notices_come_first() {
    let mut agent = Agent::start().await;
    let text = |text: &str| vec![text.to_owned()];
    let with_operator_commands = Script { before: text("echo before"), after: text("echo after"), ..Script::default() };
    let mut plan = agent.plan(vec![in_shell(&with_operator_commands, &["echo own"])]);
    plan.notices = text("Job triggered by policy \"p\".");
    plan.warnings = vec!["one".to_owned(), "two".to_owned()];
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success);
    assert!(
        log.starts_with("\x1b[32;1mJob triggered by policy \"p\".\x1b[0;m\n\x1b[0;33mWARNING: one\ntwo\x1b[0;m\n"),
        "{log}"
    );
    let printed: Vec<&str> = log.lines().filter(|line| ["before", "own", "after"].contains(line)).collect();
    assert_eq!(printed, ["before", "own", "after"]);
    assert!(log.contains("\x1b[32;1m$ echo before\x1b[0;m\n"), "{log}");
}

#[tokio::test]
async fn later_steps_find_their_files_although_the_script_deletes_the_temporary_directory() {
    for (end, code) in [("true", None), ("exit 3", Some(3))] {
        let mut agent = Agent::start().await;
        let home = create_home(&agent, "");
        let cache = CacheEntry {
            key: "z".to_owned(),
            cache_dir: agent.dir.path().join("cache").to_string_lossy().into_owned(),
            paths: vec!["x".to_owned()],
            ..CacheEntry::default()
        };
        let save = step("archive_cache", When::Always, Call::builtin(&CacheSave { caches: vec![cache] }));
        let mut after = in_shell(&Script { after_script: true, ..login_shell() }, &["cat $FILE"]);
        after.policy.when = When::Always;
        let create = in_shell(&login_shell(), &["rm -rf ../*.tmp; mkdir x; touch x/f", end]);
        let file = Variable { file: true, ..variable("FILE", "of-the-file\n") };
        agent.run("1-1", &agent.plan(vec![create, after, save]), &[variable("HOME", &home), file]).await;
        let log = agent.log("1-1").await;
        let result = agent.wait("1-1").await;
        match code {
            None => assert_eq!(result.outcome, Outcome::Success, "{log}"),
            code => assert_eq!(failure(&result), ("script_failure".to_owned(), code), "{log}"),
        }
        assert!(log.contains("\nof-the-file\n") && log.contains("Created cache"), "{log}");
    }
}
