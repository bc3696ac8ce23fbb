//! `muster demo` without a screen.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::until;

fn demo(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_muster"), "demo", "--headless"]);
    command.args(arguments).env_clear().env("HOME", directory).env("TMPDIR", directory).current_dir(directory);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn check_nothing_is_left(directory: &Path) {
    let files: Vec<_> = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(files.is_empty(), "{files:?}");
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let is_in =
            |link: &str| std::fs::read_link(process.path().join(link)).is_ok_and(|path| path.starts_with(directory));
        let command_line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command_line = String::from_utf8_lossy(&command_line).replace('\0', " ");
        let is_this_process = process.file_name().to_string_lossy() == std::process::id().to_string();
        assert!(
            is_this_process || !(is_in("cwd") || command_line.contains(directory.to_str().unwrap())),
            "{command_line}"
        );
    }
}

/// Requirement R001: Muster works without docker-machine on this host.
#[test]
fn demo_finishes_all_jobs_and_deletes_all_instances() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--jobs", "14", "--instances", "3", "--boot-time-ms", "200"];
    let mut demo = demo(directory.path(), &arguments);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path).filter(|directory| !directory.join("docker-machine").exists());
    let output = demo.env("PATH", std::env::join_paths(path).unwrap()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.starts_with("jobs       14 of 14 succeeded, 0 failed, in "), "{stdout}");
    let instances = stdout.lines().find(|line| line.starts_with("instances ")).unwrap();
    assert!(instances.ends_with(", 0 left") && instances.contains("at most 3 at once"), "{stdout}");
    check_nothing_is_left(directory.path());
}

#[test]
fn demo_timeout_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--jobs", "30", "--boot-time-ms", "600000", "--timeout", "1"];
    let output = demo(directory.path(), &arguments).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stderr.contains("timed out after 1 s with 0 of 30 jobs succeeded"), "{stdout}{stderr}");
    assert!(stdout.contains("waits      no job has finished"), "{stdout}");
    assert_eq!(demo(directory.path(), &["--timeout", "0"]).output().unwrap().status.code(), Some(2));
}

/// Runs the demo with a hard limit of open files.
fn demo_with_files(directory: &Path, limit: u32, arguments: &[&str]) -> std::process::Output {
    let inner = demo(directory, arguments);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$0\"; exec \"$@\"", &limit.to_string()]).arg(inner.get_program());
    command.args(inner.get_args()).env_clear().current_dir(directory).stdin(Stdio::null());
    command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.output().unwrap()
}

#[test]
fn demo_reports_a_sufficient_open_files_limit() {
    let directory = tempfile::tempdir().unwrap();
    let small = ["--jobs", "6", "--instances", "2", "--slots", "1", "--boot-time-ms", "100"];
    for limit in [6, 10, 55] {
        let refused = demo_with_files(directory.path(), limit, &small);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(&format!("limit of {limit} open files")), "{stderr}");
        assert!(stderr.contains("`ulimit -n 56`"), "{stderr}");
        check_nothing_is_left(directory.path());
    }
    let large = ["--jobs", "16", "--instances", "4", "--slots", "3", "--boot-time-ms", "100"];
    // The demo requires 56 open files for the small size, and 88 for the large size.
    for (limit, size) in [(56, &small), (88, &large)] {
        let output = demo_with_files(directory.path(), limit, size);
        assert!(output.status.success(), "{limit}: {output:?}");
        check_nothing_is_left(directory.path());
    }
}

#[tokio::test]
async fn interrupted_demo_exits_cleanly() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = demo(directory.path(), &["--jobs", "400", "--boot-time-ms", "100"]).spawn().unwrap();
    let has_instance = || {
        let directories = std::fs::read_dir(directory.path()).unwrap().flatten();
        // The plugin creates its own directory for instances before the first instance.
        let plugins =
            directories.filter_map(|directory| std::fs::read_dir(directory.path().join("machines")).ok()).flatten();
        plugins.flatten().any(|plugin| {
            std::fs::read_dir(plugin.path())
                .is_ok_and(|machines| machines.flatten().any(|machine| machine.path().is_dir()))
        })
    };
    until(async || {
        assert!(running.try_wait().unwrap().is_none(), "the demo ended before it created an instance");
        has_instance().then_some(()).ok_or_else(|| "no instance was created".to_owned())
    })
    .await;
    kill_process(Pid::from_raw(i32::try_from(running.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let output = running.wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "a demo with unfinished jobs must fail: {stdout}");
    assert!(stdout.contains(", 0 left"), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    check_nothing_is_left(directory.path());
}
