//! Executor `instance` on the machines of `fleeting-plugin-local`, with gitlab-runner v16.6.0 and with Muster's runner.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gitlab_runner::{Registered, clean, stock_runner};
use muster_tests::machines::{Machines, Part};
use muster_tests::process::{Running, muster, plugin_local, repository, until};

const JOBS: usize = 20;

#[test]
fn a_stock_runner_scales_with_our_plugin() {
    let Some(peer) = stock_runner() else { return };
    let place = tempfile::tempdir().unwrap();
    let job = |n| format!("job {n}:\n  script: ['echo \"this is $HOME of {n}\"']\n");
    // gitlab-runner registers any executor, but has no flags for the scaling keys.
    let world = Registered::start(&peer, place.path(), "instance", &(0..JOBS).map(job).collect::<String>());
    let (url, config) = (&world.url, &world.config);
    let text = std::fs::read_to_string(config).unwrap();
    let token = text.lines().find_map(|line| line.trim().strip_prefix("token = ")).expect("a token");
    let scaling = format!(
        "concurrent = 10\ncheck_interval = 1\n[[runners]]\n  url = \"{url}\"\n  token = {token}\n  executor = \"instance\"\n  \
         shell = \"bash\"\n  limit = 10\n  request_concurrency = 5\n  [runners.autoscaler]\n    plugin = {:?}\n    \
         capacity_per_instance = 1\n    max_use_count = 1\n    max_instances = 10\n    [runners.autoscaler.plugin_config]\n      \
         boot_delay_ms = 300\n    [runners.autoscaler.connector_config]\n      timeout = \"1m\"\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 5\n      idle_time = \"10s\"\n",
        plugin_local()
    );
    std::fs::write(config, scaling).unwrap();
    let runner = world.run(&peer);
    let Registered { home, project, coordinator, .. } = world;

    let (lines, status) = coordinator.finish();
    drop(runner);
    assert_eq!(status, Some(0), "{}", lines.join("\n"));
    let last: Value = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap();
    let jobs = last["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), JOBS);
    assert!(jobs.iter().all(|job| job["status"] == "success"), "{last}");

    // Each job had its own machine.
    let mut homes: Vec<String> = (0..JOBS)
        .map(|n| {
            let log = Registered::show(&home, &project, &[&format!("job {n}"), "--log"]);
            let line = log.lines().find(|line| line.starts_with("this is /") && line.ends_with(&format!(" of {n}")));
            let line = line.unwrap_or_else(|| panic!("no line of the script in {log}"));
            line.split_whitespace().nth(2).unwrap().to_owned()
        })
        .collect();
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), JOBS, "max_use_count = 1: {homes:?}");
}

/// Local pipeline, and Muster's runner with instances for it.
pub(crate) struct Fleet {
    _place: tempfile::TempDir,
    home: PathBuf,
    project: PathBuf,
    machines: PathBuf,
    pipeline: Running,
    runner: Running,
}

impl Fleet {
    pub(crate) fn start(yaml: &str, autoscaler: &str, plugin: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let [home, project, machines] = ["home", "project", "machines"].map(|name| place.path().join(name));
        std::fs::create_dir(&home).unwrap();
        repository(&project, &[(".gitlab-ci.yml", yaml)]);
        let mut pipeline = clean(muster(), &home);
        pipeline.args(["ci", "run", "--executor", "external", "--output", "json"]).current_dir(&project);
        let mut pipeline = Running::start(pipeline);
        let waiting = pipeline.line("the address", |line| line.contains("waiting_for_runner"));
        let waiting: Value = serde_json::from_str(&waiting).unwrap();
        let (url, token) = (waiting["url"].as_str().unwrap(), waiting["registration_token"].as_str().unwrap());
        let config = home.join("config.toml");
        let mut register = clean(muster(), &home);
        register.args(["runner", "register", "--non-interactive", "--executor", "instance", "--name", "ours"]);
        register.args(["--url", url, "--registration-token", token, "--config"]).arg(&config);
        assert!(register.output().unwrap().status.success());
        let text = std::fs::read_to_string(&config).unwrap();
        let token = text.lines().find_map(|line| line.trim().strip_prefix("token = ")).unwrap();
        let text = format!(
            "concurrent = 20\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  url = \"{url}\"\n  token = {token}\n  \
             executor = \"instance\"\n  shell = \"bash\"\n  request_concurrency = 20\n  [runners.autoscaler]\n    \
             plugin = {:?}\n    delete_instances_on_shutdown = true\n{autoscaler}    \
             [runners.autoscaler.plugin_config]\n      directory = {machines:?}\n      boot_delay_ms = 300\n{plugin}",
            plugin_local()
        );
        std::fs::write(&config, text).unwrap();
        let mut run = clean(muster(), &home);
        run.args(["runner", "run", "--config"]).arg(&config).arg("--state-dir").arg(place.path().join("state"));
        let runner = Running::start(run);
        Self { _place: place, home, project, machines, pipeline, runner }
    }

