//! Selects the rule that decides about a job or pipeline, and its effects (docs/spec/pipeline-yaml.md, sections 1.5,
//! 1.6 and 2.1, items 10 and 11).

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::Scope;
use crate::config::job::JobEntry;
use crate::config::only::{self, RefPolicy};
use crate::config::parsing::Problems;
use crate::config::rules::{Rule, RuleWhen};
use crate::model::{AllowFailure, Decision, DecisionKind, When};
use crate::seed::decision_trace::{DecisionTrace, clauses_text};
use crate::seed::detail::detail;
use crate::seed::only as policy;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleOutcome {
    /// The index of the matched rule, if the job has rules.
    Included(Option<usize>),
    Excluded,
}

pub(crate) struct RuleEvaluator<'a> {
    pub(crate) clauses: &'a Clauses<'a>,
    pub(crate) trace: &'a DecisionTrace<'a>,
}

impl RuleEvaluator<'_> {
    /// Returns the index of the first matching rule. Adds a decision for each evaluated rule. `keyword` is
    /// `workflow:rules` or `rules`.
    pub(crate) fn first_match(
        &self,
        keyword: &str,
        rules: &[Rule],
        scope: &Scope<'_>,
        decisions: &mut Vec<Decision>,
        problems: &mut Problems,
    ) -> Option<usize> {
        for (index, rule) in rules.iter().enumerate() {
            let rule_matches = self.clauses.matches(rule, scope, problems);
            let (kind, verb) = if rule_matches {
                (DecisionKind::RuleMatched, "matched")
            } else {
                (DecisionKind::RuleNotMatched, "did not match")
            };
            let clauses = if self.clauses.context().explains {
                detail(self.clauses, rule, rule_matches, scope, problems)
            } else {
                clauses_text(rule)
            };
            let mut text = format!("{keyword}[{index}] {verb}: {clauses}");
            if rule_matches && rule.when == Some(RuleWhen::Never) {
                text.push_str("; when: never");
            }
            decisions.push(self.trace.decision(kind, text, rule.span));
            if rule_matches {
                return Some(index);
            }
        }
        None
    }

    /// Decides whether the job is in the pipeline. The implicit `only: [branches, tags]` does not apply if
    /// `has_workflow_rules` is true.
    pub(crate) fn job(
        &self,
        job: &JobEntry,
        has_workflow_rules: bool,
        scope: &Scope<'_>,
        decisions: &mut Vec<Decision>,
        problems: &mut Problems,
    ) -> RuleOutcome {
        if let Some(rules) = &job.rules {
            let Some(index) = self.first_match("rules", rules, scope, decisions, problems) else {
                decisions.push(self.trace.decision(DecisionKind::RuleNotMatched, "no rule matched", Some(job.span)));
                return RuleOutcome::Excluded;
            };
            let never = rules.get(index).is_some_and(|rule| rule.when == Some(RuleWhen::Never));
            return if never { RuleOutcome::Excluded } else { RuleOutcome::Included(Some(index)) };
        }
        let implicit = (!has_workflow_rules && job.only.is_none()).then(only::default_only);
        if let Some(only) = job.only.as_ref().or(implicit.as_ref())
            && !policy::includes(only, self.clauses, scope, problems)
        {
            let text = if job.only.is_some() {
                "`only` does not include the job"
            } else {
                "jobs with neither `rules` nor `only` run only in branch and tag pipelines"
            };
            decisions.push(self.trace.decision(DecisionKind::Only, text, only.span.or(Some(job.span))));
            return RuleOutcome::Excluded;
        }
        if let Some(except) = &job.except
            && policy::excludes(except, self.clauses, scope, problems)
        {
            decisions.push(self.trace.decision(DecisionKind::Except, "`except` excludes the job", except.span));
            return RuleOutcome::Excluded;
        }
        self.add_decision("`only` includes the job", DecisionKind::Only, job.only.as_ref(), decisions);
        self.add_decision("`except` does not exclude the job", DecisionKind::Except, job.except.as_ref(), decisions);
        RuleOutcome::Included(None)
    }

    fn add_decision(&self, text: &str, kind: DecisionKind, policy: Option<&RefPolicy>, decisions: &mut Vec<Decision>) {
        if let Some(policy) = policy {
            decisions.push(self.trace.decision(kind, text, policy.span));
        }
    }
}

pub(crate) fn when(job: &JobEntry, rule: Option<&Rule>) -> When {
    match rule.and_then(|rule| rule.when) {
        Some(RuleWhen::Run(when)) => when,
        Some(RuleWhen::Never) | None => job.when.unwrap_or_default(),
    }
}

/// Returns whether the job may fail. The rule's value takes precedence over the job's. If neither is set, a job that is
/// manual by its own `when` may fail. A job that only a rule makes manual may not fail, and therefore blocks the
/// pipeline.
pub(crate) fn allow_failure(job: &JobEntry, rule: Option<&Rule>) -> AllowFailure {
    let from_flag = |flag| if flag { AllowFailure::Yes } else { AllowFailure::No };
    let rule_value = rule.and_then(|rule| rule.allow_failure).map(from_flag);
    let job_value = || job.allow_failure.clone().unwrap_or_else(|| from_flag(job.when == Some(When::Manual)));
    rule_value.unwrap_or_else(job_value)
}
