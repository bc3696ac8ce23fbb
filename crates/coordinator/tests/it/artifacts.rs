//! What jobs upload: checked, kept, handed on, expired.

use std::time::Duration;

use futures::StreamExt;
use muster_job::{FailureReason, JobStatus};
use muster_runner_api::service::{ArtifactQuery, RunnerService, ServiceError};

use crate::support::{House, SOON, forbidden, job, producer, zip_of};

#[tokio::test]
async fn artifacts_are_checked_kept_and_handed_on() {
    let house = House::with(|options| options.limits.artifact_bytes = 10_000).await;
    let manager = house.manager().await;
    let pipeline = house.create(vec![vec![producer("build")], vec![job("test")]]).await;
    let build = manager.take().await;
    let damaged = manager.upload(&build, ("archive", "zip", None), b"not a zip".to_vec()).await;
    assert!(matches!(damaged, Err(ServiceError::BadRequest(_))), "{damaged:?}");
    let large = manager.upload(&build, ("junit", "raw", None), vec![0; 10_001]).await;
    assert!(matches!(large, Err(ServiceError::TooLarge(_))), "{large:?}");
    let archive = zip_of("out/a.txt", "content");
    manager.upload(&build, ("archive", "zip", Some("1 day")), archive.clone()).await.expect("kept");
    manager.upload(&build, ("archive", "zip", Some("1 day")), archive.clone()).await.expect("kept again");
    let dotenv = manager.upload(&build, ("dotenv", "raw", None), b"no equals sign".to_vec()).await;
    assert!(matches!(dotenv, Err(ServiceError::BadRequest(_))), "{dotenv:?}");
    manager.upload(&build, ("dotenv", "raw", None), b"VERSION=7".to_vec()).await.expect("kept");
    manager.succeed(&build).await;

    let test = manager.take().await;
    assert_eq!(test.dependencies.len(), 1);
    assert_eq!(test.dependencies[0].token, test.token);
    assert!(test.variables.iter().any(|variable| (variable.key.as_str(), variable.value.as_str()) == ("VERSION", "7")));
    assert_eq!(manager.download(build.id, &test.token).await.expect("the archive"), archive);
    assert_eq!(forbidden(manager.download(build.id, &build.token).await), Some(JobStatus::Success));
    let none = manager.download(test.id, &test.token).await;
    assert!(matches!(none, Err(ServiceError::NotFound(_))), "{none:?}");
    let kinds: Vec<_> = house.job(pipeline, "build").await.artifacts.into_iter().map(|file| file.kind).collect();
    assert_eq!(kinds, ["archive", "dotenv"]);
    assert_eq!(files(&house).len(), 2, "a refused upload leaves nothing: {:?}", files(&house));
}

#[tokio::test]
async fn c163_a_dotenv_report_outside_the_rules_is_refused_and_fails_its_job() {
    let many: String = (0..21).map(|index| format!("V{index}=x\n")).collect();
    let house = House::open().await;
    let manager = house.manager().await;
    for report in ["A=1\n# a comment\n", &many, &"x".repeat(6 * 1024)] {
        let pipeline = house.create(vec![vec![job("a")]]).await;
        let taken = manager.take().await;
        let refused = manager.upload(&taken, ("dotenv", "raw", None), report.as_bytes().to_vec()).await;
        assert!(matches!(refused, Err(ServiceError::BadRequest(_))), "{refused:?}");
        // A runner that makes nothing of it cannot make the job succeed.
        assert_eq!(manager.succeed(&taken).await, JobStatus::Failed);
        let view = house.job(pipeline, "a").await;
        assert_eq!(view.failure_reason, Some(FailureReason::ScriptFailure));
        assert!(view.message.is_some_and(|message| message.contains("dotenv")) && view.artifacts.is_empty());
    }
}

#[tokio::test]
async fn expired_files_are_deleted_also_after_a_restart() {
    let before = House::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![producer("build")]]).await;
    let build = manager.take().await;
    manager.upload(&build, ("archive", "zip", Some("1 hour")), zip_of("out", "x")).await.expect("kept");
    manager.upload(&build, ("junit", "raw", None), b"x".to_vec()).await.expect("kept");
    let houses = [before.as_if_killed().await, before];
    let (archive, junit) = ("archive".to_owned(), "junit".to_owned());
    let expected = [(archive.clone(), true), (junit.clone(), true)];
    for house in &houses {
        assert_eq!(house.files_there(build.id).await, expected);
    }
    houses[0].clock.advance(Duration::from_secs(3600));
    for house in &houses {
        // The timer fires with the next command at the latest, which asking is; another thread deletes the file.
        let deleted = async {
            while house.files_there(build.id).await != [(archive.clone(), false), (junit.clone(), true)] {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, deleted).await.expect("deleted soon");
    }
    // What is deleted is known after a restart.
    let after = houses[1].as_if_killed().await;
    assert_eq!(after.files_there(build.id).await, [(archive, false), (junit, true)]);
}

