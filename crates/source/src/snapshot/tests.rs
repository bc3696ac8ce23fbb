use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use super::*;

struct Repository {
    home: tempfile::TempDir,
}

impl Repository {
    fn new() -> Self {
        Self::with(&["init", "-q", "-b", "main"])
    }

    fn with(init: &[&str]) -> Self {
        let repository = Self { home: tempfile::tempdir().unwrap() };
        fs::create_dir(repository.path()).unwrap();
        repository.git(init);
        repository.git(&["config", "user.name", "Ada"]);
        repository.git(&["config", "user.email", "ada@example.org"]);
        repository
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("a project")
    }

    fn store(&self) -> PathBuf {
        self.home.path().join("state/store.git")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn git(&self, arguments: &[&str]) -> String {
        git_in(&self.path(), arguments)
    }

    fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn take(&self) -> Snapshot {
        Snapshot::take(&self.path(), &self.store()).unwrap()
    }

    fn checkout(&self, snapshot: &Snapshot) -> tempfile::TempDir {
        let target = tempfile::tempdir().unwrap();
        snapshot.pin(7, Some("refs/heads/main")).unwrap();
        git_in(target.path(), &["init", "-q", &format!("--object-format={}", snapshot.object_format)]);
        git_in(target.path(), &["fetch", "-q", self.store().to_str().unwrap(), "+refs/pipelines/7:refs/pipelines/7"]);
        git_in(target.path(), &["checkout", "-q", &snapshot.sha]);
        target
    }
}

fn git_in(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git").current_dir(directory).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    line(&output.stdout)
}

fn bytes_of(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else {
                found.insert(entry.path(), fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

#[test]
fn clean_tree_uses_the_head_commit() {
    let repository = Repository::new();
    repository.write("a.txt", "one");
    let head = repository.commit("First\n\nWith words");
    repository.git(&["tag", "-a", "v1", "-m", "The tag\n\nsays this"]);
    repository.git(&["tag", "v1-plain"]);

    let snapshot = repository.take();

    assert_eq!((snapshot.sha.as_str(), snapshot.dirty), (head.as_str(), false));
    assert_eq!(snapshot.branch.as_deref(), Some("main"));
    assert_eq!(snapshot.head.message, "First\n\nWith words");
    assert_eq!(snapshot.head.author, "Ada <ada@example.org>");
    assert_eq!(snapshot.head.parents, Vec::<String>::new());
    let tags: BTreeSet<_> = snapshot.head.tags.iter().map(String::as_str).collect();
    assert_eq!(tags, BTreeSet::from(["v1", "v1-plain"]));
    assert_eq!(snapshot.tag_message("v1").as_deref(), Some("The tag\n\nsays this"));
    assert_eq!(snapshot.tag_message("v1-plain"), None);
    assert!(snapshot.tracked_paths.contains("a.txt"));
}

#[test]
fn snapshot_has_changed_and_untracked_files_but_no_ignored_files() {
    let repository = Repository::new();
    repository.write("changed.txt", "old");
    repository.write("deleted.txt", "x");
    repository.write(".gitignore", "ignored.txt\n");
    let head = repository.commit("First");
    repository.write("changed.txt", "new");
    repository.write("staged.txt", "staged");
    repository.git(&["add", "staged.txt"]);
    repository.write("staged.txt", "after staging");
    repository.write("dir/untracked.txt", "u");
    repository.write("ignored.txt", "i");
    fs::remove_file(repository.path().join("deleted.txt")).unwrap();

    let snapshot = Snapshot::take(&repository.path().join("dir"), &repository.store()).unwrap();

    assert!(snapshot.dirty);
    assert_eq!(snapshot.head.sha, head);
    let job = repository.checkout(&snapshot);
    let read = |path: &str| fs::read_to_string(job.path().join(path)).ok();
    assert_eq!(read("changed.txt").as_deref(), Some("new"));
    assert_eq!(read("staged.txt").as_deref(), Some("after staging"));
    assert_eq!(read("dir/untracked.txt").as_deref(), Some("u"));
    assert_eq!((read("ignored.txt"), read("deleted.txt")), (None, None));
    assert_eq!(git_in(job.path(), &["rev-parse", "HEAD^"]), head);
    let changed = snapshot.changed_since("main").unwrap().paths;
    assert_eq!(changed, ["changed.txt", "deleted.txt", "dir/untracked.txt", "staged.txt"]);
}

#[test]
fn snapshot_never_changes_the_users_repository() {
    let repository = Repository::new();
    repository.write("a.txt", "one");
    repository.commit("First");
    repository.write("a.txt", "two");
    repository.write("b.txt", "new");
    repository.write(".git/index.lock", "");
    let before = bytes_of(&repository.path());

    let first = repository.take();
    let second = repository.take();

    assert!(first.dirty);
    assert_eq!(first.sha, second.sha, "equal content must have an equal ID");
    assert_eq!(bytes_of(&repository.path()), before);
}

#[test]
fn links_modes_and_unusual_names_are_preserved() {
    let repository = Repository::new();
    repository.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(repository.path().join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    repository.commit("First");
    repository.write("with space and\nline", "odd");
    symlink("run.sh", repository.path().join("link")).unwrap();
    let latin = std::ffi::OsStr::from_bytes(b"caf\xe9.txt");
    fs::write(repository.path().join(latin), "latin").unwrap();

    let job = repository.checkout(&repository.take());

    assert_eq!(fs::read(job.path().join("with space and\nline")).unwrap(), b"odd");
    assert_eq!(fs::read_link(job.path().join("link")).unwrap(), Path::new("run.sh"));
    assert_eq!(fs::read(job.path().join(latin)).unwrap(), b"latin");
    assert_eq!(fs::metadata(job.path().join("run.sh")).unwrap().permissions().mode() & 0o111, 0o111);
}

/// Makes each snapshot execute `script` when it reads `a.txt`, which differs from the index.
fn run_during_snapshots(repository: &Repository, script: &str) {
    repository.write(".gitattributes", "a.txt filter=script\n");
    repository.write("a.txt", "one");
    repository.commit("First");
    let path = repository.home.path().join("script");
    fs::write(&path, format!("cat\nunset $(env | sed -n 's/^\\(GIT_[A-Z_]*\\)=.*/\\1/p')\n{script}\n")).unwrap();
    repository.git(&["config", "filter.script.clean", &format!("sh '{}'", path.display())]);
    repository.write("a.txt", "changed");
}

#[test]
fn snapshot_is_repeated_if_another_commit_is_checked_out_meanwhile() {
    for (change, branch) in [("symbolic-ref HEAD refs/heads/other", "other"), ("update-ref HEAD $amended", "main")] {
        let repository = Repository::new();
        let script = format!(
            "[ -e ../done ] && exit\ntouch ../done\ngit branch other\n\
             amended=$(git commit-tree -m Amended 'HEAD^{{tree}}')\ngit {change}"
        );
        run_during_snapshots(&repository, &script);
        let snapshot = repository.take();
        let head = repository.git(&["rev-parse", "HEAD"]);
        assert_eq!((snapshot.head.sha.as_str(), snapshot.branch.as_deref()), (head.as_str(), Some(branch)));
        assert_eq!(repository.git(&["log", "-1", "--format=%B", "HEAD"]).trim(), snapshot.head.message);
        let job = repository.checkout(&snapshot);
        assert_eq!(git_in(job.path(), &["rev-parse", "HEAD^"]), head);
        assert_eq!(fs::read_to_string(job.path().join("a.txt")).unwrap(), "changed");
    }
}

#[test]
fn snapshot_fails_if_another_commit_is_checked_out_during_each_attempt() {
    let repository = Repository::new();
    run_during_snapshots(&repository, "git update-ref HEAD $(git commit-tree -m $(date +%s%N) 'HEAD^{tree}')");
    let error = Snapshot::take(&repository.path(), &repository.store()).unwrap_err();
    assert!(matches!(error, SnapshotError::HeadChanged { .. }), "{error}");
}

#[test]
fn change_of_a_file_that_is_as_old_as_the_index_is_detected() {
    let repository = Repository::new();
    repository.write("a.txt", "one");
    repository.commit("First");
    // The file keeps its size, and gets the modification time of the index, so git must read its content.
    let time = fs::metadata(repository.path().join(".git/index")).unwrap().modified().unwrap();
    repository.write("a.txt", "two");
    fs::File::options().write(true).open(repository.path().join("a.txt")).unwrap().set_modified(time).unwrap();

    assert!(repository.take().dirty);
}

#[test]
fn snapshots_support_worktrees_submodules_shallow_clones_and_sha256() {
    let inner = Repository::new();
    inner.write("inner.txt", "i");
    inner.commit("Inner");
    let repository = Repository::new();
    repository.write("a.txt", "one");
    repository.commit("First");
    let url = inner.path();
    repository.git(&["-c", "protocol.file.allow=always", "submodule", "add", "-q", url.to_str().unwrap(), "sub"]);
    repository.commit("Second");
    repository.write("sub/dirty.txt", "in the submodule");
    let snapshot = repository.take();
    assert!(!snapshot.dirty, "a change inside a submodule must not count");
    assert!(snapshot.tracked_paths.contains("sub"));

    let tree = repository.home.path().join("tree");
    repository.git(&["worktree", "add", "-q", "-b", "topic", tree.to_str().unwrap()]);
    fs::write(tree.join("b.txt"), "b").unwrap();
    let snapshot = Snapshot::take(&tree, &repository.home.path().join("tree-store")).unwrap();
    assert_eq!((snapshot.branch.as_deref(), snapshot.dirty), (Some("topic"), true));

    let shallow = repository.home.path().join("shallow");
    let url = format!("file://{}", repository.path().display());
    repository.git(&["clone", "-q", "--depth=1", &url, shallow.to_str().unwrap()]);
    fs::write(shallow.join("a.txt"), "changed").unwrap();
    let store = repository.home.path().join("shallow-store");
    let snapshot = Snapshot::take(&shallow, &store).unwrap();
    snapshot.pin(7, None).unwrap();
    let job = tempfile::tempdir().unwrap();
    git_in(job.path(), &["clone", "-q", "--no-checkout", store.to_str().unwrap(), "."]);
    assert!(snapshot.dirty);

    let repository = Repository::with(&["init", "-q", "-b", "main", "--object-format=sha256"]);
    repository.write("a.txt", "one");
    repository.commit("First");
    repository.write("a.txt", "two");
    let snapshot = repository.take();
    assert_eq!((snapshot.sha.len(), snapshot.object_format.as_str()), (64, "sha256"));
    let job = repository.checkout(&snapshot);
    assert_eq!(fs::read(job.path().join("a.txt")).unwrap(), b"two");
}

#[test]
fn snapshot_errors_distinguish_their_causes() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let error = |path: &Path| Snapshot::take(path, &store).unwrap_err();
    assert!(matches!(error(directory.path()), SnapshotError::NotARepository { .. }));
    assert!(matches!(error(&directory.path().join("nowhere")), SnapshotError::NoDirectory { .. }));

    git_in(directory.path(), &["init", "-q", "--bare", "bare.git"]);
    assert!(matches!(error(&directory.path().join("bare.git")), SnapshotError::Bare { .. }));

    let repository = Repository::new();
    assert!(matches!(error(&repository.path()), SnapshotError::NoCommits { .. }));
    repository.write("a.txt", "one");
    repository.commit("First");
    for inside in [".git", ".git/refs"] {
        assert!(matches!(error(&repository.path().join(inside)), SnapshotError::InGitDirectory { .. }), "{inside}");
    }

    fs::write(directory.path().join("file"), "").unwrap();
    let result = Snapshot::take(&repository.path(), &directory.path().join("file/store"));
    assert!(matches!(result, Err(SnapshotError::Store { .. })));
    assert!(!store.exists());
}

#[test]
fn refs_are_resolved_by_short_names_but_not_as_options() {
    let repository = Repository::new();
    repository.write("a.txt", "one");
    let first = repository.commit("First");
    repository.git(&["tag", "v1"]);
    repository.git(&["update-ref", "refs/remotes/origin/release", &first]);
    repository.write("a.txt", "two");
    repository.commit("Second");
    let snapshot = repository.take();
    for name in ["v1", "release", "origin/release", "refs/tags/v1", &first, &first[..10], "HEAD^", "@^"] {
        assert_eq!(snapshot.resolve(name).as_deref(), Some(first.as_str()), "{name}");
    }
    for name in ["nothing", "", "--all", "-h"] {
        assert_eq!(snapshot.resolve(name), None, "{name}");
    }
    assert_eq!(snapshot.changed_since("v1").unwrap().paths, ["a.txt"]);
    assert_eq!(snapshot.changed_since("nothing"), None);
}

#[test]
fn remotes_of_the_users_configuration_are_not_remotes_of_the_repository() {
    let repository = Repository::new();
    repository.commit("First");
    repository.git(&["remote", "add", "own", "https://git.example/g/own.git"]);
    let user = repository.home.path().join("gitconfig");
    git_in(&repository.path(), &["config", "--file", user.to_str().unwrap(), "remote.x.url", "https://git.example/x"]);
    git_in(&repository.path(), &["config", "--file", user.to_str().unwrap(), "core.pager", "less"]);
    let mut snapshot = repository.take();
    snapshot.git = snapshot.git.with_variable("GIT_CONFIG_GLOBAL", user);
    let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = [entry("core.pager", "less"), entry("remote.own.url", "https://git.example/g/own.git")];
    assert_eq!(snapshot.config(r"^(remote\..*\.url|core\.pager)$"), expected);
}

#[test]
fn commit_without_common_history_is_not_called_merge_base() {
    let repository = Repository::new();
    repository.write("a.txt", "one");
    let first = repository.commit("First");
    repository.git(&["checkout", "-q", "--orphan", "unrelated"]);
    repository.write("a.txt", "two");
    repository.commit("Unrelated");
    let compared = repository.take().changed_since("main").unwrap();
    assert_eq!(compared.paths, ["a.txt"]);
    assert_eq!(compared.since, format!("{}, the commit of `main`", &first[..8]));
    repository.git(&["checkout", "-q", "main"]);
    repository.write("b.txt", "one");
    let compared = repository.take().changed_since("main").unwrap();
    assert_eq!(compared.since, format!("{}, the merge base with `main`", &first[..8]));
}
