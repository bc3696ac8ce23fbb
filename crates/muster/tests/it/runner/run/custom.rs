//! Jobs of the custom executor with a typical driver: bash scripts that run each script on this host.

use std::path::PathBuf;
use std::process::Command;

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::Job;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::harness::{Harness, ManagerProcess};
use crate::process::until;

/// A manager with a driver as GitLab's documentation describes it.
struct Driver {
    harness: Harness,
    _run: ManagerProcess,
}

/// Program that executes the script of a stage. If the script fails, the program reports a failure of the job and not
/// of the system.
const RUN: &str = "echo run $2 >>calls\nexport PATH=HOME_DIR:$PATH\n\"$1\" || { echo $? >\"$BUILD_EXIT_CODE_FILE\"; exit \"$BUILD_FAILURE_EXIT_CODE\"; }";

impl Driver {
    /// Starts a manager. `programs` has the name and the commands of each program. `keys` are additional lines of
    /// `[runners.custom]`.
    async fn start(programs: &[(&str, &str)], keys: &str) -> Self {
        let harness = Harness::start(1).await;
        let home = harness.home.path("");
        let mut table = String::new();
        for (name, commands) in programs {
            let path = harness.home.path(format!("{name}.sh"));
            // Each job has a separate working directory, so the programs need the absolute path of the common files.
            let commands = commands
                .replace(">>calls", ">>HOME_DIR/calls")
                .replace("HOME_DIR", home.to_str().unwrap().trim_end_matches('/'));
            muster_test_prerequisites::create_program(&path, format!("#!/usr/bin/env bash\n{commands}\n"));
            table += &format!("{name}_exec = {path:?}\n");
        }
        let entry = harness.entry(0).replace("\"shell\"\nshell = \"sh\"", "\"custom\"\nshell = \"bash\"");
        let directories = format!("builds_dir = {:?}\ncache_dir = {:?}\n", home.join("builds"), home.join("cache"));
        harness.configure(&format!("check_interval = 1\n{entry}{directories}[runners.custom]\n{table}{keys}"));
        let run = harness.run();
        Self { harness, _run: run }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.harness.home.path(name)
    }

