//! Environments that a job suspends for a later job.

use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_job::JobStatus;
use serde_json::json;

use crate::harness::{Harness, JOB, RUN, Suspension};

async fn wait_for(harness: &Harness, condition: impl FnMut(&Suspension) -> bool) {
    let mut suspension = harness.suspension.subscribe();
    let reached = tokio::time::timeout(Duration::from_secs(20), suspension.wait_for(condition)).await;
    reached.expect("timed out waiting for the suspension").unwrap();
}

#[tokio::test]
async fn suspended_environment_is_not_released_if_the_end_of_the_job_cannot_be_stored() {
    let harness = Harness::start().await;
    harness.push(&json!({
        "job_info": { "project_id": 5 },
        "git_info": { "protected": true },
        "variables": [{ "key": "FF_SUSPENDABLE_ENVIRONMENTS", "value": "true" }],
        "suspend_options": { "suspend_on_success": true },
    }));
    let settings = harness.settings(|runner| runner.executor = "instance".to_owned());
    let manager = harness.manager_with_settings(settings).await;
    harness.agent.wait_for(|spool| spool.started.len() == 1).await;
    harness.agent.finish(RUN, Outcome::Success);
    wait_for(&harness, |suspension| suspension.suspends == 1).await;
    // The environment is suspended, but the row of the job cannot be deleted, so another actor continues.
    let limit = manager.state_limit.swap(0, Ordering::Relaxed);
    harness.suspension.send_modify(|suspension| suspension.can_end = true);
    tokio::select! {
        biased;
        () = wait_for(&harness, |suspension| suspension.restores > 0) => {}
        _ = harness.agent.wait_for(|spool| spool.closed.len() > 1) => {
            panic!("the next actor must not use the lease of a suspended environment")
        }
    }
    manager.state_limit.store(limit, Ordering::Relaxed);
    let job = harness.coordinator.wait_for_end(JOB).await;
    let key = job.reports().last().unwrap().runtime_environment_key.clone();
    assert_eq!((job.status, key.is_some()), (JobStatus::Success, true), "{}", job.text());
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
    assert_eq!(harness.suspension.borrow().suspends, 1, "the suspended environment must not be suspended again");
}
