//! Steps from Git repositories and registries: cases 89, 90, 92 and 95 to 97 of `docs/spec/steps.md`.

mod cache;
mod concurrent_promote;
mod git;
mod lock;
mod oci_steps;
mod registry;

use std::fs;
use std::path::{Path, PathBuf};

use muster_agent_api::plan::{Call, When};
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::Variable;
use muster_test_prerequisites::create_program;
use serde_json::{Value, json};

use crate::checkout::git;
use crate::git_server::{GitServer, TOKEN};
use crate::harness::*;

const STEP: &str = "{}\n---\nexec: {command: ['${{step_dir}}/print', '${{step_dir}}']}\n";

struct Fixture {
    agent: Agent,
    server: GitServer,
}

impl Fixture {
    async fn new() -> Self {
        let agent = Agent::start().await;
        let server = GitServer::start(&agent.dir.path().join("served")).await;
        let fixture = Self { agent, server };
        let work = fixture.work();
        fs::create_dir_all(&work).unwrap();
        fs::create_dir_all(fixture.bare().parent().unwrap()).unwrap();
        git(&work, &["init", "--quiet"]);
        fixture.write_step("steps", "top");
        fixture.write_step("steps/sub", "sub");
        fixture.write_step("", "root");
        fs::copy(work.join("steps/step.yml"), work.join("steps/other.yml")).unwrap();
        fixture.commit("first");
        git(fixture.agent.dir.path(), &["clone", "--quiet", "--bare", &text(&work), &text(&fixture.bare())]);
        fixture
    }

    fn work(&self) -> PathBuf {
        self.agent.dir.path().join("work")
    }

    fn bare(&self) -> PathBuf {
        self.agent.dir.path().join("served/g/steps.git")
    }

    fn write_step(&self, dir: &str, word: &str) {
        let dir = self.work().join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("step.yml"), STEP).unwrap();
        create_program(dir.join("print"), format!("#!/bin/sh\necho \"<{word}>\"\n"));
    }

    fn commit(&self, message: &str) -> String {
        git(&self.work(), &["add", "-A"]);
        git(&self.work(), &["commit", "--quiet", "--allow-empty", "-m", message]);
        git(&self.work(), &["rev-parse", "HEAD"])
    }

    fn push(&self, reference: &str) {
        git(&self.work(), &["push", "--quiet", "--force", &text(&self.bare()), &format!("HEAD:{reference}")]);
    }

    fn publish_notices(&self, text: &str) {
        let dir = tempfile::tempdir_in(self.agent.dir.path()).unwrap();
        git(dir.path(), &["init", "--quiet"]);
        fs::write(dir.path().join("notices.toml"), text).unwrap();
        git(dir.path(), &["add", "-A"]);
        git(dir.path(), &["commit", "--quiet", "-m", "notices"]);
        let bare = self::text(&self.bare());
        git(dir.path(), &["push", "--quiet", "--force", &bare, "HEAD:refs/heads/muster-notices"]);
    }

    fn public(&self) -> String {
        format!("http://{}/public/g/steps.git", self.server.address)
    }

    async fn run(&mut self, step: Value) -> (String, JobResult) {
        let variables = [variable("CI_SERVER_URL", &format!("http://{}", self.server.address))];
        let job_token = Variable { masked: true, ..variable("CI_JOB_TOKEN", TOKEN) };
        self.run_list(json!([{"name": "remote", "step": step}]), &[variables.to_vec(), vec![job_token]].concat()).await
    }

    async fn run_list(&mut self, list: Value, variables: &[Variable]) -> (String, JobResult) {
        let plan = self.agent.plan(vec![step("step_script", When::OnSuccess, Call::Run(list))]);
        self.agent.run("1-1", &plan, variables).await;
        let log = self.agent.log("1-1").await;
        let result = self.agent.wait("1-1").await;
        self.agent.close("1-1").await;
        (log, result)
    }

    /// Runs a job with the step, which must succeed, and returns the job's log.
    async fn pass(&mut self, step: Value) -> String {
        let (log, result) = self.run(step).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        log
    }

    /// Runs a job with the step, which must fail, and returns the job's log.
    async fn fail(&mut self, step: Value) -> String {
        let (log, result) = self.run(step).await;
        assert_eq!(failure(&result).0, "script_failure", "{log}");
        log
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
