//! Artifacts: checks, storage, downloads and expiry.

use std::time::Duration;

use futures::StreamExt;
use muster_coordinator::History;
use muster_job::{FailureReason, JobStatus};
use muster_runner_api::service::{ArtifactQuery, RunnerService, ServiceError};

use crate::support::{Harness, TIMEOUT, forbidden, job, producer, zip_of};

#[tokio::test]
async fn artifacts_are_checked_and_passed_to_later_jobs() {
    let harness = Harness::with(|options| options.limits.artifact_bytes = 10_000).await;
    let manager = harness.manager().await;
    let pipeline = harness.create(vec![vec![producer("build")], vec![job("test")]]).await;
    let build = manager.next_job().await;
    let damaged = manager.upload(&build, ("archive", "zip", None), b"not a zip".to_vec()).await;
    assert!(matches!(damaged, Err(ServiceError::BadRequest(_))), "{damaged:?}");
    let large = manager.upload(&build, ("junit", "raw", None), vec![0; 10_001]).await;
    assert!(matches!(large, Err(ServiceError::TooLarge(_))), "{large:?}");
    let archive = zip_of("out/a.txt", "content");
    manager.upload(&build, ("archive", "zip", Some("1 day")), archive.clone()).await.expect("failed to store");
    manager.upload(&build, ("archive", "zip", Some("1 day")), archive.clone()).await.expect("failed to store again");
    let dotenv = manager.upload(&build, ("dotenv", "raw", None), b"no equals sign".to_vec()).await;
    assert!(matches!(dotenv, Err(ServiceError::BadRequest(_))), "{dotenv:?}");
    manager.upload(&build, ("dotenv", "raw", None), b"VERSION=7".to_vec()).await.expect("failed to store");
    manager.succeed(&build).await;

    let test = manager.next_job().await;
    assert_eq!(test.dependencies.len(), 1);
    assert_eq!(test.dependencies[0].token, test.token);
    assert!(test.variables.iter().any(|variable| (variable.key.as_str(), variable.value.as_str()) == ("VERSION", "7")));
    assert_eq!(manager.download(build.id, &test.token).await.expect("failed to download the archive"), archive);
    assert_eq!(forbidden(manager.download(build.id, &build.token).await), Some(JobStatus::Success));
    let missing = manager.download(test.id, &test.token).await;
    assert!(matches!(missing, Err(ServiceError::NotFound(_))), "{missing:?}");
    let kinds: Vec<_> = harness.job(pipeline, "build").await.artifacts.into_iter().map(|file| file.kind).collect();
    assert_eq!(kinds, ["archive", "dotenv"]);
    assert_eq!(files(&harness).len(), 2, "a rejected upload must leave no file: {:?}", files(&harness));
}

#[tokio::test]
async fn c163_invalid_dotenv_report_fails_the_job() {
    let many: String = (0..21).map(|index| format!("V{index}=x\n")).collect();
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    for report in ["A=1\n# a comment\n", &many, &"x".repeat(6 * 1024)] {
        let pipeline = harness.create(vec![vec![job("a")]]).await;
        let assigned = manager.next_job().await;
        let rejected = manager.upload(&assigned, ("dotenv", "raw", None), report.as_bytes().to_vec()).await;
        assert!(matches!(rejected, Err(ServiceError::BadRequest(_))), "{rejected:?}");
        // The job fails even if its runner ignores the rejection and reports success.
        assert_eq!(manager.succeed(&assigned).await, JobStatus::Failed);
        let view = harness.job(pipeline, "a").await;
        assert_eq!(view.failure_reason, Some(FailureReason::ScriptFailure));
        assert!(view.message.is_some_and(|message| message.contains("dotenv")) && view.artifacts.is_empty());
    }
}

