//! Keys that are not in the schema: removed, misplaced or misspelled (checks C010, C011, C018).

use std::ops::Range;

use super::problem::{Problem, Problems, shown_name};
use super::schema::{parent, schema};

/// Path of the table that the text of [`parse_scaling`](super::parse_scaling) stands for.
pub(super) const SCALING_TABLE: &str = "runners.autoscaler";

/// Name, version of the removal, and replacement.
const REMOVED: &[(&str, &str, &str)] = &[
    ("metrics_server", "12.0", "listen_address"),
    ("prometheus_server_address", "12.0", "listen_address"),
    ("pre_clone_script", "17.0", "pre_get_sources_script"),
    ("post_clone_script", "17.0", "post_get_sources_script"),
    ("terminationGracePeriodSeconds", "17.0", "pod_termination_grace_period_seconds"),
    ("metric_queries", "12.7", "queries"),
];

/// Reports an unknown key. `strict` means that the text has only the keys of [`SCALING_TABLE`], and that an unknown key
/// is an error instead of being ignored.
pub(super) fn report(problems: &mut Problems, path: &str, name: &str, span: &Range<usize>, strict: bool) {
    let shown = shown_name(name);
    if problems.is_full() {
        return problems.add(Problem::new("C010", String::new()));
    }
    let ignored = if strict { "" } else { "; the value is ignored" };
    if let Some((_, version, new)) = REMOVED.iter().find(|(removed, ..)| removed.eq_ignore_ascii_case(name)) {
        let message = format!("`{shown}` was removed in GitLab Runner {version}{ignored}");
        return problems.add(Problem::new("C011", message).at(span).help(format!("use `{new}`")));
    }
    if let Some(owner) = enclosing_table(path, name).filter(|owner| !strict || owner.starts_with(SCALING_TABLE)) {
        let message = format!("`{shown}` belongs to {} but was read in {}{ignored}", header(owner), header(path));
        let help = format!("TOML assigns it to the last header above it: move the line above {}", header(path));
        return problems.add(Problem::new("C018", message).at(span).help(help));
    }
    let full = if path.is_empty() { shown } else { format!("{path}.{shown}") };
    let effect = if strict { "" } else { " is ignored" };
    let problem = Problem::new("C010", format!("unknown key `{full}`{effect}")).at(span);
    problems.add(match likely_name(path, name) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => match only_other_table(name) {
            Some(table) => problem.help(format!("a key with this name exists in {}", header(&table))),
            None => problem,
        },
    });
}

/// Returns the innermost table around `path` that has this entry.
fn enclosing_table<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let mut path = path;
    while !path.is_empty() {
        path = parent(path);
        if schema().find(path, name).is_some() {
            return Some(path);
        }
    }
    None
}

/// Returns the table with this key. `None` if no table or several tables have it.
fn only_other_table(name: &str) -> Option<String> {
    let mut tables =
        schema().tables().iter().filter(|table| table.keys.iter().any(|key| key.name.eq_ignore_ascii_case(name)));
    let table = tables.next()?;
    tables.next().is_none().then(|| table.path.clone())
}

pub(super) fn likely_name(path: &str, name: &str) -> Option<&'static str> {
    const MAX_LENGTH: usize = 80;
    if name.len() > MAX_LENGTH {
        return None;
    }
    let name = name.to_lowercase();
    let distance = |known: &str| strsim::osa_distance(&known.to_lowercase(), &name);
    let near = schema().entries(path).map(|entry| (distance(entry.name()), entry.name())).min()?;
    (near.0 <= 1.max(near.1.len().min(name.len()) / 3)).then_some(near.1)
}

pub(super) fn header(path: &str) -> String {
    match schema().table(path) {
        _ if path.is_empty() => "the global section".to_owned(),
        Some(table) if table.array => format!("[[{path}]]"),
        _ => format!("[{path}]"),
    }
}
