//! Executor `instance` with the plugin `local`, in gitlab-runner v16.6.0 and in Muster.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gitlab_runner::{RegisteredRunner, clean_command, stock_runner};
use muster_tests::machines::{Machines, ProcessKind};
use muster_tests::process::{RunningProcess, create_repository, muster, plugin_local, wait_until};

const JOBS: usize = 20;

#[test]
fn stock_runner_scales_with_local_plugin() {
    let Some(stock) = stock_runner() else { return };
    let directory = tempfile::tempdir().unwrap();
    let job = |n| format!("job {n}:\n  script: ['echo \"this is $HOME of {n}\"']\n");
    // `gitlab-runner register` has no flags for the autoscaler keys, so the test writes the configuration.
    let registered =
        RegisteredRunner::start(&stock, directory.path(), "instance", &(0..JOBS).map(job).collect::<String>());
    let (url, config) = (&registered.url, &registered.config);
    let text = std::fs::read_to_string(config).unwrap();
    let token = text.lines().find_map(|line| line.trim().strip_prefix("token = ")).expect("no token");
    let config_text = format!(
        "concurrent = 10\ncheck_interval = 1\n[[runners]]\n  url = \"{url}\"\n  token = {token}\n  executor = \"instance\"\n  \
         shell = \"bash\"\n  limit = 10\n  request_concurrency = 5\n  [runners.autoscaler]\n    plugin = {:?}\n    \
         capacity_per_instance = 1\n    max_use_count = 1\n    max_instances = 10\n    [runners.autoscaler.plugin_config]\n      \
         boot_delay_ms = 300\n    [runners.autoscaler.connector_config]\n      timeout = \"1m\"\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 5\n      idle_time = \"10s\"\n",
        plugin_local()
    );
    std::fs::write(config, config_text).unwrap();
    let runner = registered.run(&stock);
    let RegisteredRunner { home, project, coordinator, .. } = registered;

    let (lines, status) = coordinator.finish();
    drop(runner);
    assert_eq!(status, Some(0), "{}", lines.join("\n"));
    let last: Value = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap();
    let jobs = last["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), JOBS);
    assert!(jobs.iter().all(|job| job["status"] == "success"), "{last}");

    // Each job ran on its own instance.
    let mut homes: Vec<String> = (0..JOBS)
        .map(|n| {
            let log = RegisteredRunner::show(&home, &project, &[&format!("job {n}"), "--log"]);
            let line = log.lines().find(|line| line.starts_with("this is /") && line.ends_with(&format!(" of {n}")));
            let line = line.unwrap_or_else(|| panic!("no line of the script in {log}"));
            line.split_whitespace().nth(2).unwrap().to_owned()
        })
        .collect();
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), JOBS, "max_use_count = 1: {homes:?}");
}

/// A pipeline, and a Muster runner that runs its jobs on instances.
pub(crate) struct Fleet {
    _directory: tempfile::TempDir,
    home: PathBuf,
    project: PathBuf,
    machines: PathBuf,
    /// Whether the runner deletes its instances only when it ends.
    deletes_on_shutdown: bool,
    pipeline: RunningProcess,
    runner: RunningProcess,
}

impl Fleet {
    /// Starts the pipeline `yaml`, and a runner with the executor `instance` for its jobs.
    ///
    /// `autoscaler` and `plugin` are additional keys of `[runners.autoscaler]` and `plugin_config`.
    pub(crate) fn start(yaml: &str, autoscaler: &str, plugin: &str) -> Self {
        Self::with_executor("instance", "shell = \"bash\"", yaml, autoscaler, plugin)
    }

    /// Like [`Self::start`], for another executor. `keys` are additional keys of the runner, and may end with a table.
    pub(crate) fn with_executor(executor: &str, keys: &str, yaml: &str, autoscaler: &str, plugin: &str) -> Self {
        Self::with_entry(yaml, "machines", None, |machines| {
            format!(
                "executor = {executor:?}\n  request_concurrency = 20\n  {keys}\n  [runners.autoscaler]\n    \
                 plugin = {:?}\n    delete_instances_on_shutdown = true\n{autoscaler}    \
                 [runners.autoscaler.plugin_config]\n      directory = {machines:?}\n      boot_delay_ms = 300\n{plugin}",
                plugin_local()
            )
        })
    }

