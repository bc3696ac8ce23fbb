//! Mirrors of repositories that jobs of a machine share, with a git server that counts requests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use muster_agent_api::builtin::{Checkout, GitMirror};
use muster_agent_api::plan::{Call, JobPlan, Step, When};
use muster_agent_api::result::Outcome;

use crate::checkout::{git, repository};
use crate::git_server::{GitServer, TOKEN};
use crate::harness::*;

const USED: &str = "The git mirror of this machine has the commit: nothing is fetched from the server.";
const UPDATED: &str = "Updated the git mirror of this machine.";

pub(crate) struct Fixture {
    pub(crate) agent: Agent,
    pub(crate) server: GitServer,
    pub(crate) sha: String,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let agent = Agent::start().await;
        let (_, sha) = repository(agent.dir.path());
        let server = GitServer::start(agent.dir.path()).await;
        Self { agent, server, sha }
    }

    pub(crate) fn mirror_dir(&self) -> PathBuf {
        self.agent.dir.path().join("mirrors/5-bare")
    }

    pub(crate) fn publish(&mut self, content: &str) {
        let upstream = self.agent.dir.path().join("upstream");
        fs::write(upstream.join("new"), content).unwrap();
        git(&upstream, &["add", "-A"]);
        git(&upstream, &["commit", "--quiet", "-m", content]);
        git(&upstream, &["push", "--quiet", "../bare.git", "HEAD:refs/heads/main"]);
        self.sha = git(&upstream, &["rev-parse", "HEAD"]);
    }

    fn mirror(&self, view: &str) -> GitMirror {
        GitMirror {
            root: self.agent.dir.path().join("mirrors").to_string_lossy().into_owned(),
            name: "5-bare".to_owned(),
            view: view.to_owned(),
            repo_url: self.server.url(TOKEN, "bare.git"),
            sha: self.sha.clone(),
            refspecs: vec!["+refs/heads/main:refs/remotes/origin/main".to_owned()],
            tags: true,
            max_age_s: 3600,
            ..GitMirror::default()
        }
    }

    pub(crate) fn plan(&self, job: &str, strategy: &str, depth: i64, commands: &[&str]) -> JobPlan {
        let mirror = self.mirror(job);
        let checkout = Checkout {
            strategy: strategy.to_owned(),
            repo_url: mirror.repo_url.clone(),
            mirror: Some(mirror.view_dir()),
            refspecs: mirror.refspecs.clone(),
            sha: self.sha.clone(),
            ref_name: "main".to_owned(),
            depth,
            checkout: true,
            clean_config: true,
            clean_flags: Some(vec!["-ffdx".to_owned()]),
            fetch_flags: vec!["--prune".to_owned(), "--quiet".to_owned()],
            ..Checkout::default()
        };
        let mut plan = self.agent.plan(vec![script(commands)]);
        plan.project_dir = self.agent.dir.path().join("builds").join(job).to_string_lossy().into_owned();
        plan.steps[0].call = Call::builtin(&checkout);
        plan.steps.insert(0, step("git_mirror", When::OnSuccess, Call::builtin(&mirror)));
        plan
    }

    /// Runs a job, which must succeed, and returns its log.
    pub(crate) async fn pass(&mut self, plan: &JobPlan) -> String {
        let (log, result) = self.agent.complete(plan).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(!log.contains(TOKEN), "{log}");
        log
    }

    fn packs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.mirror_dir().join("objects/pack")).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().unwrap() == "pack").collect()
    }
}

const INSPECT: &str = "git status --porcelain; ./run.sh; cat new 2>/dev/null || true; git config remote.origin.url; git rev-list --count HEAD; \
                       git describe --tags --always";

#[tokio::test]
async fn second_job_of_a_commit_fetches_nothing_from_the_server() {
    let mut fixture = Fixture::new().await;
    fixture.publish("two");
    fixture.publish("three");
    let first = fixture.pass(&fixture.plan("first", "clone", 0, &[INSPECT])).await;
    assert!(first.contains(UPDATED) && first.contains("\nran\nthree"), "{first}");
    assert!(!fixture.server.take_requests().is_empty());
    for (job, strategy, depth, commits) in [
        ("clone", "clone", 0, 3),
        ("shallow", "clone", 2, 2),
        ("fetch", "fetch", 1, 1),
        ("fetch", "fetch", 2, 2),
        ("fetch", "fetch", 0, 3),
    ] {
        let log = fixture.pass(&fixture.plan(job, strategy, depth, &[INSPECT])).await;
        assert!(log.contains(USED) && log.contains("\nran\nthree"), "{log}");
        let origin = format!("http://{}/bare.git\n{commits}\n", fixture.server.address);
        assert!(log.contains(&origin), "{log}");
        assert_eq!(fixture.server.take_requests(), [], "{job} {depth}");
    }
    let left = fs::read_dir(fixture.mirror_dir().join("views")).unwrap().count();
    assert_eq!(left, 0, "the views of ended jobs must be removed");
}