    /// Waits until all jobs have ended and no instance is left. Returns the jobs and their logs.
    pub(crate) fn finish(self, jobs: &[String]) -> (Value, Vec<String>) {
        let (last, logs, _) = self.finish_with_log(jobs);
        (last, logs)
    }

    /// Does the same as [`Self::finish`], and also returns the log of the runner.
    pub(crate) fn finish_with_log(self, jobs: &[String]) -> (Value, Vec<String>, Vec<String>) {
        let (lines, status) = self.pipeline.finish();
        self.runner.signal("QUIT");
        let (log, ended) = self.runner.finish();
        assert_eq!(status, Some(0), "{}\n{}", lines.join("\n"), log.join("\n"));
        assert_eq!(ended, Some(0), "{}", log.join("\n"));
        assert!(log.iter().any(|line| line.contains("all instances deleted")), "{}", log.join("\n"));
        let left = std::fs::read_dir(&self.machines).unwrap().count();
        assert_eq!(left, 0, "directories of instances; {}", log.join("\n"));
        let last = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap();
        let logs = jobs.iter().map(|job| {
            let mut show = clean(muster(), &self.home);
            let output = show.args(["ci", "show", "1", job, "--log"]).current_dir(&self.project).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        let logs = logs.collect();
        (last, logs, log)
    }
}

#[test]
fn jobs_run_on_instances_of_their_own_and_no_instance_is_left() {
    let names: Vec<String> = (0..JOBS).map(|n| format!("job {n}")).collect();
    let job = |name: &String| format!("{name}:\n  script: ['echo \"this is $HOME of $CI_PROJECT_DIR\"']\n");
    let yaml: String = names.iter().map(job).collect();
    let fleet = Fleet::start(&yaml, "    max_use_count = 1\n    max_instances = 10\n", "");
    let (last, logs) = fleet.finish(&names);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    let mut homes = Vec::new();
    for log in &logs {
        let line = log.lines().find(|line| line.starts_with("this is /")).unwrap_or_else(|| panic!("{log}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let home = Path::new(words[2]);
        assert!(Path::new(words[4]).starts_with(home.join("builds")), "{line}");
        let instance = home.file_name().unwrap().to_str().unwrap();
        for told in [
            "Preparing instance...",
            &format!("Dialing instance {instance}..."),
            &format!("Instance {instance} connected"),
        ] {
            assert!(log.contains(told), "{told}: {log}");
        }
        homes.push(home.to_owned());
    }
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), JOBS, "max_use_count = 1: {homes:?}");
}

#[tokio::test]
async fn a_job_whose_instance_dies_ends_at_once_with_the_reason_and_is_tried_again() {
    let place = tempfile::tempdir().unwrap();
    let mark = place.path().join("mark");
    let yaml = format!(
        "lost:\n  retry: {{max: 1, when: runner_system_failure}}\n  script:\n    \
         - 'if test -e {0}; then echo once more; else touch {0}; sleep 600; fi'\n",
        mark.display()
    );
    let mut fleet = Fleet::start(&yaml, "    max_instances = 2\n", "");
    assert!(until(|| mark.exists()).await, "the job does not start");
    assert!(Machines::new(&fleet.machines).kill(Part::Instance) > 0, "there is no instance");
    fleet.pipeline.line("the failure", |line| line.contains("runner_system_failure"));
    let (last, logs) = fleet.finish(&["lost".to_owned()]);
    assert!(logs[0].contains("once more"), "{last}\n{}", logs[0]);
}

/// R247: the plugin's hooks run on this host before and after each job.
#[test]
fn hooks_of_the_plugin_run_around_each_job() {
    let place = tempfile::tempdir().unwrap();
    let told = place.path().join("told");
    let names: Vec<String> = (0..4).map(|n| format!("job {n}")).collect();
    let yaml: String =
        names.iter().map(|name| format!("{name}:\n  script: ['cat {}; echo it ran']\n", told.display())).collect();
    let hook = |word: &str| format!("['sh', '-c', 'echo \"{word} $1 $2\" >>{}', 'sh']", told.display());
    let plugin = format!(
        "      prepare_command = {}\n      finish_command = {}\n",
        hook("prepare").replace('\'', "\"\"\""),
        hook("finish").replace('\'', "\"\"\"")
    );
    let fleet = Fleet::start(&yaml, "    max_instances = 2\n", &plugin);
    let (last, logs) = fleet.finish(&names);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    assert!(logs.iter().all(|log| log.contains("prepare local-") && log.contains("it ran")), "{logs:#?}");
    let text = std::fs::read_to_string(&told).unwrap();
    let of = |word: &str| {
        let mut jobs: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(word)).collect();
        jobs.sort_unstable();
        jobs.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let (prepared, finished) = (of("prepare "), of("finish "));
    assert_eq!((prepared.len(), &prepared), (4, &finished), "{text}");
}
