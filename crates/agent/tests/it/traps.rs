//! Anything that a job can put at a path that the agent reads. Such a job fails with a message that names the path, while another job of
//! the same agent continues.

use std::path::Path;

use muster_agent_api::builtin::{ArtifactsUpload, ArtifactsUploads, CacheEntry, CacheRestore, Checkout, Tls};
use muster_agent_api::plan::{ArtifactEndpoint, Call, JobPlan, Step, When};
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::Variable;
use serde_json::{Value, json};

use crate::checkout::{git, repository, with_sources};
use crate::harness::*;

/// Commands that create something at `$AT` that is not a small regular file, and a part of the expected message.
const TRAPS: [(&str, &str); 4] = [
    ("mkfifo \"$AT\"", "it is a FIFO"),
    ("ln -s /dev/zero \"$AT\"", "it is a symbolic link"),
    ("mkdir \"$AT\"", "it is a directory"),
    ("truncate -s 1T \"$AT\"", "it is larger than"),
];

/// An agent on a separate thread, with a job that waits until the test releases it.
struct Scene {
    agent: Agent,
    jobs: u32,
}

impl Scene {
    async fn start() -> Self {
        let mut agent = Agent::start_apart(tempfile::tempdir().unwrap()).await;
        let gate = agent.dir.path().join("gate");
        let wait = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
        let mut plan = agent.plan(vec![script(&["echo waiting", &wait]), script(&["echo went on"])]);
        plan.project_dir = agent.dir.path().join("builds/bystander").to_string_lossy().into_owned();
        agent.run("bystander", &plan, &[]).await;
        agent.log_until("bystander", "\nwaiting\n").await;
        Self { agent, jobs: 0 }
    }

    /// Runs a job in a separate directory.
    async fn job(&mut self, mut plan: JobPlan, variables: &[Variable]) -> (String, JobResult) {
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

    /// Checks that the second script of the waiting job runs, and that the job succeeds.
    async fn others_went_on(mut self) {
        std::fs::write(self.agent.dir.path().join("gate"), "").unwrap();
        assert_eq!(self.agent.wait("bystander").await.outcome, Outcome::Success);
        assert!(self.agent.log("bystander").await.contains("\nwent on\n"));
        self.agent.stop().await;
    }
}

fn steps(list: Value) -> Step {
    step("step_run", When::OnSuccess, Call::Run(list))
}

fn assert_failed(ran: &(String, JobResult), parts: &[&str]) {
    let (log, result) = ran;
    assert_eq!(failed(result), ("script_failure".to_owned(), Some(1)), "{log}");
    for part in parts {
        assert!(result.message.contains(part) && log.contains(part), "{part}: {}\n{log}", result.message);
    }
}

#[tokio::test]
async fn special_file_instead_of_the_variables_file() {
    let mut scene = Scene::start().await;
    for (make, message) in TRAPS {
        let make = format!("AT=\"$GITLAB_ENV\"; rm -f \"$AT\"; {make}");
        let plan = scene.agent.plan(vec![script(&[&make]), script(&["echo never $((1+1))"])]);
        let ran = scene.job(plan, &[]).await;
        assert_failed(&ran, &["gitlab_runner_env", message]);
        assert!(!ran.0.contains("never 2"), "{}", ran.0);
    }
    scene.others_went_on().await;
}

#[tokio::test]
async fn link_instead_of_the_variables_directory() {
    let mut scene = Scene::start().await;
    let elsewhere = scene.agent.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("gitlab_runner_env"), "STOLEN=value of another one\n").unwrap();
    let dir = "dir=$(dirname \"$GITLAB_ENV\")";
    let make = format!("{dir}; mv \"$dir\" \"$dir.old\"; ln -s {} \"$dir\"", elsewhere.display());
    let plan = scene.agent.plan(vec![script(&[&make]), script(&["echo \"got $STOLEN\""])]);
    let (log, result) = scene.job(plan, &[]).await;
    assert!(!log.contains("value of another one"), "{log}");
    assert_eq!(failed(&result).0, "script_failure");
    assert!(result.message.contains("it is a symbolic link"), "{}", result.message);
    scene.others_went_on().await;
}

#[tokio::test]
async fn special_file_instead_of_step_output_files() {
    let mut scene = Scene::start().await;
    for file in ["output_file", "export_file"] {
        for (make, message) in TRAPS {
            let text = format!("AT=\"${{{{ {file} }}}}\"; rm -f \"$AT\"; {make}");
            let step = json!({"exec": {"command": ["sh", "-c", text]}});
            let write = format!("mkdir -p give; cat > give/step.yml <<'EOF'\n{{}}\n---\n{step}\nEOF");
            let plan = scene.agent.plan(vec![script(&[&write]), steps(json!([{"name": "give", "step": "./give"}]))]);
            assert_failed(&scene.job(plan, &[]).await, &["step \"give\"", &file.replace('_', " "), message]);
        }
    }
    scene.others_went_on().await;
}

