//! `verify-config` and `lint`: values with their origin, problems with line and remedy, exit codes.

use serde_json::Value;

use super::support::Home;
use crate::process::CommandResult;

const VALID_CONFIG: &str = "concurrent = 2\n[[runners]]\nname = \"one\"\nurl = \"https://gitlab.example/\"\ntoken = \"$TOKEN\"\nexecutor = \"shell\"\n\
                    limit = 2\nrequest_concurrency = 2\n";

fn run(command: &str, text: &str, more: &[&str]) -> CommandResult {
    let home = Home::new();
    std::fs::write(home.path("c.toml"), text).unwrap();
    let arguments: Vec<_> = [command, "--config", "c.toml"].into_iter().chain(more.iter().copied()).collect();
    CommandResult::of(home.command(&arguments).env("TOKEN", "glrt-hidden").output().unwrap())
}

#[test]
fn values_are_printed_with_origin_and_without_secrets() {
    let result = run("verify-config", VALID_CONFIG, &[]).check(0, &["C033", "chmod 0600"]);
    let text = result.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "concurrent = 2 # line 1",
        "runners.token = [masked] # line 5, from the environment",
        "check_interval = 3 s # default",
        "# runner 1 one",
        "c.toml: usable (0 errors, ",
    ] {
        assert!(text.contains(line), "{line} is missing: {result:#?}");
    }
    assert!(!format!("{result:?}").contains("hidden"));
}

#[test]
fn problems_are_shown_with_line_and_remedy() {
    let text = VALID_CONFIG.replace("limit = 2", "limit = \"2\"").replace("[[runners]]", "buidls = 1\n[[runners]]");
    let result =
        run("verify-config", &text, &[]).check(1, &["fatal[C014]: `runners.limit` needs an integer, found a string"]);
    assert!(
        result.stderr.contains(
            " --> c.toml:8:9\n  |\n8 | limit = [masked]\n  |         ^^^^^^^^\n  = help: remove the quotes\n"
        ),
        "{result:#?}"
    );
    assert!(
        result.stderr.contains("warning[C010]: unknown key `buidls` is ignored"),
        "all problems must be reported at once: {result:#?}"
    );
    assert!(result.stdout.contains("not usable (1 error, "), "{result:#?}");
}

#[test]
fn missing_plugin_and_invalid_values_have_a_location() {
    let with_autoscaler = |autoscaler: &str| {
        let instance = VALID_CONFIG.replace("\"shell\"", "\"instance\"");
        format!("{instance}[runners.autoscaler]\nmax_instances = 2\n{autoscaler}\n")
    };
    let home = Home::new();
    std::fs::write(home.path("no-program"), "x").unwrap();
    let (directory, file) = (home.path("").display().to_string(), home.path("no-program").display().to_string());
    let check = |command: &str, autoscaler: &str, code: i32, location: &str, expected: &str| {
        let result = run(command, &with_autoscaler(autoscaler), &[]).check(code, &[expected]);
        assert!(result.stderr.contains(&format!("--> c.toml:{location}\n")), "{autoscaler}: {result:#?}");
    };
    for (autoscaler, expected) in [
        ("plugin = \"/nowhere/plugin\"", "[C086]: runner one: plugin \"/nowhere/plugin\": no such file"),
        (&format!("plugin = \"{directory}\""), "is a directory; name the executable in it"),
        (&format!("plugin = \"{file}\""), "not executable; run chmod +x if it is a program"),
        ("plugin = \"nothing-of-the-kind\"", "is not installed in "),
    ] {
        check("verify-config", autoscaler, 1, "11:10", expected);
        // For `lint`, this is only a warning, because the file may be for another machine.
        check("lint", autoscaler, 0, "11:10", expected);
    }
    let missing = with_autoscaler("plugin = \"/nowhere/plugin\"");
    run("verify-config", &missing, &[]).check(1, &["error[C086]", "this runner gets no instances"]);
    run("lint", &missing, &[]).check(0, &["warning[C086]", "the machine that uses this file needs the plugin"]);
    for (autoscaler, location, expected) in [
        ("", "9:1", "error[C086]: runner one: `plugin` is not set, so nothing can create instances for this runner"),
        (
            "plugin = \"local\"\nmax_use_count = -1",
            "12:17",
            "error[C088]: runner one: `runners.autoscaler.max_use_count`: -1 is not between 0 and",
        ),
        (
            "plugin = \"local\"\nupdate_interval = \"-3s\"",
            "12:19",
            "error[C088]: runner one: `runners.autoscaler.update_interval` is negative",
        ),
    ] {
        for command in ["verify-config", "lint"] {
            check(command, autoscaler, 1, location, expected);
        }
    }
    let never = with_autoscaler("plugin = \"local\"\n[[runners.autoscaler.policy]]\nperiods = [\"* * 30 2 *\"]");
    run("verify-config", &never, &[]).check(0, &["warning[C087]: runner one: ", "`* * 30 2 *` never matches"]);
}

