//! Tests that instances leave nothing behind, however they and the plugin end.

use std::os::unix::fs::PermissionsExt;

use muster_fleeting::host::PluginStatus;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::*;

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

async fn gone(pid: Pid) {
    while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Daemonizes like the manager's agent: it leaves the session, and its parent exits.
const DAEMON: &str = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' </dev/null &";

#[tokio::test]
async fn daemon_ends_with_the_instance() {
    for isolation in ["auto", "none"] {
        let (group, target, session) = one(json!({ "isolation": isolation })).await;
        let (_, daemon, _) = output(&*session, DAEMON).await;
        // Its process ID on the host, which is the same without namespaces.
        let outside = if isolation == "none" { Some(pid(&daemon)) } else { None };
        let (exit, ..) = output(&*session, &format!("kill -0 {daemon}")).await;
        assert_eq!(exit, Exit::Code(0), "a command's end is not the end of what it left");
        group.decrease(std::slice::from_ref(&id(&target))).await.unwrap();
        wait(&group, InstanceState::Deleting, 0).await;
        if let Some(daemon) = outside {
            gone(daemon).await;
        }
        group.stop().await;
    }
}

#[tokio::test]
async fn orphans_do_not_become_zombies() {
    let (group, _, session) = one(json!({"isolation": "none"})).await;
    let (_, child, _) = output(&*session, "setsid sh -c 'echo $$; exec sleep 0.01 >/dev/null 2>&1' </dev/null &").await;
    gone(pid(&child)).await;
    group.stop().await;
}

#[tokio::test]
async fn failed_accept_does_not_stop_the_server() {
    let (group, target, session) = one(json!({"isolation": "none"})).await;
    let (_, server, _) = output(&*session, "echo $PPID").await;
    let server = pid(&server);
    let woken = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.as_raw_nonzero())).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
    };
    // No further files can be opened there.
    let before = getrlimit(Resource::Nofile);
    prlimit(Some(server), Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    let first = woken();
    let waiting = tokio::net::TcpStream::connect(&target.address).await.unwrap();
    while woken().is_some() && woken() == first {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    prlimit(Some(server), Resource::Nofile, before).unwrap();
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
    let (group, target, session) = one(json!({"directory": directory.path()})).await;
    let home = output(&*session, "pwd").await.1;
    let home = Path::new(home.trim());
    assert!(home.starts_with(directory.path()));
    assert_eq!(home.metadata().unwrap().permissions().mode() & 0o777, 0o700, "jobs leave secrets there");

    let mut status = group.status();
    let PluginStatus::Up { pid } = *status.borrow() else { panic!("it runs") };
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Up { .. })).await.unwrap();
    assert!(!home.exists(), "the next one clears it away");
    group.increase(1).await.unwrap();
    let again = wait(&group, InstanceState::Running, 1).await.remove(0);
    assert_ne!(again, id(&target));
    assert!(!again.as_str().contains(&format!("-{pid}-")), "a number that may come back says nothing");
    assert_eq!(entries(directory.path()).len(), 1);
    group.stop().await;
    assert_eq!(entries(directory.path()), Vec::<std::path::PathBuf>::new());
}
