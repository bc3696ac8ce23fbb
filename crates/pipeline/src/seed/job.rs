//! Evaluates the rules of an expanded job, and creates the job without `needs` and `dependencies`.

use muster_job::Variable;

use crate::conditions::scope::{Base, Scope};
use crate::config::Config;
use crate::config::defaults::Filter;
use crate::config::job::{JobEntry, WorkEntry};
use crate::config::parsing::Problems;
use crate::config::rules::Rule;
use crate::expand::Unknown;
use crate::graph::{ExpandedJob, Graph};
use crate::layers::{self, JobFacts};
use crate::model::{Decision, DecisionKind, Environment, ExcludedJob, Job, When, Work};
use crate::seed::cache_keys::CacheKeys;
use crate::seed::decision_trace::DecisionTrace;
use crate::seed::rule_evaluator::{self, RuleEvaluator, RuleOutcome};

#[derive(Debug)]
pub(crate) enum Seeded {
    /// The needs are not resolved yet.
    Included {
        job: Box<Job>,
        rule: Option<usize>,
    },
    Excluded(ExcludedJob),
}

pub(crate) struct Seeder<'a> {
    pub(crate) config: &'a Config,
    pub(crate) graph: &'a Graph,
    pub(crate) base: &'a Base<'a>,
    pub(crate) evaluator: &'a RuleEvaluator<'a>,
    /// Global variables, including the variables of the matched rule of `workflow`.
    pub(crate) variables: &'a [Variable],
    pub(crate) workflow: Option<Decision>,
}

