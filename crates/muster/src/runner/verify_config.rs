//! `verify-config` and `lint`: what a configuration means, and what is wrong with it.
//!
//! Exit codes: `verify-config` ends with 1 if something cannot work with Muster (a fatal problem or an error) or the file is
//! missing, else with 0. `lint` ends with 1 where the file breaks the rules of the format: it is missing or no TOML, holds an
//! unknown or removed key, a value of the wrong kind, or anything that is not allowed; that this machine lacks a plugin is
//! only told, and what this version does not do is not. Neither writes anything, nor asks a server.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_config::{self as config, Effective, FindPlugin, HostFacts, Loaded, Problem, ProblemLocation, Severity};
use serde_json::{Value, json};

use crate::config_file::ConfigArg;

/// Codes of problems that break the rules of the format, whatever their severity.
const RULES: [&str; 5] = ["C010", "C011", "C012", "C014", "C018"];

/// Flags of both commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn load(&self, for_any_machine: bool) -> (PathBuf, HostFacts, Loaded) {
        let path = self.config.path();
        let find_plugin = Some(super::run::look_for_plugin as FindPlugin);
        let facts = HostFacts { find_plugin, for_any_machine, must_exist: true, ..HostFacts::of(&path) };
        let loaded = config::load(&path, &facts);
        (path, facts, loaded)
    }
}

/// Prints the effective values with their origin, and all problems.
pub(crate) fn verify_config(args: &Args) -> ExitCode {
    let (path, facts, loaded) = args.load(false);
    let values = loaded.config.as_ref().map(|config| config::effective(config, &facts)).unwrap_or_default();
    let works = !loaded.has(Severity::Error);
    if args.json {
        let values: Vec<_> = values.iter().map(value).collect();
        print(&answer(&path, works, &loaded.problems, &json!(values)));
    } else {
        print(&readable(&path, &loaded, &values));
        tell(&path, &loaded.problems);
        print(&format!("{}: {}\n", path.display(), verdict(works, &loaded.problems)));
    }
    if works { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tells whether the file keeps the rules of its format.
pub(crate) fn lint(args: &Args) -> ExitCode {
    let (path, _, mut loaded) = args.load(true);
    loaded.problems.retain(|problem| !problem.not_built);
    let breaks = |problem: &&Problem| problem.severity <= Severity::Error || RULES.contains(&problem.code);
    let valid = !loaded.problems.iter().any(|problem| breaks(&problem));
    if args.json {
        print(&answer(&path, valid, &loaded.problems, &Value::Null));
    } else {
        tell(&path, &loaded.problems);
        print(&format!("{}: {}\n", path.display(), if valid { "valid" } else { "not valid" }));
    }
    if valid { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn verdict(works: bool, problems: &[Problem]) -> String {
    let count = |severity| problems.iter().filter(|problem| problem.severity == severity).count();
    let errors = count(Severity::Fatal) + count(Severity::Error);
    let words = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let found = format!("{}, {}", words(errors, "error"), words(count(Severity::Warning), "warning"));
    if works { format!("works ({found})") } else { format!("does not work as it is ({found})") }
}

/// Names of one column, values, and their origin as comments: what it prints could be a configuration.
fn readable(path: &Path, loaded: &Loaded, values: &[Effective]) -> String {
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

fn tell(path: &Path, problems: &[Problem]) {
    for problem in problems {
        anstream::eprintln!("{}", problem.render(path));
    }
}

fn answer(path: &Path, valid: bool, problems: &[Problem], values: &Value) -> String {
    let problems: Vec<_> = problems.iter().map(problem).collect();
    let answer = json!({ "file": path.display().to_string(), "valid": valid, "values": values, "problems": problems });
    format!("{}\n", serde_json::to_string_pretty(&answer).unwrap_or_default())
}

fn value(value: &Effective) -> Value {
    json!({
        "key": value.key,
        "runner": value.runner,
        "value": value.value,
        "origin": value.origin.to_string(),
        "no_effect": value.without_effect,
    })
}

fn problem(problem: &Problem) -> Value {
    let place = |place: &ProblemLocation| json!({ "line": place.line, "column": place.column, "text": place.text });
    json!({
        "code": problem.code,
        "severity": problem.severity.word(),
        "message": problem.message,
        "help": problem.help,
        "runner": problem.runner.as_ref().map(|(index, name)| json!({ "index": index, "name": name })),
        "place": problem.place.as_ref().map(place),
    })
}

/// Who closes the pipe has read enough.
fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
