//! Why a job ended before its time, and the one function that maps it to GitLab's failure reason.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// GitLab's failure reasons, as they stand on the wire and in `retry:when` (runner-api 4.3).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum FailureReason {
            $($(#[$doc])* $variant,)+
        }

        impl FailureReason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The wire name.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The reason of a wire name; an unknown name is [`FailureReason::UnknownFailure`], an empty one
            /// [`FailureReason::ScriptFailure`].
            #[must_use]
            pub fn from_wire(name: &str) -> Self {
                match name {
                    "" => Self::ScriptFailure,
                    $($name => Self::$variant,)+
                    _ => Self::UnknownFailure,
                }
            }
        }
    };
}

reasons! {
    /// Nothing better is known.
    UnknownFailure = "unknown_failure",
    /// The user's script ended with a status other than 0.
    ScriptFailure = "script_failure",
    /// The coordinator's API failed.
    ApiFailure = "api_failure",
    /// Old name of the four `stuck_*` and `no_updates_*` reasons.
    StuckOrTimeoutFailure = "stuck_or_timeout_failure",
    /// The runner or the job's environment failed, not the script.
    RunnerSystemFailure = "runner_system_failure",
    /// An artifact that the job lists is gone.
    MissingDependencyFailure = "missing_dependency_failure",
    /// The runner lacks a feature that the job needs.
    RunnerUnsupported = "runner_unsupported",
    /// A delayed job's time was missed.
    StaleSchedule = "stale_schedule",
    /// The job ran into its timeout.
    JobExecutionTimeout = "job_execution_timeout",
    /// The job is archived.
    ArchivedFailure = "archived_failure",
    /// Prerequisites could not be met.
    UnmetPrerequisites = "unmet_prerequisites",
    /// The coordinator could not schedule the job.
    SchedulerFailure = "scheduler_failure",
    /// The job's stored data is damaged.
    DataIntegrityFailure = "data_integrity_failure",
    /// An older deployment than the newest.
    ForwardDeploymentFailure = "forward_deployment_failure",
    /// Quota used up.
    CiQuotaExceeded = "ci_quota_exceeded",
    /// No runner fits.
    NoMatchingRunner = "no_matching_runner",
    /// The log is larger than allowed.
    TraceSizeExceeded = "trace_size_exceeded",
    /// The environment could not be created.
    EnvironmentCreationFailure = "environment_creation_failure",
    /// Pending too long although a runner fits.
    StuckPendingWithMatchingRunners = "stuck_pending_with_matching_runners",
    /// Pending too long and no runner fits.
    StuckPendingNoMatchingRunners = "stuck_pending_no_matching_runners",
    /// Running without a sign of life.
    NoUpdatesRunning = "no_updates_running",
    /// Canceling without a sign of life.
    NoUpdatesCanceling = "no_updates_canceling",
    /// Past its timeout by the server's clock.
    ServerTimeoutRunning = "server_timeout_running",
    /// Past its timeout by the server's clock while canceling.
    ServerTimeoutCanceling = "server_timeout_canceling",
    /// The runner's configuration is at fault.
    RunnerConfigurationError = "runner_configuration_error",
    /// Something that the runner depends on is out of reach.
    RunnerExternalDependencyFailure = "runner_external_dependency_failure",
    /// The manager was told to stop.
    RunnerInterrupted = "runner_interrupted",
    /// An image could not be pulled.
    ImagePullFailure = "image_pull_failure",
    /// The job was canceled (a runner's word; GitLab maps it to `unknown_failure`).
    JobCanceled = "job_canceled",
    /// The job's token ran out.
    JobTokenExpired = "job_token_expired",
    /// A bridge's child could not be created.
    DownstreamPipelineCreationFailed = "downstream_pipeline_creation_failed",
    /// Child pipelines nested too deep.
    ReachedMaxDescendantPipelinesDepth = "reached_max_descendant_pipelines_depth",
    /// A bridge's project is unknown.
    DownstreamBridgeProjectNotFound = "downstream_bridge_project_not_found",
    /// The child's rules left no job.
    DownstreamProjectTriggerResolvedToEmpty = "downstream_project_trigger_resolved_to_empty",
}

impl std::fmt::Display for FailureReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What ended a job early, carried through all layers (life-of-a-job, "Recovery").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// A person canceled it.
    CanceledByUser,
    /// Its timeout passed.
    TimedOut,
    /// Its environment went away.
    EnvironmentLost,
    /// Disk, memory or another limit was used up.
    ResourceExhausted,
    /// A policy does not allow it.
    PolicyRefused,
    /// The manager drained past its limit.
    ManagerDraining,
}

impl From<EndCause> for FailureReason {
    fn from(cause: EndCause) -> Self {
        match cause {
            EndCause::CanceledByUser => Self::JobCanceled,
            EndCause::TimedOut => Self::JobExecutionTimeout,
            EndCause::EnvironmentLost | EndCause::ResourceExhausted => Self::RunnerSystemFailure,
            EndCause::PolicyRefused => Self::RunnerConfigurationError,
            EndCause::ManagerDraining => Self::RunnerInterrupted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_round_trip() {
        for reason in FailureReason::ALL {
            assert_eq!(FailureReason::from_wire(reason.as_str()), *reason);
        }
        assert_eq!(FailureReason::from_wire(""), FailureReason::ScriptFailure);
        assert_eq!(FailureReason::from_wire("from_the_future"), FailureReason::UnknownFailure);
    }
}
