//! Access of jobs to the repository.

#![expect(clippy::unwrap_used, reason = "a failure in a helper fails its test")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use muster_runner_api::payload::JobPayload;
use muster_source::{GitServer, git_routes};
use reqwest::StatusCode;

use crate::support::{Harness, job};

struct Repository {
    url: String,
    client: reqwest::Client,
    server: tokio::task::JoinHandle<()>,
    _directory: tempfile::TempDir,
}

impl Drop for Repository {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Repository {
    async fn serve(harness: &Harness) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let init = Command::new("git").args(["init", "-q", "--bare"]).arg(directory.path()).status().unwrap();
        assert!(init.success());
        let coordinator = Arc::clone(&harness.coordinator);
        let routes = git_routes(GitServer {
            repository: directory.path().to_owned(),
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
        Self { url, client, server, _directory: directory }
    }

    async fn clone_with(&self, token: &str) -> [StatusCode; 2] {
        let status = |request: reqwest::RequestBuilder| async {
            request.basic_auth("gitlab-ci-token", Some(token)).send().await.unwrap().status()
        };
        let refs = self.client.get(format!("{}/info/refs?service=git-upload-pack", self.url));
        [status(refs).await, status(self.client.post(format!("{}/git-upload-pack", self.url)).body("0000")).await]
    }

    async fn clone_with_token_of(&self, job: &JobPayload) -> [StatusCode; 2] {
        self.clone_with(&job.token).await
    }
}

const ALLOWED: [StatusCode; 2] = [StatusCode::OK; 2];
const DENIED: [StatusCode; 2] = [StatusCode::FORBIDDEN; 2];

#[tokio::test]
async fn job_can_clone_only_while_it_is_assigned() {
    let harness = Harness::open().await;
    let repository = Repository::serve(&harness).await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a"), job("b")]]).await;
    let (first, other) = (manager.next_job().await, manager.next_job().await);
    manager.report_running(&first).await;
    assert_eq!(repository.clone_with_token_of(&first).await, ALLOWED);
    assert_eq!(repository.clone_with_token_of(&other).await, ALLOWED, "the job is assigned, but not accepted yet");
    manager.succeed(&first).await;
    assert_eq!(repository.clone_with_token_of(&first).await, DENIED);
    assert_eq!(repository.clone_with_token_of(&other).await, ALLOWED);
    harness.coordinator.cancel_job(other.id, true).await.unwrap();
    assert_eq!(repository.clone_with_token_of(&other).await, DENIED);
}

#[tokio::test]
async fn former_assignee_cannot_clone() {
    let harness = Harness::open().await;
    let repository = Repository::serve(&harness).await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let silent = manager.next_job().await;
    harness.clock.advance(Duration::from_secs(30));
    assert_eq!(repository.clone_with_token_of(&silent).await, ALLOWED);
    // A clone does not count as acceptance, so the job is requeued.
    harness.clock.advance(Duration::from_secs(30));
    let second = manager.next_job().await;
    assert_eq!(second.id, silent.id);
    assert_eq!(repository.clone_with_token_of(&silent).await, DENIED);
    assert_eq!(repository.clone_with_token_of(&second).await, ALLOWED);
}

#[tokio::test]
async fn invalid_job_token_is_unauthorized() {
    let harness = Harness::open().await;
    let repository = Repository::serve(&harness).await;
    for token in ["", "glcbt-1-1-00", "something"] {
        assert_eq!(repository.clone_with(token).await, [StatusCode::UNAUTHORIZED; 2]);
    }
}
