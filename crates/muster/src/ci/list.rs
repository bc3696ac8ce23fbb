//! `muster ci list`: lists the jobs of the pipeline.

use muster_pipeline::model::{AllowFailure, ExcludedJob, Job, Need, Pipeline, Work};
use serde_json::{Value, json};

use super::args::{ListArgs, ListOutput};
use super::error::{CiError, ExitStatus};
use super::prepare::{Prepared, compile_only};
use super::ui::{self, Table};

/// Remark on a job whose definition is incomplete.
pub(super) const LACKS_PARTS: &str = "incomplete: parts of it are in an ignored include";

pub(super) async fn list(args: ListArgs) -> Result<ExitStatus, CiError> {
    let (prepared, _directory) = compile_only(&args.inspect).await?;
    prepared.show_diagnostics()?;
    let excluded = if args.all { excluded(&prepared) } else { &[] };
    let jobs = prepared.compiled.pipeline.as_ref().map_or(&[][..], |pipeline| &pipeline.jobs);
    match args.output {
        ListOutput::Json => {
            let entries: Vec<_> = jobs.iter().map(entry).chain(excluded.iter().map(excluded_entry)).collect();
            ui::out(&ui::json(&entries));
        }
        ListOutput::Csv => ui::out(&csv(jobs, excluded)),
        ListOutput::Table => {
            if let Some(cause) = &prepared.compiled.not_created {
                ui::note(&format!("no pipeline for this event: {}", cause.reason));
            }
            ui::out(&table(jobs, excluded));
        }
    }
    Ok(ExitStatus::Passed)
}

/// Formats the jobs as gitlab-ci-local's `--list-csv`.
fn csv(jobs: &[Job], excluded: &[ExcludedJob]) -> String {
    let mut text = String::from("name;stage;when;allowFailure;environment;needs\n");
    for job in jobs {
        let environment = job.environment.as_ref().map(|found| found.name.clone()).unwrap_or_default();
        let needs = job.needs.as_ref().map(|needs| needs.iter().map(need_name).collect::<Vec<_>>().join(","));
        let needs = needs.map(|needs| format!("[{needs}]")).unwrap_or_default();
        let allow_failure = allow_failure(&job.allow_failure).replace(", ", ",");
        let cells =
            [job.name.clone(), job.stage.clone(), job.when.as_str().to_owned(), allow_failure, environment, needs];
        text.push_str(&format!("{}\n", cells.map(|cell| cell_text(&cell)).join(";")));
    }
    for job in excluded {
        text.push_str(&format!("{};{};never;false;;\n", cell_text(&job.name), cell_text(&job.stage)));
    }
    text
}

