//! One manager has faulty plugins and a healthy runner. It keeps running, completes the jobs and reports the fault of
//! each plugin. After its exit, no process of a plugin remains.
//!
//! Long run: `MUSTER_TEST_RUNS=300 cargo test -p muster-tests --test system hostile -- --nocapture`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use muster_fleeting::faulty_plugin::{Behavior, Call, Script, VALID_HANDSHAKE};
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{MemoryCoordinator, RUNNER_TOKEN, serve};
use muster_tests::harness::Harness;
use muster_tests::process::{muster, wait_until};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::checks;

const HOSTILE: &str = env!("CARGO_BIN_EXE_fleeting-plugin-hostile");
const DEFAULT_RUNS: u64 = 10;
/// Maximum number of faulty plugins per manager.
const PLUGINS_PER_MANAGER: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn hostile_plugins_do_not_affect_manager_or_other_runners() {
    let seeds: Vec<u64> = checks::seeds(DEFAULT_RUNS).collect();
    for seeds in seeds.chunks(PLUGINS_PER_MANAGER) {
        run_manager(seeds).await;
    }
    println!(
        "{} hostile plugins, {} managers, no process remains",
        seeds.len(),
        seeds.len().div_ceil(PLUGINS_PER_MANAGER)
    );
}

async fn run_manager(seeds: &[u64]) {
    // The runners with faulty plugins never get a job.
    let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_secs(5)));
    let idle_server = serve(coordinator).await.unwrap();
    let plugins = tempfile::tempdir().unwrap();
    let config = |harness: &Harness| {
        let entries = seeds
            .iter()
            .enumerate()
            .map(|(n, seed)| runner_entry(idle_server.url.as_str(), n, &link_plugin(plugins.path(), *seed)));
        let url = &harness.proxy.url;
        let ours = format!(
            "[[runners]]\n  name = \"ours\"\n  url = {url:?}\n  token = \"{RUNNER_TOKEN}\"\n  executor = \"shell\"\n"
        );
        format!(
            "concurrent = 4\ncheck_interval = 1\nshutdown_timeout = 5\nlisten_address = \"127.0.0.1:0\"\n{ours}{}",
            entries.collect::<String>()
        )
    };
    let mut harness = Harness::with_config(4, config).await;
    run_jobs(&harness, 1..4).await;
    let expected: BTreeMap<String, &[&str]> =
        seeds.iter().map(|seed| (format!("hostile-{seed}"), possible_messages(&script(*seed)))).collect();
    let mut missing = Vec::new();
    let reported = wait_until(|| {
        missing = unreported(&harness, &expected);
        missing.is_empty()
    });
    assert!(reported.await, "the manager did not report these faults: {missing:#?}\n{}", harness.log());
    run_jobs(&harness, 4..6).await;
    assert!(harness.is_manager_running(), "{}", harness.log());
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    let mut remaining = Vec::new();
    let have_exited = wait_until(|| {
        remaining = plugin_processes(plugins.path());
        remaining.is_empty()
    });
    assert!(have_exited.await, "processes of plugins remain: {remaining:#?}");
}

async fn run_jobs(harness: &Harness, ids: std::ops::Range<i64>) {
    for id in ids.clone() {
        harness.push(id, &["echo hello"], &json!({}));
    }
    for id in ids {
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
    }
}

fn runner_entry(url: &str, n: usize, plugin: &Path) -> String {
    let name = plugin.file_name().unwrap().to_str().unwrap().trim_start_matches("fleeting-plugin-");
    format!(
        "[[runners]]\n  name = {name:?}\n  url = {url:?}\n  id = {}\n  token = \"{RUNNER_TOKEN}\"\n  executor = \"instance\"\n  \
         [runners.autoscaler]\n    plugin = {plugin:?}\n    max_instances = 3\n    delete_instances_on_shutdown = true\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 2\n      idle_time = \"1h\"\n",
        n + 1
    )
}

fn link_plugin(directory: &Path, seed: u64) -> PathBuf {
    println!("seed {seed}: {:?}", script(seed));
    let link = directory.join(format!("fleeting-plugin-hostile-{seed}"));
    std::os::unix::fs::symlink(HOSTILE, &link).unwrap();
    link
}

fn script(seed: u64) -> Script {
    Script::draw(&mut StdRng::seed_from_u64(seed))
}

