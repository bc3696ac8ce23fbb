//! Runs steps within the disk limits of the operator's policy: one for all steps of the author, and one in each rule.

use serde_json::{Map, Value};

use super::call::{Invocation, RuleLimits};
use super::user_steps::{Record, StepError, UserSteps};
use super::{Engine, Job};
use crate::builtin::{Role, Step};
use crate::disk::DiskLimit;
use crate::failure::Failure;
use crate::stop::StopToken;

impl<J: Job> Engine<J> {
    /// Runs `work`, which executes `step`. If the author wrote `step`, the disk limit of the policy applies.
    pub(super) async fn run_within_disk_limit(
        &self,
        step: &Step<J>,
        stop: &StopToken,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let policy = self.job.step_policy().filter(|_| step.is_by_author());
        let Some(bytes) = policy.and_then(|policy| policy.limits.disk_bytes) else { return work.await };
        let limit = DiskLimit {
            bytes,
            directories: vec![self.job.work_dir().to_owned(), self.job.temp_dir().to_owned()],
            // After a script that has exceeded the limit, after_script can still save logs or delete files.
            may_start_above: step.role() == Role::AfterScript,
        };
        let (result, error) = limit.enforce(stop, &self.job.log(), work).await;
        error.map_or(result, |error| Err(Failure::Step(error.to_string())))
    }
}

pub(super) async fn call_with_limits(
    steps: &UserSteps<'_>,
    invocation: Invocation<'_>,
    (rule, limits): RuleLimits<'_>,
    record: &mut Record,
) -> Result<Map<String, Value>, StepError> {
    let Some(bytes) = limits.disk_bytes else {
        let called = Box::pin(steps.call(invocation, record));
        return steps.processes.run_limited_by_rule(rule, limits, called).await.map_err(StepError::Limits)?;
    };
    let stop = steps.stop.child();
    let own = steps.with_stop(&stop);
    let directories = vec![steps.work_dir.to_owned(), steps.temp_dir.to_owned()];
    let limit = DiskLimit { bytes, directories, may_start_above: false };
    let limited = async {
        let called = Box::pin(own.call(invocation, record));
        steps.processes.run_limited_by_rule(rule, limits, called).await.map_err(StepError::Limits)?
    };
    let log = steps.log.inner();
    let run = Box::pin(limit.enforce(&stop, &log, limited));
    // A stop at this limit must not end other steps that run at the same time.
    let (result, error) = steps.processes.in_own_set(&stop, steps.grace, run).await;
    error.map_or(result, |error| Err(StepError::Disk(error)))
}
