//! Tests executables that are not plugins: each start returns a helpful error and leaves no process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_fleeting::host::{Group, PluginSpec, StartError};
use tempfile::TempDir;

fn script(body: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("fleeting-plugin-faulty");
    muster_test_prerequisites::create_program(&path, format!("#!/bin/sh\necho $$ > \"$0.pid\"\n{body}\n"));
    (directory, path)
}

fn is_alive(script: &Path) -> bool {
    let pid = std::fs::read_to_string(format!("{}.pid", script.display())).unwrap_or_default();
    Path::new("/proc").join(pid.trim()).join("stat").exists() && !pid.trim().is_empty()
}

async fn start_error(body: &str) -> String {
    let (_directory, path) = script(body);
    let mut spec = PluginSpec::new(&path);
    spec.timeouts.start = Duration::from_secs(20);
    let error = Group::start(spec).await.expect_err("the start must fail");
    assert!(!is_alive(&path), "the process must have ended");
    error_chain(&error)
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(error_chain);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[tokio::test]
async fn h3_to_h7_invalid_handshake_is_rejected() {
    let cases = [
        ("echo '2|0|unix|/tmp/p1|grpc|'; exec sleep 600", "incompatible core API version"),
        ("echo '1|5|unix|/tmp/p1|grpc|'; exec sleep 600", "Plugin version: 5, Client versions: [0]"),
        ("echo '1|0|unix|/tmp/p1'; exec sleep 600", "unsupported plugin protocol \"netrpc\""),
        ("echo 'hello world'; exec sleep 600", "unrecognized plugin message \"hello world\""),
        ("echo banner; echo '1|0|unix|/tmp/p1|grpc|'; exec sleep 600", "unrecognized plugin message \"banner\""),
        ("echo '1|0|vsock|3:1|grpc|'; exec sleep 600", "unknown address type"),
        ("while :; do printf xxxxxxxxxxxxxxxx; done", "unrecognized plugin message \"xxxx"),
        ("echo '1|0|unix|/nowhere/p1|grpc|'; exec sleep 600", "failed to connect to /nowhere/p1"),
        ("echo '1|0|tcp|127.0.0.1:1|grpc|'; exec sleep 600", "failed to connect to 127.0.0.1:1"),
    ];
    for (body, expected) in cases {
        let error = start_error(body).await;
        assert!(error.contains(expected), "{body}: {error}");
        assert!(error.contains("fleeting-plugin-faulty"), "the error must name the plugin: {error}");
    }
    assert!(start_error("echo 'hello world'").await.contains("a script, mode 755"), "the error must describe the file");
}

#[tokio::test]
async fn error_quotes_stderr_of_an_exited_plugin() {
    let error = start_error("echo 'token is missing' >&2; exit 3").await;
    assert!(error.contains("exited before the handshake (exit status: 3); stderr: token is missing"), "{error}");
}

#[tokio::test]
async fn plugin_that_closes_stdout_and_lives_is_killed() {
    let (_directory, path) = script("echo 'still here' >&2; exec >&-; sleep 600 & exec sleep 600");
    let mut spec = PluginSpec::new(&path);
    spec.timeouts.exit = Duration::from_millis(300);
    let error = Group::start(spec).await.expect_err("the plugin prints no handshake");
    assert!(matches!(error, StartError::ClosedStdout { .. }), "{error}");
    assert!(error.to_string().contains("stderr: still here"), "{error}");
    assert!(!is_alive(&path), "the process must have ended");
}

#[tokio::test]
async fn h9_silent_plugin_is_killed() {
    let (_directory, path) = script("echo 'still thinking' >&2; sleep 600 & exec sleep 600");
    let mut spec = PluginSpec::new(&path);
    spec.timeouts.start = Duration::from_millis(300);
    let error = Group::start(spec).await.expect_err("the plugin prints no handshake");
    assert!(matches!(error, StartError::HandshakeTimeout { .. }), "{error}");
    assert!(error.to_string().contains("stderr: still thinking"), "{error}");
    assert!(!is_alive(&path), "the process must have ended");
}

#[tokio::test]
async fn missing_or_unusable_executable_is_an_error() {
    let directory = TempDir::new().unwrap();
    let error =
        Group::start(PluginSpec::new(directory.path().join("missing"))).await.expect_err("the file does not exist");
    assert!(matches!(error, StartError::Spawn { .. }), "{error}");
    let file = directory.path().join("fleeting-plugin-text");
    std::fs::write(&file, "text").unwrap();
    let error = Group::start(PluginSpec::new(&file)).await.expect_err("the file is not executable");
    assert!(error_chain(&error).contains("Permission denied"), "{}", error_chain(&error));
}

#[tokio::test]
async fn invalid_settings_start_no_process() {
    let (_directory, path) = script("exit 0");
    let mut spec = PluginSpec::new(&path);
    spec.connector.protocol = "telnet".to_owned();
    let error = Group::start(spec).await.expect_err("the protocol is invalid");
    assert!(error_chain(&error).contains("unknown protocol \"telnet\"; use ssh"), "{}", error_chain(&error));
    assert!(!Path::new(&format!("{}.pid", path.display())).exists(), "the plugin must not be started");
}

/// Runs the test again in a process with a low limit of open files, which applies to a whole process.
#[tokio::test]
async fn too_many_open_files_is_an_error_without_leftovers() {
    const RUNTIME_DIRECTORY: &str = "MUSTER_TEST_RUNTIME_DIRECTORY";
    if std::env::var_os(RUNTIME_DIRECTORY).is_some() {
        let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // Without a free file descriptor, the socket's directory cannot be created. With two, the pipes cannot be created.
        for (free, expected) in [(0, "failed to create a directory for its socket"), (2, "failed to start")] {
            files.truncate(files.len() - free);
            let error = Group::start(PluginSpec::new("/bin/true")).await.expect_err("no file can be opened");
            let text = error_chain(&error);
            assert!(text.contains(expected) && text.contains("`ulimit -n`") && !text.contains("check that"), "{text}");
        }
        return;
    }
    let directory = TempDir::new().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" --exact \"$1\""]).arg(std::env::current_exe().unwrap());
    command.arg("start::too_many_open_files_is_an_error_without_leftovers");
    let output =
        command.env(RUNTIME_DIRECTORY, directory.path()).env("XDG_RUNTIME_DIR", directory.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    assert_eq!(std::fs::read_dir(directory.path().join("muster")).unwrap().count(), 0);
}
