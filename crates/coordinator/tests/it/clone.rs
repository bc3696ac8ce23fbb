//! Which jobs may read the repository, and when.

#![expect(clippy::unwrap_used, reason = "a failure in a helper fails its test")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use muster_runner_api::payload::JobPayload;
use muster_source::{GitServer, git_routes};
use reqwest::StatusCode;

use crate::support::{House, job};

/// A repository that the coordinator's jobs may read.
struct Repository {
    url: String,
    client: reqwest::Client,
    server: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for Repository {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Repository {
    async fn serve(house: &House) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("git").args(["init", "-q", "--bare"]).arg(folder.path()).status().unwrap();
        assert!(made.success());
        let coordinator = Arc::clone(&house.coordinator);
        let routes = git_routes(GitServer {
            repository: folder.path().to_owned(),
            project_path: "grp/app".to_owned(),
            check_token: Arc::new(move |token| {
                let coordinator = Arc::clone(&coordinator);
                Box::pin(async move { coordinator.check_job_token(&token).await })
            }),
        });
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/grp/app.git", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { url, client, server, _folder: folder }
    }

    /// The answers to both requests of a clone.
    async fn clone_with(&self, token: &str) -> [StatusCode; 2] {
        let sent = |request: reqwest::RequestBuilder| async {
            request.basic_auth("gitlab-ci-token", Some(token)).send().await.unwrap().status()
        };
        let refs = self.client.get(format!("{}/info/refs?service=git-upload-pack", self.url));
        [sent(refs).await, sent(self.client.post(format!("{}/git-upload-pack", self.url)).body("0000")).await]
    }

    async fn clone_of(&self, job: &JobPayload) -> [StatusCode; 2] {
        self.clone_with(&job.token).await
    }
}

const ALLOWED: [StatusCode; 2] = [StatusCode::OK; 2];
const OVER: [StatusCode; 2] = [StatusCode::FORBIDDEN; 2];

#[tokio::test]
async fn a_job_clones_while_it_runs_and_not_after() {
    let house = House::open().await;
    let repository = Repository::serve(&house).await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a"), job("b")]]).await;
    let (first, other) = (manager.take().await, manager.take().await);
    manager.running(&first).await;
    assert_eq!(repository.clone_of(&first).await, ALLOWED);
    assert_eq!(repository.clone_of(&other).await, ALLOWED, "it is assigned, though it was not accepted yet");
    manager.succeed(&first).await;
    assert_eq!(repository.clone_of(&first).await, OVER);
    assert_eq!(repository.clone_of(&other).await, ALLOWED);
    house.coordinator.cancel_job(other.id, true).await.unwrap();
    assert_eq!(repository.clone_of(&other).await, OVER);
}

#[tokio::test]
async fn the_assignee_that_lost_its_job_clones_no_more() {
    let house = House::open().await;
    let repository = Repository::serve(&house).await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a")]]).await;
    let silent = manager.take().await;
    house.clock.advance(Duration::from_secs(30));
    assert_eq!(repository.clone_of(&silent).await, ALLOWED, "and this accepts no job");
    house.clock.advance(Duration::from_secs(30));
    let second = manager.take().await;
    assert_eq!(second.id, silent.id);
    assert_eq!(repository.clone_of(&silent).await, OVER);
    assert_eq!(repository.clone_of(&second).await, ALLOWED);
}

#[tokio::test]
async fn what_is_no_job_token_is_asked_for_one() {
    let house = House::open().await;
    let repository = Repository::serve(&house).await;
    for token in ["", "glcbt-1-1-00", "something"] {
        assert_eq!(repository.clone_with(token).await, [StatusCode::UNAUTHORIZED; 2]);
    }
}
