//! `muster plugin test`: exit status and report formats.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::support::{Home, sibling};
use crate::process::{CommandResult, until};

#[test]
fn correct_plugin_passes_in_the_text_report_and_in_the_json_report() {
    let Some(toy) = sibling("fleeting-plugin-toy") else { return };
    let home = Home::new();
    let file = format!(
        "plugin = {:?}\n[plugin_config]\nname = \"kit\"\nsuspendable = true\n[connector_config]\ntimeout = \"1m\"\n[test]\ninstances = 1\n",
        toy.display().to_string()
    );
    std::fs::write(home.path("plugin.toml"), file).unwrap();
    let result = home.run(&["muster", "plugin", "test", "--config", "plugin.toml"]);
    let result =
        result.check(0, &["pass  P1   prints usage and exits with 1 if started manually", "34 cases: ", " 0 fail, "]);
    // The other four cases are skipped.
    assert_eq!(result.stdout.lines().filter(|line| line.starts_with("pass ")).count(), 30, "{}", result.stdout);
    assert!(
        result.stdout.contains("skip  P12 "),
        "P12 must be skipped, because it needs two instances: {}",
        result.stdout
    );

    // The plugin on the command line overrides the plugin of the file.
    let run = format!("exec {}", toy.display());
    let arguments = ["muster", "plugin", "test", "--json", "--config", "plugin.toml", "sh", "-c", &run];
    let report: Value = serde_json::from_str(&home.run(&arguments).check(0, &[]).stdout).unwrap();
    assert_eq!((&report["passed"], report["cases"].as_array().unwrap().len()), (&Value::Bool(true), 34));
    assert_eq!(report["cases"][0]["id"], "P1");

    home.run(&["muster", "plugin", "test", "--list"])
        .check(0, &["P1   prints usage and exits with 1 if started manually", "H16  writes log lines t"]);
}

#[test]
fn failed_test_exits_with_1_and_untestable_plugin_with_2() {
    let home = Home::new();
    let arguments = ["muster", "plugin", "test", "--junit", "sh", "-c", "echo Welcome; exit 1"];
    let result = home
        .run(&arguments)
        .check(1, &["<testsuite ", "name=\"P1 prints usage and exits with 1 if started manually", "<failure message="]);
    assert!(
        result.stdout.contains("failures=\"2\"") && result.stdout.contains("unrecognized plugin message"),
        "{}",
        result.stdout
    );

    home.run(&["muster", "plugin", "test", "muster-no-such-plugin"]).check(2, &["plugin not found"]);
    home.run(&["muster", "plugin", "test"]).check(2, &["no plugin; name it"]);
    for (text, expected) in [
        ("x = 1", "unknown field `x`"),
        ("plugin = 1", "invalid type"),
        ("plugin = \"sh\"\n[test]\ncall_timeout = \"soon\"", "\"soon\" is not a positive duration"),
        ("plugin = \"sh\"\n[test]\ninstances = 0", "must be at least 1"),
        ("plugin = \"sh\"\n[connector_config]\nprotocol = \"telnet\"", "unknown protocol \"telnet\""),
    ] {
        std::fs::write(home.path("plugin.toml"), text).unwrap();
        home.run(&["muster", "plugin", "test", "-c", "plugin.toml"]).check(2, &[expected]);
    }
}

fn unexpected_outcomes(report: &str, skipped: &[&str]) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).unwrap();
    let cases = report["cases"].as_array().unwrap().clone();
    cases
        .into_iter()
        .filter(|case| case["outcome"] != "pass")
        .filter(|case| case["outcome"] != "skip" || !skipped.contains(&case["id"].as_str().unwrap()))
        .collect()
}

#[test]
fn c4_c6_built_in_local_plugin_passes() {
    let home = Home::new();
    std::fs::write(
        home.path("plugin.toml"),
        "plugin = \"local\"\n[plugin_config]\nboot_delay_ms = 100\nsuspendable = true\n",
    )
    .unwrap();
    let result = home.run(&["muster", "plugin", "test", "--json", "--config", "plugin.toml"]).check(0, &[]);
    // L11 is skipped because the instances end with the plugin.
    assert_eq!(unexpected_outcomes(&result.stdout, &["L11"]), [Value::Null; 0], "{}", result.stdout);
}

