//! Resolves the names in `needs`, `dependencies` and `trigger:include:job` (docs/spec/pipeline-yaml.md, section 1.4).

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::config::Config;
use crate::config::job::{JobEntry, WorkEntry};
use crate::config::needs::{NameEntry, NeedEntry, NeedTarget, Needs};
use crate::config::parallel::{self, Cell, MatrixEntry};
use crate::diagnostic::Diagnostic;
use crate::node::Span;

use super::parallel_jobs::instance_name;
use super::{ExpandedJob, Link, MAX_LINKS, Names, Problems};

/// Number of errors after which the remaining jobs are not checked.
const MAX_ERRORS: usize = 10_000;

/// Resolves the links of all instances.
///
/// # Errors
/// Stops early and returns an error, which the caller must report, if there are too many links or too many errors.
pub(crate) fn link(
    config: &Config,
    instances: &mut [ExpandedJob],
    names: &Names<'_>,
    problems: &mut Problems,
) -> Result<(), Box<Diagnostic>> {
    let mut total = 0_usize;
    for job in &config.jobs {
        let Some(group) = names.by_job_name.get(&*job.name).cloned() else { continue };
        let linked = {
            let linker = Linker { config, instances, names, job, group: group.clone() };
            linker.links_of_job(problems)
        };
        for (index, links) in group.clone().zip(linked) {
            total += links.count();
            if let Some(instance) = instances.get_mut(index) {
                instance.needs = links.needs;
                instance.rule_needs = links.rule_needs;
                instance.dependencies = links.dependencies;
            }
        }
        if problems.error_count() > MAX_ERRORS {
            let message =
                format!("the configuration has more than {MAX_ERRORS} errors; the other jobs are not checked");
            return Err(Diagnostic::error(job.span, message).help("correct the first errors").into());
        }
        if total > MAX_LINKS {
            let message = format!("the jobs have more than {MAX_LINKS} `needs` and `dependencies` in total");
            let help = "combine the results of a parallel job in one job";
            return Err(Diagnostic::error(job.span, message).help(help).into());
        }
    }
    Ok(())
}

#[derive(Debug, Default, Clone)]
struct Links {
    needs: Option<Arc<[Link]>>,
    rule_needs: Vec<Option<Arc<[Link]>>>,
    dependencies: Option<Arc<[usize]>>,
}

impl Links {
    fn count(&self) -> usize {
        let rules: usize = self.rule_needs.iter().flatten().map(|links| links.len()).sum();
        rules + self.needs.as_ref().map_or(0, |links| links.len()) + self.dependencies.as_ref().map_or(0, |d| d.len())
    }
}

struct Linker<'a> {
    config: &'a Config,
    instances: &'a [ExpandedJob],
    names: &'a Names<'a>,
    job: &'a JobEntry,
    group: Range<usize>,
}

