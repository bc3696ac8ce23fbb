//! Sources from git: credentials, submodules, cleanup, LFS and retries.

use std::fs;
use std::path::Path;

use muster_agent_api::builtin::{Checkout, Cleanup, GLOBAL_GIT_CONFIG, Rewrite};
use muster_agent_api::plan::{Call, JobPlan, When};
use muster_agent_api::result::Outcome;
use muster_agent_api::step_runner::Variable;
use muster_test_prerequisites::create_program;

use crate::checkout::{git, repository, with_sources};
use crate::harness::*;

fn fetch_checkout(repository: &Path, sha: &str) -> Checkout {
    Checkout {
        strategy: "fetch".to_owned(),
        repo_url: format!("file://{}", repository.display()),
        refspecs: vec!["+refs/heads/*:refs/remotes/origin/*".to_owned()],
        sha: sha.to_owned(),
        ref_name: "main".to_owned(),
        checkout: true,
        clean_flags: Some(vec!["-ffdx".to_owned()]),
        ..Checkout::default()
    }
}

async fn complete_with(agent: &mut Agent, plan: &JobPlan, variables: &[Variable]) -> (String, Outcome) {
    agent.run("1-1", plan, variables).await;
    let log = agent.log("1-1").await;
    let result = agent.wait("1-1").await;
    agent.close("1-1").await;
    (log, result.outcome)
}

#[tokio::test]
async fn credentials_are_not_stored_or_logged() {
    let mut agent = Agent::start().await;
    let checkout = Checkout {
        repo_url: "http://gitlab-ci-token:s3cret-t0ken@127.0.0.1:1/group/p.git".to_owned(),
        rewrites: vec![Rewrite {
            from: "http://127.0.0.1:1".to_owned(),
            to: "http://gitlab-ci-token:s3cret-t0ken@127.0.0.1:1".to_owned(),
        }],
        ..fetch_checkout(Path::new("/nowhere"), "0123456789")
    };
    let plan = with_sources(agent.plan(vec![script(&["echo never"])]), checkout);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "script_failure");
    assert!(log.contains("127.0.0.1:1/group/p.git") && !log.contains("s3cret-t0ken"), "{log}");
    let config = fs::read_to_string(agent.project().join(".git/config")).unwrap();
    assert!(
        config.contains("url = \"http://127.0.0.1:1/group/p.git\"") && !config.contains("s3cret-t0ken"),
        "{config}"
    );
    assert_eq!(agent.temporary_files(), [""; 0], "the file with credentials must be deleted");
}

#[tokio::test]
async fn selected_submodules_are_fetched_by_rewritten_urls() {
    let mut agent = Agent::start().await;
    let (bare, _) = repository(agent.dir.path());
    let upstream = agent.dir.path().join("upstream");
    let local = format!("url.file://{}/.insteadOf=https://other.example/", agent.dir.path().display());
    for name in ["lib/one", "lib/two"] {
        let add = ["-c", &local, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add"];
        git(&upstream, &[&add[..], &["https://other.example/bare.git", name]].concat());
    }
    git(&upstream, &["commit", "--quiet", "-m", "with submodules"]);
    let sha = git(&upstream, &["rev-parse", "HEAD"]);
    let with_modules = agent.dir.path().join("modules.git");
    git(
        agent.dir.path(),
        &["clone", "--quiet", "--bare", &upstream.to_string_lossy(), &with_modules.to_string_lossy()],
    );
    let rewrite =
        Rewrite { from: "https://other.example".to_owned(), to: format!("file://{}", agent.dir.path().display()) };
    let checkout = Checkout {
        submodules: "recursive".to_owned(),
        submodule_depth: 1,
        submodule_paths: vec!["lib/one".to_owned()],
        submodule_flags: vec!["--jobs".to_owned(), "2".to_owned()],
        rewrites: vec![rewrite],
        ..fetch_checkout(&with_modules, &sha)
    };
    let inspect = script(&["cat lib/one/run.sh; ls -A lib/two | wc -l; git -C lib/one config include.path"]);
    let plan = with_sources(agent.plan(vec![inspect]), checkout);
    // Git forbids this transport for submodules, but the job allows it.
    let allow = [
        variable("GIT_CONFIG_COUNT", "1"),
        variable("GIT_CONFIG_KEY_0", "protocol.file.allow"),
        variable("GIT_CONFIG_VALUE_0", "always"),
    ];
    for _ in 0..2 {
        let (log, outcome) = complete_with(&mut agent, &plan, &allow).await;
        assert_eq!(outcome, Outcome::Success, "{log}");
        assert!(log.contains("Updating/initializing submodules recursively with git depth set to 1..."), "{log}");
        assert!(log.contains("Updated submodules") && log.contains("\necho ran\n0\n"), "{log}");
        assert!(log.contains("p.tmp/.gitlab-runner.ext.conf\n"), "{log}");
    }
    assert!(bare.exists());
}

#[tokio::test]
async fn clean_config_removes_configuration_and_hooks() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let plant = "git config alias.planted status; mkdir -p .git/hooks; \
                 printf '#!/bin/sh\\necho hooked' > .git/hooks/post-merge; touch .git/refs/heads/x.lock .git/index.lock";
    let inspect =
        "git config alias.planted || echo clean; [ -e .git/hooks ] || echo no hooks; git status --short | wc -l";
    let first = with_sources(agent.plan(vec![script(&[plant])]), fetch_checkout(&bare, &sha));
    agent.complete(&first).await;
    let second = with_sources(
        agent.plan(vec![script(&[inspect])]),
        Checkout { clean_config: true, ..fetch_checkout(&bare, &sha) },
    );
    let (log, result) = agent.complete(&second).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nclean\nno hooks\n0\n"), "{log}");
}

