//! Resolves needs after rules have been evaluated (docs/spec/pipeline-yaml.md, section 1.4).

use std::collections::HashMap;

use crate::config::Config;
use crate::config::needs::{NeedTarget, Needs};
use crate::config::parsing::Problems;
use crate::diagnostic::Diagnostic;
use crate::graph::{ExpandedJob, Graph, Link, cycle_error, find_cycle};
use crate::model::{Decision, DecisionKind, ExcludedJob, Job, Need};
use crate::seed::decision_trace::DecisionTrace;
use crate::seed::job::Seeded;

/// Returns the jobs in the pipeline, and the excluded jobs. Reports each need whose job was excluded, unless the need
/// is optional or includes were skipped.
pub(crate) fn resolve(
    config: &Config,
    graph: &Graph,
    trace: &DecisionTrace<'_>,
    seeded: Vec<Seeded>,
    problems: &mut Problems,
) -> (Vec<Job>, Vec<ExcludedJob>) {
    let included: Vec<bool> = seeded.iter().map(|seeded| matches!(seeded, Seeded::Included { .. })).collect();
    let resolver = Resolver { config, graph, trace, included };
    resolver.check_cycles(&seeded, problems);
    let mut jobs = Vec::with_capacity(seeded.len());
    let mut excluded = Vec::new();
    for (seeded, instance) in seeded.into_iter().zip(&graph.instances) {
        match seeded {
            Seeded::Included { mut job, rule } => {
                job.needs = resolver.needs(instance, rule, &mut job.decisions, problems);
                job.dependencies = resolver.dependencies(instance);
                jobs.push(*job);
            }
            Seeded::Excluded(job) => excluded.push(job),
        }
    }
    (jobs, excluded)
}

struct Resolver<'a> {
    config: &'a Config,
    graph: &'a Graph,
    trace: &'a DecisionTrace<'a>,
    included: Vec<bool>,
}

impl Resolver<'_> {
    fn is_included(&self, index: usize) -> bool {
        self.included.get(index).copied().unwrap_or(false)
    }

    fn name(&self, index: usize) -> &str {
        self.graph.instances.get(index).map_or("", |instance| &instance.name)
    }

    /// Returns the needs of the matched rule or, if it has none, of the job: the entries as written, and the links that
    /// they resolve to.
    fn effective_needs<'s>(
        &'s self,
        instance: &'s ExpandedJob,
        rule: Option<usize>,
    ) -> (Option<&'s Needs>, Option<&'s [Link]>) {
        let Some(entry) = self.config.jobs.get(instance.job) else { return (None, None) };
        let rule_needs = rule.and_then(|index| {
            let needs = entry.rules.as_ref()?.get(index)?.needs.as_ref()?;
            Some((needs, instance.rule_needs.get(index)?.as_deref()?))
        });
        match rule_needs {
            Some((needs, links)) => (Some(needs), Some(links)),
            None => (entry.needs.as_ref(), instance.needs.as_deref()),
        }
    }

    fn needs(
        &self,
        instance: &ExpandedJob,
        rule: Option<usize>,
        decisions: &mut Vec<Decision>,
        problems: &mut Problems,
    ) -> Option<Vec<Need>> {
        let (entries, links) = self.effective_needs(instance, rule);
        let mut needs = Vec::new();
        for link in links? {
            let name = self.name(link.to);
            if self.is_included(link.to) {
                let name = name.to_owned();
                needs.push(Need::Job { name, artifacts: link.artifacts, optional: link.optional });
            } else if link.optional || self.config.includes_were_skipped {
                let text = format!("the need for `{name}` was dropped: that job is not in the pipeline");
                decisions.push(self.trace.decision(DecisionKind::Needs, text, Some(link.span)));
            } else {
                problems.push(self.excluded_need_error(instance, link));
            }
        }
        needs.extend(entries.into_iter().flat_map(external_needs));
        Some(needs)
    }

    fn excluded_need_error(&self, instance: &ExpandedJob, link: &Link) -> Diagnostic {
        let name = self.name(link.to);
        let message = format!(
            "'{}' job needs '{name}' job, but '{name}' does not exist in the pipeline: its rules exclude it",
            instance.name
        );
        let mut diagnostic = Diagnostic::error(link.span, message)
            .help("use `{job: ..., optional: true}` if the job may be missing, or give both jobs the same rules");
        if let Some(entry) = self.graph.entry(self.config, link.to) {
            diagnostic = diagnostic.related(entry.span, format!("`{name}` is defined here"));
        }
        diagnostic
    }

    fn dependencies(&self, instance: &ExpandedJob) -> Option<Vec<String>> {
        let dependencies = instance.dependencies.as_deref()?;
        let included = dependencies.iter().filter(|&&index| self.is_included(index));
        Some(included.map(|&index| self.name(index).to_owned()).collect())
    }

    /// Checks for cycles again, because needs of rules can add links that the needs of jobs do not have.
    fn check_cycles(&self, seeded: &[Seeded], problems: &mut Problems) {
        let rules: HashMap<usize, usize> = seeded
            .iter()
            .enumerate()
            .filter_map(|(index, seeded)| match seeded {
                Seeded::Included { rule: Some(rule), .. } => Some((index, *rule)),
                _ => None,
            })
            .collect();
        let links = |index: usize| {
            let instance = self.graph.instances.get(index);
            let links = instance.and_then(|instance| self.effective_needs(instance, rules.get(&index).copied()).1);
            links.unwrap_or_default().iter().map(|link| link.to)
        };
        if let Some(cycle) = find_cycle(self.graph.instances.len(), links) {
            let names: Vec<&str> = cycle.iter().map(|&index| self.name(index)).collect();
            let span = cycle.first().and_then(|&index| self.graph.entry(self.config, index)).map(|entry| entry.span);
            problems.push(cycle_error(span, &names));
        }
    }
}

fn external_needs(needs: &Needs) -> impl Iterator<Item = Need> {
    needs.entries.iter().filter_map(|entry| match &entry.target {
        NeedTarget::Project { project, job, git_ref } => Some(Need::Project {
            project: project.clone(),
            job: job.clone(),
            git_ref: git_ref.clone(),
            artifacts: entry.artifacts,
        }),
        NeedTarget::Pipeline { pipeline, job } => {
            Some(Need::Pipeline { pipeline: pipeline.clone(), job: job.clone(), artifacts: entry.artifacts })
        }
        NeedTarget::Job { .. } | NeedTarget::Mirror { .. } => None,
    })
}