impl Linker<'_> {
    fn links_of_job(&self, problems: &mut Problems) -> Vec<Links> {
        let rules = self.job.rules.as_deref().unwrap_or_default();
        let rule_needs = rules.iter().map(|rule| rule.needs.as_ref());
        let lists: Vec<Option<&Needs>> = std::iter::once(self.job.needs.as_ref()).chain(rule_needs).collect();
        let dependencies = self.resolve_dependencies(problems);
        self.check_producers(problems);
        let instances = self.instances.get(self.group.clone()).unwrap_or_default();
        if !lists.iter().flatten().any(|needs| uses_matrix(needs)) {
            // All instances have the same links.
            let links = self.links(&lists, &dependencies, instances.first().map(|instance| &instance.cell), problems);
            return vec![links; instances.len()];
        }
        instances.iter().map(|instance| self.links(&lists, &dependencies, Some(&instance.cell), problems)).collect()
    }

    fn links(
        &self,
        lists: &[Option<&Needs>],
        dependencies: &Option<Arc<[usize]>>,
        cell: Option<&Cell>,
        problems: &mut Problems,
    ) -> Links {
        let mut all = lists.iter().map(|needs| needs.map(|needs| self.resolve_needs(needs, cell, problems)));
        let needs = all.next().flatten();
        Links { needs, rule_needs: all.collect(), dependencies: dependencies.clone() }
    }

    fn resolve_needs(&self, needs: &Needs, cell: Option<&Cell>, problems: &mut Problems) -> Arc<[Link]> {
        let mut links = Vec::new();
        let mut seen = HashSet::new();
        let mut repeated: Vec<&str> = Vec::new();
        for entry in &needs.entries {
            let NeedTarget::Job { name, optional, matrix } = &entry.target else { continue };
            for to in self.resolve_need(entry, name, *optional, matrix.as_deref(), cell, problems) {
                if seen.insert(to) {
                    links.push(Link { to, artifacts: entry.artifacts, optional: *optional, span: entry.span });
                } else if !repeated.contains(&name.as_str()) {
                    repeated.push(name);
                }
            }
        }
        if !repeated.is_empty() {
            let message = format!("{} has the following needs duplicated: {}.", self.job.name, repeated.join(", "));
            problems.push(Diagnostic::error(needs.span, message).help("list each job once"));
        }
        links.into()
    }

    fn resolve_need(
        &self,
        entry: &NeedEntry,
        name: &str,
        optional: bool,
        matrix: Option<&[MatrixEntry]>,
        cell: Option<&Cell>,
        problems: &mut Problems,
    ) -> Vec<usize> {
        if self.config.broken.contains(name) {
            return Vec::new();
        }
        let Some(range) = self.names.find(name) else {
            if !optional {
                let message = format!("{} job: undefined need: {name}", self.job.name);
                self.report_undefined(message, name, entry.span, problems);
            }
            return Vec::new();
        };
        if !self.is_early_enough(&range) {
            let message = format!("{} job: need {name} is not defined in current or prior stages", self.job.name);
            problems.push(self.later_stage_error(message, &range, entry.span));
            return Vec::new();
        }
        // If this job has errors, its own cell may be missing, so `$[[ matrix.X ]]` cannot be replaced. The need then
        // refers to all instances of the needed job.
        let Some(matrix) = matrix.filter(|_| !self.job.is_broken) else { return range.collect() };
        let cell = cell.filter(|cell| !cell.is_empty());
        match replace_matrix_blocks(matrix, cell) {
            Ok(matrix) => self.instances_of_cells(entry, name, optional, &matrix, range, problems),
            Err(message) => {
                problems.push(Diagnostic::error(entry.span, format!("{} job: need {name}: {message}", self.job.name)));
                Vec::new()
            }
        }
    }

    fn instances_of_cells(
        &self,
        entry: &NeedEntry,
        name: &str,
        optional: bool,
        matrix: &[MatrixEntry],
        range: Range<usize>,
        problems: &mut Problems,
    ) -> Vec<usize> {
        let mut found = Vec::new();
        for cell in parallel::cells(matrix) {
            let index = self.names.by_full_name.get(&instance_name(name, &cell)).copied().filter(|index| {
                range.contains(index) && self.instances.get(*index).is_some_and(|instance| instance.cell == cell)
            });
            if let Some(index) = index {
                found.push(index);
            } else if !optional {
                problems.push(self.undefined_cell_error(entry.span, name, &cell, &range));
            }
        }
        found
    }

    fn undefined_cell_error(&self, span: Span, name: &str, cell: &Cell, range: &Range<usize>) -> Diagnostic {
        let values: Vec<&str> = cell.iter().map(|(_, value)| value.as_str()).collect();
        let message = format!("{} job: undefined need: {name}: [{}]", self.job.name, values.join(", "));
        let first_cell = self.instances.get(range.start).map(|instance| instance.cell.as_slice()).unwrap_or_default();
        let order: Vec<&str> = first_cell.iter().map(|(identifier, _)| identifier.as_str()).collect();
        let help = if order.is_empty() {
            format!("`{name}` has no `parallel:matrix`")
        } else {
            format!("use the values of `{name}`, with the identifiers in this order: {}", order.join(", "))
        };
        Diagnostic::error(span, message).help(help)
    }

    /// Resolves `dependencies`. Each must be in the same or an earlier stage. If `needs` is not empty, it must contain
    /// each of them.
    fn resolve_dependencies(&self, problems: &mut Problems) -> Option<Arc<[usize]>> {
        let dependencies = self.job.dependencies.as_ref()?;
        let mut all = Vec::new();
        for dependency in dependencies {
            all.extend(self.resolve_dependency(dependency, problems).into_iter().flatten());
        }
        let needs = self.job.needs.as_ref().filter(|needs| !needs.entries.is_empty() && !self.job.is_broken);
        if let Some(needs) = needs {
            let needed: HashSet<&str> = needs
                .entries
                .iter()
                .filter_map(|entry| match &entry.target {
                    NeedTarget::Job { name, .. } => Some(name.as_str()),
                    _ => None,
                })
                .collect();
            for missing in dependencies.iter().filter(|dependency| !needed.contains(dependency.name.as_str())) {
                let message =
                    format!("{} job: dependencies the {} should be part of needs", self.job.name, missing.name);
                let help = format!("add `{}` to `needs`, or remove it from `dependencies`", missing.name);
                problems.push(Diagnostic::error(missing.span, message).help(help));
            }
        }
        Some(all.into())
    }

    fn check_producers(&self, problems: &mut Problems) {
        if let WorkEntry::Bridge(bridge) = &self.job.work {
            for producer in &bridge.producers {
                let _ = self.resolve_dependency(producer, problems);
            }
        }
    }

    fn resolve_dependency(&self, entry: &NameEntry, problems: &mut Problems) -> Option<Range<usize>> {
        let name = &entry.name;
        if self.config.broken.contains(name.as_str()) {
            return None;
        }
        let Some(range) = self.names.find(name) else {
            let message = format!("{} job: undefined dependency: {name}", self.job.name);
            self.report_undefined(message, name, entry.span, problems);
            return None;
        };
        if !self.is_early_enough(&range) {
            let message = format!("{} job: dependency {name} is not defined in current or prior stages", self.job.name);
            problems.push(self.later_stage_error(message, &range, entry.span));
            return None;
        }
        Some(range)
    }

    /// Returns true if the job with the instances `range` is in the same stage as this job or in an earlier one. Also
    /// true if one of the stages does not exist, because that error has been reported.
    fn is_early_enough(&self, range: &Range<usize>) -> bool {
        let stage = |index: usize| {
            let instance = self.instances.get(index)?;
            let job = self.config.jobs.get(instance.job)?;
            self.names.stages.contains(job.stage.name.as_str()).then_some(instance.stage)
        };
        match (stage(range.start), stage(self.group.start)) {
            (Some(other), Some(this)) => other <= this,
            _ => true,
        }
    }

    fn report_undefined(&self, message: String, name: &str, span: Span, problems: &mut Problems) {
        let mut diagnostic = Diagnostic::error(span, message);
        if problems.may_suggest() {
            diagnostic.help = crate::suggest::did_you_mean(name, self.config.jobs.iter().map(|job| &*job.name));
        }
        problems.push(diagnostic);
    }

    fn later_stage_error(&self, message: String, range: &Range<usize>, span: Span) -> Diagnostic {
        let other = self.instances.get(range.start).and_then(|instance| self.config.jobs.get(instance.job));
        let diagnostic = Diagnostic::error(span, message);
        match other {
            Some(other) => {
                let label = format!("`{}` is in stage `{}`, which is later", other.name, other.stage.name);
                diagnostic.related(other.stage.span, label)
            }
            None => diagnostic,
        }
    }
}

