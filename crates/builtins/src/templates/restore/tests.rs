//! Tests that a restored directory equals a new one, and that unchanged files are not written.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

/// Type, permissions, content and modification time of the files of a tree.
type Snapshot = BTreeMap<PathBuf, (char, u32, Vec<u8>, i64)>;

fn snapshot(root: &Path) -> Snapshot {
    let entries = walkdir::WalkDir::new(root).into_iter().map(Result::unwrap);
    let seen = entries.map(|entry| {
        let metadata = entry.metadata().unwrap();
        let (kind, content, time) = if metadata.is_dir() {
            ('d', Vec::new(), 0)
        } else if metadata.is_symlink() {
            ('l', fs::read_link(entry.path()).unwrap().into_os_string().into_encoded_bytes(), 0)
        } else {
            ('f', fs::read(entry.path()).unwrap(), metadata.mtime())
        };
        let mode = if metadata.is_symlink() { 0 } else { permissions(&metadata) };
        (entry.path().strip_prefix(root).unwrap().to_owned(), (kind, mode, content, time))
    });
    seen.collect()
}

struct Fixture {
    dir: tempfile::TempDir,
    tree: Tree,
    trash: Trash,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("template");
        fs::create_dir_all(root.join(".git/refs")).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join("empty")).unwrap();
        for name in [".git/HEAD", ".git/index", "a/one", "a/b/two", "z"] {
            fs::write(root.join(name), format!("content of {name}")).unwrap();
        }
        fs::write(root.join("a/large"), vec![7; 100_000]).unwrap();
        fs::set_permissions(root.join("a/one"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("a/one", root.join("link")).unwrap();
        Self { tree: Tree::read(&root).unwrap(), trash: Trash::default(), dir }
    }

    fn template(&self) -> PathBuf {
        self.dir.path().join("template")
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    fn restore(&self, bare: bool, last_stamps: FileStamps) -> FileStamps {
        let (target, trash) = (self.target(), &self.trash);
        Restore { tree: &self.tree, target: &target, bare, trash, should_continue: &|| true, last_stamps }
            .run()
            .unwrap()
    }

    /// Restores until all stamps are known, so that a change gets another ctime.
    fn settle(&self) -> FileStamps {
        let mut stamps = self.restore(false, FileStamps::default());
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while stamps
            .0
            .iter()
            .zip(std::iter::once(None).chain(self.tree.entries.iter().map(Some)))
            .any(|(stamp, entry)| stamp.is_none() && !matches!(entry, Some(Entry { kind: Kind::Link(_), .. })))
        {
            assert!(std::time::Instant::now() < deadline, "{stamps:?}");
            stamps = self.restore(false, stamps);
        }
        stamps
    }
}

/// Changes the directory as a job could.
fn change(root: &Path, kind: u8, index: usize) {
    const PATHS: [&str; 9] = ["a/one", "a/b/two", "a/b", "a", "empty", "link", "z", "a/large", ".git/HEAD"];
    let path = root.join(PATHS[index % PATHS.len()]);
    let times = fs::symlink_metadata(&path).map(|found| filetime::FileTime::from_last_modification_time(&found));
    let remove = || match fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
        Ok(_) => fs::remove_file(&path),
        Err(error) => Err(error),
    };
    // Earlier changes may make this one impossible.
    let _ = match kind % 9 {
        0 => remove(),
        1 => remove().and_then(|()| fs::create_dir_all(path.join("deep/er"))),
        2 => remove().and_then(|()| fs::write(&path, "another")),
        3 => remove().and_then(|()| symlink("/", &path)),
        4 => fs::set_permissions(&path, fs::Permissions::from_mode(0o700)),
        5 => fs::write(path.join("untracked"), "s").and_then(|()| fs::create_dir_all(path.join("strange/deep"))),
        6 => fs::hard_link(&path, root.join(format!("hard{index}"))),
        7 => fs::rename(&path, root.join("moved")),
        // Other content of the same size and modification time.
        _ => fs::metadata(&path)
            .and_then(|found| fs::write(&path, vec![b'x'; usize::try_from(found.len()).unwrap_or(0)]))
            .and_then(|()| filetime::set_file_mtime(&path, times.unwrap())),
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn restored_directory_equals_new_one_after_any_change(
        rounds in prop::collection::vec(prop::collection::vec((any::<u8>(), 0..9_usize), 0..6), 1..4),
        settled in any::<bool>(),
    ) {
        let fixture = Fixture::new();
        let mut stamps = if settled { fixture.settle() } else { fixture.restore(false, FileStamps::default()) };
        prop_assert_eq!(snapshot(&fixture.target()), snapshot(&fixture.template()));
        for changes in rounds {
            for (kind, index) in changes {
                change(&fixture.target(), kind, index);
            }
            stamps = fixture.restore(false, stamps);
            prop_assert_eq!(snapshot(&fixture.target()), snapshot(&fixture.template()));
        }
        fixture.trash.close();
    }
}

#[test]
fn unchanged_files_are_not_written() {
    let fixture = Fixture::new();
    let state = || {
        let entries = walkdir::WalkDir::new(fixture.target()).into_iter().map(Result::unwrap);
        entries.map(|entry| FileStamp::new(&entry.metadata().unwrap())).collect::<Vec<_>>()
    };
    let stamps = fixture.restore(false, FileStamps::default());
    let before = state();
    fixture.restore(false, stamps);
    assert_eq!(state(), before);
}

#[test]
fn change_with_same_mtime_is_detected_by_ctime() {
    let fixture = Fixture::new();
    let stamps = fixture.settle();
    // This changes the content of `a/large`.
    change(&fixture.target(), 8, 7);
    fixture.restore(false, stamps);
    assert_eq!(snapshot(&fixture.target()), snapshot(&fixture.template()));
}

#[test]
fn bare_restore_keeps_only_the_repository() {
    let fixture = Fixture::new();
    fixture.restore(false, FileStamps::default());
    fixture.restore(true, FileStamps::default());
    let names: Vec<_> = snapshot(&fixture.target()).into_keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", ".git", ".git/HEAD", ".git/refs"]);
}
