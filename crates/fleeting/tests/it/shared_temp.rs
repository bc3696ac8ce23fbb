//! Tests that other users cannot attack the sockets through the shared temporary directory.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use muster_fleeting::host::{Group, PluginSpec, PluginStatus};
use tempfile::TempDir;

const TOY: &str = env!("CARGO_BIN_EXE_fleeting-plugin-toy");
/// Set in the child process that starts the plugin. Its value is the expected directory for sockets.
const EXPECTED_DIRECTORY: &str = "MUSTER_TEST_SOCKETS_IN";
/// Time after which the start counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Directories of a test in which another user attacks the host.
struct Attack {
    _root: TempDir,
    shared: PathBuf,
    elsewhere: PathBuf,
    runtime: PathBuf,
    home: PathBuf,
}

impl Attack {
    /// Prepares a temporary directory like /tmp, with entries that another user has created.
    fn new() -> Self {
        // Paths of sockets must be short.
        let root = TempDir::with_prefix_in("m", "/tmp").unwrap();
        let [shared, elsewhere, runtime, home] = ["t", "e", "r", "h"].map(|name| root.path().join(name));
        for (path, mode) in [(&shared, 0o1777), (&elsewhere, 0o755), (&runtime, 0o700), (&home, 0o700)] {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        std::fs::write(elsewhere.join("unrelated"), "").unwrap();
        std::fs::write(elsewhere.join(".lock"), "").unwrap();
        let attack = Self { _root: root, shared, elsewhere, runtime, home };
        for name in ["muster-plugin-fifo", "muster-plugin-link", "muster-plugin-file", "muster", "p-fifo"] {
            std::fs::create_dir(attack.shared.join(name)).unwrap();
        }
        for name in ["muster-plugin-fifo", "p-fifo"] {
            let status = Command::new("mkfifo").arg(attack.shared.join(name).join(".lock")).status().unwrap();
            assert!(status.success());
        }
        symlink(attack.elsewhere.join(".lock"), attack.shared.join("muster-plugin-link/.lock")).unwrap();
        std::fs::write(attack.shared.join("muster-plugin-file/.lock"), "").unwrap();
        symlink(&attack.elsewhere, attack.shared.join("muster-plugin-directory")).unwrap();
        for entry in std::fs::read_dir(&attack.shared).unwrap() {
            let path = entry.unwrap().path();
            if rustix::process::geteuid().is_root() {
                chown(&path, Some(65534), Some(65534)).unwrap();
            }
            // The host removes directories of killed hosts only if they are older than a minute.
            let hour_ago = SystemTime::now() - Duration::from_secs(3600);
            std::fs::File::open(&path).unwrap().set_modified(hour_ago).unwrap();
        }
        attack
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.shared).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs the named test again in a process whose environment names only these directories.
    async fn run_test(&self, test: &str, runtime: Option<&Path>, expected: &Path) -> Output {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env_clear().env(EXPECTED_DIRECTORY, expected);
        command.env("TMPDIR", &self.shared).env("HOME", &self.home);
        if let Some(runtime) = runtime {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        let output = tokio::time::timeout(TIMEOUT, command.kill_on_drop(true).output()).await;
        output.expect("the start of the plugin hangs").unwrap()
    }
}

/// Starts a plugin in the child process and checks the path of its socket.
async fn start_plugin(expected: &Path) {
    let group = Group::start(PluginSpec::new(TOY)).await.unwrap();
    let PluginStatus::Up { pid } = *group.status().borrow() else { panic!("not running") };
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let variable =
        environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"PLUGIN_UNIX_SOCKET_DIR="));
    let sockets = PathBuf::from(String::from_utf8(variable.unwrap().to_vec()).unwrap());
    assert!(sockets.starts_with(expected), "{} is not in {}", sockets.display(), expected.display());
    for directory in [&*sockets, sockets.parent().unwrap()] {
        let metadata = std::fs::symlink_metadata(directory).unwrap();
        assert!(
            metadata.is_dir()
                && metadata.mode() & 0o777 == 0o700
                && metadata.uid() == rustix::process::geteuid().as_raw()
        );
    }
    group.stop().await;
    assert!(!sockets.exists(), "the directory must be removed with the plugin");
}

#[tokio::test]
async fn shared_temporary_directory_is_not_touched() {
    if let Some(expected) = std::env::var_os(EXPECTED_DIRECTORY) {
        return start_plugin(Path::new(&expected)).await;
    }
    let attack = Attack::new();
    let before = attack.names();
    let test = "shared_temp::shared_temporary_directory_is_not_touched";
    let output = attack.run_test(test, Some(&attack.runtime), &attack.runtime).await;
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    assert_eq!(attack.names(), before);
    assert!(attack.elsewhere.join("unrelated").exists());
}
