//! A stock gitlab-runner v16.6.0 with executor `instance` runs jobs on the machines of `fleeting-plugin-local`.

use serde_json::Value;

use crate::gitlab_runner::{clean, stock_runner};
use muster_tests::process::{Running, muster, plugin_local, repository};

const JOBS: usize = 20;

#[test]
fn a_stock_runner_scales_with_our_plugin() {
    let Some(peer) = stock_runner() else { return };
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let project = place.path().join("project");
    let job = |n| format!("job {n}:\n  script: ['echo \"this is $HOME of {n}\"']\n");
    repository(&project, &[(".gitlab-ci.yml", &(0..JOBS).map(job).collect::<String>())]);

    let mut ours = clean(muster(), &home);
    ours.args(["ci", "run", "--executor", "external", "--output", "json"]).current_dir(&project);
    let mut ours = Running::start(ours);
    let waiting: Value =
        serde_json::from_str(&ours.line("the address", |line| line.contains("waiting_for_runner"))).unwrap();
    let (url, token) = (waiting["url"].as_str().unwrap(), waiting["registration_token"].as_str().unwrap());

    // The stock runner registers any executor, and knows the scaling keys only in the file.
    let config = home.join("config.toml");
    let mut register = clean(&peer, &home);
    register.args(["register", "--non-interactive", "--executor", "instance", "--shell", "bash", "--name", "peer"]);
    register.args(["--url", url, "--registration-token", token, "--config"]).arg(&config);
    let output = register.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&config).unwrap();
    let token = text.lines().find_map(|line| line.trim().strip_prefix("token = ")).expect("a token");
    let scaling = format!(
        "concurrent = 10\ncheck_interval = 1\n[[runners]]\n  url = \"{url}\"\n  token = {token}\n  executor = \"instance\"\n  \
         shell = \"bash\"\n  limit = 10\n  request_concurrency = 5\n  [runners.autoscaler]\n    plugin = {:?}\n    \
         capacity_per_instance = 1\n    max_use_count = 1\n    max_instances = 10\n    [runners.autoscaler.plugin_config]\n      \
         boot_delay_ms = 300\n    [runners.autoscaler.connector_config]\n      timeout = \"1m\"\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 5\n      idle_time = \"10s\"\n",
        plugin_local()
    );
    std::fs::write(&config, scaling).unwrap();
    let mut run = clean(&peer, &home);
    run.args(["run", "--config"]).arg(&config).arg("--working-directory").arg(&home);
    let runner = Running::start(run);

    let (lines, status) = ours.finish();
    drop(runner);
    assert_eq!(status, Some(0), "{}", lines.join("\n"));
    let last: Value = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap();
    let jobs = last["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), JOBS);
    assert!(jobs.iter().all(|job| job["status"] == "success"), "{last}");

    // Each had a machine of its own.
    let mut homes: Vec<String> = (0..JOBS)
        .map(|n| {
            let mut show = clean(muster(), &home);
            let output =
                show.args(["ci", "show", "1", &format!("job {n}"), "--log"]).current_dir(&project).output().unwrap();
            let log = String::from_utf8(output.stdout).unwrap();
            let line = log.lines().find(|line| line.starts_with("this is /") && line.ends_with(&format!(" of {n}")));
            let line = line.unwrap_or_else(|| panic!("no line of the script in {log}"));
            line.split_whitespace().nth(2).unwrap().to_owned()
        })
        .collect();
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), JOBS, "max_use_count = 1: {homes:?}");
}
