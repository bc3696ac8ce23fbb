//! Faulty plugins and a healthy runner in one manager: the manager keeps running, completes the jobs and reports what is wrong with
//! each plugin. After it has stopped, no process of a plugin is left.
//!
//! All of it: `MUSTER_TEST_RUNS=300 cargo test -p muster-tests --test proofs hostile -- --nocapture`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use muster_fleeting::faulty_plugin::{Behavior, Call, Script, WELL_BEHAVED};
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{MemoryCoordinator, RUNNER_TOKEN, serve};
use muster_tests::bench::Bench;
use muster_tests::process::{muster, until};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::life;

const HOSTILE: &str = env!("CARGO_BIN_EXE_fleeting-plugin-hostile");
/// Default number of runs, which is enough for one manager.
const SAMPLE: u64 = 10;
/// Number of faulty plugins of one manager.
const TOGETHER: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn hostile_plugins_harm_neither_the_manager_nor_the_jobs_of_others() {
    let seeds: Vec<u64> = life::seeds(SAMPLE).collect();
    for seeds in seeds.chunks(TOGETHER) {
        world(seeds).await;
    }
    println!("{} hostile plugins, {} managers, no process left", seeds.len(), seeds.len().div_ceil(TOGETHER));
}

/// Runs one manager with a faulty plugin for each seed, and a healthy runner.
async fn world(seeds: &[u64]) {
    // The runners with faulty plugins never get a job.
    let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_secs(5)));
    let idle = serve(coordinator).await.unwrap();
    let plugins = tempfile::tempdir().unwrap();
    let write = |bench: &Bench| {
        let entries =
            seeds.iter().enumerate().map(|(n, seed)| entry(idle.url.as_str(), n, &plugin(plugins.path(), *seed)));
        let url = &bench.proxy.url;
        let ours = format!(
            "[[runners]]\n  name = \"ours\"\n  url = {url:?}\n  token = \"{RUNNER_TOKEN}\"\n  executor = \"shell\"\n"
        );
        format!(
            "concurrent = 4\ncheck_interval = 1\nshutdown_timeout = 5\nlisten_address = \"127.0.0.1:0\"\n{ours}{}",
            entries.collect::<String>()
        )
    };
    let mut bench = Bench::configured(4, write).await;
    jobs(&bench, 1..4).await;
    let wrong: BTreeMap<String, &[&str]> =
        seeds.iter().map(|seed| (format!("hostile-{seed}"), wrong(&script(*seed)))).collect();
    let mut missing = Vec::new();
    let told = until(|| {
        missing = untold(&bench, &wrong);
        missing.is_empty()
    });
    assert!(told.await, "the manager does not say what is wrong: {missing:#?}\n{}", bench.log());
    jobs(&bench, 4..6).await;
    assert!(bench.is_managed(), "{}", bench.log());
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    let mut left = Vec::new();
    let gone = until(|| {
        left = processes(plugins.path());
        left.is_empty()
    });
    assert!(gone.await, "processes of plugins are left: {left:#?}");
}

/// Runs jobs of the healthy runner until they have ended.
async fn jobs(bench: &Bench, ids: std::ops::Range<i64>) {
    for id in ids.clone() {
        bench.push(id, &["echo in order"], &json!({}));
    }
    for id in ids {
        let job = bench.coordinator.wait_for_end(JobId(id)).await;
        assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), bench.log());
    }
}

fn entry(url: &str, n: usize, plugin: &Path) -> String {
    let name = plugin.file_name().unwrap().to_str().unwrap().trim_start_matches("fleeting-plugin-");
    format!(
        "[[runners]]\n  name = {name:?}\n  url = {url:?}\n  id = {}\n  token = \"{RUNNER_TOKEN}\"\n  executor = \"instance\"\n  \
         [runners.autoscaler]\n    plugin = {plugin:?}\n    max_instances = 3\n    delete_instances_on_shutdown = true\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 2\n      idle_time = \"1h\"\n",
        n + 1
    )
}

/// Returns the name of the plugin with this seed.
fn plugin(folder: &Path, seed: u64) -> PathBuf {
    println!("seed {seed}: {:?}", script(seed));
    let link = folder.join(format!("fleeting-plugin-hostile-{seed}"));
    std::os::unix::fs::symlink(HOSTILE, &link).unwrap();
    link
}

fn script(seed: u64) -> Script {
    Script::draw(&mut StdRng::seed_from_u64(seed))
}