#[tokio::test]
async fn new_commit_is_fetched_once_and_without_the_history_that_the_mirror_has() {
    let mut fixture = Fixture::new().await;
    fixture.pass(&fixture.plan("one", "fetch", 0, &[INSPECT])).await;
    let large = fs::metadata(&fixture.packs()[0]).unwrap().len();
    fixture.publish("two");
    let log = fixture.pass(&fixture.plan("one", "fetch", 0, &[INSPECT])).await;
    assert!(log.contains(UPDATED) && log.contains("\nran\ntwo"), "{log}");
    let sizes: Vec<u64> = fixture.packs().iter().map(|pack| fs::metadata(pack).unwrap().len()).collect();
    assert!(sizes.len() == 2 && *sizes.iter().min().unwrap() < large, "{sizes:?}");
    fixture.server.take_requests();
    let log = fixture.pass(&fixture.plan("two", "clone", 1, &[INSPECT])).await;
    assert!(log.contains(USED) && log.contains("\nran\ntwo"), "{log}");
    assert_eq!(fixture.server.take_requests(), []);
}

#[tokio::test]
async fn jobs_of_one_commit_that_start_together_fetch_it_once() {
    let mut fixture = Fixture::new().await;
    let ids = ["a-1", "b-1", "c-1"];
    for id in ids {
        let plan = fixture.plan(id, "clone", 1, &[INSPECT]);
        fixture.agent.run(id, &plan, &[]).await;
    }
    let mut updates = 0;
    for id in ids {
        let log = fixture.agent.log(id).await;
        assert_eq!(fixture.agent.wait(id).await.outcome, Outcome::Success, "{log}");
        updates += usize::from(log.contains(UPDATED));
    }
    assert_eq!(updates, 1);
    let paths: Vec<String> = fixture.server.take_requests().into_iter().map(|(path, _)| path).collect();
    // `info/refs` is not counted, because it may be repeated with credentials.
    assert_eq!(paths.iter().filter(|path| path.ends_with("git-upload-pack")).count(), 1, "{paths:?}");
}

