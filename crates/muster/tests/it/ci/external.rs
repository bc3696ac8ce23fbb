//! `--executor external`: a full disk of an external runner does not end the run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::Project;

/// A runner process that gets SIGTERM at the end of the test.
struct Runner(Child);

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn runner(project: &Project, arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("muster"));
    command.arg("runner").args(arguments).current_dir(project.home()).env_clear().env("HOME", project.home());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("MUSTER_STATE_DIR", project.home().join("s"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn full_disk_of_an_external_runner_fails_only_the_job() {
    let project = Project::new(
        "big: {script: ['seq 1 300000']}\nafter: {stage: deploy, when: always, script: ['echo still here']}\n",
    );
    std::fs::create_dir_all(project.home()).unwrap();
    let mut ci = project.command(&["run", "--executor", "external", "--output", "json"]);
    let mut ci = ci.stdout(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(ci.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let waiting =
        events.by_ref().find(|event| event["event"] == "waiting_for_runner").expect("the run waits for a runner");
    let text = |key: &str| waiting[key].as_str().unwrap().to_owned();
    let (url, token) = (text("url"), text("registration_token"));
    let config = project.home().join("config.toml").display().to_string();
    let register = ["register", "-n", "--config", &config, "--executor", "shell", "--shell", "bash", "--url", &url];
    let registered = runner(&project, &[&register[..], &["--registration-token", &token]].concat()).status().unwrap();
    assert!(registered.success());
    // A limit for all logs simulates a full disk.
    let mut run = runner(&project, &["run", "--config", &config]);
    let _runner = Runner(run.env("MUSTER_SPOOL_LIMIT", "1").spawn().unwrap());
    let job_events: Vec<Value> = events.filter(|event| event["event"] == "job").collect();
    let last = |name: &str| job_events.iter().rfind(|event| event["name"] == name).unwrap().clone();
    assert_eq!(ci.wait().unwrap().code(), Some(1), "{job_events:?}");
    let big = last("big");
    assert_eq!((&big["status"], &big["failure_reason"]), (&"failed".into(), &"runner_system_failure".into()), "{big}");
    assert_eq!(last("after")["status"], "success", "{job_events:?}");
}
