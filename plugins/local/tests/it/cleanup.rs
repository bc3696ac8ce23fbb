//! Instances leave no processes and files behind, however they and the plugin end.

use std::os::unix::fs::PermissionsExt;

use muster_fleeting::host::PluginStatus;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::*;

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

async fn wait_exit(pid: Pid) {
    let exited = async {
        while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), exited).await.unwrap();
}

/// Starts a daemon: a process in a session of its own, whose parent exits.
const DAEMON: &str = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' </dev/null &";

#[tokio::test]
async fn daemon_ends_with_the_instance() {
    for isolation in ["auto", "none"] {
        let (group, target, session) = start_instance(json!({ "isolation": isolation })).await;
        let (_, daemon, _) = output(&*session, DAEMON).await;
        // Without namespaces, the process ID on the host is the same.
        let host_pid = if isolation == "none" { Some(pid(&daemon)) } else { None };
        let (exit, ..) = output(&*session, &format!("kill -0 {daemon}")).await;
        assert_eq!(exit, Exit::Code(0), "background processes of a command must continue");
        group.decrease(std::slice::from_ref(&id(&target))).await.unwrap();
        wait_for_instances(&group, InstanceState::Deleting, 0).await;
        if let Some(daemon) = host_pid {
            wait_exit(daemon).await;
        }
        group.stop().await;
    }
}

#[tokio::test]
async fn orphans_do_not_become_zombies() {
    let (group, _, session) = start_instance(json!({"isolation": "none"})).await;
    let (_, child, _) = output(&*session, "setsid sh -c 'echo $$; exec sleep 0.01 >/dev/null 2>&1' </dev/null &").await;
    wait_exit(pid(&child)).await;
    group.stop().await;
}

#[tokio::test]
async fn failed_accept_does_not_stop_the_ssh_server() {
    let (group, target, session) = start_instance(json!({"isolation": "none"})).await;
    let (_, server, _) = output(&*session, "echo $PPID").await;
    let server = pid(&server);
    let context_switches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.as_raw_nonzero())).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
    };
    // The server cannot open further files.
    let usual_limit = getrlimit(Resource::Nofile);
    prlimit(Some(server), Resource::Nofile, Rlimit { current: Some(3), ..usual_limit }).unwrap();
    let switches_before = context_switches();
    let waiting = tokio::net::TcpStream::connect(&target.address).await.unwrap();
    // Wait until the SSH server has woken up and failed to accept the connection.
    while context_switches().is_some() && context_switches() == switches_before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    prlimit(Some(server), Resource::Nofile, usual_limit).unwrap();
    drop(waiting);
    assert_eq!(output(&*session, "echo on").await.1, "on\n");
    dial(&target, &KnownHosts::default()).await.unwrap();
    group.stop().await;
}

fn entries(directory: &Path) -> Vec<std::path::PathBuf> {
    directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn stopped_or_killed_plugin_leaves_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (group, target, session) = start_instance(json!({"directory": directory.path()})).await;
    let home = output(&*session, "pwd").await.1;
    let home = Path::new(home.trim());
    assert!(home.starts_with(directory.path()));
    assert_eq!(home.metadata().unwrap().permissions().mode() & 0o777, 0o700, "jobs store secrets in it");

    let mut status = group.status();
    let PluginStatus::Up { pid } = *status.borrow() else { panic!("the plugin is not running") };
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Up { .. })).await.unwrap();
    assert!(!home.exists(), "the next plugin process removes the directory");
    group.increase(1).await.unwrap();
    let new_id = wait_for_instances(&group, InstanceState::Running, 1).await.remove(0);
    assert_ne!(new_id, id(&target));
    assert!(!new_id.as_str().contains(&format!("-{pid}-")), "the name must not depend on the process ID");
    assert_eq!(entries(directory.path()).len(), 1);
    group.stop().await;
    assert_eq!(entries(directory.path()), Vec::<std::path::PathBuf>::new());
}

async fn suspend(group: &Group, id: &InstanceId) {
    assert_eq!(group.suspend(std::slice::from_ref(id)).await.unwrap(), std::slice::from_ref(id));
}

#[tokio::test]
async fn killed_plugin_leaves_no_suspended_instance() {
    for isolation in ["auto", "none"] {
        let directory = tempfile::tempdir().unwrap();
        let config = json!({"directory": directory.path(), "suspendable": true, "isolation": isolation});
        let (group, target, session) = start_instance(config).await;
        let (_, daemon, _) = output(&*session, DAEMON).await;
        suspend(&group, &id(&target)).await;
        let mut status = group.status();
        let PluginStatus::Up { pid } = *status.borrow() else { panic!("the plugin is not running") };
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
        status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap();
        status.wait_for(|status| matches!(status, PluginStatus::Up { .. })).await.unwrap();
        assert_eq!(persistent::process(directory.path(), "instance"), None, "isolation = {isolation}");
        if isolation == "none" {
            wait_exit(self::pid(&daemon)).await;
        }
        group.stop().await;
    }
}

#[tokio::test]
async fn preempted_suspended_instance_leaves_no_process() {
    let config = json!({"suspendable": true, "isolation": "none", "preemptions_per_minute": 60_000.0, "preemption_notice_s": 8.0});
    let (group, target, session) = start_instance(config).await;
    let (_, daemon, _) = output(&*session, DAEMON).await;
    suspend(&group, &id(&target)).await;
    wait_for_instances(&group, InstanceState::Suspended, 0).await;
    wait_exit(pid(&daemon)).await;
    group.stop().await;
}
