//! Saves of config.toml on a full disk, without permission, or on a mounted file.

use std::path::Path;
use std::process::Command;

use muster_config::HostFacts;
use muster_config::edit::{ConfigFile, EditError, lock_for_manager};
use muster_test_prerequisites::run_with_mounts;
use toml_edit::Table;

/// Environment variable that is set in the process that runs in a user namespace.
const INSIDE: &str = "MUSTER_TEST_INSIDE";

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns a `[[runners]]` entry of 20 kB.
fn entry() -> Table {
    let mut entry = Table::new();
    entry.insert("name", toml_edit::value("n".repeat(20_000)));
    entry
}

#[test]
fn full_disk_keeps_old_file_and_is_reported() {
    let mount = "mount -t tmpfs -o size=32k none \"$1\"";
    let Some(directory) = run_with_mounts("disk::full_disk_keeps_old_file_and_is_reported", mount) else { return };
    let path = directory.join("config.toml");
    let old = format!("concurrent = 4 # {}\n", "x".repeat(12_000));
    std::fs::write(&path, &old).unwrap();
    let mut file = ConfigFile::open(&path).unwrap();
    file.add_runner(entry());
    let error = file.save().unwrap_err().to_string();
    assert!(error.contains("config.toml") && error.contains("free some space"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), old);
    assert_eq!(names(&directory), [".config.toml.lock", "config.toml"]);
}

#[test]
fn read_only_file_system_still_lets_manager_run() {
    let mount =
        "mount -t tmpfs none \"$1\" && echo 'concurrent = 4' > \"$1/config.toml\" && mount -o remount,ro \"$1\"";
    let Some(directory) = run_with_mounts("disk::read_only_file_system_still_lets_manager_run", mount) else { return };
    let path = directory.join("config.toml");
    let error = ConfigFile::open(&path).unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    let facts = HostFacts::of(&path);
    assert!(!facts.writable);
    assert!(muster_config::load(&path, &facts).config.is_some());
    let lock = lock_for_manager(&path).unwrap();
    assert!(matches!(lock_for_manager(&path), Err(EditError::Locked { .. })), "the file itself must be locked");
    drop(lock);
}

/// Container engines mount the file like this for `-v config.toml:/etc/gitlab-runner/config.toml`. It cannot be replaced.
#[test]
fn mounted_file_is_written_in_place() {
    let mount = "echo 'concurrent = 4 # kept' > \"$1/real\" && touch \"$1/config.toml\" && mount --bind \"$1/real\" \"$1/config.toml\"";
    let Some(directory) = run_with_mounts("disk::mounted_file_is_written_in_place", mount) else { return };
    let path = directory.join("config.toml");
    let mut file = ConfigFile::open(&path).unwrap();
    file.add_runner(entry());
    file.save().unwrap();
    let text = std::fs::read_to_string(directory.join("real")).unwrap();
    assert!(text.starts_with("concurrent = 4 # kept\n\n[[runners]]\n"), "{}", &text[..60]);
    assert_eq!(names(&directory), [".config.toml.lock", "config.toml", "real"]);
}

#[test]
fn unwritable_directory_is_reported() {
    let home = tempfile::tempdir().unwrap();
    if rustix::process::geteuid().is_root() && std::env::var_os(INSIDE).is_none() {
        // Root may write everywhere, but not in a user namespace that maps it to nobody.
        if !muster_test_prerequisites::namespaces() {
            return;
        }
        let mut command = Command::new("unshare");
        command.arg("--user").arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
        let output = command.args(["--exact", "disk::unwritable_directory_is_reported"]).output();
        let output = output.unwrap();
        let log = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && log.contains("1 passed"), "{log}");
        return;
    }
    let path = home.path().join("config.toml");
    std::fs::write(&path, "concurrent = 4\n").unwrap();
    let set_mode = |mode| {
        std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    set_mode(0o500);
    let writable = HostFacts::of(&path).writable;
    let error = ConfigFile::open(&path).err().map(|error| error.to_string());
    set_mode(0o700);
    assert!(!writable);
    let error = error.unwrap();
    assert!(error.contains("fix the permissions of its directory"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "concurrent = 4\n");
}
