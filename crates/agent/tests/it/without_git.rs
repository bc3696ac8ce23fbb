//! Checkouts without the `git` command, from a real `git upload-pack` over HTTP.

use std::fs;
use std::path::PathBuf;

use muster_agent_api::builtin::{Checkout, Cleanup, Rewrite};
use muster_agent_api::plan::{Call, When};
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::Variable;

use crate::checkout::{git, repository, with_sources};
use crate::git_server::{GitServer, TOKEN};
use crate::harness::*;

struct Fixture {
    agent: Agent,
    server: GitServer,
    sha: String,
    /// Value of `PATH` for jobs: a directory with the programs of the system, but without git.
    path: String,
}

impl Fixture {
    async fn new() -> Self {
        let agent = Agent::start().await;
        let (_, sha) = repository(agent.dir.path());
        let server = GitServer::start(agent.dir.path()).await;
        let bin = agent.dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for directory in ["/usr/bin", "/bin"] {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                if !entry.file_name().to_string_lossy().starts_with("git") {
                    let _ = std::os::unix::fs::symlink(entry.path(), bin.join(entry.file_name()));
                }
            }
        }
        let path = bin.to_string_lossy().into_owned();
        Self { agent, server, sha, path }
    }

    fn upstream(&self) -> PathBuf {
        self.agent.dir.path().join("upstream")
    }

    fn publish(&self, message: &str) -> String {
        git(&self.upstream(), &["add", "-A"]);
        git(&self.upstream(), &["commit", "--quiet", "-m", message]);
        git(&self.upstream(), &["push", "--quiet", "--force", "../bare.git", "HEAD:refs/heads/main"]);
        git(&self.upstream(), &["rev-parse", "HEAD"])
    }

    fn checkout(&self) -> Checkout {
        Checkout {
            strategy: "fetch".to_owned(),
            repo_url: self.server.url(TOKEN, "bare.git"),
            refspecs: vec!["+refs/heads/*:refs/remotes/origin/*".to_owned()],
            sha: self.sha.clone(),
            ref_name: "main".to_owned(),
            depth: 1,
            checkout: true,
            clean_config: true,
            clean_flags: Some(vec!["-ffdx".to_owned()]),
            fetch_flags: vec!["--prune".to_owned(), "--quiet".to_owned()],
            ..Checkout::default()
        }
    }

    fn variables(&self) -> [Variable; 1] {
        [variable("PATH", &self.path)]
    }

    async fn run(&mut self, checkout: Checkout, commands: &[&str]) -> (String, JobResult) {
        let plan = with_sources(self.agent.plan(vec![script(commands)]), checkout);
        let variables = self.variables();
        self.agent.run("1-1", &plan, &variables).await;
        let log = self.agent.log("1-1").await;
        let result = self.agent.wait("1-1").await;
        self.agent.close("1-1").await;
        (log, result)
    }

    /// Runs a job, which must succeed, and returns its log.
    async fn pass(&mut self, checkout: Checkout, commands: &[&str]) -> String {
        let (log, result) = self.run(checkout, commands).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        log
    }

    /// Runs a job whose checkout must fail, and returns its log.
    async fn fail(&mut self, checkout: Checkout) -> String {
        let (log, result) = self.run(checkout, &["echo never"]).await;
        assert_eq!(failure(&result).0, "script_failure", "{log}");
        assert!(!log.contains("\nnever\n") && !log.contains(TOKEN), "{log}");
        log
    }

    fn in_project(&self, args: &[&str]) -> String {
        git(&self.agent.project(), args)
    }
}

#[tokio::test]
async fn checkout_equals_that_of_git() {
    let mut fixture = Fixture::new().await;
    let log = fixture.pass(fixture.checkout(), &["command -v git || ./link"]).await;
    assert!(
        log.contains("Fetching changes with git depth set to 1...") && log.contains("Created fresh repository."),
        "{log}"
    );
    assert!(log.contains(&format!("Checking out {} as detached HEAD (ref is main)...", &fixture.sha[..8])), "{log}");
    assert!(log.contains("\nran\n") && !log.contains(TOKEN), "{log}");
    assert_eq!(fixture.in_project(&["status", "--porcelain"]), "");
    assert_eq!(
        fixture.in_project(&["rev-parse", "HEAD", "refs/remotes/origin/main"]),
        format!("{0}\n{0}", fixture.sha)
    );
    fixture.in_project(&["fsck", "--strict"]);
    let config = fs::read_to_string(fixture.agent.project().join(".git/config")).unwrap();
    assert!(
        config.contains(&format!("http://{}/bare.git", fixture.server.address)) && !config.contains(TOKEN),
        "{config}"
    );
}

