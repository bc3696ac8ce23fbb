//! `verify-config` and `lint`: check a configuration, and print its effective values. They write nothing, and do not
//! contact a server.
//!
//! Exit codes:
//! - `verify-config` returns 1 if the file is missing, or has a fatal problem or an error.
//! - `lint` also returns 1 if a value is invalid, or if a key or a feature flag is unknown, removed or in the wrong
//!   table. It does not report keys of features that this version does not have. A missing plugin is only a warning.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_config::{self as config, Effective, FindPlugin, HostFacts, Loaded, Problem, ProblemLocation, Severity};
use serde_json::{Value, json};

use crate::ci::ui;
use crate::config_file::ConfigArg;

/// `lint` fails if it finds a problem with one of these codes, even if the problem is only a warning.
const FORMAT_CODES: [&str; 5] = ["C010", "C011", "C012", "C014", "C018"];

/// Arguments of `gitlab-runner verify-config` and `lint`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyConfigArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl VerifyConfigArgs {
    /// Loads the configuration. With `for_any_machine`, a missing plugin is only a warning.
    fn load(&self, for_any_machine: bool) -> (PathBuf, HostFacts, Loaded) {
        let path = self.config.path();
        let find_plugin = Some(super::run::check_plugin as FindPlugin);
        let facts = HostFacts { find_plugin, for_any_machine, must_exist: true, ..HostFacts::of(&path) };
        let loaded = config::load(&path, &facts);
        (path, facts, loaded)
    }
}

/// Prints the effective values with their origin, and all problems.
pub(crate) fn verify_config(args: &VerifyConfigArgs) -> ExitCode {
    let (path, facts, loaded) = args.load(false);
    let values = loaded.config.as_ref().map(|config| config::effective(config, &facts)).unwrap_or_default();
    let is_usable = !loaded.has(Severity::Error);
    if args.json {
        let values: Vec<_> = values.iter().map(value_json).collect();
        print(&json_report(&path, is_usable, &loaded.problems, &json!(values)));
    } else {
        print(&values_text(&path, &loaded, &values));
        print_problems(&path, &loaded.problems);
        print(&format!("{}: {}\n", path.display(), verdict(is_usable, &loaded.problems)));
    }
    if is_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(crate) fn lint(args: &VerifyConfigArgs) -> ExitCode {
    let (path, _, mut loaded) = args.load(true);
    loaded.problems.retain(|problem| !problem.unsupported);
    let violates_format =
        |problem: &&Problem| problem.severity <= Severity::Error || FORMAT_CODES.contains(&problem.code);
    let valid = !loaded.problems.iter().any(|problem| violates_format(&problem));
    if args.json {
        print(&json_report(&path, valid, &loaded.problems, &Value::Null));
    } else {
        print_problems(&path, &loaded.problems);
        print(&format!("{}: {}\n", path.display(), if valid { "valid" } else { "not valid" }));
    }
    if valid { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn verdict(is_usable: bool, problems: &[Problem]) -> String {
    let count = |severity| problems.iter().filter(|problem| problem.severity == severity).count();
    let errors = count(Severity::Fatal) + count(Severity::Error);
    let count_text = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let found = format!("{}, {}", count_text(errors, "error"), count_text(count(Severity::Warning), "warning"));
    if is_usable { format!("usable ({found})") } else { format!("not usable ({found})") }
}

/// Returns the values as aligned TOML, with their origin as comments.
fn values_text(path: &Path, loaded: &Loaded, values: &[Effective]) -> String {
    let mut text = format!("# {}\n", path.display());
    let width = values.iter().map(|value| value.key.len()).max().unwrap_or_default();
    let line = |value: &Effective| {
        let unused = value.without_effect.map(|reason| format!("; no effect: {reason}")).unwrap_or_default();
        format!("{:width$} = {}  # {}{unused}\n", value.key, value.value, value.origin)
    };
    values.iter().filter(|value| value.runner.is_none()).for_each(|value| text.push_str(&line(value)));
    for runner in loaded.config.iter().flat_map(|config| &config.runners) {
        let name: String = runner.name.chars().filter(|c| !c.is_control()).take(60).collect();
        text.push_str(&format!("\n# runner {} {name}\n", runner.index + 1));
        values.iter().filter(|value| value.runner == Some(runner.index)).for_each(|value| text.push_str(&line(value)));
    }
    text.push('\n');
    text
}

fn print_problems(path: &Path, problems: &[Problem]) {
    for problem in problems {
        anstream::eprintln!("{}", problem.render(path));
    }
}

fn json_report(path: &Path, valid: bool, problems: &[Problem], values: &Value) -> String {
    let problems: Vec<_> = problems.iter().map(problem_json).collect();
    let report = json!({ "file": path.display().to_string(), "valid": valid, "values": values, "problems": problems });
    ui::json(&report)
}

fn value_json(value: &Effective) -> Value {
    json!({
        "key": value.key,
        "runner": value.runner,
        "value": value.value,
        "origin": value.origin.to_string(),
        "no_effect": value.without_effect,
    })
}

fn problem_json(problem: &Problem) -> Value {
    let location = |place: &ProblemLocation| json!({ "line": place.line, "column": place.column, "text": place.text });
    json!({
        "code": problem.code,
        "severity": problem.severity.as_str(),
        "message": problem.message,
        "help": problem.help,
        "runner": problem.runner.as_ref().map(|(index, name)| json!({ "index": index, "name": name })),
        "location": problem.location.as_ref().map(location),
    })
}

/// Ignores errors, because the reader may close the pipe.
fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