    /// Starts the pipeline `yaml`, and a runner for its jobs. `entry` returns the keys of its `[[runners]]` entry,
    /// except `name`, `url` and `token`.
    ///
    /// `machines` is the path of the instances' directory below the temporary directory; `entry` gets the absolute
    /// path. `programs` is added to `PATH` of the runner.
    pub(crate) fn with_entry(
        yaml: &str,
        machines: &str,
        programs: Option<&Path>,
        entry: impl FnOnce(&Path) -> String,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [home, project, machines] = ["home", "project", machines].map(|name| directory.path().join(name));
        std::fs::create_dir(&home).unwrap();
        create_repository(&project, &[(".gitlab-ci.yml", yaml)]);
        let mut pipeline = clean_command(muster(), &home);
        pipeline.args(["ci", "run", "--executor", "external", "--output", "json"]).current_dir(&project);
        let mut pipeline = RunningProcess::start(pipeline);
        let waiting = pipeline.wait_for_line("the address", |line| line.contains("waiting_for_runner"));
        let waiting: Value = serde_json::from_str(&waiting).unwrap();
        let (url, token) = (waiting["url"].as_str().unwrap(), waiting["registration_token"].as_str().unwrap());
        let config = home.join("config.toml");
        let mut register = clean_command(muster(), &home);
        register.args(["runner", "register", "--non-interactive", "--executor", "instance", "--name", "ours"]);
        register.args(["--url", url, "--registration-token", token, "--config"]).arg(&config);
        assert!(register.output().unwrap().status.success());
        let text = std::fs::read_to_string(&config).unwrap();
        let token = text.lines().find_map(|line| line.trim().strip_prefix("token = ")).unwrap();
        let text = format!(
            "concurrent = 20\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  url = \"{url}\"\n  token = {token}\n  {}",
            entry(&machines)
        );
        std::fs::write(&config, &text).unwrap();
        let mut run = clean_command(muster(), &home);
        run.args(["runner", "run", "--config"]).arg(&config).arg("--state-dir").arg(directory.path().join("state"));
        if let Some(programs) = programs {
            run.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
        }
        let runner = RunningProcess::start(run);
        let deletes_on_shutdown = text.contains("delete_instances_on_shutdown = true");
        Self { _directory: directory, home, project, machines, deletes_on_shutdown, pipeline, runner }
    }

    /// Waits until the pipeline has succeeded and the runner has deleted all instances.
    ///
    /// Returns the last event of the pipeline, and the logs of `jobs`.
    pub(crate) fn finish(self, jobs: &[String]) -> (Value, Vec<String>) {
        let (last, logs, _) = self.finish_with_log(jobs);
        (last, logs)
    }

