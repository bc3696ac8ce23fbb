//! Automatic retries of failed jobs (docs/spec/pipeline-yaml.md, section 5.6, and docs/spec/runner-api.md, section 4.3).

use muster_job::FailureReason as R;
use muster_pipeline::model::Retry;

pub(super) fn allowed_retries(retry: &Retry, reason: R, exit_code: Option<i32>) -> u32 {
    match reason {
        // A retry would fail for the same reason. A job that the runner reports as canceled did not fail.
        R::CiQuotaExceeded
        | R::NoMatchingRunner
        | R::MissingDependencyFailure
        | R::ForwardDeploymentFailure
        | R::EnvironmentCreationFailure
        | R::JobCanceled => 0,
        _ if configured(retry, reason, exit_code) => retry.max,
        R::SchedulerFailure => 2,
        _ => 0,
    }
}

fn configured(retry: &Retry, reason: R, exit_code: Option<i32>) -> bool {
    if retry.max == 0 {
        return false;
    }
    let any_reason = retry.always || retry.when.is_empty() && retry.exit_codes.is_empty();
    any_reason
        || retry.when.iter().any(|&listed| covers(listed, reason))
        || exit_code.is_some_and(|code| retry.exit_codes.contains(&code))
}

/// Returns whether a listed reason includes `reason`. Three listed reasons also include newer, more specific ones.
fn covers(listed: R, reason: R) -> bool {
    listed == reason
        || match listed {
            R::StuckOrTimeoutFailure => matches!(
                reason,
                R::StuckPendingWithMatchingRunners
                    | R::StuckPendingNoMatchingRunners
                    | R::NoUpdatesRunning
                    | R::NoUpdatesCanceling
            ),
            R::JobExecutionTimeout => matches!(reason, R::ServerTimeoutRunning | R::ServerTimeoutCanceling),
            R::ScriptFailure => reason == R::ImagePullFailure,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(max: u32, when: &[R], exit_codes: &[i32]) -> Retry {
        Retry { max, when: when.to_vec(), exit_codes: exit_codes.to_vec(), always: false }
    }

    #[test]
    fn number_of_retries_depends_on_settings_reason_and_exit_code() {
        let cases = [
            (retry(0, &[], &[]), R::ScriptFailure, Some(1), 0),
            (retry(0, &[], &[]), R::SchedulerFailure, None, 2),
            (retry(1, &[], &[]), R::SchedulerFailure, None, 1),
            (retry(1, &[R::ScriptFailure], &[]), R::SchedulerFailure, None, 2),
            (retry(2, &[], &[]), R::RunnerSystemFailure, None, 2),
            (retry(2, &[], &[]), R::MissingDependencyFailure, None, 0),
            (retry(2, &[], &[]), R::JobCanceled, None, 0),
            (retry(1, &[R::RunnerSystemFailure], &[]), R::ScriptFailure, Some(1), 0),
            (retry(1, &[], &[137]), R::ScriptFailure, Some(137), 1),
            (retry(1, &[], &[137]), R::ScriptFailure, Some(1), 0),
            (retry(1, &[], &[137]), R::RunnerSystemFailure, None, 0),
            (retry(2, &[R::RunnerSystemFailure], &[137]), R::ScriptFailure, Some(137), 2),
            (retry(2, &[R::RunnerSystemFailure], &[137]), R::RunnerSystemFailure, None, 2),
            (retry(1, &[R::StuckOrTimeoutFailure], &[]), R::NoUpdatesRunning, None, 1),
            (retry(1, &[R::JobExecutionTimeout], &[]), R::ServerTimeoutRunning, None, 1),
            (retry(1, &[R::ScriptFailure], &[]), R::ImagePullFailure, None, 1),
        ];
        for (configured, reason, exit_code, expected) in cases {
            assert_eq!(allowed_retries(&configured, reason, exit_code), expected, "{configured:?} {reason}");
        }
        let always = Retry { always: true, ..retry(1, &[], &[137]) };
        assert_eq!(allowed_retries(&always, R::UnknownFailure, None), 1);
    }
}
