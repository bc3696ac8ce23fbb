//! `install`, `uninstall`, `start`, `stop`, `restart` and `status`, with a fake `systemctl` that records its calls.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::support::Home;
use crate::process::CommandResult;

/// Creates a home with a `systemctl` that records its arguments in the file `calls`, and runs `behavior`.
fn home_with_systemctl(behavior: &str) -> Home {
    let home = Home::new();
    let directory = home.path("bin");
    std::fs::create_dir(&directory).unwrap();
    let calls = home.path("calls");
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\n{behavior}\n", calls.display());
    muster_test_prerequisites::create_program(directory.join("systemctl"), script);
    home
}

fn run(home: &Home, arguments: &[&str]) -> CommandResult {
    let mut command = home.command(arguments);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([home.path("bin")].into_iter().chain(std::env::split_paths(&path))).unwrap();
    CommandResult::of(command.env("PATH", path).output().unwrap())
}

fn calls(home: &Home) -> String {
    std::fs::read_to_string(home.path("calls")).unwrap_or_default()
}

fn program() -> String {
    std::fs::canonicalize(env!("CARGO_BIN_EXE_muster")).unwrap().display().to_string()
}

#[test]
fn install_writes_a_unit_and_a_configuration() {
    let home = home_with_systemctl("");
    let root = home.path("image");
    let root = root.to_str().unwrap();
    let install = ["install", "--root", root, "-d", "/srv/ci 50%", "--user", "gitlab-runner"];
    let config = ["--config", "/etc/ci/config.toml", "-n", "ci"];
    run(&home, &[&install[..], &config].concat()).check(0, &["Created the configuration file", "Installed"]);
    let unit = std::fs::read_to_string(Path::new(root).join("etc/systemd/system/ci.service")).unwrap();
    let start = format!(
        "ExecStart={} runner run --config /etc/ci/config.toml --working-directory \"/srv/ci 50%%\" --service ci --user \
         gitlab-runner\n",
        program()
    );
    for line in
        [start.as_str(), "KillMode=process\n", "KillSignal=SIGQUIT\n", "Restart=always\n", "OOMPolicy=continue\n"]
    {
        assert!(unit.contains(line), "`{line}` is missing in\n{unit}");
    }
    // Installed plugins are looked up below HOME, which systemd does not set for root's services.
    assert!(unit.contains("\nEnvironment=HOME=%h\n"), "{unit}");
    assert!(!unit.contains("User="), "{unit}");
    let config = Path::new(root).join("etc/ci/config.toml");
    assert_eq!(std::fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&config).unwrap().contains("concurrent = 1"));
    assert_eq!(calls(&home), format!("--root {root} enable ci.service\n"));

    run(&home, &[&install[..], &["-n", "ci"]].concat()).check(1, &["already installed", "uninstall it first"]);
    run(&home, &["uninstall", "--root", root, "-n", "ci"]).check(0, &["Uninstalled"]);
    assert_eq!(std::fs::read_dir(Path::new(root).join("etc/systemd/system")).unwrap().count(), 0);
    assert!(config.exists());
    run(&home, &["uninstall", "--root", root, "-n", "ci"]).check(1, &["the service is not installed"]);
}

#[test]
fn systemd_accepts_the_unit() {
    if !muster_test_prerequisites::program("systemd-analyze", "--version", "systemd") {
        return;
    }
    let home = home_with_systemctl("");
    let root = home.path("image");
    run(&home, &["install", "--root", root.to_str().unwrap(), "--init-user", "root", "--syslog"]).check(0, &[]);
    let unit = root.join("etc/systemd/system/gitlab-runner.service");
    let text = std::fs::read_to_string(&unit).unwrap();
    assert!(text.contains("\nUser=root\n") && !text.contains("HOME="), "{text}");
    for unit in [unit.clone(), unit.with_file_name("gitlab-runner-tmp.service")].iter().filter(|unit| unit.exists()) {
        let checked = Command::new("systemd-analyze").arg("verify").arg(unit).output().unwrap();
        let stderr = String::from_utf8_lossy(&checked.stderr);
        assert_eq!(stderr.lines().find(|line| line.contains("gitlab-runner")), None);
    }
}

#[test]
fn new_configuration_belongs_to_the_user_of_the_service() {
    let home = home_with_systemctl("");
    let root = home.path("image");
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::write(root.join("etc/passwd"), "ci:x:4711:4712::/home/ci:/bin/sh\n").unwrap();
    let result = run(&home, &["install", "--root", root.to_str().unwrap(), "--init-user", "ci"]).check(0, &[]);
    if !rustix::process::geteuid().is_root() {
        // Only root can change owners.
        result.check(0, &["is not readable for the user of the service", "chown ci: "]);
        return;
    }
    let owner = |path: &str| {
        let found = std::fs::metadata(root.join(path)).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o77)
    };
    assert_eq!(owner("home/ci"), (4711, 4712, 0));
    assert_eq!(owner("home/ci/config.toml"), (4711, 4712, 0));
    // This directory is new, too, but the user must only be able to enter it. The umask of a machine usually permits that.
    assert_eq!((owner("home").0, owner("home").2), (0, owner("etc").2));
}

