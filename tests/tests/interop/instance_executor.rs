//! A stock gitlab-runner v16.6.0 with executor `instance` runs jobs on the machines of `fleeting-plugin-local`.

use serde_json::Value;

use crate::gitlab_runner::{Registered, stock_runner};
use muster_tests::process::plugin_local;

const JOBS: usize = 20;

#[test]
fn a_stock_runner_scales_with_our_plugin() {
    let Some(peer) = stock_runner() else { return };
    let place = tempfile::tempdir().unwrap();
    let job = |n| format!("job {n}:\n  script: ['echo \"this is $HOME of {n}\"']\n");
    // The stock runner registers any executor, and knows the scaling keys only in the file.
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

    // Each had a machine of its own.
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
