//! `muster ci explain JOB`: why a job is in the pipeline or not, and where its settings come from.

use std::fmt::Write as _;

use muster_job::Variable;
use muster_pipeline::layers;
use muster_pipeline::model::{
    Bridge, BridgeTarget, ChildInclude, Decision, DecisionKind, ExcludedJob, Job, Need, ScriptWork, SourceLocation,
    Work,
};
use muster_pipeline::node::{Map, Node};

use super::args::ExplainArgs;
use super::error::{CiError, ExitStatus};
use super::list::{LACKS_PARTS, excluded, need_name};
use super::prepare::{Prepared, compile_with_explanations};
use super::ui;

/// Explains one job, or all jobs of a group.
pub(super) async fn explain(args: ExplainArgs) -> Result<ExitStatus, CiError> {
    let (prepared, _directory) = compile_with_explanations(&args.inspect).await?;
    prepared.show_diagnostics()?;
    let jobs = prepared.compiled.pipeline.as_ref().map_or(&[][..], |pipeline| &pipeline.jobs);
    let excluded_jobs = excluded(&prepared);
    let is_exact = jobs.iter().any(|job| job.name == args.job) || excluded_jobs.iter().any(|job| job.name == args.job);
    let matches = |name: &str, group: &str| if is_exact { name == args.job } else { group == args.job };
    let matching = jobs.iter().filter(|job| matches(&job.name, &job.group_name));
    let mut texts: Vec<_> = matching.map(|job| explain_job(&prepared, job)).collect();
    let matching = excluded_jobs.iter().filter(|job| matches(&job.name, &job.group_name));
    texts.extend(matching.map(|job| explain_excluded(&prepared, job)));
    if texts.is_empty() {
        return Err(unknown_job(&prepared, &args.job));
    }
    ui::out(&texts.join("\n"));
    Ok(ExitStatus::Passed)
}

fn unknown_job(prepared: &Prepared, name: &str) -> CiError {
    let jobs = prepared.compiled.pipeline.iter().flat_map(|pipeline| pipeline.jobs.iter().map(|job| job.name.as_str()));
    let names = jobs.chain(excluded(prepared).iter().map(|job| job.name.as_str()));
    let help = muster_pipeline::suggest::did_you_mean(name, names);
    let help = help.unwrap_or_else(|| "`muster ci list --all` lists all jobs".to_owned());
    CiError::Usage(format!("the configuration has no job `{name}`; {help}"))
}

fn explain_excluded(prepared: &Prepared, job: &ExcludedJob) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}  {}", heading(&job.name), ui::paint(ui::WARN, "not in this pipeline"));
    let _ = writeln!(text, "  stage   {}", ui::plain(&job.stage));
    let _ = writeln!(text, "  event   {}", event(prepared));
    if let Some(cause) = &prepared.compiled.not_created {
        let _ = writeln!(text, "  reason  no pipeline for this event: {}", cause.reason);
    }
    add_decisions(&mut text, &job.decisions);
    text
}

fn explain_job(prepared: &Prepared, job: &Job) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}  {}", heading(&job.name), ui::paint(ui::DIM, &location(&job.defined_at)));
    if job.lacks_parts() {
        let _ = writeln!(text, "  {}", ui::paint(ui::WARN, LACKS_PARTS));
    }
    if let Some(description) = &job.description {
        let _ = writeln!(text, "  {}", ui::plain(description));
    }
    let _ = writeln!(text, "  stage   {}", ui::plain(&job.stage));
    let _ = writeln!(text, "  event   {}", event(prepared));
    let delay = job.start_in.map(|delay| format!(" after {}", ui::duration(delay))).unwrap_or_default();
    let _ = writeln!(text, "  when    {}{delay}", job.when.as_str());
    let _ = writeln!(text, "  needs   {}", ui::plain(&needs(job)));
    if let Some(environment) = &job.environment {
        let _ = writeln!(text, "  deploys to {}", ui::plain(&environment.name));
    }
    add_decisions(&mut text, &job.decisions);
    add_variables(&mut text, prepared, job);
    match &job.work {
        Work::Script(work) => add_script(&mut text, work),
        Work::Bridge(bridge) => add_trigger(&mut text, bridge),
    }
    text
}