#[tokio::test]
async fn expired_files_are_deleted_with_and_without_a_restart() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![producer("build")]]).await;
    let build = manager.next_job().await;
    manager.upload(&build, ("archive", "zip", Some("1 hour")), zip_of("out", "x")).await.expect("failed to store");
    manager.upload(&build, ("junit", "raw", None), b"x".to_vec()).await.expect("failed to store");
    let harnesses = [before.restart_after_kill().await, before];
    let (archive, junit) = ("archive".to_owned(), "junit".to_owned());
    let expected = [(archive.clone(), true), (junit.clone(), true)];
    for harness in &harnesses {
        assert_eq!(harness.artifact_presence(build.id).await, expected);
    }
    // Both coordinators have the same clock.
    harnesses[0].clock.advance(Duration::from_secs(3600));
    for harness in &harnesses {
        // The timer is handled with the next command at the latest, such as this query. Another thread deletes the file.
        let deleted = async {
            while harness.artifact_presence(build.id).await != [(archive.clone(), false), (junit.clone(), true)] {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, deleted).await.expect("was not deleted in time");
    }
    // After another restart, the artifact is still marked as deleted.
    let after = harnesses[1].restart_after_kill().await;
    assert_eq!(after.artifact_presence(build.id).await, [(archive, false), (junit, true)]);
}

#[tokio::test]
async fn expired_files_are_deleted_at_the_start() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![producer("build")]]).await;
    let build = manager.next_job().await;
    manager.upload(&build, ("archive", "zip", Some("1 hour")), zip_of("out", "x")).await.expect("failed to store");
    manager.succeed(&build).await;
    let restarted = before.restart_after_kill().await;
    restarted.coordinator.shutdown().await;
    before.clock.advance(Duration::from_secs(3600));
    let after = restarted.restart_after_kill().await;
    let deleted = async {
        while after.artifact_presence(build.id).await != [("archive".to_owned(), false)] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, deleted).await.expect("was not deleted in time");
}

#[tokio::test]
async fn history_has_the_outputs_that_still_exist() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut test = job("test");
    test.dependencies = Some(vec!["old".to_owned(), "new".to_owned()]);
    harness.create(vec![vec![producer("old"), producer("new")], vec![test]]).await;
    let (old, new) = (manager.next_job().await, manager.next_job().await);
    for (producer, expire_in) in [(&old, Some("1 hour")), (&new, None)] {
        manager.upload(producer, ("archive", "zip", expire_in), zip_of("out", "x")).await.expect("failed to store");
    }
    manager.upload(&new, ("dotenv", "raw", None), b"VERSION=7".to_vec()).await.expect("failed to store");
    for producer in [&old, &new] {
        manager.succeed(producer).await;
    }
    let test = manager.next_job().await;
    assert_eq!(test.dependencies.len(), 2);
    harness.clock.advance(Duration::from_secs(3600));
    let deleted = async {
        while harness.artifact_presence(old.id).await != [("archive".to_owned(), false)] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, deleted).await.expect("was not deleted in time");
    harness.coordinator.shutdown().await;

    let history = History::open(harness.dir.path()).await.expect("failed to open");
    let setup = history.job_setup(test.id).await.expect("failed to read");
    assert_eq!(setup.archives.len(), 1);
    assert!(matches!(&setup.missing[..], [message] if message.contains("`old`")), "{:?}", setup.missing);
    assert!(setup.variables.iter().any(|variable| variable.key == "VERSION" && variable.value == "7"));
}

