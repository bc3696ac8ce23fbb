use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;

use super::*;

#[derive(Debug, clap::Parser)]
struct TestCli {
    #[command(flatten)]
    args: PipelineArgs,
}

struct Repository(tempfile::TempDir);

impl Repository {
    /// Creates a repository with one commit on `main`, and a remote.
    fn new() -> Self {
        let repository = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(repository.path()).unwrap();
        repository.git(&["init", "-q", "-b", "main"]);
        repository.git(&["remote", "add", "origin", "git@git.example.org:Group/Sub/App.git"]);
        repository.commit("a.txt", "First: the title\n\nThe rest");
        repository
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("app")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let user = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
        let output = Command::new("git").current_dir(self.path()).args(user).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn commit(&self, file: &str, message: &str) -> String {
        std::fs::write(self.path().join(file), message).unwrap();
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn context(&self, flags: &[&str]) -> Result<Context, CiError> {
        let cli = TestCli::parse_from(std::iter::once(&"muster").chain(flags));
        let snapshot = Snapshot::take(&self.path(), &self.0.path().join("store")).unwrap();
        let identity = ProjectIdentity::of(&snapshot);
        let run =
            RunFacts { server_url: "http://127.0.0.1:4000", project_id: 42, iid: 3, config_path: ".gitlab-ci.yml" };
        context(&cli.args, &Config::default(), &snapshot, &identity, &run)
    }
}

fn value<'a>(context: &'a Context, name: &str) -> Option<&'a str> {
    context.predefined.iter().find(|variable| variable.key == name).map(|variable| variable.value.as_str())
}

#[test]
fn push_sets_branch_and_commit_variables() {
    let repository = Repository::new();
    let context = repository.context(&[]).unwrap();
    let sha = repository.git(&["rev-parse", "HEAD"]);
    for (name, expected) in [
        ("CI", "true"),
        ("CI_PIPELINE_SOURCE", "push"),
        ("CI_COMMIT_BRANCH", "main"),
        ("CI_COMMIT_REF_NAME", "main"),
        ("CI_COMMIT_REF_PROTECTED", "true"),
        ("CI_COMMIT_SHA", &sha),
        ("CI_COMMIT_SHORT_SHA", &sha[..8]),
        ("CI_COMMIT_TITLE", "First: the title"),
        ("CI_COMMIT_DESCRIPTION", "The rest"),
        ("CI_COMMIT_MESSAGE", "First: the title\n\nThe rest"),
        ("CI_COMMIT_AUTHOR", "Ada <ada@example.org>"),
        ("CI_COMMIT_BEFORE_SHA", ZEROS),
        ("CI_DEFAULT_BRANCH", "main"),
        ("CI_PROJECT_PATH", "Group/Sub/App"),
        ("CI_PROJECT_PATH_SLUG", "group-sub-app"),
        ("CI_PROJECT_NAME", "App"),
        ("CI_PROJECT_NAMESPACE", "Group/Sub"),
        ("CI_PROJECT_ROOT_NAMESPACE", "Group"),
        ("CI_PROJECT_URL", "https://git.example.org/Group/Sub/App"),
        ("CI_SERVER_SHELL_SSH_HOST", "git.example.org"),
        ("CI_SERVER_FQDN", "git.example.org"),
        ("CI_SERVER_PORT", "443"),
        ("CI_API_V4_URL", "http://127.0.0.1:4000/api/v4"),
        ("CI_PIPELINE_IID", "3"),
        ("CI_PROJECT_ID", "42"),
    ] {
        assert_eq!(value(&context, name), Some(expected), "{name}");
    }
    for absent in ["CI_COMMIT_TAG", "CI_MERGE_REQUEST_IID", "CI_PIPELINE_TRIGGERED", "CI_OPEN_MERGE_REQUESTS"] {
        assert_eq!(value(&context, absent), None, "{absent}");
    }
    assert_eq!(
        context.changed_paths, None,
        "the changes must be unknown, because the branch does not exist on the server"
    );
}

#[test]
fn changes_of_a_push_are_relative_to_the_upstream_branch() {
    let repository = Repository::new();
    let pushed = repository.git(&["rev-parse", "HEAD"]);
    repository.git(&["update-ref", "refs/remotes/origin/main", &pushed]);
    repository.git(&["config", "branch.main.remote", "origin"]);
    repository.git(&["config", "branch.main.merge", "refs/heads/main"]);
    repository.commit("b.txt", "Second");
    std::fs::write(repository.path().join("c.txt"), "not committed").unwrap();

    let context = repository.context(&[]).unwrap();
    assert_eq!(context.changed_paths.as_deref(), Some(&["b.txt".to_owned(), "c.txt".to_owned()][..]));
    assert_eq!(value(&context, "CI_COMMIT_BEFORE_SHA"), Some(pushed.as_str()));

    // If there is nothing to push, the last commit counts as the push.
    std::fs::remove_file(repository.path().join("c.txt")).unwrap();
    repository.git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
    let context = repository.context(&[]).unwrap();
    assert_eq!(context.changed_paths.as_deref(), Some(&["b.txt".to_owned()][..]));
}

