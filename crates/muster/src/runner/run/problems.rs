use std::collections::BTreeSet;
use std::path::Path;

use muster_config::{Problem, Severity};

/// Logs the problems in their order, each only once.
pub(super) fn log(problems: &[Problem], path: &Path) {
    let mut logged = BTreeSet::new();
    for problem in problems {
        let (runner, name) = match &problem.runner {
            Some((index, name)) => (Some(index + 1), Some(name.as_str())),
            None => (None, None),
        };
        if !logged.insert((problem.code, runner, &problem.message)) {
            continue;
        }
        let location = problem.location.as_ref().map(|at| format!("{}:{}:{}", path.display(), at.line, at.column));
        let (code, help) = (problem.code, problem.help.as_deref());
        let message = &problem.message;
        match problem.severity {
            Severity::Fatal | Severity::Error => {
                tracing::error!(code, runner_entry = runner, runner_name = name, location, help, "{message}");
            }
            Severity::Warning => {
                tracing::warn!(code, runner_entry = runner, runner_name = name, location, help, "{message}");
            }
            Severity::Info => {
                tracing::info!(code, runner_entry = runner, runner_name = name, location, help, "{message}");
            }
        }
    }
}