fn settings(unit: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(unit).unwrap();
    text.lines().filter(|line| line.contains('=') && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn temporary_directory_survives_service_restarts() {
    let home = home_with_systemctl("");
    let root = home.path("image");
    run(&home, &["install", "--root", root.to_str().unwrap(), "--user", "gitlab-runner", "-n", "ci"]).check(0, &[]);
    let directory = root.join("etc/systemd/system");
    let (service, temporary) = (settings(&directory.join("ci.service")), settings(&directory.join("ci-tmp.service")));
    let assert_has =
        |unit: &[String], line: &str| assert!(unit.iter().any(|found| found == line), "{line} not in {unit:?}");
    assert_has(&service, "PrivateTmp=yes");
    // systemd deletes a private temporary directory when the last unit that uses it stops. Jobs outlive the service and need their files, so a
    // second unit keeps the directory.
    assert_has(&service, "JoinsNamespaceOf=ci-tmp.service");
    assert_has(&service, "Wants=network-online.target ci-tmp.service");
    assert_has(&service, "After=network-online.target ci-tmp.service");
    assert_has(&temporary, "PrivateTmp=yes");
    assert_has(&temporary, "RemainAfterExit=yes");
    // Each forbidden setting would restrict what jobs can use on a host: sudo, packages, the home directory, cgroups.
    for line in &service {
        let name = line.split('=').next().unwrap();
        let forbidden =
            ["NoNewPrivileges", "Protect", "Restrict", "SystemCall", "ReadOnly", "PrivateDevices", "PrivateUsers"];
        assert!(!forbidden.iter().any(|start| name.starts_with(start)), "{line}");
    }
}

#[test]
fn systemd_reports_the_private_temporary_directory() {
    if !muster_test_prerequisites::program("systemd-analyze", "--version", "systemd") {
        return;
    }
    let home = home_with_systemctl("");
    let root = home.path("image");
    run(&home, &["install", "--root", root.to_str().unwrap(), "--user", "gitlab-runner"]).check(0, &[]);
    let unit = root.join("etc/systemd/system/gitlab-runner.service");
    let checked =
        Command::new("systemd-analyze").args(["security", "--offline=yes", "--json=short"]).arg(&unit).output();
    let checked = checked.unwrap();
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap_or_else(|_| panic!("{checked:?}"));
    let item = report.as_array().unwrap().iter().find(|item| item["name"] == "PrivateTmp=").unwrap();
    assert_eq!(item["set"], true, "{item}");
}

#[test]
fn user_service_is_installed_for_the_user() {
    let home = home_with_systemctl("");
    run(&home, &["install", "--user-service", "-c", "config.toml"]).check(0, &["Installed"]);
    let unit = std::fs::read_to_string(home.path(".config/systemd/user/gitlab-runner.service")).unwrap();
    assert!(
        !unit.contains("PrivateTmp="),
        "a mount namespace would require a user namespace, in which jobs could not use sudo"
    );
    let config = home.path("config.toml");
    assert!(unit.contains(&format!("--config {} ", config.display())) && unit.contains("WantedBy=default.target"));
    assert_eq!(calls(&home), "--user daemon-reload\n--user enable gitlab-runner.service\n");
    run(&home, &["restart", "--user-service", "-n", "other"]).check(0, &[]);
    assert!(calls(&home).ends_with("--user restart other.service\n"));
}

#[test]
fn install_leaves_no_part_of_a_unit_if_it_cannot_be_written() {
    let home = home_with_systemctl("");
    let root = home.path("image");
    let install = ["install", "--root", root.to_str().unwrap(), "--user", "gitlab-runner"];
    // With this limit, each write fails, as on a full disk.
    let limited = "ulimit -f 0; trap '' XFSZ; exec \"$0\" \"$@\"";
    let command = home.command(&install);
    let mut shell = Command::new("sh");
    shell.args(["-c", limited]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let config = root.join("etc/gitlab-runner/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    CommandResult::of(shell.output().unwrap()).check(1, &["failed to write", "config.toml", "File too large"]);
    std::fs::write(&config, "concurrent = 1\n").unwrap();
    CommandResult::of(shell.output().unwrap())
        .check(1, &["failed to write", "gitlab-runner.service", "File too large"]);
    assert_eq!(std::fs::read_dir(root.join("etc/systemd/system")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(config.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn install_requires_exactly_one_user_flag() {
    let home = home_with_systemctl("");
    let root = home.path("image");
    let install = ["install", "--root", root.to_str().unwrap()];
    run(&home, &install).check(1, &["please specify the user of the service"]);
    run(&home, &[&install[..], &["-u", "a", "-i", "b"]].concat()).check(1, &["cannot be used with"]);
    run(&home, &[&install[..], &["--init-user", "no such user"]].concat()).check(1, &["no such user", "--config"]);
    assert!(!root.exists() && calls(&home).is_empty());
}

#[test]
fn systemctl_errors_are_reported_and_leave_nothing() {
    let home = home_with_systemctl("echo connection refused >&2; exit 3");
    run(&home, &["start"])
        .check(1, &["`systemctl start gitlab-runner.service` failed with exit code 3: connection refused"]);
    run(&home, &["install", "--user-service", "-c", "config.toml"]).check(1, &["daemon-reload", "connection refused"]);
    assert!(!home.path(".config/systemd/user/gitlab-runner.service").exists());
    let mut without = home.command(&["stop"]);
    without.env("PATH", home.path("nowhere"));
    CommandResult::of(without.output().unwrap()).check(1, &["no `systemctl` on PATH", "gitlab-runner run"]);
}

#[test]
fn status_prints_the_state_and_sets_the_exit_code() {
    let status = |load: &str, active: &str| {
        let home = home_with_systemctl(&format!("echo LoadState={load}; echo ActiveState={active}"));
        run(&home, &["status", "-n", "ci"])
    };
    let running = status("loaded", "active");
    assert_eq!((running.code, running.stdout.as_str()), (0, "ci: Service is running\n"));
    status("loaded", "inactive").check(1, &["ci: Service has stopped"]);
    status("not-found", "inactive").check(1, &["ci: the service is not installed"]);
    assert_eq!(status("loaded", "inactive").stdout, "");
}