impl Seeder<'_> {
    /// Excludes every job, because `workflow:rules` allow no pipeline. `workflow` contains the decisions about these
    /// rules.
    pub(crate) fn all_excluded(
        trace: &DecisionTrace<'_>,
        config: &Config,
        graph: &Graph,
        workflow: &[Decision],
    ) -> Vec<ExcludedJob> {
        let instances = graph.instances.iter().filter_map(|instance| Some((instance, config.jobs.get(instance.job)?)));
        let excluded = instances.map(|(instance, entry)| {
            let mut decisions = trace.initial_decisions(entry, &instance.cell, instance.node);
            decisions.extend_from_slice(workflow);
            excluded_job(entry, instance, decisions)
        });
        excluded.collect()
    }

    pub(crate) fn evaluate(&self, index: usize, keys: &mut CacheKeys, problems: &mut Problems) -> Option<Seeded> {
        let instance = self.graph.instances.get(index)?;
        let entry = self.config.jobs.get(instance.job)?;
        let mut decisions = self.evaluator.trace.initial_decisions(entry, &instance.cell, instance.node);
        decisions.extend(self.workflow.clone());
        let yaml = self.variables(entry, instance, &mut decisions);
        let outcome = {
            let scope = self.scope(entry, instance, &yaml);
            let has_workflow_rules = self.config.workflow.rules.is_some();
            self.evaluator.job(entry, has_workflow_rules, &scope, &mut decisions, problems)
        };
        let RuleOutcome::Included(matched) = outcome else {
            return Some(Seeded::Excluded(excluded_job(entry, instance, decisions)));
        };
        let rule = matched.and_then(|index| entry.rules.as_ref()?.get(index));
        let yaml = match rule.filter(|rule| !rule.variables.is_empty()) {
            None => yaml,
            Some(rule) => {
                let mut merged = layers::merge([yaml, rule.variables.clone()]);
                super::remove_unset_variables(&mut merged, self.evaluator.clauses.context());
                merged
            }
        };
        let job = self.job(entry, instance, rule, yaml, decisions, keys);
        Some(Seeded::Included { job: Box::new(job), rule: matched })
    }

    /// Returns the YAML variables that the job's rules can use: global variables, then those of `workflow:rules`, of
    /// the job and of the matrix. Adds a decision if `inherit` excludes global variables.
    fn variables(&self, entry: &JobEntry, instance: &ExpandedJob, decisions: &mut Vec<Decision>) -> Vec<Variable> {
        let inherits = &entry.inherit_variables;
        let global: Vec<Variable> =
            self.variables.iter().filter(|variable| inherits.selects(&variable.key)).cloned().collect();
        if *inherits != Filter::All && global.len() < self.variables.len() {
            let text = format!("`inherit` excludes {} of the global variables", self.variables.len() - global.len());
            decisions.push(self.evaluator.trace.decision(DecisionKind::Variables, text, Some(entry.span)));
        }
        if entry.variables.is_empty() && instance.cell.is_empty() {
            return global;
        }
        let cell = instance.cell.iter().map(|(name, value)| Variable::public(name.clone(), value.clone()));
        let mut merged = layers::merge([global, entry.variables.clone(), cell.collect()]);
        super::remove_unset_variables(&mut merged, self.evaluator.clauses.context());
        merged
    }

    fn scope<'s>(&'s self, entry: &JobEntry, instance: &ExpandedJob, yaml: &'s [Variable]) -> Scope<'s> {
        let facts =
            JobFacts { name: &instance.name, group_name: &entry.name, stage: &entry.stage.name, node: instance.node };
        let scope = Scope::new(self.base, yaml, Some(facts));
        match &entry.environment {
            None => scope,
            Some(environment) => {
                let name = scope.expand(&environment.environment.name, Unknown::Empty);
                scope.in_environment(Some(&name))
            }
        }
    }

    fn job(
        &self,
        entry: &JobEntry,
        instance: &ExpandedJob,
        rule: Option<&Rule>,
        yaml: Vec<Variable>,
        decisions: Vec<Decision>,
        keys: &mut CacheKeys,
    ) -> Job {
        let scope = self.scope(entry, instance, &yaml);
        let when = rule_evaluator::when(entry, rule);
        let environment = entry.environment.as_ref().map(|environment| Environment {
            name: scope.expand(&environment.environment.name, Unknown::Empty),
            ..environment.environment.clone()
        });
        let resource_group = entry.resource_group.as_ref().map(|group| scope.expand(group, Unknown::Empty));
        let tags = entry.tags.iter().map(|tag| scope.expand(tag, Unknown::Keep)).collect();
        let start_in = rule.and_then(|rule| rule.start_in).or(entry.start_in);
        Job {
            name: instance.name.clone(),
            group_name: entry.name.to_string(),
            description: self.evaluator.trace.description(&entry.name),
            stage: entry.stage.name.clone(),
            stage_index: instance.stage,
            work: self.work(entry, keys),
            when,
            start_in: start_in.filter(|_| when == When::Delayed),
            allow_failure: rule_evaluator::allow_failure(entry, rule),
            retry: entry.retry.clone(),
            timeout: entry.timeout,
            interruptible: rule.and_then(|rule| rule.interruptible).unwrap_or(entry.interruptible),
            needs: None,
            dependencies: None,
            matrix: instance.cell.clone(),
            node: instance.node,
            tags,
            environment,
            resource_group: resource_group.filter(|group| !group.is_empty()),
            manual_confirmation: entry.manual_confirmation.clone(),
            inherits_variables: entry.inherit_variables != Filter::None,
            defined_at: self.evaluator.trace.location(entry.span),
            decisions,
            variables: yaml,
        }
    }

    fn work(&self, entry: &JobEntry, keys: &mut CacheKeys) -> Work {
        match &entry.work {
            WorkEntry::Bridge(bridge) => Work::Bridge(Box::new(bridge.bridge.clone())),
            WorkEntry::Script { work, caches } => {
                let mut work = work.clone();
                work.cache = keys.caches(caches, self.evaluator.clauses);
                Work::Script(work)
            }
        }
    }
}

fn excluded_job(entry: &JobEntry, instance: &ExpandedJob, decisions: Vec<Decision>) -> ExcludedJob {
    let (name, group_name) = (instance.name.clone(), entry.name.to_string());
    ExcludedJob { name, group_name, stage: entry.stage.name.clone(), decisions }
}