fn uses_matrix(needs: &Needs) -> bool {
    needs.entries.iter().any(|entry| matches!(&entry.target, NeedTarget::Job { matrix: Some(_), .. }))
}

/// Replaces `$[[ matrix.<identifier> ]]` in the values of a need's matrix with the values of `cell`, the cell of the
/// job that has the need.
fn replace_matrix_blocks(matrix: &[MatrixEntry], cell: Option<&Cell>) -> Result<Vec<MatrixEntry>, String> {
    let value = |value: &String| replace_blocks(value, cell);
    let list = |(name, values): &(String, Vec<String>)| {
        Ok((name.clone(), values.iter().map(value).collect::<Result<Vec<_>, String>>()?))
    };
    matrix.iter().map(|entry| entry.iter().map(list).collect()).collect()
}

fn replace_blocks(text: &str, cell: Option<&Cell>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, block)) = rest.split_once("$[[") {
        let Some((inner, after)) = block.split_once("]]") else { break };
        let Some(identifier) = inner.trim().strip_prefix("matrix.") else {
            return Err(format!("unknown block `$[[{inner}]]`: only `matrix.<identifier>` can be used here"));
        };
        let Some(cell) = cell else {
            return Err(format!("`$[[{inner}]]` can be used only in a job with `parallel:matrix`"));
        };
        let Some((_, value)) = cell.iter().find(|(name, _)| name == identifier) else {
            return Err(format!("`{identifier}` is not an identifier of this job's matrix"));
        };
        out.push_str(before);
        out.push_str(value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}
