//! Plugins from a registry with a login: installation, verification and removal.

use super::registry::{PASSWORD, Registry, USER, archive};
use super::support::Home;

#[tokio::test]
async fn plugins_are_installed_listed_verified_and_removed() {
    let Some(registry) = Registry::start(true) else { return };
    for version in ["1.2.3", "1.3.0"] {
        registry.push("g/p", version, &[version], &archive(b"#!/bin/sh\necho it runs\n")).await;
    }
    let (home, host) = (Home::new(), registry.host.as_str());
    let plugin = format!("{host}/g/p");
    home.run(&["muster", "plugin", "install", &plugin]).check(1, &["a login is required", "muster plugin login"]);
    let login = ["muster", "plugin", "login", host, "--username", USER, "--password-stdin"];
    home.run_with(&login, "wrong\n").check(1, &["denies access"]);
    assert!(!home.path(".docker").exists(), "rejected credentials must not be stored");
    home.run_with(&login, &format!("{PASSWORD}\n")).check(0, &["as tester;"]);

    home.run(&["muster", "plugin", "list", "--remote", &plugin]).check(0, &["g/p 1.2.3\n", "g/p 1.3.0\n"]);
    home.run(&["muster", "plugin", "install", &format!("{plugin}:1.2")]).check(0, &["version 1.2.3 is installed: "]);
    home.run(&["muster", "plugin", "install", &plugin]).check(0, &["version 1.2.3 is already installed"]);
    home.run(&["muster", "plugin", "install", "--upgrade", &plugin]).check(0, &["version 1.3.0 is installed: "]);
    home.run(&["muster", "plugin", "list"]).check(0, &["g/p 1.2.3 /", "g/p 1.3.0 /"]);
    let path = home.run(&["muster", "plugin", "look-path", &plugin]).check(0, &["/1.3.0/plugin\n"]).stdout;
    let ran = std::process::Command::new(path.trim_end()).output().unwrap();
    assert_eq!(ran.stdout, b"it runs\n");

    home.run(&["muster", "plugin", "verify"]).check(0, &["g/p 1.2.3: intact", "g/p 1.3.0: intact"]);
    let one = home.run(&["muster", "plugin", "verify", &format!("{plugin}:1.2.3")]).check(0, &["g/p 1.2.3: intact"]);
    assert!(!one.stdout.contains("1.3.0"), "{one:?}");
    home.run(&["muster", "plugin", "verify", &format!("{plugin}:1.4")]).check(1, &["no matching version is installed"]);
    std::fs::write(path.trim_end(), "changed").unwrap();
    home.run(&["muster", "plugin", "verify", &plugin])
        .check(1, &["g/p 1.3.0: MODIFIED", "plugin has the digest", "--upgrade"]);
    home.run(&["muster", "plugin", "install", "--upgrade", &plugin])
        .check(0, &["was modified locally and has been repaired"]);
    home.run(&["muster", "plugin", "verify"]).check(0, &["g/p 1.3.0: intact"]);

    home.run(&["muster", "plugin", "remove", &format!("{plugin}:1.2.3")]).check(0, &["removed", "1.2.3"]);
    home.run(&["muster", "plugin", "remove", &plugin]).check(0, &["1.3.0"]);
    home.run(&["muster", "plugin", "remove", &plugin]).check(1, &["no such version is installed"]);
    home.run(&["muster", "plugin", "verify", &plugin]).check(1, &["no version is installed"]);
}

#[tokio::test]
async fn plugins_of_a_configuration_are_installed() {
    let Some(registry) = Registry::start(false) else { return };
    registry.push("g/p", "1.2.3", &["1.2.3"], &archive(b"#!/bin/sh\n")).await;
    let home = Home::new();
    let runner = |name: &str, plugin: &str| {
        format!(
            "[[runners]]\n  name = \"{name}\"\n  url = \"http://127.0.0.1\"\n  token = \"t\"\n  executor = \"instance\"\n  \
             [runners.autoscaler]\n    plugin = \"{plugin}\"\n    [[runners.autoscaler.policy]]\n      idle_count = 0\n"
        )
    };
    let config = runner("one", &format!("{}/g/p:1", registry.host)) + &runner("two", "./mine");
    std::fs::write(home.path("config.toml"), config).unwrap();

    let list = ["gitlab-runner", "fleeting", "list", "-c", "config.toml"];
    home.run(&list).check(1, &["runner: one", "plugin not found", "muster plugin install", "no such file"]);
    muster_test_prerequisites::copy_program("/bin/true", home.path("mine"));
    home.run(&["gitlab-runner", "fleeting", "install", "--config", "config.toml"])
        .check(0, &["runner: one, plugin: 127.0.0.1:"]);
    let listed = home.run(&list).check(0, &["path: "]);
    assert!(
        listed.stdout.contains("/1.2.3/plugin\n") && listed.stdout.contains("runner: two, plugin: ./mine, path: /"),
        "{listed:?}"
    );
    home.run(&["muster", "plugin", "install", "-c", "config.toml", "--upgrade"]).check(0, &["runner: two"]);
}

#[tokio::test]
async fn program_runs_under_the_name_fleeting() {
    let Some(registry) = Registry::start(false) else { return };
    registry.push("g/p", "1.2.3", &["1.2.3"], &archive(b"#!/bin/sh\n")).await;
    let home = Home::new();
    let plugin = format!("{}/g/p:1.2", registry.host);
    home.run(&["fleeting", "install", &plugin]).check(0, &["version 1.2.3 is installed"]);
    home.run(&["fleeting", "install", "-upgrade", &plugin]).check(0, &["is the newest matching version"]);
    home.run(&["fleeting", "lookpath", &plugin]).check(0, &["/g/p/1.2.3/plugin\n"]);
    home.run(&["fleeting", "list"]).check(0, &["g/p 1.2.3"]);
    home.run(&["fleeting", "login", &registry.host, "--username", "a", "--password", "b"]).check(0, &["as a;"]);
    home.run(&["fleeting", "nonsense"]).check(2, &["unrecognized subcommand", "Usage: fleeting"]);
}

#[test]
fn invalid_arguments_are_reported() {
    let home = Home::new();
    home.run(&["muster", "plugin", "install", "a//b"]).check(1, &["is not a valid reference", "REGISTRY/GROUP/NAME"]);
    home.run(&["muster", "plugin", "install", "aws:v1"])
        .check(1, &["invalid semantic version", "write latest, 1, 1.2"]);
    home.run(&["muster", "plugin", "look-path", "aws"]).check(1, &["plugin not found", "muster plugin install aws"]);
    home.run(&["muster", "plugin", "login", "r.example", "--username", "a"]).check(1, &["--password-stdin"]);
    home.run(&["muster", "plugin", "login", "r/x", "--username", "a", "--password", "b"]).check(1, &["invalid server"]);
    let login = ["muster", "plugin", "login", "r.example", "--username", "a", "--password-stdin"];
    home.run_with(&login, &"x".repeat(65_537)).check(1, &["the password is longer than 65536 bytes"]);
    home.run(&["muster", "plugin", "verify"]).check(0, &[]);
    home.run(&["muster", "plugin", "install", "-c", "nofile.toml"])
        .check(1, &["nofile.toml does not exist; name the plugins"]);
    std::fs::write(home.path("empty.toml"), "concurrent = 1\n").unwrap();
    home.run(&["muster", "plugin", "install", "-c", "empty.toml"])
        .check(0, &["empty.toml uses no plugin; nothing to install"]);
}