#[tokio::test]
async fn existing_checkout_moves_to_another_commit_and_is_cleaned() {
    let mut fixture = Fixture::new().await;
    let dirt =
        "echo dirt > dirt; mkdir -p d/e; echo x > d/e/f; echo ignored > x.log; echo changed >> run.sh; rm -r sub";
    fixture.pass(fixture.checkout(), &[dirt]).await;
    let upstream = fixture.upstream();
    fs::remove_file(upstream.join("sub/file")).unwrap();
    fs::remove_dir(upstream.join("sub")).unwrap();
    fs::write(upstream.join("sub"), "now a file\n").unwrap();
    fs::write(upstream.join(".gitignore"), "*.log\n").unwrap();
    let sha = fixture.publish("second");
    let second = Checkout { sha: sha.clone(), ..fixture.checkout() };
    let log = fixture.pass(second.clone(), &["cat sub; ls -A"]).await;
    assert!(!log.contains("Created fresh repository."), "{log}");
    assert!(
        log.contains("Removing dirt\nRemoving d/\nRemoving x.log\n") || log.contains("Removing d/\nRemoving dirt\n"),
        "{log}"
    );
    assert!(log.contains("\nnow a file\n") && log.contains("\n.git\n.gitignore\nlink\nrun.sh\nsub\n"), "{log}");
    assert_eq!(fixture.in_project(&["status", "--porcelain", "--ignored"]), "");
    let keep = Checkout { clean_flags: Some(["-ffdx", "-e", "kept"].map(str::to_owned).to_vec()), ..second };
    fixture.pass(keep.clone(), &["mkdir kept other; touch kept/a other/a"]).await;
    fixture.pass(keep.clone(), &["test -e kept/a && ! test -e other"]).await;
    let unknown = Checkout { clean_flags: Some(vec!["-ffdxi".to_owned()]), ..keep };
    let log = fixture.pass(unknown, &["test -e kept/a"]).await;
    assert!(log.contains("`-ffdxi` requires the `git` command"), "{log}");
}

#[tokio::test]
async fn depth_can_change_and_history_can_be_rewritten() {
    let mut fixture = Fixture::new().await;
    fs::write(fixture.upstream().join("run.sh"), "second").unwrap();
    let second = fixture.publish("second");
    fixture.pass(Checkout { sha: second.clone(), ..fixture.checkout() }, &["true"]).await;
    assert_eq!(fixture.in_project(&["rev-list", "--count", "HEAD"]), "1");
    fixture.pass(Checkout { sha: second, depth: 0, ..fixture.checkout() }, &["true"]).await;
    assert_eq!(fixture.in_project(&["rev-list", "--count", "HEAD"]), "2");
    assert_eq!(fixture.in_project(&["describe", "--tags", "HEAD~1"]), "v1");
    git(&fixture.upstream(), &["reset", "--quiet", "--hard", "HEAD~1"]);
    fs::write(fixture.upstream().join("other"), "other").unwrap();
    let other = fixture.publish("other");
    fixture.pass(Checkout { sha: other, ..fixture.checkout() }, &["test -e other"]).await;
    fixture.in_project(&["fsck", "--strict"]);
}

#[tokio::test]
async fn commit_of_a_hidden_ref_is_fetched_by_its_hash() {
    let mut fixture = Fixture::new().await;
    let bare = fixture.agent.dir.path().join("bare.git");
    git(&bare, &["update-ref", "refs/pipelines/7", &fixture.sha]);
    git(&bare, &["update-ref", "-d", "refs/heads/main"]);
    git(&bare, &["config", "uploadpack.hideRefs", "refs/pipelines"]);
    git(&bare, &["config", "uploadpack.allowAnySHA1InWant", "true"]);
    let refspecs = vec!["+refs/pipelines/7:refs/pipelines/7".to_owned()];
    fixture.pass(Checkout { refspecs, ..fixture.checkout() }, &["./run.sh"]).await;
}

