//! `test`: runs the conformance tests on a plugin in any language.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_fleeting::conformance::{self, Outcome, Plan, Report, Verdict};
use muster_fleeting::install::resolve;
use tokio::signal::unix::{SignalKind, signal};

use super::error::PluginError;
use super::serve::lookup_context;
use super::test_config::{self, TestConfig};
use crate::ci::ui;
use crate::junit;

const SKIPPED_WIDTH: usize = 80;
/// Flags of `test` without a value.
const SWITCHES: [&str; 4] = ["--list", "--json", "--junit", "--strict"];
const UNTESTED_EXIT_CODE: u8 = 2;

/// Arguments of `muster plugin test`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginTestArgs {
    /// Plugin to test, as in `plugin = "..."`, followed by its arguments. Defaults to `plugin` and `arguments` in the file.
    #[arg(value_name = "PLUGIN", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
    /// File with plugin_config and connector_config, as in [runners.autoscaler], and a table [test].
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of instances to create at once. Overrides `instances` in the file.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    instances: Option<u32>,
    /// Print the report as JSON.
    #[arg(long, conflicts_with = "junit")]
    json: bool,
    /// Print the report as JUnit XML.
    #[arg(long)]
    junit: bool,
    /// Treat warnings as failures.
    #[arg(long)]
    strict: bool,
    /// List the tests instead of running them.
    #[arg(long)]
    list: bool,
}

/// Returns 0 if the tests passed, 1 if not, and 2 if the plugin could not be tested.
pub(super) async fn run(args: &PluginTestArgs) -> ExitCode {
    if args.list {
        for case in conformance::CASES {
            ui::outln(&format!("{:<4} {}", case.id, case.title));
        }
        return ExitCode::SUCCESS;
    }
    let plan = match plan(args) {
        Ok(plan) => plan,
        Err(error) => {
            ui::report(&error);
            return UNTESTED_EXIT_CODE.into();
        }
    };
    let is_human = !args.json && !args.junit;
    let mut report_verdict = |verdict: &Verdict| {
        // Lines of skipped tests would hide the failed tests.
        if is_human && !verdict.is_not_reached() {
            print_verdict(verdict);
        }
    };
    let run = conformance::run(&plan, &mut report_verdict);
    let canceled = async {
        wait_for_interrupt().await;
        ui::error("canceled; deleting the instances. Interrupt again to exit without deleting them");
        plan.stop.cancel();
        wait_for_interrupt().await;
    };
    let report = tokio::select! {
        report = run => report,
        () = canceled => return ExitCode::FAILURE,
    };
    if args.json {
        ui::outln(&report.json().to_string());
    } else if args.junit {
        ui::out(&junit(&report));
    } else {
        let skipped = report.verdicts.iter().filter(|verdict| verdict.is_not_reached());
        let reason = skipped.clone().find_map(|verdict| verdict.outcome.reason());
        let skipped: Vec<_> = skipped.map(|verdict| verdict.case.id).collect();
        if let Some(reason) = reason {
            let ids = ui::fit(&skipped.join(" "), SKIPPED_WIDTH);
            let s = if skipped.len() == 1 { "" } else { "s" };
            ui::outln(&format!("\nskipped {} test{s} ({reason}): {ids}", skipped.len()));
        }
        ui::outln(&format!("\n{}: {}", report.plugin, report.summary()));
    }
    if passed(&report, args.strict) && !plan.stop.is_cancelled() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns one test suite with one case for each test. The reason for a warning is the output of its case.
fn junit(report: &Report) -> String {
    let case = |verdict: &Verdict| {
        let (outcome, output) = match &verdict.outcome {
            Outcome::Pass => (junit::Outcome::Passed, String::new()),
            Outcome::Warn(reason) => (junit::Outcome::Passed, reason.clone()),
            Outcome::Fail(reason) => {
                (junit::Outcome::Failed { message: reason.clone(), details: String::new() }, String::new())
            }
            Outcome::Skip(reason) => (junit::Outcome::Skipped(reason.clone()), String::new()),
        };
        let name = format!("{} {}", verdict.case.id, verdict.case.title);
        junit::Case { name, class: report.plugin.clone(), time: verdict.duration, outcome, output }
    };
    let cases = report.verdicts.iter().map(case).collect();
    junit::report(&[junit::Suite { name: report.plugin.clone(), cases }])
}

fn passed(report: &Report, strict: bool) -> bool {
    report.passed() && !(strict && report.count("warn") > 0)
}

async fn wait_for_interrupt() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
}