    /// Like [`Self::finish`]. Also returns the log of the runner.
    pub(crate) fn finish_with_log(self, jobs: &[String]) -> (Value, Vec<String>, Vec<String>) {
        let (lines, status) = self.pipeline.finish();
        if !self.deletes_on_shutdown && status == Some(0) {
            let is_empty = || std::fs::read_dir(&self.machines).is_ok_and(|mut machines| machines.next().is_none());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            assert!(runtime.block_on(wait_until(is_empty)), "instances remain in {}", self.machines.display());
        }
        self.runner.signal("QUIT");
        let (log, runner_status) = self.runner.finish();
        assert_eq!(status, Some(0), "{}\n{}", lines.join("\n"), log.join("\n"));
        assert_eq!(runner_status, Some(0), "{}", log.join("\n"));
        let deleted = log.iter().any(|line| line.contains("all instances deleted"));
        assert!(deleted || !self.deletes_on_shutdown, "{}", log.join("\n"));
        let remaining = std::fs::read_dir(&self.machines).unwrap().count();
        assert_eq!(remaining, 0, "directories of instances remain: {}", log.join("\n"));
        let last = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap();
        let logs = jobs.iter().map(|job| {
            let mut show = clean_command(muster(), &self.home);
            let output = show.args(["ci", "show", "1", job, "--log"]).current_dir(&self.project).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        let logs = logs.collect();
        (last, logs, log)
    }
}

#[test]
fn single_use_instances_run_one_job_each_and_are_deleted() {
    let names: Vec<String> = (0..JOBS).map(|n| format!("job {n}")).collect();
    let job = |name: &String| format!("{name}:\n  script: ['echo \"this is $HOME of $CI_PROJECT_DIR\"']\n");
    let yaml: String = names.iter().map(job).collect();
    let fleet = Fleet::start(&yaml, "    max_use_count = 1\n    max_instances = 10\n", "");
    let (last, logs) = fleet.finish(&names);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    let mut homes = Vec::new();
    for log in &logs {
        let line = log.lines().find(|line| line.starts_with("this is /")).unwrap_or_else(|| panic!("{log}"));
        let fields: Vec<&str> = line.split_whitespace().collect();
        let home = Path::new(fields[2]);
        assert!(Path::new(fields[4]).starts_with(home.join("builds")), "{line}");
        let instance = home.file_name().unwrap().to_str().unwrap();
        for expected in [
            "Preparing instance...",
            &format!("Dialing instance {instance}..."),
            &format!("Instance {instance} connected"),
        ] {
            assert!(log.contains(expected), "{expected}: {log}");
        }
        homes.push(home.to_owned());
    }
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), JOBS, "max_use_count = 1: {homes:?}");
}

#[tokio::test]
async fn job_on_lost_instance_fails_with_reason_and_is_retried() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("mark");
    let yaml = format!(
        "lost:\n  retry: {{max: 1, when: runner_system_failure}}\n  script:\n    \
         - 'if test -e {0}; then echo second attempt; else touch {0}; sleep 600; fi'\n",
        mark.display()
    );
    let mut fleet = Fleet::start(&yaml, "    max_instances = 2\n", "");
    assert!(wait_until(|| mark.exists()).await, "the job did not start");
    assert!(Machines::new(&fleet.machines).kill(ProcessKind::Instance) > 0, "no instance was running");
    fleet.pipeline.wait_for_line("the failure", |line| line.contains("runner_system_failure"));
    let (last, logs) = fleet.finish(&["lost".to_owned()]);
    assert!(logs[0].contains("second attempt"), "{last}\n{}", logs[0]);
}

#[test]
fn plugin_hooks_run_before_and_after_each_job() {
    let directory = tempfile::tempdir().unwrap();
    let hook_log = directory.path().join("hook-log");
    let names: Vec<String> = (0..4).map(|n| format!("job {n}")).collect();
    let yaml: String =
        names.iter().map(|name| format!("{name}:\n  script: ['cat {}; echo it ran']\n", hook_log.display())).collect();
    let hook = |name: &str| format!("['sh', '-c', 'echo \"{name} $1 $2\" >>{}', 'sh']", hook_log.display());
    let plugin = format!(
        "      prepare_command = {}\n      finish_command = {}\n",
        hook("prepare").replace('\'', "\"\"\""),
        hook("finish").replace('\'', "\"\"\"")
    );
    let fleet = Fleet::start(&yaml, "    max_instances = 2\n", &plugin);
    let (last, logs) = fleet.finish(&names);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    assert!(logs.iter().all(|log| log.contains("prepare local-") && log.contains("it ran")), "{logs:#?}");
    let text = std::fs::read_to_string(&hook_log).unwrap();
    let jobs_of = |hook: &str| {
        let mut jobs: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(hook)).collect();
        jobs.sort_unstable();
        jobs.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let (prepared, finished) = (jobs_of("prepare "), jobs_of("finish "));
    assert_eq!((prepared.len(), &prepared), (4, &finished), "{text}");
}