/// Without containers, a job runs as the agent's user, and can write to the mirror.
#[tokio::test]
async fn job_that_changes_the_mirror_does_not_change_what_other_jobs_get() {
    let mut fixture = Fixture::new().await;
    fixture.pass(&fixture.plan("one", "clone", 1, &["true"])).await;
    let mirror = fixture.mirror_dir();
    let blob = git(&fixture.agent.dir.path().join("bare.git"), &["rev-parse", &format!("{}:run.sh", fixture.sha)]);
    replace_object(fixture.agent.dir.path(), &mirror, &blob, b"#!/bin/sh\necho evil\n");
    let executed = fixture.agent.dir.path().join("executed");
    let hook = format!("#!/bin/sh\ntouch {}\n", executed.display());
    fs::create_dir_all(mirror.join("hooks")).unwrap();
    for name in ["hooks/reference-transaction", "hooks/post-checkout", "command"] {
        fs::write(mirror.join(name), &hook).unwrap();
        fs::set_permissions(mirror.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let config = format!("[core]\n\tfsmonitor = {0}\n\tsshCommand = {0}\n", mirror.join("command").display());
    fs::write(mirror.join("config"), config).unwrap();
    fs::write(mirror.join("packed-refs"), format!("{} refs/heads/other\n", fixture.sha)).unwrap();
    let log = fixture.pass(&fixture.plan("two", "clone", 1, &[INSPECT])).await;
    assert!(log.contains("\nran\n") && !log.contains("evil"), "{log}");
    assert!(log.contains("The sources cannot be read from the git mirror, fetching from the server"), "{log}");
    assert!(!executed.exists(), "no command of another job may be executed");
    assert!(fixture.pass(&fixture.plan("three", "clone", 1, &[INSPECT])).await.contains(UPDATED));
    fixture.server.take_requests();
    let log = fixture.pass(&fixture.plan("four", "clone", 1, &[INSPECT])).await;
    assert!(log.contains(USED) && log.contains("\nran\n"), "{log}");
    assert_eq!(fixture.server.take_requests(), []);
}

#[tokio::test]
async fn damaged_mirror_is_replaced() {
    let mut fixture = Fixture::new().await;
    fixture.pass(&fixture.plan("one", "clone", 1, &["true"])).await;
    for damage in ["remove", "truncate", "tips", "leftovers"] {
        let mirror = fixture.mirror_dir();
        match damage {
            "remove" => fixture.packs().iter().for_each(|pack| fs::remove_file(pack).unwrap()),
            "truncate" => fixture.packs().iter().for_each(|pack| {
                fs::set_permissions(pack, PermissionsExt::from_mode(0o644)).unwrap();
                fs::File::options().write(true).open(pack).unwrap().set_len(20).unwrap();
            }),
            "tips" => fs::write(mirror.join("tips"), "x".repeat(2_000_000)).unwrap(),
            _ => {
                fs::write(mirror.join("objects/pack/tmp_pack_abc"), "of a killed fetch").unwrap();
                fs::create_dir(mirror.join("git-killed")).unwrap();
                fs::create_dir_all(mirror.join("objects/info")).unwrap();
                fs::write(mirror.join("objects/info/alternates"), "/nowhere\n").unwrap();
            }
        }
        fixture.publish(damage);
        let log = fixture.pass(&fixture.plan("two", "clone", 1, &[INSPECT])).await;
        assert!(log.contains(&format!("\nran\n{damage}")), "{log}");
    }
    fixture.server.take_requests();
    let log = fixture.pass(&fixture.plan("three", "clone", 1, &[INSPECT])).await;
    assert!(log.contains(USED) && fixture.server.take_requests().is_empty(), "{log}");
    assert!(!fixture.mirror_dir().join("git-killed").exists());
}

#[tokio::test]
async fn unusable_mirror_causes_only_a_warning() {
    let mut fixture = Fixture::new().await;
    let root = fixture.agent.dir.path().join("mirrors");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, PermissionsExt::from_mode(0o777)).unwrap();
    let log = fixture.pass(&fixture.plan("one", "clone", 1, &[INSPECT])).await;
    assert!(
        log.contains("The git mirror of this machine is not used for this job: failed to use the directory"),
        "{log}"
    );
    assert!(log.contains("run chmod 700 on it") && log.contains("\nran\n"), "{log}");
    fs::remove_dir(&root).unwrap();
    let mut plan = fixture.plan("two", "clone", 1, &[INSPECT]);
    let mirror = GitMirror { refspecs: vec!["--upload-pack=x".to_owned()], ..fixture.mirror("two") };
    plan.steps[0] = Step { call: Call::builtin(&mirror), ..plan.steps[0].clone() };
    let log = fixture.pass(&plan).await;
    assert!(log.contains("is not a refspec that mirrors support"), "{log}");
}

#[tokio::test]
async fn mirror_that_is_not_ready_in_time_causes_only_a_warning() {
    let mut fixture = Fixture::new().await;
    let mut plan = fixture.plan("one", "clone", 1, &[INSPECT]);
    // The server never answers requests for `slow.git`.
    let mirror = GitMirror { repo_url: fixture.server.url(TOKEN, "slow.git"), ..fixture.mirror("one") };
    plan.steps[0].call = Call::builtin(&mirror);
    plan.steps[0].policy.timeout_ms = 500;
    plan.steps[0].policy.allow_failure = true;
    plan.steps[1].policy.timeout_ms = 600_000;
    let log = fixture.pass(&plan).await;
    assert!(log.contains("git_mirror failed, but the job continues: git_mirror timeout"), "{log}");
    assert!(log.contains("\nran\n"), "{log}");
}

#[tokio::test]
async fn time_for_the_mirror_counts_against_the_timeout_for_the_sources() {
    let mut fixture = Fixture::new().await;
    let mut plan = fixture.plan("one", "clone", 1, &["echo runs"]);
    // The server never answers requests for `slow.git`.
    let repo_url = fixture.server.url(TOKEN, "slow.git");
    let mirror = GitMirror { repo_url: repo_url.clone(), ..fixture.mirror("one") };
    let checkout = Checkout { repo_url, ..plan.steps[1].call.inputs().unwrap() };
    (plan.steps[0].call, plan.steps[1].call) = (Call::builtin(&mirror), Call::builtin(&checkout));
    plan.steps.iter_mut().take(2).for_each(|step| step.policy.timeout_ms = 500);
    plan.steps[0].policy.allow_failure = true;
    let (log, result) = fixture.agent.complete(&plan).await;
    assert!(matches!(result.outcome, Outcome::Failed { .. }), "{log}");
    assert!(log.contains("Job failed: get sources timeout: exceeded timeout of 500ms"), "{log}");
    let paths: Vec<String> = fixture.server.take_requests().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["slow.git/info/refs"], "only the mirror step may send a request: {log}");
}

