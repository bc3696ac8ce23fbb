//! Runners with instances: several in one manager, and installed plugins.

use rustix::process::Signal;
use serde_json::Value;

use super::bench::{Bench, Run};
use super::instances::{address_of, status};
use crate::plugin::registry::{Registry, archive};
use crate::plugin::support::sibling;
use crate::process::until;

/// Returns an entry of `[[runners]]` with local instances of this plugin. `keys` are further keys of `[runners.autoscaler]`.
fn entry(bench: &Bench, which: usize, plugin: &str, keys: &str, idle_time: &str) -> String {
    let entry = bench.entry(which).replace("\"shell\"\nshell", "\"instance\"\nshell");
    format!(
        "{entry}request_concurrency = 5\n[runners.autoscaler]\nplugin = {plugin:?}\ndelete_instances_on_shutdown = true\n{keys}\n\
         [[runners.autoscaler.policy]]\nidle_time = {idle_time:?}\n[runners.autoscaler.plugin_config]\ndirectory = {:?}\n",
        bench.home.path(format!("machines-{which}"))
    )
}

fn start(bench: &Bench, entries: &str) -> Run {
    bench.configure(&format!("listen_address = \"127.0.0.1:0\"\nconcurrent = 10\ncheck_interval = 1\n{entries}"));
    bench.run()
}

/// Returns the names of a runner's instances, and the number of slots in use on each.
fn instances(now: &Value, runner: &str) -> Vec<(String, usize)> {
    let fleets = now["fleets"].as_array().unwrap();
    let fleet = fleets.iter().find(|fleet| fleet["runner"] == runner).unwrap_or_else(|| panic!("no {runner}: {now}"));
    let used = |slots: &Value| slots.as_array().unwrap().iter().filter(|slot| !slot["key"].is_null()).count();
    let instances = fleet["status"]["instances"].as_array().unwrap().iter();
    instances.map(|instance| (instance["id"].as_str().unwrap().to_owned(), used(&instance["slots"]))).collect()
}

/// R055.
#[tokio::test(flavor = "multi_thread")]
async fn two_runners_scale_their_groups_independently() {
    let bench = Bench::start(2).await;
    let narrow = "capacity_per_instance = 1\nmax_instances = 2";
    let wide = "capacity_per_instance = 3\nmax_instances = 1";
    let [narrow, wide] = [(0, narrow, "10m"), (1, wide, "0s")]
        .map(|(which, keys, idle)| entry(&bench, which, "fleeting-plugin-local", keys, idle));
    let run = start(&bench, &format!("{narrow}{wide}"));
    let address = address_of(&run).await;
    for (which, id) in [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)] {
        bench.push(which, id);
    }
    for (which, id) in [(0, 1), (0, 2), (1, 4), (1, 5), (1, 6)] {
        bench.begun(which, id).await;
    }
    let now = status(&bench, &address).await;
    let narrow = instances(&now, "runner-0");
    let used = |of: &[(String, usize)]| of.iter().map(|(_, slots)| *slots).collect::<Vec<_>>();
    assert_eq!((used(&narrow), used(&instances(&now, "runner-1"))), (vec![1, 1], vec![3]), "{now}");

    for id in [4, 5, 6] {
        bench.let_go(id);
        bench.ended(1, id).await;
    }
    let now = until(async || {
        let now = status(&bench, &address).await;
        if instances(&now, "runner-1").is_empty() { Ok(now) } else { Err(format!("{now}\n{}", run.log())) }
    })
    .await;
    assert_eq!(instances(&now, "runner-0"), narrow, "the other runner's jobs have what they had: {now}");

    for id in [1, 2, 3] {
        bench.let_go(id);
        bench.ended(0, id).await;
    }
    run.signal(Signal::QUIT);
    assert_eq!(run.code().await, 0);
}

/// R029.
#[tokio::test(flavor = "multi_thread")]
async fn installed_plugin_only_needs_to_be_configured() {
    let (Some(plugin), Some(registry)) = (sibling("fleeting-plugin-local"), Registry::start(false)) else { return };
    registry.push("g/p", "1.2.3", &["1.2.3"], &archive(&std::fs::read(plugin).unwrap())).await;
    let bench = Bench::start(1).await;
    let named = format!("{}/g/p:1", registry.host);
    bench.configure(&entry(&bench, 0, &named, "max_instances = 1", "10m"));
    let installed = bench.home.run(&["fleeting", "install", "--config", "config.toml"]).check(0, &[]).stdout;
    assert!(installed.starts_with(&format!("runner: runner-0, plugin: {named}, path: /")), "{installed}");
    drop(registry);

    let run = bench.run();
    bench.push(0, 1);
    bench.let_go(1);
    let job = bench.ended(0, 1).await;
    assert!(job.text().contains("begun\n") && job.text().contains("Instance "), "{}", job.text());
    run.signal(Signal::QUIT);
    assert_eq!(run.code().await, 0);
}
