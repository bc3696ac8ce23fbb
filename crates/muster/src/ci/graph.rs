//! `muster ci graph`: the jobs and their dependencies, as text, for Graphviz, or as an SVG image.

use std::fmt::Write as _;

use muster_pipeline::model::{Job, Need, Pipeline, When, Work};

use super::args::{GraphArgs, GraphFormat};
use super::error::{CiError, ExitStatus};
use super::list::{LACKS_PARTS, need_name};
use super::prepare::compile_only;
use super::{svg, ui};

pub(super) async fn graph(args: GraphArgs) -> Result<ExitStatus, CiError> {
    let (prepared, _directory) = compile_only(&args.inspect).await?;
    prepared.show_diagnostics()?;
    let Some(pipeline) = &prepared.compiled.pipeline else {
        let reason = prepared.compiled.not_created.as_ref().map(|cause| cause.reason.to_string());
        ui::note(&format!("no pipeline for this event: {}", reason.unwrap_or_default()));
        return Ok(ExitStatus::Passed);
    };
    ui::out(&match args.format {
        GraphFormat::Text => text(pipeline),
        GraphFormat::Dot => dot(pipeline),
        GraphFormat::Svg => svg::svg(pipeline),
    });
    Ok(ExitStatus::Passed)
}

/// Returns the stages that have jobs, in order, each with its jobs.
pub(super) fn columns(pipeline: &Pipeline) -> Vec<(&str, Vec<&Job>)> {
    let stages = pipeline.stages.iter().enumerate().map(|(index, stage)| {
        let jobs: Vec<_> = pipeline.jobs.iter().filter(|job| job.stage_index == index).collect();
        (stage.as_str(), jobs)
    });
    stages.filter(|(_, jobs)| !jobs.is_empty()).collect()
}

/// Returns the jobs of this pipeline that a job lists in `needs`. `None` if the job has no `needs`.
pub(super) fn needed_jobs(job: &Job) -> Option<Vec<&str>> {
    let needs = job.needs.as_ref()?;
    let names = needs.iter().filter_map(|need| match need {
        Need::Job { name, .. } => Some(name.as_str()),
        Need::Project { .. } | Need::Pipeline { .. } => None,
    });
    Some(names.collect())
}

fn text(pipeline: &Pipeline) -> String {
    let mut text = String::new();
    let columns = columns(pipeline);
    let names = columns.iter().flat_map(|(_, jobs)| jobs.iter().map(|job| job.name.chars().count()));
    let width = names.max().unwrap_or(0).min(40);
    for (index, (stage, jobs)) in columns.iter().enumerate() {
        let _ = writeln!(text, "{}", ui::paint(ui::BOLD, &ui::plain(stage)));
        for (position, job) in jobs.iter().enumerate() {
            let branch = if position + 1 == jobs.len() { "└─" } else { "├─" };
            let remark = remarks(job, index > 0);
            let name = ui::plain(&job.name);
            if remark.is_empty() {
                let _ = writeln!(text, "{branch} {name}");
            } else {
                let _ = writeln!(text, "{branch} {name:width$}  {}", ui::paint(ui::DIM, &remark));
            }
        }
    }
    text
}

fn remarks(job: &Job, has_earlier_stage: bool) -> String {
    let mut parts = Vec::new();
    match &job.needs {
        Some(needs) if needs.is_empty() && has_earlier_stage => parts.push("starts immediately".to_owned()),
        Some(needs) if !needs.is_empty() => {
            let names: Vec<_> = needs.iter().map(need_name).collect();
            parts.push(format!("← {}", ui::plain(&names.join(", "))));
        }
        _ => {}
    }
    match (job.when, job.start_in) {
        (When::OnSuccess, _) => {}
        (when, Some(delay)) => parts.push(format!("{} {}", when.as_str(), ui::duration(delay))),
        (when, None) => parts.push(when.as_str().to_owned()),
    }
    if matches!(job.work, Work::Bridge(_)) {
        parts.push("starts a pipeline".to_owned());
    }
    if job.lacks_parts() {
        parts.push(LACKS_PARTS.to_owned());
    }
    parts.join(", ")
}

/// Draws a graph for Graphviz. Edges for the order of stages meet in one point, so that there are few of them.
fn dot(pipeline: &Pipeline) -> String {
    let mut text = String::from("digraph pipeline {\n  rankdir=LR;\n  node [shape=box, style=rounded];\n");
    let columns = columns(pipeline);
    for (index, (stage, jobs)) in columns.iter().enumerate() {
        let _ = writeln!(text, "  subgraph cluster_{index} {{\n    label={};", quoted(stage));
        for job in jobs {
            let style = match (job.lacks_parts(), job.when) {
                (true, _) => format!(" [style=\"rounded,dotted\", tooltip={}]", quoted(LACKS_PARTS)),
                (_, When::Manual) => " [style=\"rounded,dashed\"]".to_owned(),
                _ => String::new(),
            };
            let _ = writeln!(text, "    {}{style};", quoted(&job.name));
        }
        text.push_str("  }\n");
    }
    for (index, (_, jobs)) in columns.iter().enumerate() {
        let by_stage: Vec<_> = jobs.iter().filter(|job| job.needs.is_none()).collect();
        let previous = index.checked_sub(1).and_then(|previous| columns.get(previous));
        if let (false, Some((_, previous))) = (by_stage.is_empty(), previous) {
            let _ = writeln!(text, "  gate_{index} [shape=point, label=\"\"];");
            for job in previous {
                let _ = writeln!(text, "  {} -> gate_{index} [arrowhead=none];", quoted(&job.name));
            }
            for job in by_stage {
                let _ = writeln!(text, "  gate_{index} -> {};", quoted(&job.name));
            }
        }
        for job in jobs {
            for needed in needed_jobs(job).unwrap_or_default() {
                let _ = writeln!(text, "  {} -> {};", quoted(needed), quoted(&job.name));
            }
        }
    }
    text.push_str("}\n");
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", ui::plain(text).replace('\\', "\\\\").replace('"', "\\\""))
}
