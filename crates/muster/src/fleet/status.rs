//! `muster fleet status`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::Style;
use muster_taskscaler::engine::{InstanceStatus, Status};
use muster_taskscaler::fleet::{Report, Reports, Source, Used};

use super::ask::Whom;
use crate::ci::{self, ui};

/// Requests that are named; the number of all stands above them.
const WAITING_MAX: usize = 10;

/// What is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Whom,
}

pub(super) async fn run(args: Args) -> ExitCode {
    match args.whom.status().await {
        Ok(reports) => {
            let printed = if args.whom.json { super::print_json(&reports) } else { ci::print_styled(&text(&reports)) };
            let is_unread = |report: &Report| report.is_unread(reports.source);
            if reports.fleets.iter().any(is_unread) { ExitCode::from(2) } else { printed }
        }
        Err(error) => {
            ui::report(&error);
            ExitCode::from(2)
        }
    }
}

fn text(reports: &Reports) -> String {
    let mut text = String::new();
    if reports.fleets.is_empty() {
        text.push_str(match reports.source {
            Source::Manager => "no runner of this manager has instances\n",
            Source::Store => "no runner has had instances here\n",
        });
    }
    for (index, report) in reports.fleets.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        text.push_str(&fleet(report, reports.source));
    }
    text
}

fn fleet(report: &Report, source: Source) -> String {
    let mut text = format!("runner {}\n", ui::plain(&report.runner));
    let mut line = |name: &str, what: &str| {
        // Writing to a text does not fail.
        let _ = writeln!(text, "  {name:<10}{}", ui::plain(what));
    };
    if let Some(why) = &report.down {
        let is_asked = source == Source::Manager || report.is_unread(source);
        line("scaler", &if is_asked { format!("does not run: {why}") } else { format!("was not asked: {why}") });
    }
    if let Some(why) = &report.no_requests {
        line("requests", &format!("no more jobs are requested: {why}"));
    }
    let Some(status) = &report.status else { return text };
    if source == Source::Manager {
        let tasks = &status.tasks;
        line(
            "slots",
            &format!(
                "{} in use, {} idle of {} wanted idle, {} promised, {} not to be given any more",
                tasks.acquired, tasks.idle, status.idle_wanted, tasks.reserved, tasks.unavailable
            ),
        );
        line("policy", &status.policy.map_or_else(|| "none holds".to_owned(), |policy| format!("number {policy}")));
        if status.spend_per_hour > 0.0 {
            line("cost", &format!("{:.2} per hour", status.spend_per_hour));
        }
    }
    for group in &status.groups {
        let max = group.max.map_or_else(String::new, |max| format!(" of at most {max}"));
        let coming = if group.coming > 0 { format!(", {} asked for", group.coming) } else { String::new() };
        line("group", &format!("{}: {} instances{max}{coming}", group.name, group.instances));
        if let Some(by) = &group.drained {
            line("", &format!("it makes no more until it is resumed: drained by {by}"));
        }
        if let Some(why) = &group.down {
            line("", &format!("its plugin does not run: {why}"));
        }
        if let Some(error) = &group.error {
            line("", &format!("the last {} attempts failed: {error}", group.failures));
        }
        if let Some(unlisted) = group.unlisted() {
            line("", &unlisted);
        }
        if !group.foreign.is_empty() {
            line("", &format!("not asked for here, left alone: {}", group.foreign.join(", ")));
        }
    }
    if status.missing > 0 {
        line("missing", &format!("{} instances", status.missing));
    }
    for held in &status.held {
        line("", &format!("none is asked for: {held}"));
    }
    waiting(status, &mut line);
    text.push_str(&instances(status, report));
    text
}

fn waiting(status: &Status, line: &mut impl FnMut(&str, &str)) {
    if status.waiting.is_empty() {
        return;
    }
    let next = status.ready_in_ms.map(|ms| format!("; the next is expected in {}", time(ms))).unwrap_or_default();
    line("waiting", &format!("{} jobs, {} instances boot{next}", status.waiting.len(), status.booting));
    for waiting in status.waiting.iter().take(WAITING_MAX) {
        line("", &format!("{} for {}", waiting.key, time(waiting.for_ms)));
    }
    if status.waiting.len() > WAITING_MAX {
        line("", &format!("and {} more", status.waiting.len() - WAITING_MAX));
    }
}

/// `12.3 s cpu, 120 of 512 MiB, 4 processes`.
fn uses(used: &Used) -> String {
    const MIB: u64 = 1024 * 1024;
    let limit = used.memory_limit_bytes.map_or_else(String::new, |limit| format!(" of {}", limit / MIB));
    format!("{:.1} s cpu, {}{limit} MiB, {} processes", used.cpu_seconds, used.memory_bytes / MIB, used.processes)
}

fn instances(status: &Status, report: &Report) -> String {
    if status.instances.is_empty() {
        return String::new();
    }
    let names = ["INSTANCE", "STATE", "FOR", "AGE", "JOBS", "USES", "SLOTS"];
    // Most plugins do not say what an instance uses.
    let is_shown = |name: &&str| *name != "USES" || !report.resources.is_empty();
    let mut table = ui::Table::new(&names.into_iter().filter(is_shown).collect::<Vec<_>>());
    for instance in &status.instances {
        let InstanceStatus { group, id, state, why, for_ms, age_ms, used, slots, .. } = instance;
        let state = why.as_ref().map_or_else(|| state.clone(), |why| format!("{state}: {}", ui::fit(why, 40)));
        let slots: Vec<String> = slots.iter().map(|slot| format!("{}: {}", slot.slot, slot.key)).collect();
        let uses = report.used_by(group, id).map(uses).unwrap_or_default();
        let cells = [id.clone(), state, time(*for_ms), time(*age_ms), used.to_string(), uses, slots.join(", ")];
        let shown = names.into_iter().zip(cells).filter(|(name, _)| is_shown(name));
        table.row(shown.map(|(_, cell)| (cell, Style::new())));
    }
    format!("\n{table}")
}

fn time(ms: u64) -> String {
    ui::duration(Duration::from_millis(ms))
}