#[tokio::test]
async fn clean_config_removes_a_link_to_the_configuration_of_another_repository() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let plant = "cp -r .git ../evil; git --git-dir=../evil config core.fsmonitor \"touch $PWD/../executed; false\"; \
                 echo \"$PWD/../evil\" > .git/commondir; git status --short | wc -l; rm -f ../executed";
    let first = with_sources(agent.plan(vec![script(&[plant])]), fetch_checkout(&bare, &sha));
    let (log, result) = agent.complete(&first).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let inspect = "[ -e ../executed ] && echo executed || echo not executed; git rev-parse --git-common-dir";
    let second = with_sources(
        agent.plan(vec![script(&[inspect])]),
        Checkout { clean_config: true, ..fetch_checkout(&bare, &sha) },
    );
    let (log, result) = agent.complete(&second).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nnot executed\n.git\n"), "{log}");
}

#[tokio::test]
async fn directory_is_declared_safe_once() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let home = agent.dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let checkout = Checkout { safe_directory: true, ..fetch_checkout(&bare, &sha) };
    let plan = with_sources(agent.plan(vec![script(&["git config --global --get-all safe.directory"])]), checkout);
    let home = [variable("HOME", &home.to_string_lossy())];
    complete_with(&mut agent, &plan, &home).await;
    let (log, _) = complete_with(&mut agent, &plan, &home).await;
    let line = format!("\n{}\n", agent.project().display());
    assert_eq!(log.matches(&line).count(), 1, "{log}");
}

#[tokio::test]
async fn user_without_a_writable_home_directory_gets_the_sources() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let checkout = Checkout { safe_directory: true, ..fetch_checkout(&bare, &sha) };
    let plan = with_sources(agent.plan(vec![script(&["./run.sh"])]), checkout);
    let (log, outcome) = complete_with(&mut agent, &plan, &[variable("HOME", "/nonexistent")]).await;
    assert_eq!(outcome, Outcome::Success, "{log}");
    assert!(!log.contains("error:") && log.contains("\nran\n"), "{log}");
}