#[tokio::test]
async fn unusable_repository_is_replaced() {
    let mut fixture = Fixture::new().await;
    fixture
        .pass(
            fixture.checkout(),
            &["for f in .git/objects/pack/*.pack .git/objects/pack/*.idx; do rm -f $f; done; rm .git/shallow"],
        )
        .await;
    fs::write(fixture.upstream().join("run.sh"), "#!/bin/sh\necho second\n").unwrap();
    let sha = fixture.publish("second");
    let log = fixture.pass(Checkout { sha, ..fixture.checkout() }, &["./run.sh"]).await;
    assert!(log.contains("\nsecond\n"), "{log}");
    fixture.in_project(&["fsck", "--strict"]);
}

#[tokio::test]
async fn repository_that_an_earlier_job_has_moved_is_replaced() {
    let mut fixture = Fixture::new().await;
    let other = fixture.agent.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("kept"), "kept").unwrap();
    let move_repository = "mv .git ../moved; echo \"gitdir: $PWD/../moved\" > .git";
    let set_work_tree = format!("printf '[core]\\nworktree = {}\\n' >> .git/config", other.display());
    for command in [move_repository, &set_work_tree] {
        fixture.pass(fixture.checkout(), &[command]).await;
        fixture.pass(fixture.checkout(), &["./run.sh"]).await;
        assert_eq!(fs::read_to_string(other.join("kept")).unwrap(), "kept");
    }
    fixture.pass(fixture.checkout(), &[&set_work_tree]).await;
    let log = fixture.fail(Checkout { clean_config: false, ..fixture.checkout() }).await;
    assert!(log.contains("has another work tree; use GIT_STRATEGY=clone"), "{log}");
    assert_eq!(fs::read_to_string(other.join("kept")).unwrap(), "kept");
}