/// Messages about a process that never serves the plugin protocol. A silent plugin is reported as "not started" until
/// the handshake times out after a minute.
const HANDSHAKE_MESSAGES: &[&str] = &[
    "unrecognized plugin message",
    "incompatible API version",
    "unsupported plugin protocol",
    "handshake has no address",
    "exited before the handshake",
    "failed to connect to",
    "has not been started yet",
    "no handshake within 60 s",
];

/// Returns the possible messages about the first failing call of a plugin.
///
/// Returns an empty list if no call fails, or if a call other than `Init` hangs, because it times out only after
/// minutes.
fn possible_messages(script: &Script) -> &'static [&'static str] {
    if script.start != VALID_HANDSHAKE {
        return HANDSHAKE_MESSAGES;
    }
    for call in [Call::Init, Call::Update, Call::Increase, Call::ConnectInfo] {
        let response_has_text = call != Call::Increase;
        return match script.behavior(call) {
            Behavior::Normal | Behavior::Slow => continue,
            Behavior::EndlessStream if call != Call::Update => continue,
            Behavior::HugeResponse if !response_has_text => continue,
            // A plugin without a name and a size can be used.
            Behavior::InvalidResponse if call == Call::Init => continue,
            Behavior::Hangs if call == Call::Init => &["has not been started yet", "no response to Init within 60 s"],
            Behavior::Hangs => &[],
            Behavior::TruncatedStream if call == Call::Update => &["the stream broke"],
            Behavior::Fails | Behavior::TruncatedStream => &["quota exceeded"],
            Behavior::Unavailable => &["the provider's API is down"],
            Behavior::Unimplemented => &["no such call"],
            Behavior::Panics => &["connection lost"],
            Behavior::InvalidResponse if call == Call::Update => &["an instance ID of 0 bytes"],
            Behavior::InvalidResponse if call == Call::Increase => &["accepted more instances than requested"],
            Behavior::InvalidResponse => &["no connector for"],
            Behavior::HugeResponse => &["message length too large"],
            Behavior::EndlessStream => &["more than 100000 instances"],
            Behavior::Exits => &["exit status: 7", "connection lost"],
        };
    }
    &[]
}

/// Returns the plugins whose fault is neither in the manager's log nor in `muster fleet status`.
fn unreported(harness: &Harness, expected: &BTreeMap<String, &[&str]>) -> Vec<String> {
    let log = harness.log();
    let mut reports: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for name in expected.keys() {
        // A name can be a prefix of another name.
        let has_name = |line: &&str| {
            line.match_indices(name.as_str())
                .any(|(at, _)| !line[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()))
        };
        reports.insert(name, log.lines().filter(has_name).map(str::to_owned).collect());
    }
    let status = status(&log);
    for fleet in status["fleets"].as_array().into_iter().flatten() {
        if let Some(lines) = fleet["runner"].as_str().and_then(|runner| reports.get_mut(runner)) {
            lines.push(fleet.to_string());
        }
    }
    let is_reported = |name: &str, messages: &[&str]| {
        messages.is_empty()
            || reports
                .get(name)
                .is_some_and(|lines| lines.iter().any(|line| messages.iter().any(|message| line.contains(message))))
    };
    expected
        .iter()
        .filter(|(name, messages)| !is_reported(name, messages))
        .map(|(name, messages)| format!("{name}: {messages:?}"))
        .collect()
}

/// Returns the output of `muster fleet status` for the manager with this log, or null until it listens.
fn status(log: &str) -> Value {
    let Some(line) = log.lines().find(|line| line.contains("Metrics server listening")) else { return Value::Null };
    let Some((_, port)) = line.split_once("127.0.0.1:") else { return Value::Null };
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let mut command = Command::new(muster());
    command.args(["fleet", "status", "--json", "--address", &format!("127.0.0.1:{port}")]);
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Returns the running processes in the process groups of the plugins in this directory.
fn plugin_processes(directory: &Path) -> Vec<String> {
    let pid_files = std::fs::read_dir(directory)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "pids"));
    let groups: Vec<String> = pid_files
        .flat_map(|file| std::fs::read_to_string(file.path()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    // `pid (name) state parent group ...`
    let is_running = |stat: &String| {
        let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
        let mut fields = rest.split(' ');
        fields.next() != Some("Z") && fields.nth(1).is_some_and(|group| groups.iter().any(|known| known == group))
    };
    assert!(!groups.is_empty(), "no plugin was started");
    stats.filter(is_running).collect()
}