    fn calls(&self) -> Vec<String> {
        std::fs::read_to_string(self.path("calls")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn push(&self, id: i64, script: &[&str], more: Value) {
        let variables = [
            ("GIT_STRATEGY", "none"),
            ("FF_TIMESTAMPS", "false"),
            ("CI_JOB_ID", &id.to_string()),
            ("OWN", "an 'own' $CI_JOB_ID"),
        ];
        let mut variables: Vec<Value> =
            variables.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        variables.push(json!({ "key": "SECRET_FILE", "value": "content of the file", "file": true }));
        let mut payload = json!({
            "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
            "git_info": { "repo_url": "http://127.0.0.1/group/project.git", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
            "runner_info": { "timeout": 600 },
            "variables": variables,
            "steps": [{ "name": "script", "script": script }],
            "features": { "failure_reasons": ["runner_system_failure", "job_canceled", "runner_configuration_error"] },
            "muster": { "trace_interval_ms": 20 }
        });
        for (key, value) in more.as_object().unwrap() {
            match (key.as_str(), value) {
                ("variables", Value::Array(more)) => payload["variables"].as_array_mut().unwrap().extend(more.clone()),
                _ => payload[key] = value.clone(),
            }
        }
        self.harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
    }

    async fn run_job(&self, id: i64, script: &[&str], more: Value) -> Job {
        self.push(id, script, more);
        self.harness.wait_for_end(0, id).await
    }

    async fn wait_for_call(&self, call: &str) {
        until(async || {
            let calls = self.calls();
            if calls.iter().any(|known| known == call) { Ok(()) } else { Err(format!("no `{call}` in {calls:?}")) }
        })
        .await;
    }
}

fn failure(job: &Job) -> (Option<String>, Option<i64>) {
    let report = job.reports().last().unwrap();
    (report.failure_reason.clone(), report.exit_code)
}

fn assert_contains(text: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(text.contains(part), "`{part}` is missing in {text}");
    }
}

fn with_after_script(script: &str) -> Value {
    json!({ "steps": [{ "name": "script", "script": [script] }, { "name": "after_script", "script": ["echo status $CI_JOB_STATUS"] }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_run_in_order_with_the_documented_environment() {
    let config = "echo config >>calls; echo to the trace >&2; test -z \"$CUSTOM_ENV_CI_PROJECT_DIR\" || exit 2
        echo '{\"driver\":{\"name\":\"bash\",\"version\":\"1.0\"},\"hostname\":\"the-vm\",\"builds_dir\":\"HOME_DIR/reported\",\"builds_dir_is_shared\":true,\"job_env\":{\"FROM_CONFIG\":\"yes\"}}'";
    let prepare = "echo prepare >>calls; echo env $FROM_CONFIG \"$CUSTOM_ENV_OWN\" \"$CUSTOM_ENV_SECRET_FILE\" $BUILD_FAILURE_EXIT_CODE $SYSTEM_FAILURE_EXIT_CODE
        echo services \"$CUSTOM_ENV_CI_JOB_SERVICES\"; grep -o '\"id\":1,' \"$JOB_RESPONSE_FILE\"; stat -c 'mode %a' \"$JOB_RESPONSE_FILE\"; cp \"$JOB_RESPONSE_FILE\" HOME_DIR/response
        test \"$PWD\" = \"$TMPDIR\" && echo in the own directory; echo dir $CUSTOM_ENV_CI_PROJECT_DIR";
    let programs = [
        ("config", config),
        ("prepare", prepare),
        ("run", RUN),
        ("cleanup", "echo cleanup >>calls; echo \"$TMPDIR\" >HOME_DIR/directory"),
    ];
    let driver = Driver::start(&programs, "").await;
    let script = ["echo own is \"$OWN\"", "cat \"$SECRET_FILE\"", "pwd", "echo FROM_SCRIPT=kept >>\"$GITLAB_ENV\""];
    let more = json!({
        "services": [{ "name": "postgres:16", "alias": "db other" }],
        "steps": [{ "name": "script", "script": script }, { "name": "after_script", "script": ["echo $FROM_SCRIPT $CI_JOB_STATUS"] }]
    });
    let job = driver.run_job(1, &[], more).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    let project = driver.path("reported");
    let project = format!("{}/", project.display());
    assert_contains(
        &text,
        &[
            "Using Custom executor with driver bash 1.0...",
            "to the trace\n",
            "env yes an 'own' 1 content of the file 1 2\n",
            "services [{\"name\":\"postgres:16\",\"alias\":\"db\",\"entrypoint\":null,\"command\":null,\"variables\":[]}]\n",
            "\"id\":1,\nmode 600\nin the own directory\n",
            &format!("dir {project}"),
            "Running on the-vm via ",
            "WARNING: the driver gets the stage `step_script` under its deprecated name `build_script`",
            "own is an 'own' 1\n",
            "content of the file",
            &format!("\n{project}"),
            "/0/group/project\n",
            "kept success\n",
            "Job succeeded",
        ],
    );
    let stages = [
        "config",
        "prepare",
        "run prepare_script",
        "run get_sources",
        "run build_script",
        "run after_script",
        "run cleanup_file_variables",
        "cleanup",
    ];
    assert_eq!(driver.calls(), stages, "{text}");
    let response = std::fs::read_to_string(driver.path("response")).unwrap();
    assert_eq!(
        response,
        serde_json::to_string(&job.payload).unwrap(),
        "the response file must contain the payload that the coordinator sent"
    );
    let directory = std::fs::read_to_string(driver.path("directory")).unwrap();
    assert!(!PathBuf::from(directory.trim()).exists(), "the driver's temporary directory must be removed");
    let find = Command::new("find").arg(&project).args(["-path", "*.tmp/*"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&find.stdout), "", "temporary files of the job must be removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_status_of_run_distinguishes_job_failures_from_system_failures() {
    // Before the job's script, the program runs the commands in the job's variable `END`, which may end the program.
    let run = format!("if [ \"$2\" = build_script ]; then eval \"$CUSTOM_ENV_END\"; fi\n{RUN}");
    let driver = Driver::start(&[("run", &run), ("cleanup", "echo cleanup >>calls")], "").await;
    let end = |commands: &str| {
        let mut more = with_after_script("exit 5");
        more["variables"] = json!([{ "key": "END", "value": commands, "raw": true }]);
        more
    };
    let cases = [
        ("", ("script_failure", Some(5)), "Job failed: exit status 5"),
        ("exit $BUILD_FAILURE_EXIT_CODE", ("script_failure", Some(1)), "Job failed: exit status 1"),
        ("echo 77 >$BUILD_EXIT_CODE_FILE; exit 1", ("script_failure", Some(77)), "Job failed: exit status 77"),
        (
            "echo no number >$BUILD_EXIT_CODE_FILE; exit 1",
            ("runner_system_failure", None),
            "is `no number`, which is not a valid exit code",
        ),
        (
            "exit $SYSTEM_FAILURE_EXIT_CODE",
            ("runner_system_failure", None),
            "Job failed (system failure): exit status 2",
        ),
        ("exit 9", ("runner_system_failure", None), "exit code 9; executable execution terminated with: exit status 9"),
    ];
    for (index, (commands, (reason, code), message)) in cases.into_iter().enumerate() {
        let job = driver.run_job(i64::try_from(index).unwrap() + 1, &[], end(commands)).await;
        let text = job.text();
        assert_eq!(failure(&job), (Some(reason.to_owned()), code), "{commands}: {text}");
        assert_contains(&text, &[message, "status failed\n"]);
        let calls = driver.calls();
        assert_eq!(calls.iter().filter(|call| *call == "cleanup").count(), index + 1, "{commands}: {calls:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failed_preparation_is_cleaned_up_and_only_system_failures_are_retried() {
    let programs = [
        ("prepare", "echo prepare >>calls; eval \"$CUSTOM_ENV_END\""),
        ("run", RUN),
        ("cleanup", "echo cleanup >>calls; exit 3"),
    ];
    let driver = Driver::start(&programs, "").await;
    let end = |commands: &str| json!({ "variables": [{ "key": "END", "value": commands, "raw": true }] });
    // The first attempt creates the directory `once` and fails. The second attempt finds the directory and succeeds.
    let job = driver
        .run_job(
            1,
            &["echo it ran"],
            end("mkdir HOME_DIR/once || exit 0; exit 2"
                .replace("HOME_DIR", driver.path("").to_str().unwrap())
                .as_str()),
        )
        .await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    assert_contains(
        &text,
        &[
            "Preparation failed: exit status 2",
            "Will be retried in 3s ...",
            "\nit ran\n",
            "WARNING: Cleanup script failed: unknown Custom executor",
        ],
    );
    assert_eq!(driver.calls()[..3], ["prepare", "cleanup", "prepare"], "{text}");
    std::fs::remove_file(driver.path("calls")).unwrap();

    let job = driver.run_job(2, &["echo it ran"], end("exit 1")).await;
    let text = job.text();
    assert_eq!(failure(&job), (Some("script_failure".to_owned()), Some(1)), "{text}");
    assert!(!text.contains("Will be retried") && !text.contains("\nit ran\n"), "{text}");
    assert_eq!(driver.calls(), ["prepare", "cleanup"], "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_for_invalid_configuration_output_names_the_program_and_the_remedy() {
    let driver =
        Driver::start(&[("config", "echo config >>calls; eval \"$CUSTOM_ENV_OUTPUT\""), ("run", RUN)], "").await;
    let output = |commands: &str| json!({ "variables": [{ "key": "OUTPUT", "value": commands, "raw": true }] });
    let job = driver.run_job(1, &["echo it ran"], output("echo '{\"shell\":\"pwsh\"}'")).await;
    assert_eq!(failure(&job).0.as_deref(), Some("runner_configuration_error"), "{}", job.text());
    assert_contains(
        &job.text(),
        &["the custom executor does not support the shell `pwsh`; set `shell` to `bash` or `sh`"],
    );
    let job = driver.run_job(2, &["echo it ran"], output("echo hello")).await;
    assert_eq!(failure(&job).0.as_deref(), Some("runner_system_failure"), "{}", job.text());
    let program = driver.path("config.sh");
    assert_contains(
        &job.text(),
        &[
            &format!("the output of config_exec `{}` is not a valid configuration", program.display()),
            "all else to standard error",
        ],
    );
    assert_eq!(
        driver.calls(),
        ["config"; 4],
        "the first job must call the program once, and the second job must try three times"
    );
    // Without output, the directories in `config.toml` apply.
    let job = driver.run_job(3, &["pwd"], output("true")).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    assert_contains(&job.text(), &[&format!("\n{}/group/project\n", driver.path("builds").display())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn canceled_job_ends_its_program_and_is_cleaned_up() {
    // The program ignores TERM, and is killed after the configured time. The preparation starts a process, `server`, which
    // must run until the cleanup.
    let prepare = "sleep 600 >/dev/null 2>&1 & echo $! >HOME_DIR/server";
    let run = "echo run $2 >>calls\nif [ $2 = build_script ]; then trap '' TERM; fi\n\"$1\" || exit 1";
    let cleanup = "kill -0 $(cat HOME_DIR/server) && echo cleanup with server >>calls";
    let driver =
        Driver::start(&[("prepare", prepare), ("run", run), ("cleanup", cleanup)], "graceful_kill_timeout = 1\n").await;
    driver.push(1, &[], with_after_script("echo begun; while true; do sleep 0.1; done"));
    driver.harness.wait_for_start(0, 1).await;
    driver.harness.coordinator(0).set_status(JobId(1), JobStatus::Canceling);
    let job = driver.harness.coordinator(0).wait_for(JobId(1), |job| job.text().contains("Job failed: canceled")).await;
    assert_contains(&job.text(), &["script canceled externally", "status canceled\n"]);
    driver.wait_for_call("cleanup with server").await;
    let stages = [
        "run prepare_script",
        "run get_sources",
        "run build_script",
        "run after_script",
        "run cleanup_file_variables",
        "cleanup with server",
    ];
    assert_eq!(driver.calls(), stages, "{}", job.text());
    let server = std::fs::read_to_string(driver.path("server")).unwrap();
    until(async || match std::fs::metadata(format!("/proc/{}", server.trim())) {
        Ok(_) => Err("the process that the preparation started still runs".to_owned()),
        Err(_) => Ok(()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn next_agent_cleans_up_the_environment_of_a_killed_agent() {
    let cleanup = "test -e \"$JOB_RESPONSE_FILE\" && test \"$PWD\" = \"$TMPDIR\" && echo \"$PWD\" >HOME_DIR/directory
        echo cleanup $FROM_CONFIG $CUSTOM_ENV_CI_JOB_ID $CUSTOM_ENV_CI_JOB_STATUS >>calls";
    let programs = [("config", "echo '{\"job_env\":{\"FROM_CONFIG\":\"yes\"}}'"), ("run", RUN), ("cleanup", cleanup)];
    let driver = Driver::start(&programs, "").await;
    driver.push(1, &["echo begun; sleep 600"], json!({}));
    driver.harness.coordinator(0).wait_for(JobId(1), |job| job.text().contains("\nbegun\n")).await;
    for (agent, _) in driver.harness.agents() {
        kill_process(agent, Signal::KILL).unwrap();
    }
    let job = driver.harness.wait_for_end(0, 1).await;
    assert_eq!(failure(&job).0.as_deref(), Some("runner_system_failure"), "{}", job.text());
    assert_contains(&job.text(), &["the agent was killed while the job ran"]);
    let cleanups: Vec<_> = driver.calls().into_iter().filter(|call| call.starts_with("cleanup")).collect();
    assert_eq!(cleanups, ["cleanup yes 1 failed"], "{}", job.text());
    let directory = std::fs::read_to_string(driver.path("directory")).unwrap();
    assert!(!PathBuf::from(directory.trim()).exists(), "the driver's temporary directory must be removed");
    let next = driver.run_job(2, &["echo it ran"], json!({})).await;
    assert_eq!(next.status, JobStatus::Success, "{}", next.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_prepare_script_skips_all_other_stages_except_the_cleanup() {
    let run = format!("echo run $2 >>calls; if [ $2 = prepare_script ]; then exit 1; fi\n{RUN}");
    let driver = Driver::start(&[("run", &run), ("cleanup", "echo cleanup >>calls")], "").await;
    let job = driver.run_job(1, &["echo it ran"], json!({})).await;
    assert_contains(
        &job.text(),
        &["Job failed: prepare environment: exit status 1. Check https://docs.gitlab.com/runner/shells/"],
    );
    assert_eq!(failure(&job), (Some("script_failure".to_owned()), Some(1)), "{}", job.text());
    assert_eq!(driver.calls(), ["run prepare_script", "cleanup"], "{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_caches_and_artifacts_are_transferred_by_scripts() {
    if !muster_test_prerequisites::program("git", "--version", "git") {
        return;
    }
    let driver = Driver::start(&[("run", RUN)], "").await;
    let repository = driver.path("repository");
    let git = |arguments: &[&str]| {
        let config = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"];
        let output = Command::new("git").arg("-C").arg(&repository).args(config).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    std::fs::create_dir(&repository).unwrap();
    git(&["init", "--quiet"]);
    std::fs::write(repository.join("file"), "tracked\n").unwrap();
    git(&["add", "file"]);
    git(&["commit", "--quiet", "-m", "one"]);
    let sha = git(&["rev-parse", "HEAD"]);
    let more = json!({
        "git_info": {
            "repo_url": format!("file://{}", repository.display()), "sha": sha, "ref": "main", "ref_type": "branch", "depth": 1,
            "refspecs": ["+refs/heads/main:refs/remotes/origin/main"]
        },
        "allow_git_fetch": true,
        "variables": [{ "key": "GIT_STRATEGY", "value": "fetch" }],
        "cache": [{ "key": "deps", "paths": ["vendor/"], "policy": "pull-push", "when": "on_success" }],
        "artifacts": [{ "name": "out", "paths": ["out"], "when": "always", "artifact_type": "archive", "artifact_format": "zip" }]
    });
    let script = [
        "cat file",
        "if [ -e vendor/lib ]; then echo found; else mkdir -p vendor; echo 1 >vendor/lib; fi",
        "echo $CI_JOB_ID >out",
    ];
    let job = driver.run_job(1, &script, more.clone()).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    assert_contains(
        &text,
        &[
            "Created fresh repository.",
            "Checking out ",
            "\ntracked\n",
            "Checking cache for deps",
            "Created cache",
            "Uploading artifacts...",
        ],
    );
    assert_eq!(job.artifacts.len(), 1, "{text}");
    let mut more = more;
    more["dependencies"] = json!([{
        "id": 1, "name": "first", "token": "job-secret-1", "artifacts_file": { "filename": "artifacts.zip", "size": 100 }
    }]);
    let script = [&script[..2], &["echo artifact of $(cat out)"]].concat();
    let job = driver.run_job(2, &script, more).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    assert_contains(
        &text,
        &["Successfully extracted cache", "Downloading artifacts for first (1)...", "\nfound\n", "\nartifact of 1\n"],
    );
    assert!(!text.contains("Created fresh repository"), "{text}");
    assert!(!text.contains("job-secret"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_end_the_program_and_clean_up() {
    let programs = [("prepare", "eval \"$CUSTOM_ENV_PREPARE\""), ("run", RUN), ("cleanup", "echo cleanup >>calls")];
    let driver = Driver::start(&programs, "prepare_exec_timeout = 1\n").await;
    let job = driver.run_job(1, &["sleep 600"], json!({ "runner_info": { "timeout": 2 } })).await;
    assert_eq!(failure(&job).0.as_deref(), Some("job_execution_timeout"), "{}", job.text());
    driver.wait_for_call("cleanup").await;
    std::fs::remove_file(driver.path("calls")).unwrap();

    let more = json!({ "variables": [{ "key": "PREPARE", "value": "sleep 600" }], "runner_info": { "timeout": 60 } });
    let job = driver.run_job(2, &["echo it ran"], more).await;
    let text = job.text();
    assert_eq!(failure(&job).0.as_deref(), Some("runner_system_failure"), "{text}");
    assert_contains(&text, &["prepare_exec did not end within 1s; raise prepare_exec_timeout in [runners.custom]"]);
    assert!(!text.contains("\nit ran\n"), "{text}");
    assert_eq!(driver.calls(), ["cleanup"; 3], "each attempt must be cleaned up");
}