#[tokio::test]
async fn submodules_are_fetched_with_the_credentials_of_the_job() {
    let mut fixture = Fixture::new().await;
    let local = format!("url.file://{}/.insteadOf=git@gitlab.example:", fixture.agent.dir.path().display());
    let add = ["-c", &local, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add"];
    git(&fixture.upstream(), &[&add[..], &["git@gitlab.example:bare.git", "lib/one"]].concat());
    git(&fixture.upstream(), &[&add[..], &["git@gitlab.example:bare.git", "lib/two"]].concat());
    git(&fixture.upstream(), &["config", "-f", ".gitmodules", "submodule.lib/two.url", "../bare.git"]);
    let sha = fixture.publish("with submodules");
    let rewrite = Rewrite { from: "git@gitlab.example:".to_owned(), to: fixture.server.url(TOKEN, "") };
    let all = Checkout {
        sha,
        submodules: "recursive".to_owned(),
        submodule_depth: 1,
        rewrites: vec![rewrite],
        ..fixture.checkout()
    };
    let one = Checkout { submodule_paths: vec!["lib/one".to_owned()], ..all.clone() };
    let log = fixture.pass(one, &["cat lib/one/run.sh; ls -A lib/two | wc -l"]).await;
    assert!(log.contains("Updating/initializing submodules recursively with git depth set to 1..."), "{log}");
    assert!(log.contains("Updated submodules") && log.contains("\necho ran\n0\n"), "{log}");
    for _ in 0..2 {
        let log = fixture.pass(all.clone(), &["lib/one/run.sh; lib/two/run.sh; touch lib/one/dirt lib/two/dirt"]).await;
        assert!(log.contains("\nran\nran\n"), "{log}");
    }
    assert_eq!(
        fixture
            .in_project(&["submodule", "foreach", "--quiet", "git rev-parse --show-prefix HEAD | tail -1"])
            .lines()
            .count(),
        2
    );
    let configs = ["", "/modules/lib/one", "/modules/lib/two"]
        .map(|path| fixture.agent.project().join(format!(".git{path}/config")));
    for config in configs {
        let text = fs::read_to_string(&config).unwrap_or_else(|error| panic!("{}: {error}", config.display()));
        assert!(!text.contains(TOKEN), "{}: {text}", config.display());
    }
}

#[tokio::test]
async fn cleanup_after_a_job_removes_files_of_submodules_except_those_that_the_flags_exclude() {
    let mut fixture = Fixture::new().await;
    let local = format!("url.file://{}/.insteadOf=git@gitlab.example:", fixture.agent.dir.path().display());
    let add = ["-c", &local, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add"];
    git(&fixture.upstream(), &[&add[..], &["git@gitlab.example:bare.git", "lib"]].concat());
    let sha = fixture.publish("with a submodule");
    let rewrite = Rewrite { from: "git@gitlab.example:".to_owned(), to: fixture.server.url(TOKEN, "") };
    let checkout = Checkout { sha, submodules: "normal".to_owned(), rewrites: vec![rewrite], ..fixture.checkout() };
    let flags = ["-ffdx", "-e", "kept"].map(str::to_owned).to_vec();
    let cleanup = Cleanup {
        checkout: "fetch".to_owned(),
        clean_flags: Some(flags),
        submodules: "normal".to_owned(),
        ..Cleanup::default()
    };
    let cleanup = step("cleanup_file_variables", When::Finally, Call::builtin(&cleanup));
    let dirty = script(&["touch kept dirt lib/kept lib/dirt"]);
    let plan = with_sources(fixture.agent.plan(vec![dirty, cleanup]), checkout);
    let variables = fixture.variables();
    fixture.agent.run("1-1", &plan, &variables).await;
    assert_eq!(fixture.agent.wait("1-1").await.outcome, Outcome::Success);
    let exists = ["kept", "lib/kept", "dirt", "lib/dirt"].map(|file| fixture.agent.project().join(file).exists());
    assert_eq!(exists, [true, true, false, false]);
}

#[tokio::test]
async fn failures_name_their_cause_and_no_secret() {
    let mut fixture = Fixture::new().await;
    for (url, message) in [
        (fixture.server.url("wrong", "bare.git"), "failed to get the sources: the server answered 401 Unauthorized"),
        (fixture.server.url(TOKEN, "missing.git"), "failed to get the sources: the server answered 404 Not Found"),
        (fixture.server.url(TOKEN, "html.git"), "the response is not from a Git server"),
        (format!("http://gitlab-ci-token:{TOKEN}@127.0.0.1:1/bare.git"), "Connection refused"),
    ] {
        let log = fixture.fail(Checkout { repo_url: url, ..fixture.checkout() }).await;
        assert!(log.contains(message), "{message}: {log}");
    }
    let missing = "0123456789012345678901234567890123456789".to_owned();
    let log = fixture.fail(Checkout { sha: missing, ..fixture.checkout() }).await;
    assert!(log.contains("failed to get the sources"), "{log}");
    let log = fixture.fail(Checkout { object_format: "sha256".to_owned(), ..fixture.checkout() }).await;
    assert!(log.contains("object format sha256 requires the `git` command"), "{log}");
}

#[tokio::test]
async fn fetch_from_a_server_that_does_not_answer_can_be_canceled() {
    let mut fixture = Fixture::new().await;
    let checkout = Checkout { repo_url: fixture.server.url(TOKEN, "slow.git"), ..fixture.checkout() };
    let plan = with_sources(fixture.agent.plan(vec![script(&["echo never"])]), checkout);
    let variables = fixture.variables();
    fixture.agent.run("1-1", &plan, &variables).await;
    fixture.agent.log_until("1-1", "Fetching changes").await;
    fixture.agent.cancel("1-1").await;
    let result = fixture.agent.wait("1-1").await;
    assert_eq!(failure(&result).0, "job_canceled");
}

#[tokio::test]
async fn cleanup_after_a_job_restores_the_files_of_the_commit() {
    let mut fixture = Fixture::new().await;
    let cleanup =
        Cleanup { checkout: "fetch".to_owned(), clean_flags: Some(vec!["-ffdx".to_owned()]), ..Cleanup::default() };
    let cleanup = step("cleanup_file_variables", When::Finally, Call::builtin(&cleanup));
    let dirty = script(&["echo dirt > dirt; echo changed > run.sh"]);
    let plan = with_sources(fixture.agent.plan(vec![dirty, cleanup]), fixture.checkout());
    let variables = fixture.variables();
    fixture.agent.run("1-1", &plan, &variables).await;
    assert_eq!(fixture.agent.wait("1-1").await.outcome, Outcome::Success);
    assert_eq!(fixture.in_project(&["status", "--porcelain"]), "");
}
