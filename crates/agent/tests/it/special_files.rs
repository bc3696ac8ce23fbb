//! Special files at paths that the agent reads. They must not block other jobs of the agent.

use std::path::Path;

use muster_agent_api::builtin::{ArtifactsUpload, ArtifactsUploadList, CacheEntry, CacheRestore, Checkout, Tls};
use muster_agent_api::plan::{ArtifactEndpoint, Call, JobPlan, Step, When};
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::Variable;
use serde_json::{Value, json};

use crate::checkout::{git, repository, with_sources};
use crate::harness::*;

/// Commands that create something other than a small regular file at `$AT`, and parts of the expected messages.
const SPECIAL_FILES: [(&str, &str); 4] = [
    ("mkfifo \"$AT\"", "it is a FIFO"),
    ("ln -s /dev/zero \"$AT\"", "it is a symbolic link"),
    ("mkdir \"$AT\"", "it is a directory"),
    ("truncate -s 1T \"$AT\"", "it is larger than"),
];

struct BusyAgent {
    agent: Agent,
    jobs: u32,
}

impl BusyAgent {
    async fn start() -> Self {
        let mut agent = Agent::start_on_thread(tempfile::tempdir().unwrap()).await;
        let gate = agent.dir.path().join("gate");
        let wait = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
        let mut plan = agent.plan(vec![script(&["echo waiting", &wait]), script(&["echo continued"])]);
        plan.project_dir = agent.dir.path().join("builds/waiting-job").to_string_lossy().into_owned();
        agent.run("waiting-job", &plan, &[]).await;
        agent.log_until("waiting-job", "\nwaiting\n").await;
        Self { agent, jobs: 0 }
    }

    async fn run_job(&mut self, mut plan: JobPlan, variables: &[Variable]) -> (String, JobResult) {
        self.jobs += 1;
        let id = format!("{}-1", self.jobs);
        if plan.project_dir == self.agent.project().to_string_lossy() {
            plan.project_dir = self.project(self.jobs);
        }
        self.agent.run(&id, &plan, variables).await;
        let result = self.agent.wait(&id).await;
        (self.agent.log(&id).await, result)
    }

    fn project(&self, job: u32) -> String {
        self.agent.dir.path().join(format!("builds/{job}")).to_string_lossy().into_owned()
    }

    async fn assert_waiting_job_continues(mut self) {
        std::fs::write(self.agent.dir.path().join("gate"), "").unwrap();
        assert_eq!(self.agent.wait("waiting-job").await.outcome, Outcome::Success);
        assert!(self.agent.log("waiting-job").await.contains("\ncontinued\n"));
        self.agent.stop().await;
    }
}

fn steps(list: Value) -> Step {
    step("step_run", When::OnSuccess, Call::Run(list))
}

fn assert_failed(ran: &(String, JobResult), parts: &[&str]) {
    let (log, result) = ran;
    assert_eq!(failure(result), ("script_failure".to_owned(), Some(1)), "{log}");
    for part in parts {
        assert!(result.message.contains(part) && log.contains(part), "{part}: {}\n{log}", result.message);
    }
}

#[tokio::test]
async fn special_file_instead_of_variables_file_fails_the_job() {
    let mut busy = BusyAgent::start().await;
    for (create, message) in SPECIAL_FILES {
        let create = format!("AT=\"$GITLAB_ENV\"; rm -f \"$AT\"; {create}");
        let plan = busy.agent.plan(vec![script(&[&create]), script(&["echo never $((1+1))"])]);
        let ran = busy.run_job(plan, &[]).await;
        assert_failed(&ran, &["gitlab_runner_env", message]);
        assert!(!ran.0.contains("never 2"), "{}", ran.0);
    }
    busy.assert_waiting_job_continues().await;
}

#[tokio::test]
async fn link_instead_of_variables_directory_fails_the_job() {
    let mut busy = BusyAgent::start().await;
    let outside = busy.agent.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("gitlab_runner_env"), "STOLEN=value of another one\n").unwrap();
    let dir = "dir=$(dirname \"$GITLAB_ENV\")";
    let create = format!("{dir}; mv \"$dir\" \"$dir.old\"; ln -s {} \"$dir\"", outside.display());
    let plan = busy.agent.plan(vec![script(&[&create]), script(&["echo \"got $STOLEN\""])]);
    let (log, result) = busy.run_job(plan, &[]).await;
    assert!(!log.contains("value of another one"), "{log}");
    assert_eq!(failure(&result).0, "script_failure");
    assert!(result.message.contains("it is a symbolic link"), "{}", result.message);
    busy.assert_waiting_job_continues().await;
}

#[tokio::test]
async fn special_file_instead_of_step_output_file_fails_the_job() {
    let mut busy = BusyAgent::start().await;
    for file in ["output_file", "export_file"] {
        for (create, message) in SPECIAL_FILES {
            let text = format!("AT=\"${{{{ {file} }}}}\"; rm -f \"$AT\"; {create}");
            let step = json!({"exec": {"command": ["sh", "-c", text]}});
            let write = format!("mkdir -p give; cat > give/step.yml <<'EOF'\n{{}}\n---\n{step}\nEOF");
            let plan = busy.agent.plan(vec![script(&[&write]), steps(json!([{"name": "give", "step": "./give"}]))]);
            assert_failed(&busy.run_job(plan, &[]).await, &["step \"give\"", &file.replace('_', " "), message]);
        }
    }
    busy.assert_waiting_job_continues().await;
}

