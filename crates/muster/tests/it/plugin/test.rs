//! `muster plugin test`: exit status, and the report in its forms.

use serde_json::Value;

use super::support::{Home, sibling};

#[test]
fn a_plugin_in_order_passes_and_the_report_has_three_forms() {
    let Some(toy) = sibling("fleeting-plugin-toy") else { return };
    let home = Home::new();
    let file = format!(
        "plugin = {:?}\n[plugin_config]\nname = \"kit\"\nsuspendable = true\n[connector_config]\ntimeout = \"1m\"\n[test]\ninstances = 1\n",
        toy.display().to_string()
    );
    std::fs::write(home.path("plugin.toml"), file).unwrap();
    let ended = home.run(&["muster", "plugin", "test", "--config", "plugin.toml"]);
    let ended = ended.check(0, &["pass  P1   started by a person", "34 cases: ", " 0 fail, "]);
    assert_eq!(ended.stdout.lines().filter(|line| line.starts_with("pass ")).count(), 30, "{}", ended.stdout);
    assert!(ended.stdout.contains("skip  P12 "), "one instance is not enough for it: {}", ended.stdout);

    // Over the file's plugin wins the one of the command line; hosts give no arguments, but an interpreter needs some.
    let run = format!("exec {}", toy.display());
    let words = ["muster", "plugin", "test", "--json", "--config", "plugin.toml", "sh", "-c", &run];
    let report: Value = serde_json::from_str(&home.run(&words).check(0, &[]).stdout).unwrap();
    assert_eq!((&report["passed"], report["cases"].as_array().unwrap().len()), (&Value::Bool(true), 34));
    assert_eq!(report["cases"][0]["id"], "P1");

    home.run(&["muster", "plugin", "test", "--cases"]).check(0, &["P1   started by a person", "H16  its log lines"]);
}

#[test]
fn what_fails_ends_with_1_and_what_cannot_be_tested_with_2() {
    let home = Home::new();
    let words = ["muster", "plugin", "test", "--junit", "sh", "-c", "echo Welcome; exit 1"];
    let ended = home.run(&words).check(1, &["<testsuite ", "name=\"P1 started by a person", "<failure message="]);
    assert!(
        ended.stdout.contains("failures=\"2\"") && ended.stdout.contains("unrecognized plugin message"),
        "{}",
        ended.stdout
    );

    home.run(&["muster", "plugin", "test", "muster-no-such-plugin"]).check(2, &["plugin not found"]);
    home.run(&["muster", "plugin", "test"]).check(2, &["which plugin?"]);
    for (text, words) in [
        ("x = 1", "unknown field `x`"),
        ("plugin = 1", "invalid type"),
        ("plugin = \"sh\"\n[test]\ncall_limit = \"soon\"", "\"soon\" is no duration above zero"),
        ("plugin = \"sh\"\n[test]\ninstances = 0", "must be at least 1"),
        ("plugin = \"sh\"\n[connector_config]\nprotocol = \"telnet\"", "protocol \"telnet\" is not known"),
    ] {
        std::fs::write(home.path("plugin.toml"), text).unwrap();
        home.run(&["muster", "plugin", "test", "-c", "plugin.toml"]).check(2, &[words]);
    }
}
