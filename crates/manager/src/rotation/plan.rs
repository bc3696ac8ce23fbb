//! Decides when a token is renewed.

use std::sync::Arc;
use std::time::SystemTime;

use muster_config::settings::RunnerSettings;
use muster_job::short_token;

const DISABLED_FLAG: &str = "FF_DISABLE_AUTOMATIC_TOKEN_ROTATION";

#[derive(Debug)]
pub(super) enum Step {
    Renew(Arc<RunnerSettings>),
    /// The old token, which is still in the file.
    Save(String),
}

impl Step {
    pub(super) fn token(&self) -> &str {
        match self {
            Self::Renew(runner) => runner.token.expose(),
            Self::Save(token) => token,
        }
    }
}

/// Returns the time after three quarters of the lifetime. If the lifetime is unknown, this is a past time: the token is
/// renewed at once.
///
/// `None` means that the token does not expire.
pub(super) fn renewal_time(runner: &RunnerSettings) -> Option<SystemTime> {
    at_lifetime_percent(runner, 75)
}

/// Returns when the token is renewed even if the file cannot be saved.
///
/// A new token in memory is better than no valid token.
pub(super) fn renewal_deadline(runner: &RunnerSettings) -> Option<SystemTime> {
    at_lifetime_percent(runner, 95)
}

fn at_lifetime_percent(runner: &RunnerSettings, percent: u32) -> Option<SystemTime> {
    let (expires_at, obtained_at) = (runner.token_expires_at?, runner.token_obtained_at);
    let lifetime = obtained_at.and_then(|obtained_at| expires_at.duration_since(obtained_at).ok());
    Some(match (obtained_at, lifetime) {
        (Some(obtained_at), Some(lifetime)) => obtained_at + lifetime / 100 * percent,
        _ => SystemTime::UNIX_EPOCH,
    })
}

pub(super) fn is_rotation_disabled(runner: &RunnerSettings) -> bool {
    runner.feature_flags.get(DISABLED_FLAG) == Some(&true)
}

pub(super) fn warn_rotation_disabled(runner: &RunnerSettings) {
    tracing::warn!(
        code = "C028",
        runner = short_token(runner.token.expose()),
        runner_name = runner.name,
        "runner token expires soon and is not renewed because {DISABLED_FLAG} is set; renew it with reset-token"
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_job::Secret;

    use super::*;

    fn runner(obtained: Option<u64>, expires: Option<u64>) -> RunnerSettings {
        let at = |hours: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(hours * 3600);
        RunnerSettings {
            token_obtained_at: obtained.map(at),
            token_expires_at: expires.map(at),
            ..RunnerSettings::new("https://gitlab.example".parse().unwrap(), Secret::new("t"), 0)
        }
    }

    fn hours(at: Option<SystemTime>) -> Option<u64> {
        Some(at?.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 3600)
    }

    #[test]
    fn token_is_renewed_after_three_quarters_of_its_lifetime() {
        assert_eq!(hours(renewal_time(&runner(Some(100), Some(500)))), Some(400));
        assert_eq!(hours(renewal_deadline(&runner(Some(100), Some(500)))), Some(480));
    }

    #[test]
    fn token_without_expiry_is_never_renewed_and_token_of_unknown_lifetime_is_renewed_at_once() {
        assert_eq!(renewal_time(&runner(Some(100), None)), None);
        assert_eq!(hours(renewal_time(&runner(None, Some(500)))), Some(0));
        assert_eq!(
            hours(renewal_time(&runner(Some(500), Some(100)))),
            Some(0),
            "a token that expires before it was obtained has an unknown lifetime"
        );
    }
}
