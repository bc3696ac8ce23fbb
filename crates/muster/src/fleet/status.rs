//! `muster fleet status`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::Style;
use muster_taskscaler::engine::{InstanceStatus, ScalerStatus};
use muster_taskscaler::fleet::{InstanceUsage, Report, ReportSource, Reports};

use super::query::ManagerTarget;
use crate::ci::{self, ui};

const MAX_WAITING: usize = 10;

/// Arguments of `muster fleet status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: ManagerTarget,
}

pub(super) async fn run(args: StatusArgs) -> ExitCode {
    match args.target.status().await {
        Ok(reports) => {
            let printed =
                if args.target.json { super::print_json(&reports) } else { ci::print_styled(&text(&reports)) };
            let is_unreadable = |report: &Report| report.is_ledger_unreadable(reports.source);
            if reports.fleets.iter().any(is_unreadable) { ExitCode::from(2) } else { printed }
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
            ReportSource::Manager => "no runner of this manager has instances\n",
            ReportSource::Disk => "no runner with instances\n",
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

fn fleet(report: &Report, source: ReportSource) -> String {
    let mut text = format!("runner {}\n", ui::plain(&report.runner));
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<10}{}", ui::plain(value));
    };
    if let Some(reason) = &report.unavailable_reason {
        let was_queried = source == ReportSource::Manager || report.is_ledger_unreadable(source);
        line("scaler", &if was_queried { format!("not running: {reason}") } else { format!("not queried: {reason}") });
    }
    if let Some(reason) = &report.requests_paused_reason {
        line("requests", &format!("paused: {reason}"));
    }
    let Some(status) = &report.status else { return text };
    if source == ReportSource::Manager {
        let slots = &status.slots;
        line(
            "slots",
            &format!(
                "{} in use, {} idle (target {}), {} reserved, {} unavailable",
                slots.acquired, slots.idle, status.idle_target, slots.reserved, slots.unavailable
            ),
        );
        line("policy", &status.policy.map_or_else(|| "none active".to_owned(), |policy| format!("number {policy}")));
        if status.cost_per_hour > 0.0 {
            line("cost", &format!("{:.2} per hour", status.cost_per_hour));
        }
    }
    for group in &status.groups {
        let max = group.max.map_or_else(String::new, |max| format!(" (maximum {max})"));
        let requested = if group.requested > 0 { format!(", {} requested", group.requested) } else { String::new() };
        let s = if group.instances == 1 { "" } else { "s" };
        line("group", &format!("{}: {} instance{s}{max}{requested}", group.name, group.instances));
        if let Some(user) = &group.drained {
            line("", &format!("drained by {user}; it creates no instances until you uncordon it"));
        }
        if let Some(reason) = &group.unavailable_reason {
            line("", &format!("its plugin is not running: {reason}"));
        }
        if let Some(error) = &group.error {
            line(
                "",
                &match group.failures {
                    1 => format!("the last attempt failed: {error}"),
                    failures => format!("the last {failures} attempts failed: {error}"),
                },
            );
        }
        if let Some(unlisted) = group.list_failure_message() {
            line("", &unlisted);
        }
        if !group.unmanaged.is_empty() {
            line("", &format!("unmanaged instances, ignored: {}", group.unmanaged.join(", ")));
        }
    }
    if status.desired_change > 0 {
        let s = if status.desired_change == 1 { "" } else { "s" };
        line("missing", &format!("{} instance{s}", status.desired_change));
    }
    for blocked in &status.scale_up_blocked {
        line("", &format!("cannot scale up: {blocked}"));
    }
    waiting(status, &mut line);
    text.push_str(&instances(status, report, source));
    text
}

fn waiting(status: &ScalerStatus, line: &mut impl FnMut(&str, &str)) {
    if status.waiting.is_empty() {
        return;
    }
    let next = status.next_ready_in_ms.map(|ms| format!("; the next is expected in {}", time(ms))).unwrap_or_default();
    let s = |count: u64| if count == 1 { "" } else { "s" };
    let (jobs, booting) = (status.waiting.len() as u64, status.booting);
    line("waiting", &format!("{jobs} job{}, {booting} instance{} booting{next}", s(jobs), s(booting)));
    for waiting in status.waiting.iter().take(MAX_WAITING) {
        line("", &format!("{} for {}", waiting.key, time(waiting.waiting_ms)));
    }
    if status.waiting.len() > MAX_WAITING {
        line("", &format!("and {} more", status.waiting.len() - MAX_WAITING));
    }
}

/// Formats the resource usage, such as `12.3 s CPU, 120 of 512 MiB, 4 processes`.
fn usage_text(usage: &InstanceUsage) -> String {
    const MIB: u64 = 1024 * 1024;
    let limit = usage.memory_limit_bytes.map_or_else(String::new, |limit| format!(" of {}", limit / MIB));
    let processes =
        if usage.processes == 1 { "1 process".to_owned() } else { format!("{} processes", usage.processes) };
    format!("{:.1} s CPU, {}{limit} MiB, {processes}", usage.cpu_seconds, usage.memory_bytes / MIB)
}

fn instances(status: &ScalerStatus, report: &Report, source: ReportSource) -> String {
    if status.instances.is_empty() {
        return String::new();
    }
    let names = ["INSTANCE", "STATE", "FOR", "AGE", "JOBS", "USAGE", "SLOTS"];
    let is_shown = |name: &&str| match *name {
        // Most plugins do not report resource usage.
        "USAGE" => !report.resources.is_empty(),
        // The ledger does not contain the time of the last change.
        "FOR" => source == ReportSource::Manager,
        _ => true,
    };
    let mut table = ui::Table::new(&names.into_iter().filter(is_shown).collect::<Vec<_>>());
    for instance in &status.instances {
        let InstanceStatus { group, id, state, reason, state_age_ms, age_ms, job_count, slots, .. } = instance;
        let state = reason.as_ref().map_or_else(|| state.clone(), |reason| format!("{state}: {}", ui::fit(reason, 40)));
        let slots: Vec<String> = slots.iter().map(|slot| format!("{}: {}", slot.slot, slot.key)).collect();
        let usage = report.usage_of(group, id).map(usage_text).unwrap_or_default();
        let cells =
            [id.clone(), state, time(*state_age_ms), time(*age_ms), job_count.to_string(), usage, slots.join(", ")];
        let shown = names.into_iter().zip(cells).filter(|(name, _)| is_shown(name));
        table.row(shown.map(|(_, cell)| (cell, Style::new())));
    }
    format!("\n{table}")
}

fn time(ms: u64) -> String {
    ui::duration(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_a_state_is_shown_only_if_a_manager_reports_it() {
        let directory = tempfile::tempdir().unwrap();
        let row = "{\"taskscaler_ledger\":1}\n[[{\"instance\":{\"group\":\"a\",\"id\":\"i1\"}},{\"instance\":{\"slots\":[],\"job_count\":1,\"first_seen_at\":1,\"intent\":{\"cordon\":{\"by\":\"root\"}}}}]]\n";
        std::fs::write(directory.path().join("x.ledger"), row).unwrap();
        let fleets = muster_taskscaler::fleet::read_fleets(directory.path(), 1000).unwrap();
        let has_column = |source, name: &str| {
            let text = fleet(&fleets[0].report, source);
            text.lines().find(|line| line.contains("INSTANCE")).unwrap_or_else(|| panic!("{text}")).contains(name)
        };
        assert!(has_column(ReportSource::Manager, "FOR") && !has_column(ReportSource::Disk, "FOR"));
        assert!(has_column(ReportSource::Disk, "AGE"));
    }
}