fn cell_text(text: &str) -> String {
    let text = ui::plain(text);
    if text.contains([';', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

pub(super) fn excluded(prepared: &Prepared) -> &[ExcludedJob] {
    let has_excluded = |pipeline: &'_ Pipeline| !pipeline.excluded.is_empty();
    match (&prepared.compiled.pipeline, &prepared.compiled.not_created) {
        (Some(pipeline), _) if has_excluded(pipeline) => &pipeline.excluded,
        (None, Some(cause)) => &cause.excluded,
        _ => &[],
    }
}

fn table(jobs: &[Job], excluded: &[ExcludedJob]) -> String {
    if jobs.is_empty() && excluded.is_empty() {
        return String::new();
    }
    let has_descriptions = jobs.iter().any(|job| job.description.is_some());
    let has_environments = jobs.iter().any(|job| job.environment.is_some());
    let mut headings = vec!["NAME", "STAGE", "WHEN", "ALLOW FAILURE", "NEEDS"];
    if has_environments {
        headings.insert(4, "ENVIRONMENT");
    }
    if has_descriptions {
        headings.push("DESCRIPTION");
    }
    let has_reasons = !excluded.is_empty() || jobs.iter().any(Job::lacks_parts);
    if has_reasons {
        headings.push("REASON");
    }
    let mut table = Table::new(&headings);
    let plain = anstyle::Style::new();
    for job in jobs {
        let mut cells = vec![
            (job.name.clone(), plain),
            (job.stage.clone(), plain),
            (when(job), if job.when.as_str() == "on_success" { ui::DIM } else { ui::WARN }),
            (allow_failure(&job.allow_failure), ui::DIM),
        ];
        if has_environments {
            cells.push((job.environment.as_ref().map(|found| found.name.clone()).unwrap_or_default(), plain));
        }
        let needs = job.needs.as_ref().map(|needs| match needs.as_slice() {
            [] => "none".to_owned(),
            needs => needs.iter().map(need_name).collect::<Vec<_>>().join(", "),
        });
        cells.push((needs.unwrap_or_else(|| "stage order".to_owned()), ui::DIM));
        if has_descriptions {
            cells.push((job.description.clone().unwrap_or_default(), plain));
        }
        if job.lacks_parts() {
            cells.push((LACKS_PARTS.to_owned(), ui::WARN));
        }
        table.row(cells);
    }
    for job in excluded {
        let mut texts = vec![job.name.clone(), job.stage.clone(), "never".to_owned()];
        texts.resize(headings.len() - 1, String::new());
        texts.push(reason(job).to_owned());
        table.row(texts.into_iter().map(|text| (text, ui::DIM)).collect::<Vec<_>>());
    }
    table.to_string()
}

fn when(job: &Job) -> String {
    match job.start_in {
        Some(delay) => format!("{} {}", job.when.as_str(), ui::duration(delay)),
        None => job.when.as_str().to_owned(),
    }
}

fn allow_failure(allowed: &AllowFailure) -> String {
    match allowed {
        AllowFailure::No => "false".to_owned(),
        AllowFailure::Yes => "true".to_owned(),
        AllowFailure::ExitCodes(codes) => {
            format!("[{}]", codes.iter().map(i32::to_string).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns the name of a needed job. A job of another project or pipeline has that project or pipeline as a prefix.
pub(super) fn need_name(need: &Need) -> String {
    match need {
        Need::Job { name, .. } => name.clone(),
        Need::Project { project, job, .. } => format!("{project}:{job}"),
        Need::Pipeline { pipeline, job, .. } => format!("pipeline {pipeline}:{job}"),
    }
}

/// Returns a job as JSON. `needs` is absent if the job has no such keyword and therefore follows the order of stages.
fn entry(job: &Job) -> Value {
    let mut entry = json!({
        "name": job.name,
        "description": job.description.clone().unwrap_or_default(),
        "stage": job.stage,
        "when": job.when.as_str(),
        "allow_failure": job.allow_failure != AllowFailure::No,
        "kind": match job.work { Work::Script(_) => "script", Work::Bridge(_) => "trigger" },
        "defined_at": format!("{}:{}", job.defined_at.file, job.defined_at.line),
    });
    if let Some(fields) = entry.as_object_mut() {
        if job.lacks_parts() {
            fields.insert("lacks_parts".to_owned(), json!(true));
        }
        if let AllowFailure::ExitCodes(codes) = &job.allow_failure {
            fields.insert("allow_failure_exit_codes".to_owned(), json!(codes));
        }
        if let Some(environment) = &job.environment {
            fields.insert("environment".to_owned(), json!(environment.name));
        }
        if let Some(delay) = job.start_in {
            fields.insert("start_in_seconds".to_owned(), json!(delay.as_secs()));
        }
        if let Some(needs) = &job.needs {
            fields.insert("needs".to_owned(), json!(needs.iter().map(need_name).collect::<Vec<_>>()));
        }
    }
    entry
}

fn excluded_entry(job: &ExcludedJob) -> Value {
    json!({
        "name": job.name,
        "description": "",
        "stage": job.stage,
        "when": "never",
        "allow_failure": false,
        "reason": reason(job),
    })
}

fn reason(job: &ExcludedJob) -> &str {
    job.decisions.last().map_or("", |decision| &decision.text)
}