/// Messages about a process that never becomes a plugin. A silent one has a minute to start; until then it is reported as not started.
const NO_PLUGIN: &[&str] = &[
    "unrecognized plugin message",
    "incompatible API version",
    "unsupported plugin protocol",
    "handshake names no address",
    "exited before the handshake",
    "failed to connect to",
    "has not been started yet",
    "no handshake within 60 s",
];

/// Returns the possible messages of the manager about a plugin. They concern the first call that fails.
///
/// The list is empty if the plugin only misbehaves between calls, or is only slow: it has minutes for a call.
fn wrong(script: &Script) -> &'static [&'static str] {
    if script.begin != WELL_BEHAVED {
        return NO_PLUGIN;
    }
    for call in [Call::Init, Call::Update, Call::Increase, Call::ConnectInfo] {
        let has_text = call != Call::Increase;
        return match script.behavior(call) {
            Behavior::Normal | Behavior::Slow => continue,
            Behavior::EndlessStream if call != Call::Update => continue,
            Behavior::HugeResponse if !has_text => continue,
            // A plugin without a name and a size can be used.
            Behavior::InvalidResponse if call == Call::Init => continue,
            Behavior::Hangs if call == Call::Init => &["has not been started yet", "no response to Init within 60 s"],
            Behavior::Hangs => &[],
            Behavior::BreaksOff if call == Call::Update => &["the stream broke"],
            Behavior::Fails | Behavior::BreaksOff => &["quota exceeded"],
            Behavior::Unavailable => &["the provider's API is down"],
            Behavior::Unimplemented => &["no such call"],
            Behavior::Panics => &["connection lost"],
            Behavior::InvalidResponse if call == Call::Update => &["an instance id of 0 bytes"],
            Behavior::InvalidResponse if call == Call::Increase => &["accepted more instances than requested"],
            Behavior::InvalidResponse => &["no connector for"],
            Behavior::HugeResponse => &["message length too large"],
            Behavior::EndlessStream => &["more than 100000 instances"],
            Behavior::Exits => &["exit status: 7", "connection lost"],
        };
    }
    &[]
}

/// Returns the plugins whose fault the manager has not reported, neither in its log nor in `muster fleet status`.
fn untold(bench: &Bench, wrong: &BTreeMap<String, &[&str]>) -> Vec<String> {
    let log = bench.log();
    let mut told: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for name in wrong.keys() {
        // A name can be a prefix of another one.
        let is_named = |line: &&str| {
            line.match_indices(name.as_str())
                .any(|(at, _)| !line[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()))
        };
        told.insert(name, log.lines().filter(is_named).map(str::to_owned).collect());
    }
    let status = status(&log);
    for fleet in status["fleets"].as_array().into_iter().flatten() {
        if let Some(lines) = fleet["runner"].as_str().and_then(|runner| told.get_mut(runner)) {
            lines.push(fleet.to_string());
        }
    }
    let is_told = |name: &str, words: &[&str]| {
        words.is_empty()
            || told.get(name).is_some_and(|lines| lines.iter().any(|line| words.iter().any(|word| line.contains(word))))
    };
    wrong
        .iter()
        .filter(|(name, words)| !is_told(name, words))
        .map(|(name, words)| format!("{name}: {words:?}"))
        .collect()
}

/// Returns the output of `muster fleet status` for the manager with this log. It is empty until the manager listens.
fn status(log: &str) -> Value {
    let Some(line) = log.lines().find(|line| line.contains("Metrics server listening")) else { return Value::Null };
    let Some((_, port)) = line.split_once("127.0.0.1:") else { return Value::Null };
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let mut command = Command::new(muster());
    command.args(["fleet", "status", "--json", "--address", &format!("127.0.0.1:{port}")]);
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Returns the live processes of the process groups that plugins in this directory started.
fn processes(folder: &Path) -> Vec<String> {
    let notes = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "pids"));
    let groups: Vec<String> = notes
        .flat_map(|note| std::fs::read_to_string(note.path()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    // `pid (name) state parent group ...`
    let is_left = |stat: &String| {
        let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
        let mut words = rest.split(' ');
        words.next() != Some("Z") && words.nth(1).is_some_and(|group| groups.iter().any(|known| known == group))
    };
    assert!(!groups.is_empty(), "no plugin was started");
    stats.filter(is_left).collect()
}