#[test]
fn merge_request_sets_no_branch_and_compares_with_the_merge_base() {
    let repository = Repository::new();
    let base = repository.git(&["rev-parse", "HEAD"]);
    repository.git(&["checkout", "-q", "-b", "topic"]);
    repository.commit("b.txt", "Draft: second");

    let context = repository.context(&["--mr-target", "main"]).unwrap();

    assert_eq!(context.source, PipelineSource::MergeRequestEvent);
    for (name, expected) in [
        ("CI_PIPELINE_SOURCE", "merge_request_event"),
        ("CI_COMMIT_REF_NAME", "topic"),
        ("CI_COMMIT_BEFORE_SHA", ZEROS),
        ("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "topic"),
        ("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main"),
        ("CI_MERGE_REQUEST_TARGET_BRANCH_PROTECTED", "true"),
        ("CI_MERGE_REQUEST_DIFF_BASE_SHA", &base),
        ("CI_MERGE_REQUEST_EVENT_TYPE", "detached"),
        ("CI_MERGE_REQUEST_DRAFT", "true"),
        ("CI_OPEN_MERGE_REQUESTS", "Group/Sub/App!1"),
    ] {
        assert_eq!(value(&context, name), Some(expected), "{name}");
    }
    assert_eq!((value(&context, "CI_COMMIT_BRANCH"), value(&context, "CI_COMMIT_TAG")), (None, None));
    assert_eq!(context.changed_paths.as_deref(), Some(&["b.txt".to_owned()][..]));
}

#[test]
fn tag_pipeline_sets_the_tag_and_no_branch() {
    let repository = Repository::new();
    repository.git(&["tag", "-a", "v1.0", "-m", "The first"]);
    for flags in [&["--event", "tag"][..], &["--tag", "v1.0"]] {
        let context = repository.context(flags).unwrap();
        assert_eq!((context.source, context.ref_kind), (PipelineSource::Push, RefKind::Tag));
        assert_eq!(value(&context, "CI_COMMIT_TAG"), Some("v1.0"));
        assert_eq!(value(&context, "CI_COMMIT_TAG_MESSAGE"), Some("The first"));
        assert_eq!(value(&context, "CI_COMMIT_REF_NAME"), Some("v1.0"));
        assert_eq!(value(&context, "CI_COMMIT_BRANCH"), None);
    }
    let context = repository.context(&["--tag", "v2.0-missing"]).unwrap();
    assert_eq!(value(&context, "CI_COMMIT_TAG"), Some("v2.0-missing"));
    assert_eq!(value(&context, "CI_COMMIT_TAG_MESSAGE"), None);
}

#[test]
fn events_set_only_their_own_variables() {
    let repository = Repository::new();
    for (event, source, event_variable) in [
        ("schedule", "schedule", Some("CI_PIPELINE_SCHEDULE_DESCRIPTION")),
        ("trigger", "trigger", Some("CI_PIPELINE_TRIGGERED")),
        ("web", "web", None),
        ("api", "api", None),
        ("chat", "chat", None),
    ] {
        let context = repository.context(&["--event", event]).unwrap();
        assert_eq!(value(&context, "CI_PIPELINE_SOURCE"), Some(source));
        assert_eq!(value(&context, "CI_COMMIT_BRANCH"), Some("main"));
        for name in ["CI_PIPELINE_SCHEDULE_DESCRIPTION", "CI_PIPELINE_TRIGGERED"] {
            assert_eq!(value(&context, name).is_some(), event_variable == Some(name), "{event} {name}");
        }
        assert_eq!(context.changed_paths, None);
    }
}

#[test]
fn invalid_flags_are_rejected_with_a_remedy() {
    let repository = Repository::new();
    for (flags, expected) in [
        (&["--event", "tag"][..], "--tag NAME"),
        (&["--event", "schedule", "--mr-target", "main"], "--event merge_request_event"),
        (&["--mr-target", "missing"], "missing"),
        (&["--changed-since", "missing"], "no such branch, tag or commit"),
        (&["--event", "merge_request_event", "--tag", "v1"], "has no tag"),
        (&["--var", "NOVALUE"], "NAME=VALUE"),
    ] {
        let error = repository.context(flags).unwrap_err().to_string();
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
}

#[test]
fn flags_set_the_branch_and_variables() {
    let repository = Repository::new();
    let file = repository.0.path().join("values");
    std::fs::write(&file, "A=file\nB=file\n").unwrap();
    let file = file.to_str().unwrap();
    let file_var = format!("CERT={file}");
    let flags = ["--ref", "release/1", "--var", "A=flag=x", "--var-file", file, "--file-var", &file_var];
    let context = repository.context(&flags).unwrap();
    assert_eq!(value(&context, "CI_COMMIT_BRANCH"), Some("release/1"));
    assert_eq!(value(&context, "CI_COMMIT_REF_SLUG"), Some("release-1"));
    assert_eq!(value(&context, "CI_COMMIT_REF_PROTECTED"), Some("false"));
    let variables: Vec<_> = context
        .pipeline_variables
        .iter()
        .map(|variable| (variable.key.as_str(), variable.value.as_str(), variable.file))
        .collect();
    assert_eq!(variables, [("B", "file", false), ("CERT", "A=file\nB=file\n", true), ("A", "flag=x", false)]);
    assert!(Path::new(file).exists());
}