#[tokio::test]
async fn files_that_expired_while_no_coordinator_ran_are_deleted_at_the_start() {
    let before = House::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![producer("build")]]).await;
    let build = manager.take().await;
    manager.upload(&build, ("archive", "zip", Some("1 hour")), zip_of("out", "x")).await.expect("kept");
    manager.succeed(&build).await;
    let killed = before.as_if_killed().await;
    killed.coordinator.shutdown().await;
    before.clock.advance(Duration::from_secs(3600));
    let after = killed.as_if_killed().await;
    let deleted = async {
        while after.files_there(build.id).await != [("archive".to_owned(), false)] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, deleted).await.expect("deleted soon");
}

/// The files in the folder of artifacts, from there.
fn files(house: &House) -> Vec<String> {
    let root = house.dir.path().join("artifacts");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(&root).unwrap_or(&path).display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn what_a_killed_process_left_is_gone_after_the_next_start() {
    let before = House::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    manager.upload(&taken, ("junit", "raw", None), b"x".to_vec()).await.expect("kept");
    let root = before.dir.path().join("artifacts");
    let own = format!("{}/junit/junit.raw", taken.id);
    std::fs::create_dir_all(root.join(taken.id.to_string()).join("sast")).expect("a folder");
    let of_job = ["junit/older.xml", "sast/whole.json"].map(|file| format!("{}/{file}", taken.id));
    for leftover in of_job.into_iter().chain([".incoming/.upload-1a2b".to_owned()]) {
        std::fs::write(root.join(leftover), "half").expect("written");
    }
    assert_eq!(files(&before).len(), 4);
    let after = before.as_if_killed().await;
    assert_eq!(files(&after), [own]);
    assert!(!after.dir.path().join(format!("artifacts/{}/sast", taken.id)).exists(), "nor is an empty folder left");
}

#[tokio::test]
async fn a_file_that_is_replaced_or_comes_too_late_is_not_left() {
    let house = House::open().await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    manager.upload(&taken, ("junit", "raw", None), b"x".to_vec()).await.expect("kept");
    manager.upload(&taken, ("junit", "gzip", None), b"y".to_vec()).await.expect("kept");
    let kept = [format!("{}/junit/junit.gzip", taken.id)];
    assert_eq!(files(&house), kept, "the report has another name now");

    let refused = manager.upload(&taken, ("junit", "raw", Some("no duration")), b"z".to_vec()).await;
    assert!(matches!(refused, Err(ServiceError::BadRequest(_))), "{refused:?}");
    assert_eq!(files(&house), kept);
    // Its last bytes come when the job has ended.
    let (ended, mut end) = tokio::sync::oneshot::channel::<()>();
    let (asked, begun) = tokio::sync::oneshot::channel::<()>();
    let query = ArtifactQuery { artifact_type: Some("sast".to_owned()), ..raw() };
    let body = futures::stream::once(async move {
        // Its bytes are asked for when there is a file for them.
        let _ = asked.send(());
        let _ = (&mut end).await;
        Ok(bytes::Bytes::from_static(b"late"))
    });
    let uploading = tokio::spawn({
        let (coordinator, token, id) = (std::sync::Arc::clone(&house.coordinator), taken.token.clone(), taken.id);
        async move { coordinator.upload_artifact(id, &token, query, "s.json".to_owned(), body.boxed()).await }
    });
    begun.await.expect("the upload has begun");
    assert!(files(&house).iter().any(|file| file.contains(".upload-")));
    manager.succeed(&taken).await;
    ended.send(()).expect("it waits");
    assert_eq!(forbidden(uploading.await.expect("no panic")), Some(JobStatus::Success));
    assert_eq!(files(&house), kept);
}

fn raw() -> ArtifactQuery {
    ArtifactQuery { artifact_type: None, artifact_format: Some("raw".to_owned()), expire_in: None }
}
