//! Creates the pipeline of an event from a checked configuration: workflow, rules, and the server's expansion of
//! variables (docs/spec/pipeline-yaml.md, section 2.1, items 10 to 12).

mod cache_keys;
mod decision_trace;
mod detail;
mod job;
mod needs;
mod only;
mod rule_evaluator;

use muster_job::Variable;

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::{Base, Scope};
use crate::config::parsing::Problems;
use crate::config::rules::{Rule, RuleWhen};
use crate::config::{Config, FIRST_STAGE, LAST_STAGE};
use crate::context::{Context, Origin, Sources};
use crate::diagnostic::Diagnostic;
use crate::expand::Unknown;
use crate::graph::Graph;
use crate::layers;
use crate::load::Loaded;
use crate::model::{Decision, DecisionKind, NotCreated, NotCreatedReason, Pipeline};
use crate::seed::cache_keys::CacheKeys;
use crate::seed::decision_trace::DecisionTrace;
use crate::seed::job::{Seeded, Seeder};
use crate::seed::rule_evaluator::RuleEvaluator;

/// Result of [`seed`]. Valid only if no errors were reported to [`Problems`].
#[derive(Debug)]
pub(crate) enum Outcome {
    Created(Box<Pipeline>),
    NotCreated(NotCreated),
}

pub(crate) fn seed(
    config: &Config,
    graph: &Graph,
    loaded: &Loaded,
    context: &Context,
    sources: &dyn Sources,
    problems: &mut Problems,
) -> Outcome {
    let base = Base::new(context);
    let clauses = Clauses::new(context, sources, &Origin::Root);
    let trace = DecisionTrace::new(loaded);
    let evaluator = RuleEvaluator { clauses: &clauses, trace: &trace };
    warn_about_duplicate_pipelines(config, problems);

    let mut globals: Vec<Variable> = config.variables.iter().map(|global| global.variable.clone()).collect();
    remove_unset_variables(&mut globals, context);
    let matched = match workflow(config, &globals, &base, &evaluator, problems) {
        Ok(matched) => matched,
        Err(decisions) => {
            // A rule may not match only because its text was too large to be expanded.
            if let Some(problem) = base.budget_error(loaded.root.span) {
                problems.push(problem);
            }
            let reason = NotCreatedReason::WorkflowRules;
            let excluded = Seeder::all_excluded(&trace, config, graph, &decisions);
            return Outcome::NotCreated(NotCreated { reason, decisions, excluded });
        }
    };
    let rule_variables = matched.rule.map(|rule| rule.variables.clone()).unwrap_or_default();
    let mut variables = layers::merge([globals, rule_variables]);
    remove_unset_variables(&mut variables, context);
    let seeder =
        Seeder { config, graph, base: &base, evaluator: &evaluator, variables: &variables, workflow: matched.decision };
    let mut keys = CacheKeys::default();
    let seeded: Vec<Seeded> =
        (0..graph.instances.len()).filter_map(|index| seeder.evaluate(index, &mut keys, problems)).collect();
    let (jobs, excluded) = needs::resolve(config, graph, &trace, seeded, problems);
    let scope = Scope::new(&base, &variables, None);
    let name = config.workflow.name.as_ref().map(|name| scope.expand(name, Unknown::Empty).trim().to_owned());
    if let Some(problem) = base.budget_error(loaded.root.span) {
        problems.push(problem);
    }

    if jobs.iter().all(|job| job.stage == FIRST_STAGE || job.stage == LAST_STAGE) {
        let decisions = edge_stage_decisions(&jobs);
        return Outcome::NotCreated(NotCreated { reason: NotCreatedReason::NoJobs, decisions, excluded });
    }
    let base_cancel = config.workflow.auto_cancel;
    let auto_cancel = matched.rule.map(|rule| rule.auto_cancel).unwrap_or_default().with_fallback(base_cancel);
    Outcome::Created(Box::new(Pipeline {
        name: name.filter(|name| !name.is_empty()),
        stages: config.stages.clone(),
        variables,
        auto_cancel,
        jobs,
        excluded,
    }))
}

fn remove_unset_variables(variables: &mut Vec<Variable>, context: &Context) {
    variables.retain(|variable| !context.unset_variables.contains(&variable.key));
}

/// The rule of `workflow` that allows the pipeline, and the decision about this rule. Both are `None` if `workflow` has
/// no rules.
struct WorkflowMatch<'a> {
    rule: Option<&'a Rule>,
    decision: Option<Decision>,
}

/// Evaluates `workflow:rules`. Returns the decisions as an error if the rules allow no pipeline.
fn workflow<'a>(
    config: &'a Config,
    globals: &[Variable],
    base: &Base<'_>,
    evaluator: &RuleEvaluator<'_>,
    problems: &mut Problems,
) -> Result<WorkflowMatch<'a>, Vec<Decision>> {
    let Some(rules) = &config.workflow.rules else { return Ok(WorkflowMatch { rule: None, decision: None }) };
    let scope = Scope::new(base, globals, None);
    let mut decisions = Vec::new();
    let index = evaluator.first_match("workflow:rules", rules, &scope, &mut decisions, problems);
    let Some(rule) = index.and_then(|index| rules.get(index)) else {
        decisions.push(evaluator.trace.decision(DecisionKind::Workflow, "no rule of `workflow` matched", None));
        return Err(decisions);
    };
    if rule.when == Some(RuleWhen::Never) {
        return Err(decisions);
    }
    let decision = decisions.pop().map(|decision| Decision { kind: DecisionKind::Workflow, ..decision });
    Ok(WorkflowMatch { rule: Some(rule), decision })
}

/// Returns a decision for each job. All of `jobs` are in `.pre` or `.post` and therefore create no pipeline.
fn edge_stage_decisions(jobs: &[crate::model::Job]) -> Vec<Decision> {
    let decision = |job: &crate::model::Job| Decision {
        kind: DecisionKind::Workflow,
        text: format!(
            "`{}` in `{}` would run, but jobs in `.pre` and `.post` alone create no pipeline",
            job.name, job.stage
        ),
        location: Some(job.defined_at.clone()),
    };
    jobs.iter().map(decision).collect()
}

/// Warns about a last rule that contains only a `when` other than `never`. Without `workflow:rules`, such a rule adds
/// the job to both the branch pipeline and the merge request pipeline of a push.
fn warn_about_duplicate_pipelines(config: &Config, problems: &mut Problems) {
    if config.workflow.rules.is_some() {
        return;
    }
    for job in &config.jobs {
        let Some(last) = job.rules.as_ref().and_then(|rules| rules.last()) else { continue };
        let runs = matches!(last.when, Some(RuleWhen::Run(_)));
        if runs && last.is_bare() {
            let message = format!(
                "jobs:{} may allow multiple pipelines to run for a single action due to `rules:when` clause with no \
                 `workflow:rules`",
                job.name
            );
            problems.push(Diagnostic::warning(last.span, message).help("add `workflow:rules`"));
        }
    }
}
