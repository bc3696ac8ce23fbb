//! Failures while a volume is filled, with a fake engine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::docker::engine::fake::{Answer, FakeEngine};

/// Size of the executable in bytes.
const BYTES: u64 = 1000;

fn volume(identity: &str) -> AgentVolume {
    let engine = "tcp://builds:2375".to_owned();
    AgentVolume { name: "muster-agent-test".to_owned(), engine, identity: identity.to_owned(), bytes: BYTES }
}

/// Answer that describes an executable of this size.
fn found(bytes: u64) -> Answer {
    let stat = format!(
        r#"{{"name":"muster-agent","size":{bytes},"mode":493,"mtime":"2026-01-01T00:00:00Z","linkTarget":""}}"#
    );
    Answer { status: 200, header: Some(("X-Docker-Container-Path-Stat", STANDARD.encode(stat))), body: String::new() }
}

fn error(status: u16) -> Option<Answer> {
    Some(Answer::json(status, r#"{"message":"as the test wants"}"#))
}

const FIND: &str = "HEAD /containers/build/archive";
const CREATE: &str = "POST /containers/create";
const CREATED: &str = r#"{"Id":"own","Warnings":[]}"#;

async fn fill(identity: &str, engine: &FakeEngine, limit: Duration) -> Result<(), Failure> {
    volume(identity).fill_within(limit, &engine.client, "build", "image").await
}

#[tokio::test]
async fn volume_that_does_not_keep_the_executable_ends_the_job() {
    let engine = FakeEngine::start(|call| match call {
        FIND => Some(found(7)),
        CREATE => Some(Answer::json(201, CREATED)),
        _ => Some(Answer::json(200, "")),
    });
    let failure = fill("incomplete", &engine, FILL_TIMEOUT).await.unwrap_err().to_string();
    let text = "3 attempts to copy the agent's executable to the volume muster-agent-test did not complete it; check the disk of the machine of the \
         engine at tcp://builds:2375";
    assert!(failure.contains(text), "{failure}");
    assert_eq!(engine.count("DELETE /containers/own"), 3);
}

#[tokio::test]
async fn engine_that_hangs_ends_the_job() {
    let engine = FakeEngine::start(|call| match call {
        FIND => error(404),
        CREATE => None,
        _ => Some(Answer::json(200, "")),
    });
    let failure = fill("hangs", &engine, Duration::from_millis(50)).await.unwrap_err().to_string();
    assert!(failure.contains("the volume muster-agent-test did not get the agent's executable within"), "{failure}");
    assert!(failure.ends_with("remove the container muster-agent-test-filler if it exists"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn engine_that_does_not_accept_the_executable_in_time_ends_the_job() {
    let engine = FakeEngine::start(|call| match call {
        FIND => error(404),
        CREATE => Some(Answer::json(201, CREATED)),
        "PUT /containers/own/archive" => None,
        _ => Some(Answer::json(200, "{}")),
    });
    let failure = fill("slow", &engine, FILL_TIMEOUT).await.unwrap_err().to_string();
    let text = "failed to copy the agent to the volume muster-agent-test: no answer within 600 s; check the load";
    assert!(failure.contains(text), "{failure}");
}

#[tokio::test]
async fn agent_that_loses_its_container_copies_again() {
    let (uploads, is_complete) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let complete = Arc::clone(&is_complete);
    let engine = FakeEngine::start(move |call| match call {
        FIND if complete.load(Ordering::Relaxed) => Some(found(BYTES)),
        FIND | "GET /containers/own/json" => error(404),
        CREATE => Some(Answer::json(201, CREATED)),
        "PUT /containers/own/archive" if uploads.fetch_add(1, Ordering::Relaxed) == 0 => error(404),
        "PUT /containers/own/archive" => {
            complete.store(true, Ordering::Relaxed);
            Some(Answer::json(200, ""))
        }
        _ => Some(Answer::json(204, "")),
    });
    fill("lost", &engine, FILL_TIMEOUT).await.unwrap();
    assert_eq!(engine.count("PUT /containers/own/archive"), 2);
    assert!(is_complete.load(Ordering::Relaxed));
}

#[tokio::test]
async fn old_containers_of_killed_agents_are_removed() {
    for year in [2001, 2101] {
        let now = time::Date::from_calendar_date(year, time::Month::May, 1).unwrap().midnight().assume_utc();
        let created = |age: Duration| (now - age).unix_timestamp();
        let (old, new) = (created(FILL_TIMEOUT * 2), created(FILL_TIMEOUT / 2));
        let containers = format!(
            r#"[{{"Id":"old","Names":["/muster-agent-a-filler"],"Created":{old}}},
                {{"Id":"new","Names":["/muster-agent-b-filler"],"Created":{new}}},
                {{"Id":"other","Names":["/muster-agent-c"],"Created":{old}}}]"#
        );
        let volume = |name: &str, created: &str| {
            let paths = r#""Driver":"local","Mountpoint":"/v","Labels":{},"Scope":"local","Options":{}"#;
            format!(r#"{{"Name":"{name}","CreatedAt":"{created}",{paths}}}"#)
        };
        let (old, new) = (
            volume("muster-agent-a", &format!("{year}-04-01T00:00:00Z")),
            volume("muster-agent-b", &format!("{year}-04-30T00:00:00Z")),
        );
        let engine = FakeEngine::start(move |call| match call {
            "GET /info" => Some(Answer::json(200, &format!(r#"{{"SystemTime":"{year}-05-01T00:00:00.5Z"}}"#))),
            "GET /containers/json" => Some(Answer::json(200, &containers)),
            "GET /volumes" => Some(Answer::json(200, &format!(r#"{{"Volumes":[{old},{new}]}}"#))),
            _ => Some(Answer::json(204, "")),
        });
        unused::remove(&engine.client, "muster-agent-test").await;
        let removed =
            ["DELETE", "DELETE /containers/old", "DELETE /volumes/muster-agent-a"].map(|call| engine.count(call));
        assert_eq!(removed, [2, 1, 1], "{year}");
    }
}

#[tokio::test]
async fn nothing_is_removed_if_the_engine_does_not_report_its_time() {
    let engine = FakeEngine::start(|_| Some(Answer::json(200, "{}")));
    unused::remove(&engine.client, "muster-agent-test").await;
    assert_eq!((engine.count("GET /info"), engine.count("DELETE")), (1, 0));
}

#[tokio::test]
async fn volume_that_another_job_creates_at_the_same_time_is_used() {
    let creations = Arc::<AtomicUsize>::default();
    let engine = FakeEngine::start(move |call| match call {
        "POST /volumes/create" if creations.fetch_add(1, Ordering::Relaxed) == 0 => {
            let message = "adding volume to state: name muster-agent-test is in use: volume already exists";
            Some(Answer::json(500, &format!(r#"{{"message":"{message}"}}"#)))
        }
        "POST /volumes/create" => {
            let volume = r#"{"Name":"v","Driver":"local","Mountpoint":"/v","Labels":{},"Scope":"local","Options":{}}"#;
            Some(Answer::json(201, volume))
        }
        _ => error(404),
    });
    create(&engine.client, "host".to_owned()).await.unwrap();
    assert_eq!(engine.count("POST /volumes/create"), 2);
}

/// Podman 4 answers with an internal error if the container is removed during the inspection.
#[tokio::test]
async fn container_of_another_agent_that_is_removed_during_its_inspection_is_no_error() {
    let (creations, is_complete) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let complete = Arc::clone(&is_complete);
    let engine = FakeEngine::start(move |call| match call {
        FIND if complete.load(Ordering::Relaxed) => Some(found(BYTES)),
        FIND => error(404),
        CREATE if creations.fetch_add(1, Ordering::Relaxed) == 0 => error(409),
        CREATE => Some(Answer::json(201, CREATED)),
        "GET /containers/muster-agent-test-filler/json" => {
            let message = "container 334b does not exist in database: no such container";
            Some(Answer::json(500, &format!(r#"{{"message":"{message}"}}"#)))
        }
        "PUT /containers/own/archive" => {
            complete.store(true, Ordering::Relaxed);
            Some(Answer::json(200, ""))
        }
        _ => Some(Answer::json(204, "")),
    });
    fill("removed", &engine, FILL_TIMEOUT).await.unwrap();
    assert_eq!(engine.count(CREATE), 2);
}
