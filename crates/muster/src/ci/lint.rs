//! `muster ci lint`: prints all errors and warnings of the configuration, or its expanded form.

use muster_pipeline::diagnostic::{Diagnostic, Severity};
use muster_pipeline::source_map::SourceMap;
use serde_json::{Value, json};

use super::args::LintArgs;
use super::error::{CiError, ExitStatus};
use super::prepare::compile_only;
use super::ui;

pub(super) async fn lint(args: LintArgs) -> Result<ExitStatus, CiError> {
    let (prepared, _directory) = compile_only(&args.inspect).await?;
    let compiled = &prepared.compiled;
    let status = if compiled.has_errors() { ExitStatus::BadConfiguration } else { ExitStatus::Passed };
    if args.json {
        let findings: Vec<_> = compiled.diagnostics.iter().map(|found| finding(found, &compiled.sources)).collect();
        let jobs = compiled.pipeline.as_ref().map_or(0, |pipeline| pipeline.jobs.len());
        let reason = compiled.not_created.as_ref().map(|cause| cause.reason.to_string());
        let report =
            json!({ "valid": !compiled.has_errors(), "jobs": jobs, "not_created": reason, "findings": findings });
        ui::out(&ui::json(&report));
        return Ok(status);
    }
    if args.preview {
        prepared.show_diagnostics()?;
        if let Some(merged) = &compiled.merged {
            ui::out(&muster_pipeline::preview(merged));
        }
        return Ok(status);
    }
    prepared.show_diagnostics()?;
    let name = &prepared.context.config_path;
    let summary = match (&compiled.pipeline, &compiled.not_created) {
        (Some(pipeline), _) => {
            let count = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
            let excluded = count(pipeline.excluded.len(), "job");
            let incomplete = pipeline.jobs.iter().filter(|job| job.lacks_parts()).count();
            let incomplete = if incomplete == 0 { String::new() } else { format!(", {incomplete} of them incomplete") };
            format!("{} in the pipeline{incomplete}, {excluded} excluded by rules", count(pipeline.jobs.len(), "job"))
        }
        (None, Some(cause)) => format!("no pipeline for this event: {}", cause.reason),
        (None, None) => "no pipeline".to_owned(),
    };
    ui::outln(&format!("{} {name} is valid: {summary}", ui::paint(ui::GOOD, "✓")));
    Ok(status)
}

fn finding(found: &Diagnostic, sources: &SourceMap) -> Value {
    let location = |span: muster_pipeline::node::Span| {
        let file = sources.get(span.source).map(|source| source.name.to_string());
        json!({ "file": file, "line": span.line, "column": span.column })
    };
    let related = |(span, label): &(_, String)| json!({ "location": location(*span), "label": label });
    json!({
        "severity": match found.severity { Severity::Error => "error", Severity::Warning => "warning" },
        "message": found.message,
        "location": found.span.map(location),
        "help": found.help,
        "related": found.related.iter().map(related).collect::<Vec<_>>(),
    })
}