#[test]
fn unsupported_executor_is_an_error_of_verify_config_but_not_of_lint() {
    let text = VALID_CONFIG.replace("\"shell\"", "\"kubernetes\"");
    run("verify-config", &text, &[]).check(1, &["error[C008]: runner one: executor `kubernetes` is not supported yet"]);
    run("lint", &text, &[]).check(0, &[]);
}

#[test]
fn invalid_executor_and_plugin_names_violate_the_format() {
    let unknown = VALID_CONFIG.replace("\"shell\"", "\"instanc\"");
    let instance = VALID_CONFIG.replace("\"shell\"", "\"instance\"");
    let plugin = format!("{instance}[runners.autoscaler]\nmax_instances = 2\nplugin = \"no such thing!\"\n");
    for command in ["verify-config", "lint"] {
        run(command, &unknown, &[]).check(1, &["error[C008]: runner one: executor `instanc` does not exist"]);
        run(command, &plugin, &[]).check(1, &["error[C086]: runner one: ", "no such thing!", "write a name such as"]);
    }
}

#[test]
fn lint_exits_with_1_for_format_violations_and_a_missing_file_but_not_for_warnings() {
    run("lint", VALID_CONFIG, &[]).check(0, &["C033"]);
    run("lint", &format!("{VALID_CONFIG}buidls_dir = \"/x\"\n"), &[]).check(1, &["did you mean `builds_dir`?"]);
    run("lint", &VALID_CONFIG.replace("concurrent = 2", "concurrent = 0"), &[]).check(1, &["C001"]);
    run("lint", "concurrent = [", &[]).check(1, &["is not valid TOML"]);
    let home = Home::new();
    for command in ["lint", "verify-config"] {
        let expected = ["fatal[C032]: missing.toml does not exist", "name another file with --config"];
        home.run(&[command, "--config", "missing.toml"]).check(1, &expected);
        let result = home.run(&[command, "--json", "--config", "missing.toml"]).check(1, &[]);
        let report: Value = serde_json::from_str(&result.stdout).unwrap();
        assert_eq!((&report["valid"], &report["problems"][0]["code"]), (&false.into(), &"C032".into()));
    }
}

#[test]
fn json_contains_values_and_problems() {
    let result = run("verify-config", VALID_CONFIG, &["--json"]).check(0, &[]);
    let report: Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(report["valid"], true);
    let limit = report["values"].as_array().unwrap().iter().find(|value| value["key"] == "runners.limit").unwrap();
    assert_eq!((&limit["value"], &limit["origin"], &limit["runner"]), (&"2 jobs".into(), &"line 7".into(), &0.into()));
    assert!(report["problems"].as_array().unwrap().iter().any(|problem| problem["code"] == "C033"));
    let result = run("lint", "limit = 1\n", &["--json"]).check(1, &[]);
    let report: Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!((&report["valid"], &report["problems"][0]["location"]["line"]), (&false.into(), &1.into()));
}
