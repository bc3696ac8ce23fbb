//! Tests persistent instances.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use muster_fleeting::host::{Group, PluginSpec};
use muster_fleeting::model::InstanceState;
use muster_remote::{Exit, KnownHosts, dial};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{group, output, target, wait_for_instances};

/// Timeout of a fast operation of the plugin on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Finds the process that runs in an instance's directory and whose last argument is `last_argument`.
pub(crate) fn process(directory: &Path, last_argument: &str) -> Option<String> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let runs_in_directory =
            std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
        let command_line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let is_match = runs_in_directory && command_line.ends_with(format!("\0{last_argument}\0").as_bytes());
        is_match.then(|| process.file_name().into_string().unwrap())
    })
}

#[tokio::test]
async fn next_plugin_restores_and_deletes_instances() {
    // Without namespaces, instances cannot be persistent.
    if !muster_test_prerequisites::namespaces() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = json!({"directory": directory.path(), "persistent_instances": true});
    let first = group(config.clone()).await;
    first.increase(2).await.unwrap();
    let ids = wait_for_instances(&first, InstanceState::Running, 2).await;
    let hosts = KnownHosts::default();
    let session = dial(&target(&first, &ids[0]).await, &hosts).await.unwrap();
    let (exit, ..) = output(
        &*session,
        "echo text > file; setsid sleep 1000 >/dev/null 2>&1 <&- & until pgrep -x sleep >/dev/null; do :; done",
    )
    .await;
    assert_eq!(exit, Exit::Code(0));
    first.stop().await;

    // One of the instances is killed while no plugin is running.
    let lost = process(&directory.path().join(ids[1].as_str()), "persistent").unwrap();
    assert!(Command::new("kill").args(["-9", &lost]).status().unwrap().success());
    while process(&directory.path().join(ids[1].as_str()), "persistent").is_some() {
        tokio::task::yield_now().await;
    }
    let second = group(config).await;
    assert_eq!(wait_for_instances(&second, InstanceState::Running, 1).await, ids[..1]);
    let new_session = dial(&target(&second, &ids[0]).await, &hosts).await.unwrap();
    let (_, text, _) = output(&*new_session, "cat file; pgrep -x sleep | wc -l").await;
    assert_eq!(text, "text\n1\n", "the instance has the same host key, files and processes");
    let (_, text, _) = output(&*session, "echo text").await;
    assert_eq!(text, "text\n", "the session does not depend on the plugin");
    second.decrease(&ids[..1]).await.unwrap();
    wait_for_instances(&second, InstanceState::Running, 0).await;
    while !second.update().await.unwrap().instances.is_empty() {}
    let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".lock"]);
    second.stop().await;
}

/// Finds the process that holds the lock of a directory.
fn plugin(directory: &Path) -> Option<String> {
    let lock = directory.join(".lock");
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let mut open = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let has_lock = open.any(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == lock));
        has_lock.then(|| process.file_name().into_string().unwrap())
    })
}

/// Returns the sorted names in a directory, except the lock.
fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut entries: Vec<_> = entries.filter(|name| name != ".lock").collect();
    entries.sort();
    entries
}

#[tokio::test]
async fn next_plugin_removes_interrupted_starts() {
    if !muster_test_prerequisites::namespaces() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let config = json!({"directory": directory, "persistent_instances": true});
    for name in ["local-0000abcd-7", "other", "local-abcd-7"] {
        std::fs::create_dir(directory.join(name)).unwrap();
    }
    std::fs::write(directory.join("local-0000abcd-8.new"), "{").unwrap();
    for new_entries in 1..=6 {
        let killed = group(config.clone()).await;
        assert_eq!(entries(directory), ["local-abcd-7", "other"], "entries without an instance name are not removed");
        let plugin = plugin(directory).and_then(|pid| Pid::from_raw(pid.parse().unwrap())).unwrap();
        killed.increase(3).await.unwrap();
        // Kill the plugin when `new_entries` directories and records have been created, including unfinished records.
        let start = Instant::now();
        while entries(directory).len() < 2 + new_entries {
            assert!(start.elapsed() < TIMEOUT, "expected {new_entries} new entries: {:?}", entries(directory));
        }
        kill_process(plugin, Signal::KILL).unwrap();
        killed.stop().await;

        let next = group(config.clone()).await;
        let ids: Vec<_> = next.update().await.unwrap().instances.into_keys().collect();
        let expected = ids.iter().flat_map(|id| [id.to_string(), format!("{id}.json")]);
        let mut expected: Vec<_> = expected.chain(["local-abcd-7".to_owned(), "other".to_owned()]).collect();
        expected.sort();
        assert_eq!(entries(directory), expected, "killed after {new_entries} entries");
        next.decrease(&ids).await.unwrap();
        while !next.update().await.unwrap().instances.is_empty() {}
        next.stop().await;
    }
}

