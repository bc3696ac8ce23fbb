//! Tests of runners with executor `instance`: two runners in one manager, and a runner whose plugin is installed from a registry.

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, ManagerProcess};
use super::instances::{address_of, status};
use crate::plugin::registry::{Registry, archive};
use crate::plugin::support::sibling;
use crate::process::until;

/// Returns a `[[runners]]` entry with the executor `instance`. `keys` are additional keys of `[runners.autoscaler]`.
fn entry(harness: &Harness, coordinator_index: usize, plugin: &str, keys: &str, idle_time: &str) -> String {
    let entry = harness.entry(coordinator_index).replace("\"shell\"\nshell", "\"instance\"\nshell");
    format!(
        "{entry}request_concurrency = 5\n[runners.autoscaler]\nplugin = {plugin:?}\ndelete_instances_on_shutdown = true\n{keys}\n\
         [[runners.autoscaler.policy]]\nidle_time = {idle_time:?}\n[runners.autoscaler.plugin_config]\ndirectory = {:?}\n",
        harness.home.path(format!("machines-{coordinator_index}"))
    )
}

fn start(harness: &Harness, entries: &str) -> ManagerProcess {
    harness.configure(&format!("listen_address = \"127.0.0.1:0\"\nconcurrent = 10\ncheck_interval = 1\n{entries}"));
    harness.run()
}

/// Returns the names of a runner's instances, and the number of slots in use on each.
fn instances(reports: &Value, runner: &str) -> Vec<(String, usize)> {
    let fleets = reports["fleets"].as_array().unwrap();
    let fleet =
        fleets.iter().find(|fleet| fleet["runner"] == runner).unwrap_or_else(|| panic!("no {runner}: {reports}"));
    let used = |slots: &Value| slots.as_array().unwrap().iter().filter(|slot| !slot["key"].is_null()).count();
    let instances = fleet["status"]["instances"].as_array().unwrap().iter();
    instances.map(|instance| (instance["id"].as_str().unwrap().to_owned(), used(&instance["slots"]))).collect()
}

/// Requirement R055 (docs/requirements.md).
#[tokio::test(flavor = "multi_thread")]
async fn two_runners_scale_their_groups_independently() {
    let harness = Harness::start(2).await;
    let narrow = "capacity_per_instance = 1\nmax_instances = 2";
    let wide = "capacity_per_instance = 3\nmax_instances = 1";
    let [narrow, wide] = [(0, narrow, "10m"), (1, wide, "0s")]
        .map(|(coordinator_index, keys, idle)| entry(&harness, coordinator_index, "fleeting-plugin-local", keys, idle));
    let run = start(&harness, &format!("{narrow}{wide}"));
    let address = address_of(&run).await;
    for (coordinator_index, id) in [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)] {
        harness.push(coordinator_index, id);
    }
    for (coordinator_index, id) in [(0, 1), (0, 2), (1, 4), (1, 5), (1, 6)] {
        harness.wait_for_start(coordinator_index, id).await;
    }
    let reports = status(&harness, &address).await;
    let narrow = instances(&reports, "runner-0");
    let used = |instances: &[(String, usize)]| instances.iter().map(|(_, slots)| *slots).collect::<Vec<_>>();
    assert_eq!((used(&narrow), used(&instances(&reports, "runner-1"))), (vec![1, 1], vec![3]), "{reports}");

    for id in [4, 5, 6] {
        harness.release_job(id);
        harness.wait_for_end(1, id).await;
    }
    let reports = until(async || {
        let reports = status(&harness, &address).await;
        if instances(&reports, "runner-1").is_empty() { Ok(reports) } else { Err(format!("{reports}\n{}", run.log())) }
    })
    .await;
    assert_eq!(instances(&reports, "runner-0"), narrow, "the instances of the other runner must not change: {reports}");

    for id in [1, 2, 3] {
        harness.release_job(id);
        harness.wait_for_end(0, id).await;
    }
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

/// Requirement R029 (docs/requirements.md).
#[tokio::test(flavor = "multi_thread")]
async fn installed_plugin_only_needs_to_be_configured() {
    let (Some(plugin), Some(registry)) = (sibling("fleeting-plugin-local"), Registry::start(false)) else { return };
    registry.push("g/p", "1.2.3", &["1.2.3"], &archive(&std::fs::read(plugin).unwrap())).await;
    let harness = Harness::start(1).await;
    let plugin_reference = format!("{}/g/p:1", registry.host);
    harness.configure(&entry(&harness, 0, &plugin_reference, "max_instances = 1", "10m"));
    let installed = harness.home.run(&["fleeting", "install", "--config", "config.toml"]).check(0, &[]).stdout;
    assert!(installed.starts_with(&format!("runner: runner-0, plugin: {plugin_reference}, path: /")), "{installed}");
    drop(registry);

    let run = harness.run();
    harness.push(0, 1);
    harness.release_job(1);
    let job = harness.wait_for_end(0, 1).await;
    assert!(job.text().contains("begun\n") && job.text().contains("Instance "), "{}", job.text());
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}
