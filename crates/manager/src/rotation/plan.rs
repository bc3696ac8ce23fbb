//! Decides when a token is renewed. Pure.

use std::sync::Arc;
use std::time::SystemTime;

use muster_config::settings::RunnerSettings;
use muster_job::short_token;

const DISABLED_FLAG: &str = "FF_DISABLE_AUTOMATIC_TOKEN_ROTATION";

/// A step of the rotation.
#[derive(Debug)]
pub(super) enum Step {
    /// Renew the runner's token, which has lived long enough.
    Renew(Arc<RunnerSettings>),
    /// Save the token that replaces this one, which is still in the file.
    Save(String),
}

impl Step {
    /// Returns the token of the step.
    pub(super) fn token(&self) -> &str {
        match self {
            Self::Renew(runner) => runner.token.expose(),
            Self::Save(token) => token,
        }
    }
}

/// Returns when the token is renewed: after three quarters of its life, or at once if its start is unknown.
///
/// `None` means that the token does not expire.
pub(super) fn due(runner: &RunnerSettings) -> Option<SystemTime> {
    part_of_life(runner, 75)
}

/// Returns when the token is renewed even if the file cannot be saved: it expires soon, and a runner with a token in memory is better
/// than a runner without one.
pub(super) fn renewal_deadline(runner: &RunnerSettings) -> Option<SystemTime> {
    part_of_life(runner, 95)
}

fn part_of_life(runner: &RunnerSettings, percent: u32) -> Option<SystemTime> {
    let (ends, began) = (runner.token_expires_at?, runner.token_obtained_at);
    let life = began.and_then(|began| ends.duration_since(began).ok());
    Some(match (began, life) {
        (Some(began), Some(life)) => began + life / 100 * percent,
        _ => SystemTime::UNIX_EPOCH,
    })
}

/// Returns whether the operator has disabled the renewal.
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

    fn runner(began: Option<u64>, ends: Option<u64>) -> RunnerSettings {
        let at = |hours: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(hours * 3600);
        RunnerSettings {
            token_obtained_at: began.map(at),
            token_expires_at: ends.map(at),
            ..RunnerSettings::new("https://gitlab.example".parse().unwrap(), Secret::new("t"), 0)
        }
    }

    fn hours(at: Option<SystemTime>) -> Option<u64> {
        Some(at?.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 3600)
    }

    #[test]
    fn token_is_due_after_three_quarters_of_its_life() {
        assert_eq!(hours(due(&runner(Some(100), Some(500)))), Some(400));
        assert_eq!(hours(renewal_deadline(&runner(Some(100), Some(500)))), Some(480));
    }

    #[test]
    fn token_without_expiry_is_never_due() {
        assert_eq!(due(&runner(Some(100), None)), None);
        assert_eq!(hours(due(&runner(None, Some(500)))), Some(0));
        assert_eq!(hours(due(&runner(Some(500), Some(100)))), Some(0), "it ended before it began");
    }
}
