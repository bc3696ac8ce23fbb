//! Log lines about the answers to job requests.

use muster_config::settings::RunnerSettings;
use muster_job::without_user_info;
use muster_runner_api::client::ClientError;

use crate::admission::Notice;

pub(super) fn log_poll_result(runner: &RunnerSettings, notice: Notice, error: Option<&ClientError>) {
    let (name, url) = (runner.name.as_str(), without_user_info(runner.url.as_str()));
    let remedy = match error {
        Some(ClientError::Forbidden { code: 404 | 410, .. }) => "its url has no runner API; fix the url",
        _ => "its token is not valid or was revoked; register the runner again, or delete its entry",
    };
    let error = error.map(ToString::to_string).unwrap_or_default();
    match notice {
        Notice::Failed { failures, wait } => {
            let wait_ms = muster_job::milliseconds(wait);
            tracing::warn!(runner = name, url, error, failures, wait_ms, "job request failed, retrying");
        }
        Notice::Refused { refusals, wait, unhealthy: false } => {
            tracing::warn!(
                runner = name,
                url,
                error,
                refusals,
                wait_ms = muster_job::milliseconds(wait),
                "job request refused"
            );
        }
        Notice::Refused { refusals, wait, unhealthy: true } => tracing::error!(
            runner = name,
            url,
            error,
            refusals,
            next_probe_s = wait.as_secs(),
            "runner is unhealthy, probing it: {remedy}"
        ),
        Notice::Recovered { failures } => {
            tracing::info!(runner = name, url, failures, "job requests succeed again");
        }
    }
}