#[tokio::test]
async fn special_file_instead_of_a_step_file() {
    let mut scene = Scene::start().await;
    for (make, message) in TRAPS {
        let make = format!("mkdir trap; AT=trap/step.yml; {make}");
        let plan = scene.agent.plan(vec![script(&[&make]), steps(json!([{"name": "it", "step": "./trap"}]))]);
        assert_failed(&scene.job(plan, &[]).await, &["trap/step.yml", message]);
    }
    scene.others_went_on().await;
}

#[tokio::test]
async fn special_file_instead_of_certificates() {
    let mut scene = Scene::start().await;
    for (make, message) in TRAPS.into_iter().filter(|(make, _)| !make.contains("ln -s")) {
        let make = format!("echo content > out; AT=\"$CI_SERVER_TLS_CA_FILE\"; rm -f \"$AT\"; {make}");
        let what = ArtifactsUpload { paths: vec!["out".to_owned()], ..ArtifactsUpload::default() };
        let upload = Call::builtin(&ArtifactsUploads { artifacts: vec![what] });
        let mut plan = scene.agent.plan(vec![script(&[&make]), step("upload", When::OnSuccess, upload)]);
        plan.coordinator = ArtifactEndpoint {
            url: "https://127.0.0.1:1".to_owned(),
            tls: Tls { ca: Some("CI_SERVER_TLS_CA_FILE".to_owned()), ..Tls::default() },
            ..ArtifactEndpoint::default()
        };
        let file = Variable { file: true, ..variable("CI_SERVER_TLS_CA_FILE", "certificate") };
        let (log, result) = scene.job(plan, &[file]).await;
        assert!(result.message.contains("CI_SERVER_TLS_CA_FILE"), "{log}");
        assert!(result.message.contains(message), "{log}");
    }
    scene.others_went_on().await;
}

#[tokio::test]
async fn special_file_instead_of_a_cache_archive() {
    let mut scene = Scene::start().await;
    for (make, message) in TRAPS.into_iter().filter(|(make, _)| !make.contains("truncate")) {
        let dir = scene.agent.dir.path().join(format!("cache-{}", scene.jobs));
        let make = format!("mkdir -p {0}/deps; AT={0}/deps/cache.zip; {make}", dir.display());
        let entry = CacheEntry {
            key: "deps".to_owned(),
            cache_dir: dir.to_string_lossy().into_owned(),
            paths: vec!["vendor/".to_owned()],
            ..CacheEntry::default()
        };
        let restore = Call::builtin(&CacheRestore { caches: vec![entry] });
        let plan = scene.agent.plan(vec![script(&[&make]), step("restore_cache", When::OnSuccess, restore)]);
        let (log, result) = scene.job(plan, &[]).await;
        assert_eq!(result.outcome, Outcome::Success, "a cache fails no job: {log}");
        assert!(log.contains("Failed to extract cache: ") && log.contains(message), "{log}");
    }
    scene.others_went_on().await;
}

#[tokio::test]
async fn special_file_instead_of_git_attributes() {
    let mut scene = Scene::start().await;
    let (_, _) = repository(scene.agent.dir.path());
    let upstream = scene.agent.dir.path().join("upstream");
    let fifo = scene.agent.dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std::os::unix::fs::symlink(&fifo, upstream.join(".gitattributes")).unwrap();
    git(&upstream, &["add", ".gitattributes"]);
    git(&upstream, &["commit", "--quiet", "-m", "attributes that lead elsewhere"]);
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
    let plan = with_sources(scene.agent.plan(vec![script(&["echo checked out"])]), checkout);
    // Without git-lfs, the agent reads the attributes itself.
    let path = programs(scene.agent.dir.path(), &["git", "sh", "bash"]);
    let (log, result) = scene.job(plan, &[variable("PATH", &path)]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    scene.others_went_on().await;
}

/// Creates a directory with links to these programs and nothing else.
fn programs(dir: &Path, names: &[&str]) -> String {
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
async fn special_file_instead_of_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    for (name, file) in [("7-1", "journal"), ("8-1", "log"), ("9-1", "request")] {
        let job = dir.path().join("spool").join(name);
        std::fs::create_dir_all(&job).unwrap();
        let fifo = job.join(file);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    let mut agent = Agent::start_apart(dir).await;
    let (log, result) = agent.complete(&agent.plan(vec![script(&["echo works"])])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    agent.stop().await;
}
