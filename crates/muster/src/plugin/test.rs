//! `test`: the conformance kit, on any plugin.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_fleeting::conformance::{self, Outcome, Plan, Report, Verdict};
use muster_fleeting::install::resolve;
use tokio::signal::unix::{SignalKind, signal};

use super::error::PluginError;
use super::serve::surroundings;
use super::test_config::{self, TestConfig};
use crate::ci::ui;

/// Of the names of cases that were not come to, so much is shown.
const LEFT_OUT_WIDTH: usize = 80;
/// The flags of this command that have no value.
const SWITCHES: [&str; 4] = ["--cases", "--json", "--junit", "--strict"];
/// What cannot be tested at all.
const UNTESTED: u8 = 2;

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The plugin, as in `plugin = "..."`, and its arguments where it needs an interpreter. Without any, `plugin` and
    /// `arguments` of the file.
    #[arg(value_name = "PLUGIN", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
    /// File with plugin_config and connector_config, as in [runners.autoscaler], and a table [test].
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How many instances to make at once; instead of `instances` of the file.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    instances: Option<u32>,
    /// Print the report as JSON.
    #[arg(long, conflicts_with = "junit")]
    json: bool,
    /// Print the report as JUnit XML.
    #[arg(long)]
    junit: bool,
    /// Warnings count as failures.
    #[arg(long)]
    strict: bool,
    /// List the cases, and test nothing.
    #[arg(long)]
    cases: bool,
}

/// Runs the command: 0 where no case failed, 1 where one did, 2 where nothing could be tested.
pub(super) async fn run(args: &Args) -> ExitCode {
    if args.cases {
        for case in conformance::CASES {
            ui::outln(&format!("{:<4} {}", case.id, case.title));
        }
        return ExitCode::SUCCESS;
    }
    let plan = match plan(args) {
        Ok(plan) => plan,
        Err(error) => {
            ui::report(&error);
            return UNTESTED.into();
        }
    };
    let for_people = !args.json && !args.junit;
    let mut told = |verdict: &Verdict| {
        // What was not come to would bury what failed.
        if for_people && !verdict.is_not_reached() {
            tell(verdict);
        }
    };
    let run = conformance::run(&plan, &mut told);
    let given_up = async {
        interrupted().await;
        ui::error("stopped: what was made is removed; once more to leave it");
        plan.stop.cancel();
        interrupted().await;
    };
    let report = tokio::select! {
        report = run => report,
        () = given_up => return ExitCode::FAILURE,
    };
    if args.json {
        ui::outln(&report.json().to_string());
    } else if args.junit {
        ui::out(&report.junit());
    } else {
        let left_out = report.verdicts.iter().filter(|verdict| verdict.is_not_reached());
        let why = left_out.clone().find_map(|verdict| verdict.outcome.reason());
        let left_out: Vec<_> = left_out.map(|verdict| verdict.case.id).collect();
        if let Some(why) = why {
            let ids = ui::fit(&left_out.join(" "), LEFT_OUT_WIDTH);
            ui::outln(&format!("\n{} cases were not come to ({why}): {ids}", left_out.len()));
        }
        ui::outln(&format!("\n{}: {}", report.plugin, report.summary()));
    }
    if passed(&report, args.strict) && !plan.stop.is_cancelled() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn passed(report: &Report, strict: bool) -> bool {
    report.passed() && !(strict && report.count("warn") > 0)
}

/// Waits for Ctrl-C, or for the word of whoever started this.
async fn interrupted() {
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

fn tell(verdict: &Verdict) {
    let style = match verdict.outcome {
        Outcome::Pass => ui::GOOD,
        Outcome::Warn(_) => ui::WARN,
        Outcome::Fail(_) => ui::BAD,
        Outcome::Skip(_) => ui::DIM,
    };
    let (word, case) = (ui::paint(style, verdict.outcome.label()), verdict.case);
    ui::outln(&format!("{word}  {:<4} {} ({:.2} s)", case.id, case.title, verdict.took.as_secs_f64()));
    if let Some(reason) = verdict.outcome.reason() {
        ui::outln(&format!("           {reason}"));
    }
}

fn plan(args: &Args) -> Result<Plan, PluginError> {
    // What follows the plugin is the plugin's: a flag of ours there was meant otherwise.
    if let Some(switch) = args.command.iter().skip(1).find_map(|word| SWITCHES.iter().find(|switch| word == **switch)) {
        return Err(PluginError::Config(format!(
            "{switch} after the plugin would be the plugin's own argument: write it before the plugin; an argument of the \
             plugin's stands in `arguments` of the file of --config"
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
                .ok_or(PluginError::Words("which plugin? Name it, or set `plugin` in the file of --config"))?;
            (plugin, config.arguments.iter().map(OsString::from).collect())
        }
    };
    let (executable, mut first) = executable(&plugin)?;
    let mut plan = Plan::new(executable);
    first.extend(arguments);
    plan.arguments = first;
    config.apply(&mut plan)?;
    if let Some(instances) = args.instances {
        plan.instances = instances;
    }
    Ok(plan)
}

/// As the manager finds it, with the arguments of one that comes with this program; a program of `PATH` too, since an
/// interpreter is one.
fn executable(plugin: &str) -> Result<(PathBuf, Vec<OsString>), PluginError> {
    let error = match resolve(plugin, &surroundings()) {
        Ok(found) => {
            let arguments = found.arguments().into_iter().map(OsString::from).collect();
            return Ok((found.executable().to_owned(), arguments));
        }
        Err(error) => error,
    };
    let is_program = |path: &PathBuf| Path::is_file(path);
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let on_path = (!plugin.contains(['/', ':']))
        .then(|| std::env::split_paths(&folders).map(|folder| folder.join(plugin)).find(is_program));
    on_path.flatten().map(|program| (program, Vec::new())).ok_or_else(|| error.into())
}
