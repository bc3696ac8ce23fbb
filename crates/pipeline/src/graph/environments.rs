//! Checks `environment:on_stop` (docs/spec/pipeline-yaml.md, section 1.8).

use std::collections::HashMap;

use crate::config::Config;
use crate::config::job::JobEntry;
use crate::diagnostic::Diagnostic;

use super::Problems;

pub(crate) fn check(config: &Config, problems: &mut Problems) {
    let jobs: HashMap<&str, &JobEntry> = config.jobs.iter().map(|job| (&*job.name, job)).collect();
    for job in &config.jobs {
        let Some(entry) = &job.environment else { continue };
        let Some(on_stop) = &entry.environment.on_stop else { continue };
        if config.broken.contains(on_stop.as_str()) {
            continue;
        }
        let stop = jobs.get(on_stop.as_str());
        let environment = stop.and_then(|job| job.environment.as_ref());
        let reason = match (stop, environment) {
            (None, _) => "is not defined",
            (Some(_), None) => "does not have environment defined",
            (_, Some(other)) if other.environment.name != entry.environment.name => "have different environment name",
            (_, Some(other)) if other.environment.action != "stop" => "needs to have action stop defined",
            _ => continue,
        };
        let message = format!("{} job: on_stop job {on_stop} {reason}", job.name);
        let mut diagnostic = Diagnostic::error(entry.on_stop_span, message);
        if let Some(stop) = stop {
            let span = stop.environment.as_ref().map_or(stop.span, |environment| environment.span);
            diagnostic = diagnostic.related(span, format!("`{on_stop}` is defined here"));
        } else if problems.may_suggest() {
            diagnostic.help = crate::suggest::did_you_mean(on_stop, jobs.keys().copied());
        }
        problems.push(diagnostic);
    }
}