#[tokio::test]
async fn suspended_instances_can_be_resumed_by_next_plugin() {
    if !muster_test_prerequisites::namespaces() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = json!({"directory": directory.path(), "persistent_instances": true, "suspendable": true});
    let first = group(config.clone()).await;
    first.increase(1).await.unwrap();
    let ids = wait_for_instances(&first, InstanceState::Running, 1).await;
    assert_eq!(first.suspend(&ids).await.unwrap(), ids);
    assert_eq!(wait_for_instances(&first, InstanceState::Suspended, 1).await, ids);
    first.stop().await;
    let second = group(config).await;
    assert_eq!(wait_for_instances(&second, InstanceState::Suspended, 1).await, ids);
    assert_eq!(second.resume(&ids).await.unwrap(), ids);
    wait_for_instances(&second, InstanceState::Running, 1).await;
    let session = dial(&target(&second, &ids[0]).await, &KnownHosts::default()).await.unwrap();
    let (_, text, _) = output(&*session, "echo resumed").await;
    assert_eq!(text, "resumed\n");
    // A suspended instance can be deleted.
    second.suspend(&ids).await.unwrap();
    second.decrease(&ids).await.unwrap();
    while !second.update().await.unwrap().instances.is_empty() {}
    second.stop().await;
}

#[tokio::test]
async fn killed_server_is_restarted_and_its_processes_continue() {
    if !muster_test_prerequisites::namespaces() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let executable = directory.path().join("plugin");
    muster_test_prerequisites::copy_program(env!("CARGO_BIN_EXE_fleeting-plugin-local"), &executable);
    let mut spec = PluginSpec::new(&executable);
    spec.config = json!({"directory": directory.path().join("machines"), "persistent_instances": true});
    let group = Group::start(spec).await.unwrap();
    group.increase(1).await.unwrap();
    let id = wait_for_instances(&group, InstanceState::Running, 1).await.remove(0);
    // An upgrade replaces the executable.
    std::fs::remove_file(&executable).unwrap();
    let (target, hosts) = (target(&group, &id).await, KnownHosts::default());
    let session = dial(&target, &hosts).await.unwrap();
    output(&*session, "setsid sleep 1000 >/dev/null 2>&1 <&- & until pgrep -x sleep >/dev/null; do :; done").await;
    let server = process(directory.path(), "sshd").unwrap();
    assert!(Command::new("kill").args(["-9", &server]).status().unwrap().success());
    let new_session = loop {
        // The killed server may have accepted the connection.
        if let Ok(session) = dial(&target, &hosts).await {
            break session;
        }
    };
    let (_, text, _) = output(&*new_session, "pgrep -x sleep | wc -l").await;
    assert_eq!(text, "1\n");
    assert_eq!(wait_for_instances(&group, InstanceState::Running, 1).await, std::slice::from_ref(&id));
    group.decrease(&[id]).await.unwrap();
    while !group.update().await.unwrap().instances.is_empty() {}
    group.stop().await;
}

#[tokio::test]
async fn invalid_persistent_settings_are_rejected() {
    for (config, expected) in [
        (json!({"persistent_instances": true}), "requires directory"),
        (json!({"persistent_instances": true, "directory": "/x", "isolation": "none"}), "requires namespaces"),
        (
            json!({"persistent_instances": true, "directory": "/x", "max_cpus": 1.0}),
            "cannot be combined with max_memory_mib",
        ),
    ] {
        let mut spec = PluginSpec::new(env!("CARGO_BIN_EXE_fleeting-plugin-local"));
        spec.config = config;
        let error = Group::start(spec).await.unwrap_err();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(next) = cause {
            text = format!("{text}: {next}");
            cause = next.source();
        }
        assert!(text.contains(expected), "{text}");
    }
}

/// Requirement R040 (docs/requirements.md).
#[tokio::test]
async fn key_of_an_instance_is_private_and_removed_with_it() {
    use std::os::unix::fs::PermissionsExt as _;
    if !muster_test_prerequisites::namespaces() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let group = group(json!({"directory": directory.path(), "persistent_instances": true})).await;
    group.increase(1).await.unwrap();
    let ids = wait_for_instances(&group, InstanceState::Running, 1).await;
    // Files with a private key.
    let keys = || {
        let files = std::fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.path());
        let contains_key = |path: &std::path::PathBuf| {
            std::fs::read_to_string(path).is_ok_and(|text| text.contains("OPENSSH PRIVATE KEY"))
        };
        files.filter(|path| path.is_file()).filter(contains_key).collect::<Vec<_>>()
    };
    let [key] = keys().try_into().unwrap();
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", key.display());
    let home = directory.path().join(ids[0].as_str()).metadata().unwrap();
    assert_eq!(home.permissions().mode() & 0o777, 0o700);
    group.decrease(&ids).await.unwrap();
    while !group.update().await.unwrap().instances.is_empty() {}
    assert_eq!(keys(), Vec::<std::path::PathBuf>::new());
    group.stop().await;
}
