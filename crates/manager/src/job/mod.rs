//! The actors of jobs. An actor takes one job from its row in `state.log` to its report, also after a restart.
//!
//! ```text
//! accept the job, whose payload is stored; nothing is started before the coordinator answers    (R1)
//! query the length of the trace (only after a restart: does the coordinator still expect the job?)
//! received          -> wait until one more job may run, and for a slot                           (R2)
//! leased            -> connect, lower, Run; on an instance follow the log until the first user command (R3)
//! running           -> copy the log, wait for the result                                         (R4)
//! failed_by_manager -> append the manager's message
//! awaiting_report   -> as running, but without a slot: the coordinator did not accept the report at once
//! suspended         -> suspend the environment, append the outcome
//! then                 final update until acknowledged, Close, row deleted                       (R5, R6)
//! ```
//!
//! Nothing is lost if the process ends between two lines: `Run` is idempotent, and the agent's spool keeps log and result.
//!
//! The parts of an actor: [`row`] has the stored state, [`environment`] the lease, [`preparation`] the plan and the deadline, [`progress`]
//! the progress at the agent, and [`uploader`] the trace and the report.

mod actor;
mod backoff;
mod caches;
mod dispatch;
mod docker_files;
mod early_release;
mod environment;
mod finish;
mod follow;
mod interrupt;
mod outage;
mod preparation;
mod progress;
mod row;
mod secrets;
mod start_approval;
mod unclosed;
mod uploader;

use std::sync::Arc;
use std::time::Duration;

use muster_cache_store::CacheStores;
use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_executor::Executor;
use muster_runner_api::client::Client;
use muster_runner_api::retry::{Backoff, Policy};
use tokio_util::sync::CancellationToken;

use crate::observe::JobWatch;
use crate::running::{ConcurrencyLimits, RunPermit};
use crate::state::InvalidTransition;
use crate::store::{Store, StoreError, StoredJob};
use actor::{JobActor, Retained};
pub(crate) use early_release::UnreportedJobs;
pub(crate) use outage::ReachabilityTracker;
pub(crate) use unclosed::UnclosedJobs;

const STORE_RETRY: Policy = Policy { first: Duration::from_millis(500), cap: Duration::from_secs(30), attempts: None };
/// Maximum time of each call at the end of a job, such as closing it at its agent, or suspending its environment.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(90);
/// Pauses between attempts to close a job whose environment outlives it.
///
/// If all attempts fail, the agent deletes the job after its retention period (R6).
const CLOSE_RETRY: Policy = Policy { first: Duration::from_secs(1), cap: Duration::from_secs(30), attempts: None };

pub(crate) struct RunnerContext {
    pub(crate) client: Client,
    /// Settings with which the job was received.
    pub(crate) runner: Arc<RunnerSettings>,
    /// Key of the runner when the actor started.
    pub(crate) key: RunnerKey,
    pub(crate) limits: Arc<ConcurrencyLimits>,
    pub(crate) store: Arc<Store>,
    pub(crate) cache_stores: Arc<CacheStores>,
    pub(crate) executor: Arc<dyn Executor>,
    /// Time to keep reconnecting to an agent. An environment can have its own timeout.
    pub(crate) agent_reconnect_timeout: Duration,
    /// Time after which the manager exits if a state cannot be stored.
    pub(crate) state_write_timeout: Duration,
    pub(crate) host_name: String,
    /// Canceled when the manager ends its jobs.
    pub(crate) cancel: CancellationToken,
    pub(crate) unreported: UnreportedJobs,
    pub(crate) unclosed: UnclosedJobs,
    pub(crate) reachability: ReachabilityTracker,
}

/// Error that ends the actor. The row of its job is kept for a restarted manager.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A defect: the state has no such transition.
    #[error(transparent)]
    Transition(#[from] InvalidTransition),
}

/// Runs one job to its end. `permit` is that of a job that already has a slot.
///
/// If `state.log` cannot be written, the job continues from its stored state (J1). After [`RunnerContext::state_write_timeout`], the
/// manager must exit.
pub(crate) async fn execute(
    runner: Arc<RunnerContext>,
    watch: Arc<JobWatch>,
    job: StoredJob,
    recovered: bool,
    permit: Option<RunPermit>,
) -> Result<(), JobError> {
    let run = job.run.clone();
    let mut backoff = Backoff::new(STORE_RETRY);
    let mut began = tokio::time::Instant::now();
    let mut failing_since: Option<tokio::time::Instant> = None;
    // Each actor leaves its lease and permit to the next one: the environment remains in use, so the job keeps its slot
    // (J4, J5).
    let mut retained = Retained { lease: None, permit };
    let mut result = execute_once(Arc::clone(&runner), &watch, job, recovered, &mut retained).await;
    while let Err(JobError::Store(error)) = result {
        let now = tokio::time::Instant::now();
        if now.duration_since(began) > STORE_RETRY.cap {
            // Writes succeeded in between.
            failing_since = None;
            backoff.reset();
        }
        let since = *failing_since.get_or_insert(now);
        if now.duration_since(since) >= runner.state_write_timeout {
            return Err(error.into());
        }
        let wait = backoff.next_wait(None).unwrap_or(STORE_RETRY.cap);
        tracing::error!(
            error = &error as &dyn std::error::Error,
            wait_ms = muster_job::milliseconds(wait),
            "failed to write the job's state, retrying"
        );
        tokio::time::sleep(wait).await;
        began = tokio::time::Instant::now();
        result = match runner.store.job(&run, &runner.runner) {
            Ok(Some(job)) => execute_once(Arc::clone(&runner), &watch, job, true, &mut retained).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
    }
    result
}

/// After a failure, `retained` has the resources for the next actor.
async fn execute_once(
    runner: Arc<RunnerContext>,
    watch: &Arc<JobWatch>,
    job: StoredJob,
    recovered: bool,
    retained: &mut Retained,
) -> Result<(), JobError> {
    let mut actor = JobActor::new(runner, watch, job, retained);
    let result = actor.run(recovered).await;
    *retained = actor.into_retained();
    result
}
