//! Fixture of an assigned job, for the tests of variables and payload.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_coordinator::assignment::JobAssignment;
use muster_coordinator::jwt::Signer;
use muster_coordinator::payload::{self, Archive, PayloadError, PayloadInput, QueueFacts};
use muster_coordinator::variables::{JobVariablesInput, RunnerFacts, job_variables};
use muster_coordinator::{GitFacts, ProjectFacts};
use muster_job::{JobId, PipelineId, ProjectId, RunnerId, Secret, Variable};
use muster_pipeline::context::{Context, ScopedVariable};
use muster_pipeline::model::{Environment, Job, ScriptWork, Work};
use muster_runner_api::payload::JobPayload;
use time::macros::datetime;

pub(crate) const SHA: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const TOKEN: &str = "glcbt-secret-token";

pub(crate) struct JobFixture {
    pub(crate) job: Job,
    pub(crate) work: ScriptWork,
    pub(crate) context: Context,
    pub(crate) project: ProjectFacts,
    pub(crate) git: GitFacts,
    pub(crate) dotenv: Vec<(String, String)>,
    pub(crate) manual: Vec<Variable>,
    pub(crate) archives: Vec<Archive>,
    pub(crate) secrets: BTreeMap<String, Secret>,
    pub(crate) key: Vec<u8>,
    token: Secret,
    tags: Vec<String>,
}

impl JobFixture {
    /// Returns job `a` with the script `[x]`, in a push pipeline of branch `main` of project `grp/app`.
    pub(crate) fn new() -> Self {
        Self {
            job: Job {
                stage: "test".to_owned(),
                stage_index: 2,
                work: Work::Script(Box::default()),
                ..crate::support::job("a")
            },
            work: ScriptWork { script: vec!["x".to_owned()], ..ScriptWork::default() },
            context: Context {
                ref_name: "main".to_owned(),
                project_path: "grp/app".to_owned(),
                predefined: vec![
                    Variable::public("CI_COMMIT_BRANCH", "main"),
                    Variable::public("GITLAB_USER_LOGIN", "ann"),
                ],
                ..Context::default()
            },
            project: ProjectFacts::new(ProjectId(7), "grp/app"),
            git: GitFacts {
                sha: SHA.to_owned(),
                before_sha: "0".repeat(40),
                object_format: "sha1".to_owned(),
                repo_url: "http://127.0.0.1:1234/grp/app.git".to_owned(),
                repo_path: Some("/state/repo.git".into()),
                depth: 20,
            },
            dotenv: Vec::new(),
            manual: Vec::new(),
            archives: Vec::new(),
            secrets: BTreeMap::new(),
            key: Signer::new_key().unwrap_or_default(),
            token: Secret::new(TOKEN),
            tags: vec!["linux".to_owned(), "fast".to_owned()],
        }
    }

    pub(crate) fn with_project_variable(mut self, key: &str, value: &str) -> Self {
        self.context.project_variables.push(scoped(Variable::public(key, value), "*"));
        self
    }

    fn assignment<'a>(&'a self, job: &'a Job) -> JobAssignment<'a> {
        JobAssignment {
            job,
            job_id: JobId(42),
            pipeline_id: PipelineId(5),
            pipeline_iid: 3,
            token: &self.token,
            project: &self.project,
            context: &self.context,
            git: &self.git,
            server_url: "http://127.0.0.1:1234",
            now: datetime!(2026-11-21 10:00 UTC),
        }
    }

    fn job(&self) -> Job {
        let mut job = self.job.clone();
        if matches!(&job.work, Work::Script(work) if **work == ScriptWork::default()) {
            job.work = Work::Script(Box::new(self.work.clone()));
        }
        job
    }

    pub(crate) fn variables(&self) -> Vec<Variable> {
        let job = self.job();
        job_variables(&JobVariablesInput {
            assignment: self.assignment(&job),
            runner: RunnerFacts { id: RunnerId(1), description: "this host", tags: &self.tags },
            dotenv: &self.dotenv,
            manual: &self.manual,
        })
    }

    pub(crate) fn value(&self, name: &str) -> Option<String> {
        self.variables().into_iter().find(|variable| variable.key == name).map(|variable| variable.value)
    }

    pub(crate) fn try_payload(&self) -> Result<JobPayload, PayloadError> {
        let job = self.job();
        let variables = self.variables();
        let signer = Signer::from_pkcs8(&self.key).unwrap_or_else(|error| panic!("{error}"));
        payload::build(&PayloadInput {
            assignment: self.assignment(&job),
            variables: &variables,
            dependencies: &self.archives,
            timeout: Duration::from_secs(3600),
            queue: QueueFacts::default(),
            secrets: &self.secrets,
            signer: &signer,
            trace_interval: Duration::from_millis(200),
            local_repository: true,
        })
    }

    #[track_caller]
    pub(crate) fn payload(&self) -> JobPayload {
        self.try_payload().unwrap_or_else(|error| panic!("{error}"))
    }
}

pub(crate) fn scoped(variable: Variable, scope: &str) -> ScopedVariable {
    ScopedVariable { variable, protected: false, environment_scope: scope.to_owned() }
}

pub(crate) fn environment(name: &str) -> Environment {
    Environment { name: name.to_owned(), action: "start".to_owned(), ..Environment::default() }
}
