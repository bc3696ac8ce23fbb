//! `verify-config` and `lint`: values with origin, problems with line, mark and remedy, exit codes.

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
fn values_are_printed_with_their_origin_and_without_secrets() {
    let ended = run("verify-config", GOOD, &[]).check(0, &["C033", "chmod 0600"]);
    let words = ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "concurrent = 2 # line 1",
        "runners.token = [masked] # line 5, from the environment",
        "check_interval = 3 s # default",
        "# runner 1 one",
        "c.toml: works (0 errors, ",
    ] {
        assert!(words.contains(line), "{line} is missing: {ended:#?}");
    }
    assert!(!format!("{ended:?}").contains("hidden"));
}

#[test]
fn problems_are_shown_with_line_mark_and_remedy_and_end_with_1() {
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
    assert!(ended.stdout.contains("does not work as it is (1 error, "), "{ended:#?}");
}

#[test]
fn a_plugin_that_cannot_be_run_and_values_out_of_range_are_told_with_their_place() {
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
        ("plugin = \"/nowhere/plugin\"", "[C086]: runner one: plugin \"/nowhere/plugin\": there is no such file"),
        (&format!("plugin = \"{folder}\""), "it is a directory; name the executable in it"),
        (&format!("plugin = \"{file}\""), "it is not executable; chmod +x helps"),
        ("plugin = \"nothing-of-the-kind\"", "is not installed in "),
    ] {
        check("verify-config", autoscaler, 1, "11:10", wanted);
        // The file may be that of a server, which has it.
        check("lint", autoscaler, 0, "11:10", wanted);
    }
    let missing = of("plugin = \"/nowhere/plugin\"");
    run("verify-config", &missing, &[]).check(1, &["error[C086]", "this runner gets no instances"]);
    run("lint", &missing, &[]).check(0, &["warning[C086]", "the one that runs this file needs it"]);
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
fn an_executor_that_is_not_built_is_an_error_here_and_none_of_the_format() {
    let text = GOOD.replace("\"shell\"", "\"kubernetes\"");
    run("verify-config", &text, &[]).check(1, &["error[C008]: runner one: executor `kubernetes` is not built yet"]);
    run("lint", &text, &[]).check(0, &[]);
}

#[test]
fn an_executor_that_does_not_exist_and_a_plugin_that_can_have_no_name_are_errors_of_the_format() {
    let unknown = GOOD.replace("\"shell\"", "\"instanc\"");
    let instance = GOOD.replace("\"shell\"", "\"instance\"");
    let plugin = format!("{instance}[runners.autoscaler]\nmax_instances = 2\nplugin = \"no such thing!\"\n");
    for command in ["verify-config", "lint"] {
        run(command, &unknown, &[]).check(1, &["error[C008]: runner one: executor `instanc` does not exist"]);
        run(command, &plugin, &[]).check(1, &["error[C086]: runner one: ", "no such thing!", "write a name such as"]);
    }
}

#[test]
fn lint_ends_with_1_on_any_key_that_is_unknown_and_0_on_other_warnings() {
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
fn json_holds_values_and_problems() {
    let ended = run("verify-config", GOOD, &["--json"]).check(0, &[]);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(answer["valid"], true);
    let limit = answer["values"].as_array().unwrap().iter().find(|value| value["key"] == "runners.limit").unwrap();
    assert_eq!((&limit["value"], &limit["origin"], &limit["runner"]), (&"2 jobs".into(), &"line 7".into(), &0.into()));
    assert!(answer["problems"].as_array().unwrap().iter().any(|problem| problem["code"] == "C033"));
    let ended = run("lint", "limit = 1\n", &["--json"]).check(1, &[]);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&answer["valid"], &answer["problems"][0]["place"]["line"]), (&false.into(), &1.into()));
}
