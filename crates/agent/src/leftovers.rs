//! Processes and environments of jobs whose agent was killed.

use std::path::PathBuf;
use std::time::Duration;

use muster_steps::builtin::Step;
use muster_steps::failure::Failure;
use muster_steps::process::terminate_leftovers;
use tokio::sync::oneshot;

use crate::parsed_request::{ParsedRequest, parse};
use crate::spool::{Entry, JournalContents};

/// Time between SIGTERM and SIGKILL.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(2);
/// Maximum time for which a lost job's result waits for the first attempt to remove its environment.
pub(crate) const FIRST_REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);
const REMOVAL_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Time that a container engine gets to finish a call of a killed agent.
const PENDING_CALL_TIME: Duration = Duration::from_secs(5);
/// Maximum number of attempts to remove a lost job's environment, within one hour.
const MAX_REMOVAL_ATTEMPTS: u32 = 120;

/// Returns whether the system was restarted after the job started its processes. The recorded process IDs may then
/// belong to other processes.
pub(crate) fn is_of_earlier_boot(contents: &JournalContents, boot_id: &str) -> bool {
    contents.boot.as_ref().is_some_and(|boot| boot != boot_id)
}

/// Terminates the processes of unfinished jobs, all at the same time. Spares the processes of jobs of an earlier boot.
pub(crate) async fn terminate_processes(journals: impl IntoIterator<Item = &JournalContents>, boot_id: &str) {
    let journals = journals.into_iter().filter(|contents| !is_of_earlier_boot(contents, boot_id));
    let records: Vec<_> = journals.flat_map(|contents| &contents.process_records).collect();
    let remaining = terminate_leftovers(records, KILL_GRACE).await;
    if remaining > 0 {
        tracing::error!(remaining, "some processes of lost jobs could not be terminated, continuing");
    }
}

/// Removes the leftovers of a job without a result, if its journal can be read.
///
/// Waits for the first attempt to remove its environments, but at most [`FIRST_REMOVAL_TIMEOUT`].
pub(crate) async fn remove_unfinished(entry: &Entry, boot_id: &str) {
    let contents = match entry.read_journal() {
        Ok(contents) if contents.result.is_none() => contents,
        Ok(_) => return,
        Err(error) => {
            tracing::error!(job = entry.id, %error, "failed to find what a lost job left; remove its processes and containers manually");
            return;
        }
    };
    terminate_processes([&contents], boot_id).await;
    let Some(parsed) = contents.request.and_then(|request| parse(&request).ok()) else { return };
    if has_leftovers(&parsed) {
        tracing::error!(job = entry.id, "a step of a lost job did not clean up; remove what it created manually");
    }
    if !has_environments(&parsed) {
        return;
    }
    let (attempted, first_attempt) = oneshot::channel();
    tokio::spawn(remove_leftovers(parsed, entry.id.clone(), Some(attempted)));
    if tokio::time::timeout(FIRST_REMOVAL_TIMEOUT, first_attempt).await.is_err() {
        tracing::warn!(
            job = entry.id,
            "failed to remove the environment of a lost job in time, continuing in the background"
        );
    }
}

pub(crate) fn temp_dir(parsed: &ParsedRequest) -> PathBuf {
    format!("{}.tmp", parsed.plan.project_dir).into()
}

/// Returns whether a step left something that only the step can remove, such as an environment.
pub(crate) fn has_leftovers(parsed: &ParsedRequest) -> bool {
    parsed.steps.iter().flat_map(Step::builtins).any(|step| step.has_leftovers(&temp_dir(parsed)))
}

/// Returns whether steps may have left environments for other steps, such as containers.
pub(crate) fn has_environments(parsed: &ParsedRequest) -> bool {
    parsed.steps.iter().flat_map(Step::targets).next().is_some()
}

/// Removes the environments of a lost job, with retries. Drops `attempted` after the first attempt.
pub(crate) async fn remove_leftovers(parsed: ParsedRequest, id: String, mut attempted: Option<oneshot::Sender<()>>) {
    for _ in 0..MAX_REMOVAL_ATTEMPTS {
        let removal = try_remove(&parsed, &id).await;
        drop(attempted.take());
        match removal {
            Removal::Complete => {
                // The container engine may still create the last container that the killed agent requested.
                tokio::time::sleep(PENDING_CALL_TIME).await;
                if matches!(try_remove(&parsed, &id).await, Removal::Complete) {
                    return;
                }
            }
            Removal::Impossible => break,
            Removal::Failed => {}
        }
        tokio::time::sleep(REMOVAL_RETRY_DELAY).await;
    }
    tracing::error!(job = id, "gave up removing the leftovers of a lost job's environment; remove them manually");
}

pub(crate) enum Removal {
    Complete,
    Failed,
    Impossible,
}

pub(crate) async fn try_remove(parsed: &ParsedRequest, id: &str) -> Removal {
    let mut removal = Removal::Complete;
    for target in parsed.steps.iter().flat_map(Step::targets) {
        if let Err(error) = target.remove_leftovers().await {
            tracing::warn!(job = id, %error, "failed to remove the leftovers of a lost job's environment");
            removal = match (error, removal) {
                (Failure::Configuration(_), Removal::Complete | Removal::Impossible) => Removal::Impossible,
                _ => Removal::Failed,
            };
        }
    }
    removal
}

#[cfg(test)]
mod tests {
    use muster_agent_api::builtin::{ContainerSpec, DockerContainer};
    use muster_agent_api::plan::{Call, JobPlan, Step as PlanStep, job_steps};
    use muster_agent_api::step_runner::RunRequest;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn invalid_configuration_is_not_tried_again() {
        let build = ContainerSpec { name: "../victim".to_owned(), ..ContainerSpec::default() };
        let container = DockerContainer { build, ..DockerContainer::default() };
        let call = Call::delegate(&container, Vec::new(), Vec::new());
        let plan = JobPlan {
            project_dir: "/builds/p".to_owned(),
            builds_dir: "/builds".to_owned(),
            steps: vec![PlanStep::new("docker", "", call)],
            ..JobPlan::default()
        };
        let request = RunRequest { steps: job_steps(&plan).unwrap(), ..RunRequest::default() };
        let start = tokio::time::Instant::now();
        remove_leftovers(parse(&request).unwrap(), "1-1".to_owned(), None).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
