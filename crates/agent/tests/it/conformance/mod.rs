//! Conformance cases 84, 98 to 112 and 114 of step-runner's gRPC service (`docs/spec/steps.md`). The test of case 113
//! is in `crates/agent/src/panics.rs`.

mod cancel;
mod logs;
mod run;

use muster_agent_api::step_runner::status_error::Kind;
use muster_agent_api::step_runner::step_result::Status as State;
use muster_agent_api::step_runner::{Job, RunRequest, Status, StatusRequest, Variable};

use crate::harness::*;

impl Agent {
    async fn run_script(&mut self, id: &str, script: &str, variables: &[Variable]) {
        self.steps.run(self.script_request(id, script, variables)).await.unwrap();
    }

    /// Returns the request for a `run:` list with one script. All such jobs share a directory.
    fn script_request(&self, id: &str, script: &str, variables: &[Variable]) -> RunRequest {
        let list = serde_json::json!({"run": [{"name": "main", "script": script}]});
        RunRequest {
            id: id.to_owned(),
            steps: format!("{{}}\n---\n{list}"),
            job: Some(Job {
                variables: variables.to_vec(),
                build_dir: self.dir.path().join("work").to_string_lossy().into_owned(),
            }),
            ..RunRequest::default()
        }
    }

    async fn status(&mut self, id: &str) -> Status {
        let jobs = self.statuses(id).await;
        assert_eq!(jobs.len(), 1);
        jobs.into_iter().next().unwrap()
    }

    async fn statuses(&mut self, id: &str) -> Vec<Status> {
        self.steps.status(StatusRequest { id: id.to_owned() }).await.unwrap().into_inner().jobs
    }

    async fn assert_ended(&mut self, id: &str, state: State, kind: Option<Kind>, message: &str) {
        self.wait(id).await;
        let status = self.status(id).await;
        assert_eq!((status.status(), status.message.as_str()), (state, message));
        assert_eq!(
            status.error.as_ref().map(|error| (error.kind(), error.message.as_str())),
            kind.map(|kind| (kind, message))
        );
        // Clients may expect the error under any of these field numbers.
        assert_eq!((&status.error_at_4, &status.error_at_8), (&status.error, &status.error));
        assert!(status.start_time.is_some() && status.end_time.is_some());
    }
}

fn log_of(output: &str) -> String {
    format!("Running step name=main\n{output}")
}

/// FIFO at which a job waits until the test lets it continue.
struct Fifo(std::path::PathBuf);

impl Fifo {
    fn new(agent: &Agent) -> Self {
        let path = agent.dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        Self(path)
    }

    fn wait_command(&self) -> String {
        format!("read line <{}", self.0.display())
    }

    async fn let_job_continue(&self) {
        tokio::time::timeout(TIMEOUT, tokio::fs::write(&self.0, "go\n")).await.unwrap().unwrap();
    }
}