#[tokio::test]
async fn special_file_instead_of_step_file_fails_the_job() {
    let mut busy = BusyAgent::start().await;
    for (create, message) in SPECIAL_FILES {
        let create = format!("mkdir trap; AT=trap/step.yml; {create}");
        let plan = busy.agent.plan(vec![script(&[&create]), steps(json!([{"name": "it", "step": "./trap"}]))]);
        assert_failed(&busy.run_job(plan, &[]).await, &["trap/step.yml", message]);
    }
    busy.assert_waiting_job_continues().await;
}

#[tokio::test]
async fn special_file_instead_of_certificate_fails_the_upload() {
    let mut busy = BusyAgent::start().await;
    for (create, message) in SPECIAL_FILES.into_iter().filter(|(create, _)| !create.contains("ln -s")) {
        let create = format!("echo content > out; AT=\"$CI_SERVER_TLS_CA_FILE\"; rm -f \"$AT\"; {create}");
        let artifacts = ArtifactsUpload { paths: vec!["out".to_owned()], ..ArtifactsUpload::default() };
        let upload = Call::builtin(&ArtifactsUploadList { artifacts: vec![artifacts] });
        let mut plan = busy.agent.plan(vec![script(&[&create]), step("upload", When::OnSuccess, upload)]);
        plan.coordinator = ArtifactEndpoint {
            url: "https://127.0.0.1:1".to_owned(),
            tls: Tls { ca: Some("CI_SERVER_TLS_CA_FILE".to_owned()), ..Tls::default() },
            ..ArtifactEndpoint::default()
        };
        let file = Variable { file: true, ..variable("CI_SERVER_TLS_CA_FILE", "certificate") };
        let (log, result) = busy.run_job(plan, &[file]).await;
        assert!(result.message.contains("CI_SERVER_TLS_CA_FILE"), "{log}");
        assert!(result.message.contains(message), "{log}");
    }
    busy.assert_waiting_job_continues().await;
}

#[tokio::test]
async fn special_file_instead_of_cache_archive_is_a_warning() {
    let mut busy = BusyAgent::start().await;
    for (create, message) in SPECIAL_FILES.into_iter().filter(|(create, _)| !create.contains("truncate")) {
        let dir = busy.agent.dir.path().join(format!("cache-{}", busy.jobs));
        let create = format!("mkdir -p {0}/deps; AT={0}/deps/cache.zip; {create}", dir.display());
        let entry = CacheEntry {
            key: "deps".to_owned(),
            cache_dir: dir.to_string_lossy().into_owned(),
            paths: vec!["vendor/".to_owned()],
            ..CacheEntry::default()
        };
        let restore = Call::builtin(&CacheRestore { caches: vec![entry] });
        let plan = busy.agent.plan(vec![script(&[&create]), step("restore_cache", When::OnSuccess, restore)]);
        let (log, result) = busy.run_job(plan, &[]).await;
        assert_eq!(result.outcome, Outcome::Success, "a broken cache must not fail the job: {log}");
        assert!(log.contains("Failed to extract cache: ") && log.contains(message), "{log}");
    }
    busy.assert_waiting_job_continues().await;
}

#[tokio::test]
async fn special_file_instead_of_git_attributes_is_ignored() {
    let mut busy = BusyAgent::start().await;
    let (_, _) = repository(busy.agent.dir.path());
    let upstream = busy.agent.dir.path().join("upstream");
    let fifo = busy.agent.dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std::os::unix::fs::symlink(&fifo, upstream.join(".gitattributes")).unwrap();
    git(&upstream, &["add", ".gitattributes"]);
    git(&upstream, &["commit", "--quiet", "-m", "attributes that point outside"]);
    let sha = git(&upstream, &["rev-parse", "HEAD"]);
    let checkout = Checkout {
        strategy: "fetch".to_owned(),
        repo_url: format!("file://{}", upstream.display()),
        refspecs: vec!["+refs/heads/*:refs/remotes/origin/*".to_owned()],
        sha,
        ref_name: "main".to_owned(),
        checkout: true,
        ..Checkout::default()
    };
    let plan = with_sources(busy.agent.plan(vec![script(&["echo checked out"])]), checkout);
    // Without git-lfs, the agent reads the attributes.
    let path = create_bin_dir(busy.agent.dir.path(), &["git", "sh", "bash"]);
    let (log, result) = busy.run_job(plan, &[variable("PATH", &path)]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    busy.assert_waiting_job_continues().await;
}

/// Creates a directory with links to these programs, as a value for `PATH`.
fn create_bin_dir(dir: &Path, names: &[&str]) -> String {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for name in names {
        let program = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
        std::os::unix::fs::symlink(program.unwrap(), bin.join(name)).unwrap();
    }
    bin.to_string_lossy().into_owned()
}

#[tokio::test]
async fn special_file_instead_of_journal_does_not_block_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    for (name, file) in [("7-1", "journal"), ("8-1", "log")] {
        let job = dir.path().join("spool").join(name);
        std::fs::create_dir_all(&job).unwrap();
        let fifo = job.join(file);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    let mut agent = Agent::start_on_thread(dir).await;
    let (log, result) = agent.complete(&agent.plan(vec![script(&["echo works"])])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    agent.stop().await;
}
