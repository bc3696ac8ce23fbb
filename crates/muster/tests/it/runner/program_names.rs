//! Names of the program, its global flags, and errors for invalid arguments.

use super::support::Home;
use crate::process::CommandResult;

#[test]
fn program_runs_under_both_names() {
    let home = Home::new();
    let result = home.run(&["--help"]).check(0, &[]);
    assert!(result.stdout.contains("Usage: gitlab-runner [OPTIONS] <COMMAND>"), "{}", result.stdout);
    let result = home.run(&["--version"]).check(0, &[]);
    let version = format!("Version:      {}\n", env!("CARGO_PKG_VERSION"));
    assert!(result.stdout.starts_with(&version), "{}", result.stdout);
    let mut muster = std::process::Command::new(env!("CARGO_BIN_EXE_muster"));
    let result = CommandResult::of(muster.args(["runner", "health-check", "--help"]).output().unwrap());
    assert!(result.stdout.contains("Usage: muster runner health-check"), "{}", result.stdout);
}

#[test]
fn unknown_commands_and_flags_exit_with_1_and_usage() {
    let home = Home::new();
    home.run(&["nonsense"]).check(1, &["unrecognized subcommand 'nonsense'", "Usage: gitlab-runner"]);
    home.run(&["exec", "docker"]).check(1, &["unrecognized subcommand 'exec'"]);
    home.run(&["health-check", "--nope"]).check(1, &["unexpected argument '--nope'", "Usage: gitlab-runner"]);
    home.run(&["--log-level", "loud", "health-check"]).check(1, &["loud", "expected one of debug, info, warn"]);
    let mut muster = std::process::Command::new(env!("CARGO_BIN_EXE_muster"));
    assert_eq!(CommandResult::of(muster.args(["runner", "nonsense"]).output().unwrap()).code, 1);
}

#[test]
fn command_logs_the_platform_at_level_info() {
    let home = Home::new();
    let directory = home.path("cache");
    std::fs::create_dir(&directory).unwrap();
    let arguments = ["cache-init", directory.to_str().unwrap()];
    home.run(&arguments).check(0, &["Runtime platform", "arch", env!("CARGO_PKG_VERSION")]);
    for quiet in [home.command(&arguments).env("LOG_LEVEL", "error"), home.command(&["-l", "fatal"]).args(arguments)] {
        assert_eq!(CommandResult::of(quiet.output().unwrap()).stderr, "");
    }
    // An empty variable counts as not set.
    let mut unset = home.command(&arguments);
    unset.env("LOG_LEVEL", "").env("LOG_FORMAT", "").env("RUNNER_DEBUG", "");
    CommandResult::of(unset.output().unwrap()).check(0, &["Runtime platform"]);
}

#[test]
fn value_after_a_boolean_flag_is_ignored_with_a_warning() {
    let home = Home::new();
    let result = home.run(&["--debug", "false", "cache-init", "."]);
    result.check(0, &["`--debug false` does not set the flag to false; write `--debug=false`"]);
}
