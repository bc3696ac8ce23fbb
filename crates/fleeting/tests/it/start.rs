//! Tests executables that are not plugins: each start returns a helpful error and leaves no process.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_fleeting::host::{Group, PluginSpec, StartError};
use tempfile::TempDir;

/// Creates a script that acts as the plugin. It is deleted with the directory.
fn script(body: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("fleeting-plugin-faulty");
    std::fs::write(&path, format!("#!/bin/sh\necho $$ > \"$0.pid\"\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    (directory, path)
}

fn is_alive(script: &Path) -> bool {
    let pid = std::fs::read_to_string(format!("{}.pid", script.display())).unwrap_or_default();
    Path::new("/proc").join(pid.trim()).join("stat").exists() && !pid.trim().is_empty()
}

async fn refused(body: &str) -> String {
    let (_directory, path) = script(body);
    let mut spec = PluginSpec::new(&path);
    spec.timeouts.start = Duration::from_secs(20);
    let error = Group::start(spec).await.expect_err("this is no plugin");
    assert!(!is_alive(&path), "the process is left");
    with_causes(&error)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(with_causes);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[tokio::test]
async fn h3_to_h7_invalid_handshake_is_refused() {
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
    for (body, wanted) in cases {
        let error = refused(body).await;
        assert!(error.contains(wanted), "{body}: {error}");
        assert!(error.contains("fleeting-plugin-faulty"), "names the plugin: {error}");
    }
    assert!(refused("echo 'hello world'").await.contains("a script, mode 755"), "says what kind of file it is");
}

#[tokio::test]
async fn exited_plugin_is_quoted_in_the_error() {
    let error = refused("echo 'token is missing' >&2; exit 3").await;
    assert!(error.contains("exited before the handshake (exit status: 3); stderr: token is missing"), "{error}");
}

#[tokio::test]
async fn h9_silent_plugin_is_killed() {
    let (_directory, path) = script("echo 'still thinking' >&2; sleep 600 & exec sleep 600");
    let mut spec = PluginSpec::new(&path);
    spec.timeouts.start = Duration::from_millis(300);
    let error = Group::start(spec).await.expect_err("it says nothing");
    assert!(matches!(error, StartError::HandshakeTimeout { .. }), "{error}");
    assert!(error.to_string().contains("stderr: still thinking"), "{error}");
    assert!(!is_alive(&path), "the process is left");
}

#[tokio::test]
async fn missing_or_unusable_executable_is_an_error() {
    let directory = TempDir::new().unwrap();
    let error = Group::start(PluginSpec::new(directory.path().join("none"))).await.expect_err("nothing there");
    assert!(matches!(error, StartError::Spawn { .. }), "{error}");
    let file = directory.path().join("fleeting-plugin-text");
    std::fs::write(&file, "no program").unwrap();
    let error = Group::start(PluginSpec::new(&file)).await.expect_err("not executable");
    assert!(with_causes(&error).contains("Permission denied"), "{}", with_causes(&error));
}

#[tokio::test]
async fn invalid_settings_start_no_process() {
    let (_directory, path) = script("exit 0");
    let mut spec = PluginSpec::new(&path);
    spec.connector.protocol = "telnet".to_owned();
    let error = Group::start(spec).await.expect_err("no such protocol");
    assert!(with_causes(&error).contains("unknown protocol \"telnet\"; use ssh"), "{}", with_causes(&error));
    assert!(!Path::new(&format!("{}.pid", path.display())).exists(), "it was not even started");
}

/// Runs the test again in a process with a low limit of open files, which applies to a whole process.
#[tokio::test]
async fn too_many_open_files_is_an_error_without_leftovers() {
    const PLACE: &str = "MUSTER_TEST_PLACE";
    if std::env::var_os(PLACE).is_some() {
        let mut all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // With no file descriptor left, the socket's directory cannot be created; with two left, the pipes cannot.
        for (left, wanted) in [(0, "failed to create a directory for its socket"), (2, "failed to start")] {
            all.truncate(all.len() - left);
            let error = Group::start(PluginSpec::new("/bin/true")).await.expect_err("no file can be opened");
            let said = with_causes(&error);
            assert!(said.contains(wanted) && said.contains("`ulimit -n`") && !said.contains("check that"), "{said}");
        }
        return;
    }
    let place = TempDir::new().unwrap();
    let mut again = std::process::Command::new("sh");
    again.args(["-c", "ulimit -n 64; exec \"$0\" --exact \"$1\""]).arg(std::env::current_exe().unwrap());
    again.arg("start::too_many_open_files_is_an_error_without_leftovers");
    let ended = again.env(PLACE, place.path()).env("XDG_RUNTIME_DIR", place.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
    assert_eq!(std::fs::read_dir(place.path().join("muster")).unwrap().count(), 0);
}
