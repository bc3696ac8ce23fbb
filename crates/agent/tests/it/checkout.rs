//! Checkouts from a local repository, and over a URL.

use std::path::{Path, PathBuf};
use std::process::Command;

use muster_agent_api::builtin::Checkout;
use muster_agent_api::plan::{Call, JobPlan};
use muster_agent_api::result::Outcome;
use muster_test_prerequisites::create_program;

use crate::harness::*;

pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) fn repository(dir: &Path) -> (PathBuf, String) {
    let work = dir.join("upstream");
    std::fs::create_dir_all(work.join("sub")).unwrap();
    git(&work, &["init", "--quiet"]);
    create_program(work.join("run.sh"), "#!/bin/sh\necho ran\n");
    std::fs::write(work.join("sub/file"), "x".repeat(100_000)).unwrap();
    std::os::unix::fs::symlink("run.sh", work.join("link")).unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "--quiet", "-m", "first"]);
    git(&work, &["tag", "v1"]);
    let bare = dir.join("bare.git");
    git(dir, &["clone", "--quiet", "--bare", &work.to_string_lossy(), &bare.to_string_lossy()]);
    (bare, git(&work, &["rev-parse", "HEAD"]))
}

pub(crate) fn with_sources(mut plan: JobPlan, checkout: Checkout) -> JobPlan {
    plan.steps[0].call = Call::builtin(&checkout);
    plan
}

fn local_checkout(repository: &Path, sha: &str) -> Checkout {
    Checkout {
        strategy: "fetch".to_owned(),
        repo_url: "http://gitlab-ci-token:s3cret@127.0.0.1/p.git".to_owned(),
        local_repository: Some(repository.to_string_lossy().into_owned()),
        sha: sha.to_owned(),
        ref_name: "main".to_owned(),
        checkout: true,
        ..Checkout::default()
    }
}

#[tokio::test]
async fn every_job_gets_a_clean_copy_of_a_local_commit() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let inspect = "git status --porcelain; ./link; git log --format=%s; git describe --tags; cat .git/config";
    let plan = with_sources(
        agent.plan(vec![script(&[inspect, "echo dirt > dirt; echo >> run.sh; rm -r sub"])]),
        local_checkout(&bare, &sha),
    );
    for _ in 0..2 {
        let (log, result) = agent.complete(&plan).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains(&format!("Checking out {} as detached HEAD (ref is main)...", &sha[..8])), "{log}");
        let (_, printed) = log.split_once("cat .git/config\x1b[0;m\n").unwrap();
        assert!(printed.starts_with("ran\nfirst\nv1\n[core]"), "{printed}");
        assert!(!log.contains("s3cret"));
    }
    assert_eq!(git(&bare, &["rev-parse", "HEAD"]), sha);
}

#[tokio::test]
async fn commit_is_fetched_by_url_into_an_existing_checkout() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let checkout = Checkout {
        strategy: "fetch".to_owned(),
        repo_url: format!("file://{}", bare.display()),
        refspecs: vec!["+refs/heads/*:refs/remotes/origin/*".to_owned()],
        sha,
        ref_name: "main".to_owned(),
        depth: 1,
        checkout: true,
        clean_flags: Some(vec!["-ffdx".to_owned()]),
        fetch_flags: vec!["--prune".to_owned(), "--quiet".to_owned()],
        ..Checkout::default()
    };
    let plan = with_sources(agent.plan(vec![script(&["git status --porcelain; ./run.sh; touch dirt"])]), checkout);
    let (first, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{first}");
    assert!(
        first.contains("Fetching changes with git depth set to 1...") && first.contains("Created fresh repository."),
        "{first}"
    );
    let (second, _) = agent.complete(&plan).await;
    assert!(!second.contains("Created fresh repository.") && second.contains("Removing dirt"), "{second}");
    assert!(second.contains("\nran\n") && !second.contains("?? dirt"), "{second}");
}

#[tokio::test]
async fn missing_commit_fails_the_job_before_the_script() {
    let mut agent = Agent::start().await;
    let (bare, _) = repository(agent.dir.path());
    let missing = "0123456789012345678901234567890123456789";
    let plan = with_sources(
        agent.plan(vec![script(&["echo never"]), after_script(&["echo never"])]),
        local_checkout(&bare, missing),
    );
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "script_failure");
    assert!(!log.contains("\nnever\n"), "{log}");
}