/// The job ran without the archive, so the archive is not missing in its history.
#[tokio::test]
async fn history_does_not_report_an_archive_that_expired_before_the_job() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![producer("old"), producer("new")], vec![job("test")]]).await;
    let (old, new) = (manager.next_job().await, manager.next_job().await);
    for (producer, expire_in) in [(&old, "10 minutes"), (&new, "30 minutes")] {
        let archive = ("archive", "zip", Some(expire_in));
        manager.upload(producer, archive, zip_of("out", "x")).await.expect("failed to store");
    }
    manager.succeed(&old).await;
    harness.clock.advance(Duration::from_secs(600));
    manager.succeed(&new).await;
    let test = manager.next_job().await;
    assert_eq!(test.dependencies.len(), 1);
    manager.succeed(&test).await;
    harness.clock.advance(Duration::from_secs(1800));
    let deleted = async {
        while harness.artifact_presence(new.id).await != [("archive".to_owned(), false)] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, deleted).await.expect("was not deleted in time");
    harness.coordinator.shutdown().await;

    let history = History::open(harness.dir.path()).await.expect("failed to open");
    let setup = history.job_setup(test.id).await.expect("failed to read");
    assert!(matches!(&setup.missing[..], [message] if message.contains("`new`")), "{:?}", setup.missing);
}

fn files(harness: &Harness) -> Vec<String> {
    let root = harness.dir.path().join("artifacts");
    let (mut directories, mut found) = (vec![root.clone()], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push(path.strip_prefix(&root).unwrap_or(&path).display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn leftover_files_are_deleted_at_the_start() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.upload(&assigned, ("junit", "raw", None), b"x".to_vec()).await.expect("failed to store");
    let root = before.dir.path().join("artifacts");
    let stored = format!("{}/junit/junit.raw", assigned.id);
    std::fs::create_dir_all(root.join(assigned.id.to_string()).join("sast")).expect("failed to create a directory");
    let leftovers_of_job = ["junit/older.xml", "sast/whole.json"].map(|file| format!("{}/{file}", assigned.id));
    for leftover in leftovers_of_job.into_iter().chain([".incoming/.upload-1a2b".to_owned()]) {
        std::fs::write(root.join(leftover), "partial content").expect("failed to write");
    }
    assert_eq!(files(&before).len(), 4);
    let after = before.restart_after_kill().await;
    assert_eq!(files(&after), [stored]);
    assert!(
        !after.dir.path().join(format!("artifacts/{}/sast", assigned.id)).exists(),
        "the empty directory must be deleted"
    );
}

#[tokio::test]
async fn replaced_and_late_files_are_deleted() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.upload(&assigned, ("junit", "raw", None), b"x".to_vec()).await.expect("failed to store");
    manager.upload(&assigned, ("junit", "gzip", None), b"y".to_vec()).await.expect("failed to store");
    let expected = [format!("{}/junit/junit.gzip", assigned.id)];
    assert_eq!(files(&harness), expected, "the second report must replace the first, which had another name");

    let rejected = manager.upload(&assigned, ("junit", "raw", Some("no duration")), b"z".to_vec()).await;
    assert!(matches!(rejected, Err(ServiceError::BadRequest(_))), "{rejected:?}");
    assert_eq!(files(&harness), expected);
    // The upload ends after the job has ended.
    let (finish, mut finished) = tokio::sync::oneshot::channel::<()>();
    let (start, started) = tokio::sync::oneshot::channel::<()>();
    let query = ArtifactQuery { artifact_type: Some("sast".to_owned()), ..raw() };
    let body = futures::stream::once(async move {
        // The body is read only after a file was created for it.
        let _ = start.send(());
        let _ = (&mut finished).await;
        Ok(bytes::Bytes::from_static(b"late"))
    });
    let uploading = tokio::spawn({
        let (coordinator, token, id) =
            (std::sync::Arc::clone(&harness.coordinator), assigned.token.clone(), assigned.id);
        async move { coordinator.upload_artifact(id, &token, query, "s.json".to_owned(), body.boxed()).await }
    });
    started.await.expect("the upload has not started");
    assert!(files(&harness).iter().any(|file| file.contains(".upload-")));
    manager.succeed(&assigned).await;
    finish.send(()).expect("the upload does not wait");
    assert_eq!(forbidden(uploading.await.expect("panicked")), Some(JobStatus::Success));
    assert_eq!(files(&harness), expected);
}

fn raw() -> ArtifactQuery {
    ArtifactQuery { artifact_type: None, artifact_format: Some("raw".to_owned()), expire_in: None }
}