#[test]
fn c4_c6_built_in_script_plugin_passes_with_shell_example() {
    if !muster_test_prerequisites::sshd() {
        return;
    }
    let home = Home::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins/shell/sshd-group");
    let file = format!(
        "plugin = \"script\"\n[plugin_config]\ncommand = [{example:?}]\nsettings = {{ directory = {:?} }}\n",
        home.path("group")
    );
    std::fs::write(home.path("plugin.toml"), file).unwrap();
    let result = home.run(&["muster", "plugin", "test", "--json", "--config", "plugin.toml"]).check(0, &[]);
    assert_eq!(unexpected_outcomes(&result.stdout, &["H13", "P11"]), [Value::Null; 0], "{}", result.stdout);
}

/// Creates a plugin whose instances are files in `group` and never become ready.
fn create_slow_plugin(home: &Home) {
    let program = "#!/bin/sh\nset -eu\ncall=$1; shift; mkdir -p group\ncase $call in\n\
        init) echo id slow/group;;\n\
        update) for f in group/*; do [ -e \"$f\" ] || continue; echo \"${f##*/} creating\"; done;;\n\
        increase) n=$1; while [ $n -gt 0 ]; do mktemp group/i-XXXXXX >&2; n=$((n-1)); done;;\n\
        decrease) for i in \"$@\"; do rm -f group/$i; echo $i; done;;\n\
        *) exit 1;;\nesac\n";
    std::fs::write(home.path("group.sh"), program).unwrap();
    let file = format!("plugin = \"script\"\n[plugin_config]\ncommand = [\"sh\", {:?}]\n", home.path("group.sh"));
    std::fs::write(home.path("plugin.toml"), file).unwrap();
}

fn instance_count(home: &Home) -> usize {
    std::fs::read_dir(home.path("group")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn interrupted_test_deletes_its_instances() {
    let home = Home::new();
    create_slow_plugin(&home);
    let mut command = home.command(&["muster", "plugin", "test", "--config", "plugin.toml"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(async || {
        assert!(child.try_wait().unwrap().is_none(), "the command exited before it had created two instances");
        (instance_count(&home) >= 2).then_some(()).ok_or_else(|| "fewer than two instances exist".to_owned())
    })
    .await;
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let result = CommandResult::of_report(child.wait_with_output().unwrap());
    result.check(1, &["canceled; deleting the instances", "the run was stopped"]);
    assert_eq!(instance_count(&home), 0);
}

#[test]
fn instances_of_other_programs_are_not_touched() {
    let home = Home::new();
    create_slow_plugin(&home);
    std::fs::create_dir(home.path("group")).unwrap();
    std::fs::write(home.path("group/theirs"), "").unwrap();
    let arguments = ["muster", "plugin", "test", "--config", "plugin.toml"];
    home.run(&arguments).check(1, &["the group already has instances (theirs)"]);
    assert!(home.path("group/theirs").exists());
}

/// Case P9 checks that a plugin ignores SIGINT. A process that ignores SIGINT, such as a background job of a shell
/// script, passes this on to its child processes. If `muster plugin test` did so, P9 would pass for every plugin.
#[test]
fn p9_plugins_do_not_inherit_ignored_sigint() {
    let Some(toy) = sibling("fleeting-plugin-toy") else { return };
    let home = Home::new();
    let plugin = "\"$0\" \"$@\" & wait $!";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' INT; exec \"$@\"", "sh"]).arg(home.path("muster"));
    command.args(["plugin", "test", "sh", "-c", plugin]).arg(toy).current_dir(home.path("."));
    CommandResult::of_report(command.output().unwrap()).check(1, &["fail  P9", "exits on SIGINT"]);
}
