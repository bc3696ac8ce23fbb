//! `verify-config` and `lint`: values with their origin, problems with line and remedy, exit codes.

use serde_json::Value;

use super::support::Home;
use crate::process::Ended;

const GOOD: &str = "concurrent = 2\n[[runners]]\nname = \"one\"\nurl = \"https://gitlab.example/\"\ntoken = \"$TOKEN\"\nexecutor = \"shell\"\n\
                    limit = 2\nrequest_concurrency = 2\n";

fn run(command: &str, text: &str, more: &[&str]) -> Ended {
    let home = Home::new();
    std::fs::write(home.path("c.toml"), text).unwrap();
    let arguments: Vec<_> = [command, "--config", "c.toml"].into_iter().chain(more.iter().copied()).collect();
    Ended::of(home.command(&arguments).env("TOKEN", "glrt-hidden").output().unwrap())
}

#[test]
fn values_are_printed_with_origin_and_without_secrets() {
    let ended = run("verify-config", GOOD, &[]).check(0, &["C033", "chmod 0600"]);
    let words = ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "concurrent = 2 # line 1",
        "runners.token = [masked] # line 5, from the environment",
        "check_interval = 3 s # default",
        "# runner 1 one",
        "c.toml: usable (0 errors, ",
    ] {
        assert!(words.contains(line), "{line} is missing: {ended:#?}");
    }
    assert!(!format!("{ended:?}").contains("hidden"));
}

#[test]
fn problems_are_shown_with_line_and_remedy() {
    let text = GOOD.replace("limit = 2", "limit = \"2\"").replace("[[runners]]", "buidls = 1\n[[runners]]");
    let ended =
        run("verify-config", &text, &[]).check(1, &["fatal[C014]: `runners.limit` needs an integer, found a string"]);
    assert!(
        ended.stderr.contains(
            " --> c.toml:8:9\n  |\n8 | limit = [masked]\n  |         ^^^^^^^^\n  = help: remove the quotes\n"
        ),
        "{ended:#?}"
    );
    assert!(
        ended.stderr.contains("warning[C010]: unknown key `buidls` is ignored"),
        "all problems at once: {ended:#?}"
    );
    assert!(ended.stdout.contains("not usable (1 error, "), "{ended:#?}");
}

#[test]
fn missing_plugin_and_invalid_values_have_a_location() {
    let of = |autoscaler: &str| {
        let instance = GOOD.replace("\"shell\"", "\"instance\"");
        format!("{instance}[runners.autoscaler]\nmax_instances = 2\n{autoscaler}\n")
    };
    let home = Home::new();
    std::fs::write(home.path("no-program"), "x").unwrap();
    let (folder, file) = (home.path("").display().to_string(), home.path("no-program").display().to_string());
    let check = |command: &str, autoscaler: &str, code: i32, at: &str, wanted: &str| {
        let ended = run(command, &of(autoscaler), &[]).check(code, &[wanted]);
        assert!(ended.stderr.contains(&format!("--> c.toml:{at}\n")), "{autoscaler}: {ended:#?}");
    };
    for (autoscaler, wanted) in [
        ("plugin = \"/nowhere/plugin\"", "[C086]: runner one: plugin \"/nowhere/plugin\": no such file"),
        (&format!("plugin = \"{folder}\""), "is a directory; name the executable in it"),
        (&format!("plugin = \"{file}\""), "not executable; run chmod +x if it is a program"),
        ("plugin = \"nothing-of-the-kind\"", "is not installed in "),
    ] {
        check("verify-config", autoscaler, 1, "11:10", wanted);
        // The file may be for a server that has the plugin.
        check("lint", autoscaler, 0, "11:10", wanted);
    }
    let missing = of("plugin = \"/nowhere/plugin\"");
    run("verify-config", &missing, &[]).check(1, &["error[C086]", "this runner gets no instances"]);
    run("lint", &missing, &[]).check(0, &["warning[C086]", "the machine that runs this file needs the plugin"]);
    for (autoscaler, at, wanted) in [
        ("", "9:1", "error[C086]: runner one: no `plugin`: no plugin creates the instances of this runner"),
        (
            "plugin = \"local\"\nmax_use_count = -1",
            "12:17",
            "error[C088]: runner one: `runners.autoscaler.max_use_count`: -1 is not from 0 to",
        ),
        (
            "plugin = \"local\"\nupdate_interval = \"-3s\"",
            "12:19",
            "error[C088]: runner one: `runners.autoscaler.update_interval` is negative",
        ),
    ] {
        for command in ["verify-config", "lint"] {
            check(command, autoscaler, 1, at, wanted);
        }
    }
    let never = of("plugin = \"local\"\n[[runners.autoscaler.policy]]\nperiods = [\"* * 30 2 *\"]");
    run("verify-config", &never, &[]).check(0, &["warning[C087]: runner one: ", "`* * 30 2 *` never matches"]);
}

#[test]
fn unsupported_executor_is_an_error_but_valid_format() {
    let text = GOOD.replace("\"shell\"", "\"kubernetes\"");
    run("verify-config", &text, &[]).check(1, &["error[C008]: runner one: executor `kubernetes` is not supported yet"]);
    run("lint", &text, &[]).check(0, &[]);
}

#[test]
fn invalid_executor_and_plugin_names_violate_the_format() {
    let unknown = GOOD.replace("\"shell\"", "\"instanc\"");
    let instance = GOOD.replace("\"shell\"", "\"instance\"");
    let plugin = format!("{instance}[runners.autoscaler]\nmax_instances = 2\nplugin = \"no such thing!\"\n");
    for command in ["verify-config", "lint"] {
        run(command, &unknown, &[]).check(1, &["error[C008]: runner one: executor `instanc` does not exist"]);
        run(command, &plugin, &[]).check(1, &["error[C086]: runner one: ", "no such thing!", "write a name such as"]);
    }
}

#[test]
fn lint_exits_with_1_only_for_format_violations() {
    run("lint", GOOD, &[]).check(0, &["C033"]);
    run("lint", &format!("{GOOD}buidls_dir = \"/x\"\n"), &[]).check(1, &["did you mean `builds_dir`?"]);
    run("lint", &GOOD.replace("concurrent = 2", "concurrent = 0"), &[]).check(1, &["C001"]);
    run("lint", "concurrent = [", &[]).check(1, &["is not valid TOML"]);
    let home = Home::new();
    for command in ["lint", "verify-config"] {
        let wanted = ["fatal[C032]: missing.toml does not exist", "name another file with --config"];
        home.run(&[command, "--config", "missing.toml"]).check(1, &wanted);
        let ended = home.run(&[command, "--json", "--config", "missing.toml"]).check(1, &[]);
        let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!((&answer["valid"], &answer["problems"][0]["code"]), (&false.into(), &"C032".into()));
    }
}

#[test]
fn json_contains_values_and_problems() {
    let ended = run("verify-config", GOOD, &["--json"]).check(0, &[]);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(answer["valid"], true);
    let limit = answer["values"].as_array().unwrap().iter().find(|value| value["key"] == "runners.limit").unwrap();
    assert_eq!((&limit["value"], &limit["origin"], &limit["runner"]), (&"2 jobs".into(), &"line 7".into(), &0.into()));
    assert!(answer["problems"].as_array().unwrap().iter().any(|problem| problem["code"] == "C033"));
    let ended = run("lint", "limit = 1\n", &["--json"]).check(1, &[]);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&answer["valid"], &answer["problems"][0]["location"]["line"]), (&false.into(), &1.into()));
}
