//! Renders the demo's screen as lines.

use std::collections::VecDeque;
use std::time::Duration;

use muster_taskscaler::fleet::Report;

use super::tracker::{Counts, Waits};
use crate::ci::ui;

const FIXED_LINES: usize = 14;
pub(super) const MAX_DECISIONS: usize = 4;
/// Lowest first.
const BAR_HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Default)]
pub(super) struct Frame {
    pub(super) elapsed: Duration,
    pub(super) counts: Counts,
    pub(super) waits: Waits,
    pub(super) cost: f64,
    pub(super) cost_per_hour: f64,
    pub(super) report: Option<Report>,
    pub(super) decisions: Vec<String>,
    /// Numbers of waiting jobs and of instances over time, latest last.
    pub(super) points: VecDeque<(usize, usize)>,
    pub(super) address: String,
    pub(super) stopping: bool,
}

/// Returns at most `height` lines of at most `width` characters.
pub(super) fn render(frame: &Frame, width: usize, height: usize) -> Vec<String> {
    let mut lines = header(frame, width);
    let status = frame.report.as_ref().and_then(|report| report.status.as_ref());
    let empty = Vec::new();
    let instances = status.map_or(&empty, |status| &status.instances);
    let rows = height.saturating_sub(FIXED_LINES);
    lines.push(format!("{:<20}{:<11}{:>6}{:>7}{:>6}  {}", "INSTANCE", "STATE", "FOR", "AGE", "JOBS", "SLOTS"));
    let end = lines.len() + rows;
    for instance in instances.iter().take(rows) {
        let slots: Vec<String> = instance.slots.iter().map(|slot| job(&slot.key)).collect();
        lines.push(format!(
            "{:<20}{:<11}{:>6}{:>7}{:>6}  {}",
            ui::fit(&instance.id, 19),
            instance.state,
            age_text(instance.state_age_ms),
            age_text(instance.age_ms),
            instance.job_count,
            slots.join(" ")
        ));
    }
    lines.resize(end, String::new());
    lines.push("LATEST DECISIONS".to_owned());
    let mut decisions: Vec<String> = frame.decisions.iter().map(|text| ui::plain(text)).collect();
    decisions.resize(MAX_DECISIONS, String::new());
    lines.extend(decisions);
    lines.push(if frame.stopping {
        "stopping: canceling jobs, deleting instances ...".to_owned()
    } else {
        format!("q: quit   in another terminal: muster fleet status --address {}", frame.address)
    });
    lines.truncate(height);
    lines.iter().map(|line| ui::fit(line, width)).collect()
}

fn header(frame: &Frame, width: usize) -> Vec<String> {
    let Counts { created, succeeded, failed, running, waiting } = frame.counts;
    let status = frame.report.as_ref().and_then(|report| report.status.as_ref());
    let slots = status.map(|status| status.slots).unwrap_or_default();
    let instances = status.map_or(0, |status| status.instances.len());
    let Waits { p50, p95, max } = frame.waits;
    let seconds = frame.elapsed.as_secs();
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let bar = |count: usize| "█".repeat(count.min(width.saturating_sub(40)));
    vec![
        format!(
            "muster demo  {}:{:02}   {created} job{}: {succeeded} succeeded, {running} running{failed}",
            seconds / 60,
            seconds % 60,
            s(created)
        ),
        format!("waiting    {waiting:>3} {}", bar(waiting)),
        format!(
            "slots      {:>3} in use, {} idle, on {instances} instance{}  {}",
            slots.acquired,
            slots.idle,
            s(instances),
            bar(instances)
        ),
        format!("waits      p50 {}, p95 {}, max {}", wait_text(p50), wait_text(p95), wait_text(max)),
        format!("cost       {:.5} so far, {:.2} per hour now (model price)", frame.cost, frame.cost_per_hour),
        format!("queue      {}", curve(frame.points.iter().map(|point| point.0), width.saturating_sub(11))),
        format!("instances  {}", curve(frame.points.iter().map(|point| point.1), width.saturating_sub(11))),
    ]
}

/// Returns the latest values as bars, scaled to the largest of all values.
fn curve(values: impl ExactSizeIterator<Item = usize> + Clone, width: usize) -> String {
    let max = values.clone().max().unwrap_or(0);
    let surplus = values.len().saturating_sub(width);
    let bar = |value: usize| match value {
        0 => ' ',
        value => {
            let height = (value * BAR_HEIGHTS.len()).div_ceil(max.max(1)).clamp(1, BAR_HEIGHTS.len());
            BAR_HEIGHTS.get(height - 1).copied().unwrap_or(' ')
        }
    };
    values.skip(surplus).map(bar).collect()
}

/// Returns the name of a job on the screen: `job-12-ab34cd56` becomes `job 12`.
fn job(key: &str) -> String {
    let number = key.strip_prefix("job-").and_then(|rest| rest.split('-').next());
    number.map_or_else(|| key.to_owned(), |number| format!("job {number}"))
}

fn wait_text(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn age_text(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use muster_taskscaler::engine::{InstanceStatus, ScalerStatus, SlotCounts, SlotStatus};

    use super::*;

    fn instance(number: usize) -> InstanceStatus {
        InstanceStatus {
            id: format!("local-{number}"),
            group: "demo".to_owned(),
            state: "ready".to_owned(),
            reason: None,
            state_age_ms: 1200,
            age_ms: 2500,
            job_count: 3,
            failures: 0,
            slots: vec![SlotStatus { slot: 0, key: format!("job-{number}-ab") }],
        }
    }

    fn frame(instances: usize) -> Frame {
        let status = ScalerStatus {
            slots: SlotCounts { acquired: 2, idle: 1, ..SlotCounts::default() },
            desired_change: 0,
            idle_target: 1,
            policy: Some(1),
            cost_per_hour: 0.0,
            scale_up_blocked: Vec::new(),
            waiting: Vec::new(),
            booting: 0,
            next_ready_in_ms: None,
            groups: Vec::new(),
            instances: (0..instances).map(instance).collect(),
        };
        let report = Report {
            runner: "demo".to_owned(),
            unavailable_reason: None,
            requests_paused_reason: None,
            status: Some(status),
            resources: std::collections::BTreeMap::new(),
        };
        Frame {
            elapsed: Duration::from_secs(65),
            counts: Counts { created: 9, succeeded: 4, failed: 0, running: 2, waiting: 3 },
            waits: Waits { p50: Duration::from_millis(400), ..Waits::default() },
            cost: 0.01234,
            cost_per_hour: 0.5,
            report: Some(report),
            decisions: vec!["requested 2 of 2 needed instances".to_owned()],
            points: (0..200).map(|n| (n % 9, n % 5)).collect(),
            address: "127.0.0.1:9".to_owned(),
            stopping: false,
        }
    }

    #[test]
    fn render_fits_the_terminal() {
        let lines = render(&frame(2), 80, 24);
        insta::assert_snapshot!(lines.join("\n"));
        for (instances, width, height) in [(0, 80, 24), (50, 80, 24), (50, 30, 14), (3, 200, 60), (3, 5, 2)] {
            let lines = render(&frame(instances), width, height);
            assert!(lines.len() <= height, "{height}: {}", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
        }
    }
}
