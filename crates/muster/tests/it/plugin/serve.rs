//! The built-in plugins.

use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::host::{Group, PluginSpec};
use muster_fleeting::model::InstanceState;
use muster_remote::{Exit, KnownHosts, RemoteCommand, dial};

use super::support::Home;
use crate::process::{CommandResult, until};

#[test]
fn built_in_plugins_run_under_the_names_muster_and_gitlab_runner() {
    let home = Home::new();
    for (plugin, setting) in
        [("local", "boot_delay_ms"), ("static", "machines"), ("script", "command"), ("docker-machine", "MachineDriver")]
    {
        let name = format!("fleeting-plugin-{plugin}");
        home.run(&["muster", "plugin", "serve", plugin, "-version"]).check(0, &[&name]);
        home.run(&["muster", "plugin", "serve", plugin, "--version"]).check(0, &[&name]);
        home.run(&["gitlab-runner", "plugin", "serve", plugin, "settings"]).check(0, &[setting]);
        home.run(&["muster", "plugin", "serve", plugin]).check(1, &["not meant to be executed directly"]);
    }
    home.run(&["muster", "plugin", "serve", "aws"])
        .check(2, &["built-in plugins are docker-machine, local, script, static"]);
}

#[test]
fn built_in_plugin_is_found_without_its_own_executable() {
    let home = Home::new();
    let mut command = home.command(&["muster", "plugin", "look-path", "local"]);
    let output = command.env("PATH", "/nowhere").output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.trim().ends_with(" plugin serve local"), "{stdout}");
    home.run(&["muster", "plugin", "look-path", "aws"]).check(1, &["plugin not found"]);
}

/// systemd does not set HOME for a system service without `User=`.
#[test]
fn lookup_without_home_skips_installed_plugins() {
    let home = Home::new();
    let run = |arguments: &[&str]| {
        let mut command = home.command(&[&["muster", "plugin"], arguments].concat());
        CommandResult::of_report(command.env_remove("HOME").output().unwrap())
    };
    run(&["look-path", "local"]).check(0, &[" plugin serve local\n"]);
    run(&["look-path", env!("CARGO_BIN_EXE_muster")]).check(0, &[env!("CARGO_BIN_EXE_muster")]);
    let no_directory = "no directory for plugins; set FLEETING_PLUGIN_PATH or HOME";
    run(&["look-path", "aws"])
        .check(1, &["plugin not found", no_directory, "fleeting-plugin-aws is not in any directory of PATH"]);
    run(&["install", "aws"]).check(1, &[no_directory]);
    run(&["list"]).check(1, &[no_directory]);
}

#[tokio::test]
async fn built_in_local_plugin_creates_instances() {
    let mut spec = PluginSpec::new(env!("CARGO_BIN_EXE_muster"));
    spec.arguments = ["plugin", "serve", "local"].map(str::to_owned).to_vec();
    let group = Group::start(spec).await.unwrap();
    assert_eq!((group.name(), group.info().id.as_str()), ("local", "local/local"));
    assert_eq!(group.increase(1).await.unwrap(), 1);
    let id = until(async || {
        let instances = group.update().await.unwrap().instances;
        let running = instances.iter().find(|(_, state)| **state == InstanceState::Running);
        running.map(|(id, _)| id.clone()).ok_or_else(|| format!("no instance runs: {instances:?}"))
    })
    .await;
    let info = group.connect_info(&id).await.unwrap();
    let target = connector::target(&id, info, DialOptions::default()).unwrap();
    let session = dial(&target, &KnownHosts::default()).await.unwrap();
    assert_eq!(session.run(RemoteCommand::new("exit 4")).await.unwrap().exit, Exit::Code(4));
    group.stop().await;
}