fn heading(name: &str) -> String {
    ui::paint(ui::BOLD, &ui::plain(name))
}

fn location(location: &SourceLocation) -> String {
    format!("{}:{}", ui::plain(&location.file), location.line)
}

fn event(prepared: &Prepared) -> String {
    let context = &prepared.context;
    let kind = match context.ref_kind {
        muster_pipeline::context::RefKind::Tag => "tag",
        muster_pipeline::context::RefKind::Branch => "branch",
    };
    let changed = match &context.changed_paths {
        Some(paths) => {
            let since = context.changed_since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
            format!("{} changed file{}{since}", paths.len(), if paths.len() == 1 { "" } else { "s" })
        }
        None => "changed files unknown, so `changes` always matches".to_owned(),
    };
    ui::plain(&format!("{} on {kind} {} ({changed})", context.source.as_str(), context.ref_name))
}

fn needs(job: &Job) -> String {
    let Some(needs) = &job.needs else { return "all jobs of earlier stages (the job has no `needs`)".to_owned() };
    if needs.is_empty() {
        return "none; starts immediately".to_owned();
    }
    let texts = needs.iter().map(|need| {
        let without_artifacts = match need {
            Need::Job { artifacts, .. } | Need::Project { artifacts, .. } | Need::Pipeline { artifacts, .. } => {
                !artifacts
            }
        };
        format!("{}{}", need_name(need), if without_artifacts { " (without artifacts)" } else { "" })
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn add_decisions(text: &mut String, decisions: &[Decision]) {
    if decisions.is_empty() {
        return;
    }
    let _ = writeln!(text, "  {}", ui::paint(ui::BOLD, "because"));
    for decision in decisions {
        let _ = writeln!(text, "    {}", decision_line(decision));
    }
}

fn decision_line(decision: &Decision) -> String {
    let style = match decision.kind {
        DecisionKind::RuleMatched => ui::GOOD,
        DecisionKind::RuleNotMatched => ui::DIM,
        _ => anstyle::Style::new(),
    };
    let location = decision.location.as_ref().map(|found| format!("  {}", ui::paint(ui::DIM, &location(found))));
    format!("{}{}", ui::paint(style, &ui::plain(&decision.text)), location.unwrap_or_default())
}

/// Adds the variables of the configuration and the user, each with its origin. Omits predefined variables.
fn add_variables(text: &mut String, prepared: &Prepared, job: &Job) {
    let context = &prepared.context;
    let environment = job.environment.as_ref().map(|environment| environment.name.as_str());
    let project = layers::project_variables(&context.project_variables, context.ref_protected, environment);
    let mut shown: Vec<(&str, &Variable, String)> = Vec::new();
    for variable in &job.variables {
        let from = if job.matrix.iter().any(|(name, _)| *name == variable.key) {
            "the matrix"
        } else {
            yaml_origin(prepared, job, variable)
        };
        shown.push((&variable.key, variable, from.to_owned()));
    }
    let outer = project.iter().map(|variable| (variable, "ci.toml or files of gitlab-ci-local"));
    let outer = outer.chain(context.pipeline_variables.iter().map(|variable| (variable, "the command line")));
    for (variable, from) in outer {
        let overridden = shown.iter().position(|(key, ..)| *key == variable.key);
        let overridden = overridden.map(|index| shown.remove(index).2);
        let from = overridden.map_or_else(|| from.to_owned(), |other| format!("{from}, which overrides {other}"));
        shown.push((&variable.key, variable, from));
    }
    if shown.is_empty() {
        return;
    }
    let _ = writeln!(text, "  {}", ui::paint(ui::BOLD, "variables"));
    for (key, variable, from) in shown {
        let value = if variable.masked { "[masked]".to_owned() } else { ui::fit(&ui::plain(&variable.value), 60) };
        let kind = if variable.file { " (as a file)" } else { "" };
        let key = ui::plain(key);
        let _ = writeln!(text, "    {key}={value}{kind}  {}", ui::paint(ui::DIM, &format!("from {from}")));
    }
}

/// Returns which part of the configuration a variable's value comes from. The parts are checked in order of precedence.
fn yaml_origin(prepared: &Prepared, job: &Job, variable: &Variable) -> &'static str {
    let merged = prepared.compiled.merged.as_ref();
    let global = |key: &str| merged?.as_map()?.get(key)?.as_map();
    let job = merged.and_then(|merged| merged.as_map()?.get(&job.group_name)?.as_map());
    let sets = |map: Option<&Map>| map.is_some_and(|map| sets(map, variable));
    let has_rule_that_sets = |map: Option<&Map>| {
        let rules = map.and_then(|map| map.get("rules")?.as_list()).unwrap_or_default();
        rules.iter().any(|rule| sets(rule.as_map()))
    };
    if has_rule_that_sets(job) {
        "the job's rules"
    } else if sets(job) {
        "the job's variables"
    } else if has_rule_that_sets(global("workflow")) {
        "the workflow's rules"
    } else if sets(merged.and_then(Node::as_map)) {
        "the global variables"
    } else {
        "the configuration"
    }
}

fn sets(map: &Map, variable: &Variable) -> bool {
    let Some(found) = map.get("variables").and_then(|variables| variables.as_map()?.get(&variable.key)) else {
        return false;
    };
    let value = found.as_map().map_or(Some(found), |long| long.get("value"));
    value.and_then(Node::scalar_text).unwrap_or_default() == variable.value
}

fn add_script(text: &mut String, work: &ScriptWork) {
    if let Some(image) = &work.image {
        let _ = writeln!(text, "  image   {} (ignored if the job runs without containers)", ui::plain(&image.name));
    }
    for cache in &work.cache {
        let cache = format!("{}: {} ({})", cache.key, cache.paths.join(", "), cache.policy);
        let _ = writeln!(text, "  cache   {}", ui::plain(&cache));
    }
    if let Some(artifacts) = &work.artifacts {
        let mut parts = artifacts.paths.clone();
        parts.extend(artifacts.reports.iter().map(|(kind, paths)| format!("{kind} report {}", paths.join(", "))));
        let _ = writeln!(text, "  artifacts {} ({})", ui::plain(&parts.join(", ")), artifacts.when);
    }
    let sections =
        [("before_script", &work.before_script), ("script", &work.script), ("after_script", &work.after_script)];
    for (name, lines) in sections {
        if !lines.is_empty() {
            let _ = writeln!(text, "  {}", ui::paint(ui::BOLD, name));
        }
        for line in lines.iter().flat_map(|command| command.lines()) {
            let _ = writeln!(text, "    {}", ui::plain(line));
        }
    }
    if let Some(run) = &work.run {
        let _ = writeln!(text, "  {}\n    {}", ui::paint(ui::BOLD, "run"), ui::json_line(run));
    }
}

fn add_trigger(text: &mut String, bridge: &Bridge) {
    let target = match &bridge.target {
        BridgeTarget::Project { project, branch, .. } => {
            format!("a pipeline of {project} on {}", branch.as_deref().unwrap_or("its default branch"))
        }
        BridgeTarget::Mirror { project } => format!("none; mirrors the status of the latest pipeline of {project}"),
        BridgeTarget::Child(includes) => {
            let names = includes.iter().map(|include| match include {
                ChildInclude::Entry(entry) => entry.to_string(),
                ChildInclude::Artifact { path, job, .. } => format!("{path} from job {job}"),
            });
            format!("a child pipeline from {}", names.collect::<Vec<_>>().join(", "))
        }
    };
    let _ = writeln!(text, "  starts  {}", ui::plain(&target));
}
