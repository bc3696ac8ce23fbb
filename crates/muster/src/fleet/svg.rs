//! SVG chart of simulations: instances, running jobs and waiting jobs over time, in one panel per policy.

use std::fmt::Write as _;

use muster_taskscaler::sim::report::Point;

use super::simulate::Outcome;

const PANEL_WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 180;
const PANEL_GAP: u32 = 46;
const LEFT_MARGIN: u32 = 56;

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#1f2937}.name{font-weight:600}\
    .instances{fill:#dbeafe;stroke:#3b82f6}.running{fill:#86efac;stroke:#16a34a;fill-opacity:.7}\
    .waiting{fill:none;stroke:#dc2626;stroke-width:1.5}.axis{stroke:#9ca3af;fill:none}\
    @media(prefers-color-scheme:dark){text{fill:#e5e7eb}.instances{fill:#1e3a8a}.running{fill:#166534}}";

pub(super) fn svg(outcomes: &[Outcome]) -> String {
    let panels = u32::try_from(outcomes.len()).unwrap_or(u32::MAX);
    let (width, height) = (PANEL_WIDTH + LEFT_MARGIN + 20, panels.saturating_mul(PANEL_HEIGHT + PANEL_GAP) + 20);
    let points = || outcomes.iter().flat_map(|outcome| &outcome.report.timeline);
    let max_count =
        points().map(|point| point.machines.max(point.running).max(point.waiting)).max().unwrap_or(0).max(1);
    let end_s = points().map(|point| point.at_s).max().unwrap_or(0).max(1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n<style>{STYLE}</style>\n"
    );
    let mut top = 30;
    for outcome in outcomes {
        let report = &outcome.report;
        let title = format!(
            "{}: wait p95 {:.0} s, cost {:.2}, idle {:.0} %",
            outcome.name,
            report.wait(0.95).as_secs_f64(),
            report.cost,
            report.idle_share() * 100.0
        );
        let _ = writeln!(svg, "<text class=\"name\" x=\"{LEFT_MARGIN}\" y=\"{}\">{}</text>", top - 8, escaped(&title));
        for (class, value, closed) in [
            ("instances", (|point| point.machines) as fn(&Point) -> u32, true),
            ("running", |point| point.running, true),
            ("waiting", |point| point.waiting, false),
        ] {
            let path = path(&report.timeline, value, (top, end_s, max_count), closed);
            let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"><title>{class}</title></path>");
        }
        axes(&mut svg, top, end_s, max_count);
        top += PANEL_HEIGHT + PANEL_GAP;
    }
    svg.push_str("<text x=\"60\" y=\"12\">blue: instances, green: running jobs, red: waiting jobs</text>\n</svg>\n");
    svg
}

fn path(points: &[Point], value: fn(&Point) -> u32, (top, end_s, max_count): (u32, u64, u32), closed: bool) -> String {
    let mut path = String::new();
    let bottom = top + PANEL_HEIGHT;
    let x = |at_s: u64| u64::from(LEFT_MARGIN) + at_s * u64::from(PANEL_WIDTH) / end_s;
    for point in points {
        let height = u64::from(value(point)) * u64::from(PANEL_HEIGHT) / u64::from(max_count);
        let command = if path.is_empty() && !closed { 'M' } else { 'L' };
        let _ = write!(path, "{command}{} {} ", x(point.at_s), u64::from(bottom) - height);
    }
    if closed && let (Some(first), Some(last)) = (points.first(), points.last()) {
        return format!("M{} {bottom} {path}L{} {bottom}Z", x(first.at_s), x(last.at_s));
    }
    path
}

fn axes(svg: &mut String, top: u32, end_s: u64, max_count: u32) {
    let bottom = top + PANEL_HEIGHT;
    let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT_MARGIN} {top}V{bottom}H{}\"/>", LEFT_MARGIN + PANEL_WIDTH);
    let _ = writeln!(svg, "<text x=\"8\" y=\"{}\">{max_count}</text><text x=\"8\" y=\"{bottom}\">0</text>", top + 10);
    let step_h = (end_s / 3600 / 12).max(1);
    for mark in 0..=12 {
        let hour = mark * step_h;
        if hour * 3600 <= end_s {
            let x = u64::from(LEFT_MARGIN) + hour * 3600 * u64::from(PANEL_WIDTH) / end_s;
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\">{hour} h</text>", bottom + 16);
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
