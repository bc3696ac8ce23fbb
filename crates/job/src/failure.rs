//! Causes of termination, and their mapping to GitLab's failure reasons.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// GitLab's failure reasons (docs/spec/runner-api.md, section 4.3).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum FailureReason {
            $($(#[$doc])* $variant,)+
        }

        impl FailureReason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name in the API.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the reason with this name: [`FailureReason::ScriptFailure`] for an empty one, [`FailureReason::UnknownFailure`] for
            /// an unknown one.
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
    /// The reason is unknown.
    UnknownFailure = "unknown_failure",
    /// The user's script exited with a status other than 0.
    ScriptFailure = "script_failure",
    /// A call of the coordinator's API failed.
    ApiFailure = "api_failure",
    /// Former name of the `stuck_*` and `no_updates_*` reasons.
    StuckOrTimeoutFailure = "stuck_or_timeout_failure",
    /// The runner or the environment of the job failed, not the script.
    RunnerSystemFailure = "runner_system_failure",
    /// An artifact of a dependency no longer exists.
    MissingDependencyFailure = "missing_dependency_failure",
    /// The runner lacks a feature that the job requires.
    RunnerUnsupported = "runner_unsupported",
    /// The time to start a delayed job has passed.
    StaleSchedule = "stale_schedule",
    /// The job exceeded its timeout.
    JobExecutionTimeout = "job_execution_timeout",
    /// The job is archived.
    ArchivedFailure = "archived_failure",
    /// The prerequisites of the job failed.
    UnmetPrerequisites = "unmet_prerequisites",
    /// The coordinator failed to schedule the job.
    SchedulerFailure = "scheduler_failure",
    /// The stored data of the job is damaged.
    DataIntegrityFailure = "data_integrity_failure",
    /// The deployment is older than the latest one.
    ForwardDeploymentFailure = "forward_deployment_failure",
    /// The compute quota is used up.
    CiQuotaExceeded = "ci_quota_exceeded",
    /// No runner matches the job.
    NoMatchingRunner = "no_matching_runner",
    /// The log exceeds the maximum size.
    TraceSizeExceeded = "trace_size_exceeded",
    /// The deployment environment that the job names with `environment` could not be created.
    EnvironmentCreationFailure = "environment_creation_failure",
    /// The job was pending for too long, although a runner matches.
    StuckPendingWithMatchingRunners = "stuck_pending_with_matching_runners",
    /// The job was pending for too long, and no runner matches.
    StuckPendingNoMatchingRunners = "stuck_pending_no_matching_runners",
    /// The running job sent no updates.
    NoUpdatesRunning = "no_updates_running",
    /// The job sent no updates while it was being canceled.
    NoUpdatesCanceling = "no_updates_canceling",
    /// The job exceeded its timeout by the clock of the server.
    ServerTimeoutRunning = "server_timeout_running",
    /// The job exceeded its timeout by the clock of the server while it was being canceled.
    ServerTimeoutCanceling = "server_timeout_canceling",
    /// The configuration of the runner is invalid.
    RunnerConfigurationError = "runner_configuration_error",
    /// A service that the runner depends on is unreachable.
    RunnerExternalDependencyFailure = "runner_external_dependency_failure",
    /// The runner was shut down.
    RunnerInterrupted = "runner_interrupted",
    /// An image could not be pulled.
    ImagePullFailure = "image_pull_failure",
    /// The job was canceled. Runners send this name; GitLab maps it to `unknown_failure`.
    JobCanceled = "job_canceled",
    /// The token of the job has expired.
    JobTokenExpired = "job_token_expired",
    /// The pipeline of a bridge could not be created.
    DownstreamPipelineCreationFailed = "downstream_pipeline_creation_failed",
    /// Child pipelines are nested too deeply.
    ReachedMaxDescendantPipelinesDepth = "reached_max_descendant_pipelines_depth",
    /// The project of a bridge does not exist.
    DownstreamBridgeProjectNotFound = "downstream_bridge_project_not_found",
    /// The rules of the downstream pipeline excluded all jobs.
    DownstreamProjectTriggerResolvedToEmpty = "downstream_project_trigger_resolved_to_empty",
}

impl std::fmt::Display for FailureReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Cause of the early termination of a job, for the agent, the manager and the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminationCause {
    /// A user canceled the job.
    CanceledByUser,
    /// The job exceeded its timeout.
    TimedOut,
    /// The environment of the job was lost.
    EnvironmentLost,
    /// The job exceeded a limit for disk, memory or another resource.
    ResourceExhausted,
    /// The manager shut down before the job finished.
    ManagerShutdown,
}

impl From<TerminationCause> for FailureReason {
    fn from(cause: TerminationCause) -> Self {
        match cause {
            TerminationCause::CanceledByUser => Self::JobCanceled,
            TerminationCause::TimedOut => Self::JobExecutionTimeout,
            TerminationCause::EnvironmentLost | TerminationCause::ResourceExhausted => Self::RunnerSystemFailure,
            TerminationCause::ManagerShutdown => Self::RunnerInterrupted,
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
