//! `gitlab-runner run`: jobs of several runners, signals, reloads, and failed starts.

mod caches;
mod containers;
mod custom;
mod custom_driver;
mod fleets;
mod gcs_caches;
pub(crate) mod harness;
mod instance_jobs;
mod instances;
mod masks;
mod mirrors;
mod operator_secrets;
mod operator_steps;
mod remote_engine;
mod replaced_steps;
mod shared_limits;
mod single;
mod ssh;

use muster_job::JobStatus;
use muster_runner_api::test_support::{Call, Fault};
use rustix::process::Signal;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use harness::Harness;

#[tokio::test(flavor = "multi_thread")]
async fn sigquit_waits_for_jobs_of_all_coordinators() {
    let harness = Harness::start(2).await;
    harness.configure(&format!("concurrent = 2\n{}{}", harness.entry(0), harness.entry(1)));
    let run = harness.run();
    harness.push(0, 1);
    harness.push(1, 2);
    harness.wait_for_start(0, 1).await;
    harness.wait_for_start(1, 2).await;
    run.signal(Signal::QUIT);
    run.wait_for_log("Starting graceful shutdown", 1).await;
    harness.release_job(1);
    harness.release_job(2);
    for (coordinator_index, id) in [(0, 1), (1, 2)] {
        let job = harness.wait_for_end(coordinator_index, id).await;
        assert_eq!(job.status, JobStatus::Success, "{}", job.text());
        assert!(job.text().contains(&format!("on runner-{coordinator_index} ")), "{}", job.text());
    }
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_in_the_agent_and_not_in_the_manager() {
    let harness = Harness::start(1).await;
    harness.configure(&harness.entry(0));
    let run = harness.run();
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    let children = run.children();
    assert!(children.len() == 1 && children[0].contains(" agent serve "), "{children:?}");
    harness.release_job(1);
    assert_eq!(harness.wait_for_end(0, 1).await.status, JobStatus::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn low_open_files_limit_reduces_concurrent_jobs_and_logs_a_warning() {
    let harness = Harness::start(1).await;
    harness.configure(&format!("concurrent = 20\n{}", harness.entry(0)));
    let run = harness.run_with_limit("-n", 64);
    run.wait_for_log("only 2 of 20 jobs can run at the same time", 1).await;
    run.wait_for_log("at most 64 files may be open; raise the limit to 352", 1).await;
    (1..=8).for_each(|id| harness.push(0, id));
    harness.wait_for_start(0, 1).await;
    harness.wait_for_start(0, 2).await;
    (1..=8).for_each(|id| harness.release_job(id));
    for id in 1..=8 {
        let job = harness.wait_for_end(0, id).await;
        assert_eq!(job.status, JobStatus::Success, "{}", job.text());
        assert!(["ids 0 ", "ids 1 "].iter().any(|ids| job.text().contains(ids)), "{}", job.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_files_limit_is_raised_at_the_start() {
    let harness = Harness::start(1).await;
    harness.configure(&harness.entry(0));
    // The files that the start opens exceed this limit.
    let run = harness.run_with_limit("-Sn", 8);
    run.wait_for_log("Starting multi-runner", 1).await;
    run.signal(Signal::TERM);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_ids_are_counted_per_runner() {
    let harness = Harness::start(2).await;
    harness.coordinator(1).add_runner("glrt-other-runner", None);
    let other = harness.entry(1).replace(muster_runner_api::test_support::RUNNER_TOKEN, "glrt-other-runner");
    harness.configure(&format!("concurrent = 3\n{}{other}", harness.entry(0)));
    let _run = harness.run();
    for (coordinator_index, id) in [(0, 1), (1, 2), (1, 3)] {
        harness.push(coordinator_index, id);
        harness.wait_for_start(coordinator_index, id).await;
    }
    (1..=3).for_each(|id| harness.release_job(id));
    for (coordinator_index, id, ids) in [(0, 1, "ids 0 0\n"), (1, 2, "ids 0 0\n"), (1, 3, "ids 1 1\n")] {
        let job = harness.wait_for_end(coordinator_index, id).await;
        assert!(job.text().contains(ids), "{}", job.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn next_job_of_a_project_gets_the_slot_of_the_job_before_it() {
    let harness = Harness::start(1).await;
    harness.configure(&format!("concurrent = 2\n{}", harness.entry(0)));
    let _run = harness.run();
    for id in 1..=8 {
        harness.release_job(id);
        harness.push(0, id);
        let job = harness.wait_for_end(0, id).await;
        assert!(
            job.text().contains("ids 0 0\n"),
            "each job must get slot 0, which has the checkout of the jobs before it: {}",
            job.text()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_cancels_and_reports_jobs() {
    let harness = Harness::start(1).await;
    harness.configure(&harness.entry(0));
    let run = harness.run();
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    run.signal(Signal::TERM);
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"), "{}", job.text());
    run.wait_for_log("stop requested by SIGTERM: 1 job is aborted within 30 s", 1).await;
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_signal_during_an_abort_exits_immediately_with_1() {
    let harness = Harness::start(1).await;
    harness.configure(&harness.entry(0));
    let run = harness.run();
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    run.signal(Signal::QUIT);
    run.wait_for_log("Starting graceful shutdown", 1).await;
    run.signal(Signal::QUIT);
    run.wait_for_log("Starting graceful shutdown", 2).await;
    // The coordinator answers the job's report with an error, so that the abort takes time.
    harness.coordinator(0).fail(Call::UpdateJob, [Fault::FailBefore; 20]);
    run.signal(Signal::INT);
    run.wait_for_log("stop requested by SIGINT", 1).await;
    // If the manager exited before this message, the next start would resume the job.
    run.wait_for_log("coordinator does not accept the report", 1).await;
    run.signal(Signal::TERM);
    assert_eq!(run.wait_for_exit_code().await, 1);
    harness.coordinator(0).clear_faults();
    let _next = harness.run();
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!(
        (job.status, job.assignments),
        (JobStatus::Failed, 1),
        "the next start must report the job: {}",
        job.text()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_a_token_reset_until_a_second_signal() {
    let harness = Harness::start(1).await;
    // The token is in the last quarter of its lifetime, so the manager resets it.
    let timestamp = |hours: i64| (OffsetDateTime::now_utc() + time::Duration::hours(hours)).format(&Rfc3339).unwrap();
    harness.configure(&format!(
        "{}token_obtained_at = {}\ntoken_expires_at = {}\n",
        harness.entry(0),
        timestamp(-100),
        timestamp(10)
    ));
    harness.coordinator(0).fail(Call::ResetToken, [Fault::Hung]);
    let run = harness.run();
    harness.coordinator(0).wait_for_faults_left(Call::ResetToken, 0).await;
    run.signal(Signal::TERM);
    run.wait_for_log("waiting for the reset of a runner token to complete", 1).await;
    run.signal(Signal::TERM);
    run.wait_for_log("SIGTERM: exiting without waiting for the reset of a runner's token", 1).await;
    assert_eq!(run.wait_for_exit_code().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigusr2_leaves_jobs_to_the_next_start() {
    let harness = Harness::start(1).await;
    harness.configure(&harness.entry(0));
    let run = harness.run();
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    run.signal(Signal::USR2);
    assert_eq!(run.wait_for_exit_code().await, 0);
    harness.release_job(1);
    let _next = harness.run();
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
    assert_eq!(job.text().matches("begun\n").count(), 1, "{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_keeps_the_old_agent_for_running_jobs() {
    let harness = Harness::start(1).await;
    let link = harness.home.path("gitlab-runner");
    let old = harness.home.path("old-muster");
    muster_test_prerequisites::copy_program(std::fs::canonicalize(&link).unwrap(), &old);
    let new = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&old, &link).unwrap();
    harness.configure(&format!("concurrent = 2\n{}", harness.entry(0)));
    let run = harness.run();
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    run.signal(Signal::USR2);
    assert_eq!(run.wait_for_exit_code().await, 0);
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(new, &link).unwrap();
    let run = harness.run();
    harness.push(0, 2);
    harness.wait_for_start(0, 2).await;
    let executables = || harness.agents().into_iter().map(|(_, executable)| executable == old).collect::<Vec<_>>();
    let mut both = executables();
    both.sort_unstable();
    assert_eq!(both, [false, true], "{}", run.log());
    for id in [1, 2] {
        harness.release_job(id);
        let job = harness.wait_for_end(0, id).await;
        assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
        assert_eq!(job.text().matches("begun\n").count(), 1, "{}", job.text());
    }
    run.wait_for_log("ending an outdated agent without jobs", 1).await;
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_file_is_applied_and_invalid_file_is_ignored() {
    let harness = Harness::start(2).await;
    harness.configure(&format!("concurrent = 1\n{}", harness.entry(0)));
    let run = harness.run();
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    harness.configure("concurrent = \"many\"\n");
    run.wait_for_log("keeping the previous configuration", 1).await;
    harness.configure(&format!("concurrent = 2\nlisten_address = \":0\"\n{}", harness.entry(1)));
    run.wait_for_log("concurrent: 1 -> 2", 1).await;
    run.wait_for_log("listen_address changed; restart needed", 1).await;
    harness.push(1, 2);
    harness.wait_for_start(1, 2).await;
    run.signal(Signal::HUP);
    run.wait_for_log("nothing changed", 1).await;
    harness.release_job(1);
    harness.release_job(2);
    assert_eq!(
        harness.wait_for_end(0, 1).await.status,
        JobStatus::Success,
        "the job must succeed although its runner was removed from the file"
    );
    assert_eq!(harness.wait_for_end(1, 2).await.status, JobStatus::Success);
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn expiring_token_is_rotated_and_used() {
    let harness = Harness::start(1).await;
    harness.coordinator(0).add_runner("glrt-short", Some("2999-01-01T00:00:00Z"));
    let dates = "token_obtained_at = 2020-01-01T00:00:00Z\ntoken_expires_at = 2021-01-01T00:00:00Z\n";
    let entry = harness.entry(0).replace(muster_runner_api::test_support::RUNNER_TOKEN, "glrt-short");
    harness.configure(&format!("# kept\n{entry}{dates}"));
    let run = harness.run();
    run.wait_for_log("Runner authentication token was reset", 1).await;
    run.wait_for_log("runner `runner-0`: token changed", 1).await;
    harness.push(0, 1);
    harness.release_job(1);
    assert_eq!(harness.wait_for_end(0, 1).await.status, JobStatus::Success);
    let text = std::fs::read_to_string(harness.config_path()).unwrap();
    assert!(text.starts_with("# kept\n") && text.contains("token = \"glrt-short-reset-1\""), "{text}");
    assert!(text.contains("token_expires_at = 2999-01-01T00:00:00Z"), "{text}");
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn runtime_problems_are_logged() {
    let harness = Harness::start(1).await;
    std::fs::write(harness.home.path(".runner_system_id"), "s_0123456789ab").unwrap();
    harness.configure(&format!("{}[runners.feature_flags]\nFF_TIMESTAMPS = false\n", harness.entry(0)));
    let run = harness.run();
    // The manager recognizes the system ID of another machine (C027) only if this machine has a machine ID.
    if std::fs::read_to_string("/etc/machine-id").is_ok_and(|id| !id.trim().is_empty()) {
        run.wait_for_log("the system ID s_0123456789ab was created on another machine", 1).await;
    }
    let older = harness.home.path("old.toml");
    std::fs::write(&older, format!("concurrent = 2\n{}", harness.entry(0))).unwrap();
    let file = std::fs::File::options().write(true).open(&older).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    std::fs::rename(older, harness.config_path()).unwrap();
    run.wait_for_log("concurrent: default -> 2", 1).await;
    run.wait_for_log("the file's content changed, but its modification time is not newer", 1).await;
    run.signal(Signal::TERM);
    run.wait_for_log("stop requested by SIGTERM; no job is running", 1).await;
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_manager_with_same_configuration_fails() {
    let harness = Harness::start(1).await;
    harness.configure(&harness.entry(0));
    let run = harness.run();
    run.wait_for_log("Starting multi-runner", 1).await;
    let config = harness.config_path();
    let result = harness.home.run(&["run", "--config", config.to_str().unwrap(), "--state-dir", "other"]);
    result.check(1, &["C030", "is in use by process"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_start_reports_the_reason() {
    let harness = Harness::start(1).await;
    let config = harness.config_path();
    let run = ["run", "--config", config.to_str().unwrap()];
    harness.configure(&format!("concurrent = 0\n{}", harness.entry(0)));
    harness.home.run(&run).check(1, &["C001", "must be at least 1", "verify-config"]);
    harness.configure("concurrent = [");
    harness.home.run(&run).check(1, &["C000", "config.toml:1:"]);
    harness
        .home
        .run(&["run", "--working-directory", "nowhere"])
        .check(1, &["failed to change to the directory nowhere"]);
    std::os::unix::fs::symlink("circle.toml", harness.home.path("circle.toml")).unwrap();
    let result = harness.home.run(&["run", "--config", "circle.toml"]);
    let result =
        result.check(1, &["circle.toml`: the symbolic links form a loop", "Too many levels of symbolic links"]);
    assert!(!result.stderr.contains("another manager"), "{result:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn relative_directories_are_resolved_against_the_working_directory() {
    let harness = Harness::start(1).await;
    // `$PWD` is a directory with this name, because the manager expands no variables here.
    harness.configure(&format!("{}builds_dir = \"./rel/../$PWD/builds\"\ncache_dir = \"rel\"\n", harness.entry(0)));
    let _run = harness.run();
    harness.push(0, 1);
    harness.release_job(1);
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    assert!(harness.home.path("$PWD/builds").is_dir(), "{}", job.text());
    assert!(!harness.home.path("state").join("rel").exists());
}

/// The open job request may still receive one job, which fails.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_state_directory_stops_the_manager() {
    let harness = Harness::start(1).await;
    harness.configure(&format!("concurrent = 1\n{}", harness.entry(0)));
    let run = harness.run();
    run.wait_for_log("Starting multi-runner", 1).await;
    std::fs::remove_dir_all(harness.home.path("state")).unwrap();
    harness.push(0, 2);
    harness.push(0, 3);
    run.wait_for_log("was removed while the manager was running", 1).await;
    assert_eq!(run.wait_for_exit_code().await, 1);
    let untouched = |id| harness.coordinator(0).job(muster_job::JobId(id)).unwrap().assignments == 0;
    assert!([2, 3].into_iter().any(untouched), "the manager must not fail both jobs");
}

#[tokio::test(flavor = "multi_thread")]
async fn manager_without_a_configuration_file_waits_for_the_file() {
    let harness = Harness::start(1).await;
    let run = harness.run();
    run.wait_for_log("does not exist; no runner is configured", 1).await;
    harness.configure(&harness.entry(0));
    harness.push(0, 1);
    harness.wait_for_start(0, 1).await;
    harness.release_job(1);
    assert_eq!(harness.wait_for_end(0, 1).await.status, JobStatus::Success);
    run.signal(Signal::QUIT);
    assert_eq!(run.wait_for_exit_code().await, 0);
}
