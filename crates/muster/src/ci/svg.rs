//! Draws a pipeline as an SVG image: a column per stage, a box per job, a curve per need.

use std::collections::HashMap;
use std::fmt::Write as _;

use muster_pipeline::model::{Pipeline, When};

use super::graph::{columns, needed_jobs};
use super::ui;

const BOX_HEIGHT: usize = 34;
const ROW_HEIGHT: usize = 46;
const COLUMN_GAP: usize = 70;
const MARGIN: usize = 20;
const HEADER_HEIGHT: usize = 40;
/// Width that is reserved for each character, in pixels.
const CHARACTER_WIDTH: usize = 8;
/// Longer names are truncated. The box's tooltip has the whole name.
const MAX_NAME_CHARS: usize = 36;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2937}.stage{font-weight:600}\
    rect{fill:#fff;stroke:#6b7280;rx:6}.manual{stroke-dasharray:5 3}.part{stroke-dasharray:1 4}path{fill:none;stroke:#9ca3af;stroke-width:1.5}\
    .order{stroke-dasharray:2 4}\
    @media(prefers-color-scheme:dark){text{fill:#e5e7eb}rect{fill:#1f2937;stroke:#9ca3af}}";

struct BoxRect {
    x: usize,
    y: usize,
    width: usize,
}

pub(super) fn svg(pipeline: &Pipeline) -> String {
    let columns = columns(pipeline);
    let mut boxes = HashMap::new();
    let mut starts = Vec::new();
    let mut x = MARGIN;
    for (stage, jobs) in &columns {
        let names = jobs.iter().map(|job| job.name.as_str()).chain([*stage]);
        let widest = names.map(|name| name.chars().count().min(MAX_NAME_CHARS)).max().unwrap_or(0);
        let width = widest * CHARACTER_WIDTH + 24;
        for (row, job) in jobs.iter().enumerate() {
            boxes.insert(job.name.as_str(), BoxRect { x, y: MARGIN + HEADER_HEIGHT + row * ROW_HEIGHT, width });
        }
        starts.push((x, width));
        x += width + COLUMN_GAP;
    }
    let rows = columns.iter().map(|(_, jobs)| jobs.len()).max().unwrap_or(0);
    let (width, height) = (x.saturating_sub(COLUMN_GAP) + MARGIN, MARGIN * 2 + HEADER_HEIGHT + rows * ROW_HEIGHT);

    let mut svg = String::new();
    let size = format!("width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
    let _ = writeln!(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" {size}>\n<style>{STYLE}</style>");
    for (index, (stage, jobs)) in columns.iter().enumerate() {
        let Some((start, column_width)) = starts.get(index).copied() else { continue };
        let _ = writeln!(svg, "<text class=\"stage\" x=\"{start}\" y=\"{}\">{}</text>", MARGIN + 16, escaped(stage));
        // The dashed line stands for the stage order of all jobs in the two columns.
        if index > 0 && jobs.iter().any(|job| job.needs.is_none()) {
            let (from, to, y) = (start - COLUMN_GAP + 8, start - 8, MARGIN + 12);
            let _ = writeln!(svg, "<path class=\"order\" d=\"M{from} {y}H{to}\"/>");
        }
        for job in jobs {
            let Some(rect) = boxes.get(job.name.as_str()) else { continue };
            for needed in needed_jobs(job).unwrap_or_default() {
                if let Some(from) = boxes.get(needed) {
                    curve(&mut svg, from, rect);
                }
            }
            let class = match (job.lacks_parts(), job.when) {
                (true, _) => " class=\"part\"",
                (_, When::Manual) => " class=\"manual\"",
                _ => "",
            };
            let (x, y) = (rect.x, rect.y);
            let name = ui::fit(&job.name, MAX_NAME_CHARS);
            let _ = writeln!(
                svg,
                "<g><title>{}</title><rect{class} x=\"{x}\" y=\"{y}\" width=\"{column_width}\" height=\"{BOX_HEIGHT}\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text></g>",
                escaped(&job.name),
                x + 12,
                y + 22,
                escaped(&name)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws a curve from the right edge of one box to the left edge of another, or to its right edge in the same column.
fn curve(svg: &mut String, from: &BoxRect, to: &BoxRect) {
    let (y1, y2) = (from.y + BOX_HEIGHT / 2, to.y + BOX_HEIGHT / 2);
    let (x1, x2) = (from.x + from.width, if from.x == to.x { to.x + to.width } else { to.x });
    let (c1, c2) = if from.x == to.x {
        (x1 + COLUMN_GAP / 2, x2 + COLUMN_GAP / 2)
    } else {
        (x1 + COLUMN_GAP / 2, x2.saturating_sub(COLUMN_GAP / 2))
    };
    let _ = writeln!(svg, "<path d=\"M{x1} {y1}C{c1} {y1} {c2} {y2} {x2} {y2}\"/>");
}

fn escaped(text: &str) -> String {
    ui::plain(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