#[tokio::test]
async fn lfs_files_are_pulled_if_git_lfs_is_installed() {
    let mut agent = Agent::start().await;
    repository(agent.dir.path());
    let upstream = agent.dir.path().join("upstream");
    fs::write(upstream.join(".gitattributes"), "*.bin filter=lfs\n").unwrap();
    git(&upstream, &["add", "."]);
    git(&upstream, &["commit", "--quiet", "-m", "lfs"]);
    let sha = git(&upstream, &["rev-parse", "HEAD"]);
    let plan = with_sources(agent.plan(vec![script(&["true"])]), fetch_checkout(&upstream, &sha));
    let (log, _) = agent.complete(&plan).await;
    assert!(log.contains("WARNING: the repository uses Git LFS, but git-lfs is not in PATH"), "{log}");

    let bin = agent.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    create_program(bin.join("git-lfs"), "#!/bin/sh\necho \"lfs $* ${GIT_LFS_SKIP_SMUDGE:-}\"\n");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let (log, outcome) = complete_with(&mut agent, &plan, &[variable("PATH", &path)]).await;
    assert_eq!(outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nlfs pull \n"), "{log}");
    let skipping = with_sources(agent.plan(Vec::new()), Checkout { skip_lfs: true, ..fetch_checkout(&upstream, &sha) });
    let (log, _) = complete_with(&mut agent, &skipping, &[variable("PATH", &path)]).await;
    assert!(!log.contains("lfs") && !log.contains("LFS"), "{log}");
}

#[tokio::test]
async fn failed_attempt_is_cleaned_up_before_the_next() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let failed_once = agent.dir.path().join("mark");
    let first_fails = format!("touch dirt; [ -e {0} ] || {{ touch {0}; exit 5; }}", failed_once.display());
    let checkout =
        Checkout { pre_script: vec![first_fails], post_script: vec!["ls".to_owned()], ..fetch_checkout(&bare, &sha) };
    let mut plan = with_sources(agent.plan(vec![script(&["echo got here"])]), checkout);
    plan.steps[0].policy.attempts = 2;
    plan.retry_wait_ms = (1, 1);
    plan.trace_sections = true;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    for text in [
        "WARNING: Retrying... get_sources error=exit status 5",
        ":clear_worktree\r\x1b[0K\x1b[0K\x1b[36;1mDeleting all tracked and untracked files due to source fetch failure",
        "Deleting tracked and untracked files...",
        "\ngot here\n",
    ] {
        assert!(log.contains(text), "{text} in {log}");
    }
}

#[tokio::test]
async fn credential_helper_supplies_the_token() {
    let mut agent = Agent::start().await;
    let fill = "printf 'protocol=http\\nhost=127.0.0.1:1\\n\\n' | git credential fill";
    let checkout = Checkout {
        strategy: "empty".to_owned(),
        repo_url: "http://gitlab-ci-token:in-the-address@127.0.0.1:1/p.git".to_owned(),
        credential_helper: true,
        ..Checkout::default()
    };
    let plan = with_sources(agent.plan(vec![script(&[fill])]), checkout);
    let global = agent.dir.path().join("builds/p.tmp").join(GLOBAL_GIT_CONFIG);
    let variables =
        [variable("CI_JOB_TOKEN", "from-the-job"), variable("GIT_CONFIG_GLOBAL", &global.to_string_lossy())];
    let (log, outcome) = complete_with(&mut agent, &plan, &variables).await;
    assert_eq!(outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nusername=gitlab-ci-token\npassword=from-the-job\n"), "{log}");
}

#[tokio::test]
async fn job_cleanup_leaves_a_clean_checkout() {
    let mut agent = Agent::start().await;
    let (bare, sha) = repository(agent.dir.path());
    let cleanup = |checkout: &str| {
        let cleanup = Cleanup { checkout: checkout.to_owned(), ..fetch_cleanup() };
        step("cleanup_file_variables", When::Finally, Call::builtin(&cleanup))
    };
    let dirty = script(&["echo dirt > dirt; echo changed > run.sh; exit 1"]);
    let plan = with_sources(agent.plan(vec![dirty.clone(), cleanup("fetch")]), fetch_checkout(&bare, &sha));
    agent.complete(&plan).await;
    assert_eq!(git(&agent.project(), &["status", "--porcelain"]), "");
    let plan = with_sources(agent.plan(vec![dirty, cleanup("clone")]), fetch_checkout(&bare, &sha));
    agent.complete(&plan).await;
    assert!(!agent.project().exists());
    let plan = agent.plan(vec![cleanup("none")]);
    assert!(agent.complete(&plan).await.0.contains("Skipping build directory cleanup step"));
}

fn fetch_cleanup() -> Cleanup {
    Cleanup { clean_flags: Some(vec!["-ffdx".to_owned()]), ..Cleanup::default() }
}
