//! `register`: prompts, flags, variables and templates; the requests to the server, and the resulting file.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use muster_runner_api::test_support::{Call, Fault, REGISTRATION_TOKEN, RUNNER_TOKEN};

use super::server::{Harness, without_dates};
use crate::process::CommandResult;

const REGISTER_FLAGS: [&str; 7] = ["-n", "--url", "URL", "--token", RUNNER_TOKEN, "--executor", "shell"];

#[tokio::test(flavor = "multi_thread")]
async fn runner_created_on_the_server_is_verified_and_added() {
    let harness = Harness::start().await;
    harness.run("register", &[&REGISTER_FLAGS[..], &["--name", "one", "--limit=2"]].concat()).check(
        0,
        &["Verifying runner... is valid", "registered successfully", "was saved in", "larger than current global"],
    );
    insta::assert_snapshot!(without_dates(&harness.config()), @r#"
    concurrent = 1
    check_interval = 0

    [[runners]]
    name = "one"
    url = "URL"
    token = "glrt-memory-coordinator"
    limit = 2
    executor = "shell"
    id = 1
    token_obtained_at = DATE
    "#);
    assert_eq!(harness.coordinator.runner(RUNNER_TOKEN).unwrap().managers, [harness.system_id()].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn value_that_begins_with_a_dash_is_accepted() {
    let harness = Harness::start().await;
    let arguments = ["-n", "-url", "URL", "-t", RUNNER_TOKEN, "--executor", "shell", "-name", "-list"];
    harness.run("register", &arguments).check(0, &[]);
    assert!(harness.config().contains("name = \"-list\""), "{}", harness.config());
    harness.run("verify", &["-name", "-list"]).check(0, &["is valid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_file_keeps_comments_and_unknown_keys() {
    let harness = Harness::start().await;
    let old =
        "# mine\nconcurrent = 4\nfuture = 1 # not known yet\n\n[[runners]]\nname = \"a\" # first\ntoken = \"$A\"\n";
    harness.configure(old);
    harness.run("register", &[&REGISTER_FLAGS[..], &["--name", "b"]].concat()).check(0, &[]);
    let config = harness.config();
    assert!(config.starts_with(old) && config.contains("name = \"b\""), "{config}");
    harness.run("register", &REGISTER_FLAGS).check(0, &["has already been registered"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn register_with_a_registration_token_sends_all_server_settings() {
    let harness = Harness::start().await;
    let flags = ["--tag-list", "a,b", "--locked=false", "--access-level", "ref_protected", "--maximum-timeout", "60"];
    let more = ["--paused", "--maintenance-note", "note", "-n", "-u", "URL", "-r", REGISTRATION_TOKEN];
    let mut command = harness.home.command(&harness.arguments("register", &[&flags[..], &more].concat()));
    command.env("RUNNER_EXECUTOR", "shell").env("RUNNER_NAME", "by variable").env("RUNNER_ENV", "A=1,2");
    CommandResult::of(command.output().unwrap()).check(0, &["Registering runner... succeeded", "deprecated"]);
    let config = harness.config();
    for line in ["name = \"by variable\"", "token = \"memory-2\"", "id = 2", "environment = [\"A=1,2\"]"] {
        assert!(config.contains(line), "`{line}` is missing in\n{config}");
    }
    let settings = harness.coordinator.runner("memory-2").unwrap().registered.unwrap();
    assert_eq!(settings.description.as_deref(), Some("by variable"));
    assert_eq!((settings.tag_list.as_deref(), settings.run_untagged, settings.locked), (Some("a,b"), false, false));
    assert_eq!((settings.access_level.as_deref(), settings.maximum_timeout), (Some("ref_protected"), Some(60)));
    assert_eq!((settings.paused, settings.maintenance_note.as_deref()), (true, Some("note")));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_settings_are_rejected_for_runners_created_on_the_server() {
    let harness = Harness::start().await;
    harness.run("register", &[&REGISTER_FLAGS[..], &["--locked=false"]].concat()).check(
        1,
        &[
            "C026",
            "--locked cannot be used with an authentication token, because the server has this setting; remove it",
        ],
    );
    assert!(!harness.home.path("config.toml").exists());
    let as_registration = ["-n", "-u", "URL", "-r", RUNNER_TOKEN, "--tag-list", "a", "--executor", "shell"];
    harness.run("register", &as_registration).check(0, &["these flags are ignored"]);
    assert!(harness.config().contains("token = \"glrt-memory-coordinator\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_authentication_token_is_only_verified() {
    let harness = Harness::start().await;
    harness.coordinator.add_runner("old-one", None);
    let flags = |token| ["-n", "-u", "URL", "-t", token, "--executor", "shell", "--name", "o"];
    harness.run("register", &flags("old-one")).check(0, &["use the '-r' instead of '-t'"]);
    assert!(harness.config().contains("token = \"old-one\"") && !harness.config().contains("token_obtained_at"));
    harness.run("register", &flags("unknown")).check(1, &["failed to verify the runner"]);
    harness.coordinator.fail(Call::Verify, [Fault::FailBefore]);
    harness.run("register", &flags("old-one")).check(0, &["Verifying runner... failed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_invalid_settings_are_named() {
    let harness = Harness::start().await;
    harness.run("register", &["-n"]).check(1, &["the url needs to be entered; set --url"]);
    harness.run("register", &["-n", "-u", "URL"]).check(1, &["the registration-token needs to be entered"]);
    harness.run("register", &REGISTER_FLAGS[..5]).check(1, &["the executor needs to be entered"]);
    harness
        .run("register", &[&REGISTER_FLAGS[..5], &["--executor", "rocket"]].concat())
        .check(1, &["invalid executor `rocket`"]);
    harness
        .run("register", &[&REGISTER_FLAGS[..5], &["--executor", "docker"]].concat())
        .check(1, &["the docker-image needs"]);
    harness.run("register", &["--access-level", "all"]).check(1, &["not_protected or ref_protected"]);
    harness.run("register", &["--limit", "many"]).check(1, &["invalid value for --limit: `many` is not an integer"]);
    harness.run("register", &["--docker-services_privileged"]).check(1, &["docker-services_privileged"]);
    let mut variable = harness.home.command(&harness.arguments("register", &REGISTER_FLAGS));
    variable.env("DOCKER_PRIVILEGED", "maybe");
    CommandResult::of(variable.output().unwrap()).check(1, &["invalid value for DOCKER_PRIVILEGED"]);
    harness.run("register", &["-n", "-u", "URL", "-t", "glrt-x", "--executor", "shell"]).check(1, &["403 Forbidden"]);
    assert!(!harness.home.path("config.toml").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_tables_of_the_executor_are_written() {
    let harness = Harness::start().await;
    let docker = ["-docker-image", "alpine", "--docker-privileged", "--docker-volumes", "/a:/a", "--docker-volumes=/b"];
    let more = ["--docker-tmpfs", "/t:rw", "--docker-pull-policy", "always, never", "--kubernetes-host", "https://k"];
    let last = ["--executor", "docker", "--cache-s3-server-address", "s3.example", "--feature-flags", "FF_A:true"];
    harness
        .run("register", &[&REGISTER_FLAGS[..5], &["--name", "d"], &docker[..], &more, &last].concat())
        .check(0, &[]);
    let config = without_dates(&harness.config());
    let entry = &config[config.find("[[runners]]").unwrap()..];
    insta::assert_snapshot!(entry, @r#"
    [[runners]]
    name = "d"
    url = "URL"
    token = "glrt-memory-coordinator"
    executor = "docker"
    id = 1
    token_obtained_at = DATE

    [runners.feature_flags]
    FF_A = true

    [runners.cache]

    [runners.cache.s3]
    ServerAddress = "s3.example"

    [runners.docker]
    image = "alpine"
    privileged = true
    pull_policy = ["always", "never"]
    volumes = ["/a:/a", "/b", "/cache"]

    [runners.docker.tmpfs]
    "/t" = "rw"
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn template_fills_in_missing_settings() {
    let harness = Harness::start().await;
    let template = harness.home.path("template.toml");
    let text = "concurrent = 9\n[[runners]]\ntoken = \"x\"\nexecutor = \"shell\"\nlimit = 7\nenvironment = [\"T=1\"]\n";
    std::fs::write(&template, text.to_owned() + "[runners.custom_build_dir]\nenabled = true\n").unwrap();
    let with = ["--template-config", template.to_str().unwrap(), "--env", "A=1", "--custom_build_dir-enabled=false"];
    harness.run("register", &[&REGISTER_FLAGS[..5], &with].concat()).check(0, &["Merging configuration from template"]);
    let config = harness.config();
    for line in [
        "concurrent = 1",
        "limit = 7",
        "environment = [\"A=1\"]",
        "enabled = true",
        "token = \"glrt-memory-coordinator\"",
    ] {
        assert!(config.contains(line), "`{line}` is missing in\n{config}");
    }
    std::fs::write(&template, "concurrent = 1\n").unwrap();
    harness
        .run("register", &[&REGISTER_FLAGS[..], &with].concat())
        .check(1, &["exactly one [[runners]] entry", "but has 0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_registration_is_reverted() {
    let harness = Harness::start().await;
    let broken = ["-n", "-u", "URL", "-r", REGISTRATION_TOKEN, "--executor", "rocket"];
    harness.run("register", &broken).check(1, &["Unregistering runner from GitLab succeeded", "invalid executor"]);
    assert_eq!(harness.coordinator.runner_tokens(), [RUNNER_TOKEN]);
    harness.run("register", &[&REGISTER_FLAGS[..5], &["--executor", "rocket"]].concat()).check(1, &["Unregistering"]);
    assert!(harness.coordinator.runner(RUNNER_TOKEN).unwrap().managers.is_empty());
    harness.run("register", &[&broken[..], &["--leave-runner"]].concat()).check(1, &["invalid executor"]);
    assert_eq!(harness.coordinator.runner_tokens().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_registration_does_not_unregister_the_manager_of_an_existing_entry() {
    let harness = Harness::start().await;
    harness.run("register", &REGISTER_FLAGS).check(0, &[]);
    let config = harness.config();
    let result = harness.run("register", &[&REGISTER_FLAGS[..5], &["--executor", "rocket"]].concat());
    result.check(1, &["has already been registered", "invalid executor"]);
    assert_eq!(harness.coordinator.runner(RUNNER_TOKEN).unwrap().managers.len(), 1);
    assert_eq!(harness.config(), config);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_file_is_detected_before_registration() {
    let harness = Harness::start().await;
    harness.configure("[[runners]\n");
    harness.run("register", &REGISTER_FLAGS).check(1, &["invalid configuration", "line 1 is not valid TOML"]);
    assert!(harness.coordinator.runner(RUNNER_TOKEN).unwrap().managers.is_empty());
}

fn spawn_with_prompts(harness: &Harness) -> Child {
    let mut command = harness.home.command(&harness.arguments("register", &[]));
    command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_repeat_until_answered() {
    let harness = Harness::start().await;
    let mut child = spawn_with_prompts(&harness);
    let answers = format!("\n{}\n{REGISTRATION_TOKEN}\nmine\n\nnote\nrocket\nshell\n", harness.url());
    child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
    let result = CommandResult::of(child.wait_with_output().unwrap()).check(0, &["Invalid executor specified"]);
    for question in ["Enter the GitLab instance URL", "Enter the registration token", "Enter tags for the runner"] {
        assert!(result.stderr.contains(question), "{}", result.stderr);
    }
    assert_eq!(result.stderr.matches("Enter the GitLab instance URL").count(), 2);
    let settings = harness.coordinator.runner("memory-2").unwrap().registered.unwrap();
    assert_eq!((settings.description.as_deref(), settings.run_untagged, settings.tag_list), (Some("mine"), true, None));
    assert!(harness.config().contains("name = \"mine\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_input_and_signals_revert_the_registration() {
    let harness = Harness::start().await;
    let until_executor = format!("{}\n{REGISTRATION_TOKEN}\nmine\n\n\n", harness.url());
    let mut child = spawn_with_prompts(&harness);
    child.stdin.take().unwrap().write_all(until_executor.as_bytes()).unwrap();
    CommandResult::of(child.wait_with_output().unwrap()).check(1, &["input ended at the prompt for --executor"]);
    assert_eq!(harness.coordinator.runner_tokens(), [RUNNER_TOKEN]);

    let mut child = spawn_with_prompts(&harness);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(until_executor.as_bytes()).unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut output = String::new();
    while !output.contains("Enter an executor") {
        assert_ne!(errors.read_line(&mut output).unwrap(), 0, "{output}");
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    errors.read_to_string(&mut output).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{output}");
    assert!(output.contains("canceled by a signal") && output.contains("Unregistering runner"), "{output}");
    assert_eq!(harness.coordinator.runner_tokens(), [RUNNER_TOKEN]);
    assert!(!harness.home.path("config.toml").exists());
}
