//! Expands each parallel job into its instances (docs/spec/pipeline-yaml.md, section 1.7). An ordinary job is one instance.

use std::collections::HashMap;

use crate::config::Config;
use crate::config::job::JobEntry;
use crate::config::parallel::{self, Cell, Parallel};
use crate::config::size_budget::{SizeBudget, VALUE_BYTES};
use crate::diagnostic::Diagnostic;

use super::{ExpandedJob, MAX_JOBS, Problems};

const MAX_NAME: usize = 255;
const MAX_STAGES_LISTED: usize = 50;

/// Returns the instances of all jobs, ordered by stage, then as written. Reports an error and returns `None` if there
/// are too many instances, or if their total size is too large.
pub(crate) fn expand_all(config: &Config, problems: &mut Problems) -> Option<Vec<ExpandedJob>> {
    let stages: HashMap<&str, usize> =
        config.stages.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
    let mut order: Vec<(usize, usize)> = Vec::with_capacity(config.jobs.len());
    for (index, job) in config.jobs.iter().enumerate() {
        if let Some(&stage) = stages.get(job.stage.name.as_str()) {
            order.push((stage, index));
        } else {
            order.push((0, index));
            if !config.lacks_stages {
                report_unknown_stage(config, job, problems);
            }
        }
    }
    order.sort_unstable();
    let variables = config.variables.iter().map(|global| &global.variable);
    let variables_bytes: usize =
        variables.map(|variable| variable.key.len() + variable.value.len() + VALUE_BYTES).sum();
    let mut size_budget = SizeBudget::default();
    let mut all = Vec::with_capacity(order.len());
    for (stage, index) in order {
        let Some(job) = config.jobs.get(index) else { continue };
        let first = all.len();
        expand(job, index, stage, &mut all);
        if all.len() > MAX_JOBS {
            let message = format!("the pipeline has more than {MAX_JOBS} jobs");
            problems.push(Diagnostic::error(job.span, message).help("use smaller numbers in `parallel`"));
            return None;
        }
        let bytes = (all.len() - first).saturating_mul(job.bytes.saturating_add(variables_bytes));
        if !size_budget.add(bytes, job.span, problems) {
            return None;
        }
        let mut added = all.iter().skip(first);
        if let Some(long) = added.find(|instance: &&ExpandedJob| instance.name.chars().count() > MAX_NAME) {
            let message = format!("jobs:{} name is too long (maximum is {MAX_NAME} characters)", long.name);
            problems.push(Diagnostic::error(job.span, message));
        }
    }
    Some(all)
}

fn report_unknown_stage(config: &Config, job: &JobEntry, problems: &mut Problems) {
    let (listed, rest) = config.stages.split_at(config.stages.len().min(MAX_STAGES_LISTED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let message = format!(
        "{} job: chosen stage {} does not exist; available stages are {}{more}",
        job.name,
        job.stage.name,
        listed.join(", ")
    );
    let mut diagnostic = Diagnostic::error(job.stage.span, message);
    let known = config.stages.iter().map(String::as_str);
    let near = problems.may_suggest().then(|| crate::suggest::did_you_mean(&job.stage.name, known)).flatten();
    diagnostic.help = near.or_else(|| Some(format!("add `{}` to `stages`", job.stage.name)));
    problems.push(diagnostic);
}

fn expand(job: &JobEntry, index: usize, stage: usize, all: &mut Vec<ExpandedJob>) {
    let instance = |name: String, cell: Cell, node| ExpandedJob {
        job: index,
        stage,
        name,
        cell,
        node,
        needs: None,
        rule_needs: Vec::new(),
        dependencies: None,
    };
    match &job.parallel {
        None => all.push(instance(job.name.to_string(), Cell::new(), None)),
        Some(Parallel::Count(total)) => all.extend(
            (1..=*total)
                .map(|number| instance(format!("{} {number}/{total}", job.name), Cell::new(), Some((number, *total)))),
        ),
        Some(Parallel::Matrix(entries)) => {
            // Cells with equal values have equal names. The later cell replaces the earlier one.
            let cells: indexmap::IndexMap<String, Cell> =
                parallel::cells(entries).into_iter().map(|cell| (instance_name(&job.name, &cell), cell)).collect();
            let total = u32::try_from(cells.len()).unwrap_or(u32::MAX);
            let numbered = (1_u32..).zip(cells);
            all.extend(numbered.map(|(number, (name, cell))| instance(name, cell, Some((number, total)))));
        }
    }
}

/// Returns the full name of the instance for a cell of the matrix, such as `test: [linux, 1]`.
pub(super) fn instance_name(job: &str, cell: &Cell) -> String {
    let values: Vec<&str> = cell.iter().map(|(_, value)| value.as_str()).collect();
    format!("{job}: [{}]", values.join(", "))
}