#[tokio::test]
async fn unused_mirrors_are_removed() {
    let mut fixture = Fixture::new().await;
    fixture.pass(&fixture.plan("one", "clone", 1, &["true"])).await;
    let root = fixture.agent.dir.path().join("mirrors");
    fs::create_dir(root.join("7-old")).unwrap();
    let lock = fs::File::create(root.join("7-old.lock")).unwrap();
    lock.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(3700)).unwrap();
    fixture.pass(&fixture.plan("two", "clone", 1, &["true"])).await;
    assert!(!root.join("7-old").exists() && !root.join("7-old.lock").exists());
    assert!(fixture.mirror_dir().exists());
}

/// Such jobs are common, because most images have no git. The mirror is updated with the machine's git.
#[tokio::test]
async fn job_without_git_reads_the_mirror_and_gets_no_wrong_content() {
    let mut fixture = Fixture::new().await;
    let bin = fixture.agent.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["sh", "bash", "cat", "echo", "ls", "test"] {
        for directory in ["/bin", "/usr/bin"] {
            let _ = std::os::unix::fs::symlink(Path::new(directory).join(name), bin.join(name));
        }
    }
    let variables = [variable("PATH", &bin.to_string_lossy()), variable("GIT_EXEC_PATH", "/nowhere")];
    let commands = ["./run.sh; ls -A; cat new 2>/dev/null || true"];
    fixture.publish("two");
    for (job, line) in [("one", UPDATED), ("one", USED), ("two", USED)] {
        let plan = fixture.plan(job, "fetch", 1, &commands);
        fixture.agent.run("1-1", &plan, &variables).await;
        let log = fixture.agent.log("1-1").await;
        assert_eq!(fixture.agent.wait("1-1").await.outcome, Outcome::Success, "{log}");
        fixture.agent.close("1-1").await;
        assert!(log.contains(line) && log.contains("\nran\n") && log.ends_with("Job succeeded\u{1b}[0;m\n"), "{log}");
        assert!(log.contains("two"), "{log}");
        assert_eq!(fixture.server.take_requests().is_empty(), line == USED, "{job}");
    }
    let blob = git(&fixture.agent.dir.path().join("bare.git"), &["rev-parse", &format!("{}:run.sh", fixture.sha)]);
    let mirror = fixture.mirror_dir();
    replace_object(fixture.agent.dir.path(), &mirror, &blob, b"#!/bin/sh\necho evil\n");
    let plan = fixture.plan("three", "clone", 1, &commands);
    fixture.agent.run("1-1", &plan, &variables).await;
    let log = fixture.agent.log("1-1").await;
    assert!(!log.contains("\nevil\n") && log.contains("\nran\n"), "{log}");
    assert!(log.contains("The sources cannot be read from the git mirror, fetching from the server"), "{log}");
    assert_eq!(fixture.agent.wait("1-1").await.outcome, Outcome::Success, "{log}");
}

/// Replaces the object with the ID `name` in a mirror: the index of a new pack gives this ID to `content`.
pub(crate) fn replace_object(dir: &Path, mirror: &Path, name: &str, content: &[u8]) {
    let work = dir.join("wrong");
    fs::create_dir(&work).unwrap();
    git(&work, &["init", "--quiet"]);
    fs::write(work.join("file"), content).unwrap();
    let wrong = git(&work, &["hash-object", "-w", "file"]);
    fs::write(work.join("list"), format!("{wrong}\n")).unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", "git pack-objects --quiet wrong < list"])
        .current_dir(&work)
        .output()
        .unwrap();
    let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let mut index = fs::read(work.join(format!("wrong-{id}.idx"))).unwrap();
    // The index (version 2) consists of an 8-byte header, 256 counters, the IDs, and other tables.
    let bytes: Vec<u8> = (0..20).map(|at| u8::from_str_radix(&name[2 * at..2 * at + 2], 16).unwrap()).collect();
    for byte in 0..256 {
        let count = u32::from(byte >= usize::from(bytes[0])).to_be_bytes();
        index[8 + 4 * byte..12 + 4 * byte].copy_from_slice(&count);
    }
    index[8 + 1024..8 + 1044].copy_from_slice(&bytes);
    let packs = mirror.join("objects/pack");
    fs::remove_dir_all(&packs).unwrap();
    fs::create_dir(&packs).unwrap();
    let rest = format!(
        "git -C bare.git rev-list --objects --all | grep -v ^{name} | cut -d' ' -f1 | git -C bare.git pack-objects --quiet {}/pack",
        packs.display()
    );
    assert!(std::process::Command::new("sh").args(["-c", &rest]).current_dir(dir).output().unwrap().status.success());
    let target = mirror.join(format!("objects/pack/pack-{id}"));
    fs::write(target.with_extension("idx"), index).unwrap();
    fs::copy(work.join(format!("wrong-{id}.pack")), target.with_extension("pack")).unwrap();
    fs::remove_dir_all(work).unwrap();
}
