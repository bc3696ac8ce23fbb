//! The lines before the first phase: who runs the job, and where (job-execution 1.9).

use muster_runner_api::payload::JobPayload;

use super::paths::short_token;
use super::variables::Variables;
use super::{Placement, flags};

pub(super) fn lines(payload: &JobPayload, placement: &Placement, variables: &Variables) -> Vec<String> {
    let mut lines = vec![format!("Running with muster {}", env!("CARGO_PKG_VERSION"))];
    let token = short_token(placement.runner.token.expose());
    if !token.is_empty() {
        lines.push(format!("  on {} {token}, system ID: {}", placement.runner.name, placement.runner.system_id));
    }
    let changed: Vec<String> = flags::all()
        .map(|(name, default)| (name, default, flags::is_on(variables, name)))
        .filter(|(_, default, on)| default != on)
        .map(|(name, _, on)| format!("{name}:{on}"))
        .collect();
    if !changed.is_empty() {
        lines.push(format!("  feature flags: {}", changed.join(", ")));
    }
    lines.push(format!("Using Shell ({}) executor...", placement.runner.shell));
    lines.push(format!("Running on {}...", placement.host_name));
    lines.extend(notice(payload, variables));
    lines
}

/// One notice where the job asks for containers: on this executor it runs on the host.
fn notice(payload: &JobPayload, variables: &Variables) -> Option<String> {
    let image = payload.image.as_ref().map(|image| variables.expand(&image.name)).filter(|name| !name.is_empty());
    let services = payload.services.len();
    let what = match (image, services) {
        (None, 0) => return None,
        (Some(image), 0) => format!("image `{image}` is"),
        (Some(image), _) => format!("image `{image}` and {services} service(s) are"),
        (None, _) => format!("{services} service(s) are"),
    };
    Some(format!("NOTE: the job's {what} not used: this executor runs jobs on the host itself."))
}