fn print_verdict(verdict: &Verdict) {
    let style = match verdict.outcome {
        Outcome::Pass => ui::GOOD,
        Outcome::Warn(_) => ui::WARN,
        Outcome::Fail(_) => ui::BAD,
        Outcome::Skip(_) => ui::DIM,
    };
    let (label, case) = (ui::paint(style, verdict.outcome.label()), verdict.case);
    ui::outln(&format!("{label}  {:<4} {} ({:.2} s)", case.id, case.title, verdict.duration.as_secs_f64()));
    if let Some(reason) = verdict.outcome.reason() {
        ui::outln(&format!("           {reason}"));
    }
}

fn plan(args: &PluginTestArgs) -> Result<Plan, PluginError> {
    // Arguments after the plugin belong to the plugin, so a flag of `test` there is a mistake.
    if let Some(switch) = args.command.iter().skip(1).find_map(|word| SWITCHES.iter().find(|switch| word == **switch)) {
        return Err(PluginError::Config(format!(
            "{switch} after the plugin would be an argument of the plugin; put it before the plugin, or set `arguments` in the \
                 file of --config if the plugin has such an argument"
        )));
    }
    let config = match &args.config {
        Some(path) => test_config::read(path)?,
        None => TestConfig::default(),
    };
    let mut words = args.command.iter();
    let (plugin, arguments) = match words.next() {
        Some(plugin) => (plugin.to_string_lossy().into_owned(), words.cloned().collect::<Vec<_>>()),
        None => {
            let plugin = config
                .plugin
                .clone()
                .ok_or(PluginError::Usage("no plugin; name it, or set `plugin` in the file of --config"))?;
            (plugin, config.arguments.iter().map(OsString::from).collect())
        }
    };
    let (executable, mut all_arguments) = executable(&plugin)?;
    let mut plan = Plan::new(executable);
    all_arguments.extend(arguments);
    plan.arguments = all_arguments;
    config.apply(&mut plan)?;
    if let Some(instances) = args.instances {
        plan.instances = instances;
    }
    Ok(plan)
}

/// Finds the executable of a plugin, and the arguments of a built-in plugin. Also finds other programs on `PATH`, such
/// as interpreters.
fn executable(plugin: &str) -> Result<(PathBuf, Vec<OsString>), PluginError> {
    let error = match resolve(plugin, &lookup_context()) {
        Ok(found) => {
            let arguments = found.arguments().into_iter().map(OsString::from).collect();
            return Ok((found.executable().to_owned(), arguments));
        }
        Err(error) => error,
    };
    let is_program = |path: &PathBuf| Path::is_file(path);
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let on_path = (!plugin.contains(['/', ':']))
        .then(|| std::env::split_paths(&directories).map(|directory| directory.join(plugin)).find(is_program));
    on_path.flatten().map(|program| (program, Vec::new())).ok_or_else(|| error.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn junit_report_has_each_outcome_and_keeps_words_separate_at_line_breaks() {
        let outcomes = [
            Outcome::Pass,
            Outcome::Fail("a <b> & \"c\"\u{7}\nnext line".to_owned()),
            Outcome::Skip("reason".to_owned()),
            Outcome::Warn("one\ntwo".to_owned()),
        ];
        let verdicts = conformance::CASES.iter().zip(outcomes);
        let verdicts =
            verdicts.map(|(case, outcome)| Verdict { case: *case, outcome, duration: Duration::from_millis(5) });
        let report = junit(&Report { plugin: "example".to_owned(), verdicts: verdicts.collect() });
        assert!(report.contains("tests=\"4\" failures=\"1\" skipped=\"1\""), "{report}");
        let failure = report.split("<failure message=\"").nth(1).unwrap().split_once('"').unwrap().0;
        let words: Vec<&str> = failure.split_ascii_whitespace().collect();
        assert!(
            failure.starts_with("a &lt;b&gt; &amp; &quot;c&quot;") && words.ends_with(&["next", "line"]),
            "{report}"
        );
        assert!(report.contains("one\ntwo</system-out>") && !report.contains('\u{7}'), "{report}");
    }
}
