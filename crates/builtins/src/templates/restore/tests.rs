//! Tests that a restored directory equals a new one, whatever was changed in it, and that unchanged files are not written.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

/// Type, permissions, content and modification time of all files of a tree.
type Picture = BTreeMap<PathBuf, (char, u32, Vec<u8>, i64)>;

fn picture(root: &Path) -> Picture {
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

struct World {
    dir: tempfile::TempDir,
    tree: Tree,
    trash: Trash,
}

impl World {
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

    fn restore(&self, bare: bool, left: Marks) -> Marks {
        let (target, trash) = (self.target(), &self.trash);
        Restore { tree: &self.tree, target: &target, bare, trash, go_on: &|| true, left }.run().unwrap()
    }

    /// Restores until the state of every entry is known, so that a change cannot have the same ctime.
    fn settle(&self) -> Marks {
        let mut marks = self.restore(false, Marks::default());
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while marks
            .0
            .iter()
            .zip(std::iter::once(None).chain(self.tree.entries.iter().map(Some)))
            .any(|(mark, entry)| mark.is_none() && !matches!(entry, Some(Entry { kind: Kind::Link(_), .. })))
        {
            assert!(std::time::Instant::now() < deadline, "{marks:?}");
            marks = self.restore(false, marks);
        }
        marks
    }
}

/// Changes the directory in one of the ways that a job could.
fn vandalize(root: &Path, act: u8, place: usize) {
    const PLACES: [&str; 9] = ["a/one", "a/b/two", "a/b", "a", "empty", "link", "z", "a/large", ".git/HEAD"];
    let path = root.join(PLACES[place % PLACES.len()]);
    let times = fs::symlink_metadata(&path).map(|found| filetime::FileTime::from_last_modification_time(&found));
    let remove = || match fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
        Ok(_) => fs::remove_file(&path),
        Err(error) => Err(error),
    };
    // Changes that are impossible after earlier ones have no effect.
    let _ = match act % 9 {
        0 => remove(),
        1 => remove().and_then(|()| fs::create_dir_all(path.join("deep/er"))),
        2 => remove().and_then(|()| fs::write(&path, "another")),
        3 => remove().and_then(|()| symlink("/", &path)),
        4 => fs::set_permissions(&path, fs::Permissions::from_mode(0o700)),
        5 => fs::write(path.join("stranger"), "s").and_then(|()| fs::create_dir_all(path.join("strange/deep"))),
        6 => fs::hard_link(&path, root.join(format!("hard{place}"))),
        7 => fs::rename(&path, root.join("moved")),
        // Same size and modification time, but other content.
        _ => fs::metadata(&path)
            .and_then(|found| fs::write(&path, vec![b'x'; usize::try_from(found.len()).unwrap_or(0)]))
            .and_then(|()| filetime::set_file_mtime(&path, times.unwrap())),
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn whatever_a_job_did_the_next_one_finds_what_a_new_directory_would_hold(
        rounds in prop::collection::vec(prop::collection::vec((any::<u8>(), 0..9_usize), 0..6), 1..4),
        settled in any::<bool>(),
    ) {
        let world = World::new();
        let mut marks = if settled { world.settle() } else { world.restore(false, Marks::default()) };
        prop_assert_eq!(picture(&world.target()), picture(&world.template()));
        for acts in rounds {
            for (act, place) in acts {
                vandalize(&world.target(), act, place);
            }
            marks = world.restore(false, marks);
            prop_assert_eq!(picture(&world.target()), picture(&world.template()));
        }
        world.trash.close();
    }
}

#[test]
fn what_nobody_touched_is_not_touched() {
    let world = World::new();
    let state = || {
        let entries = walkdir::WalkDir::new(world.target()).into_iter().map(Result::unwrap);
        entries.map(|entry| Mark::of(&entry.metadata().unwrap())).collect::<Vec<_>>()
    };
    let marks = world.restore(false, Marks::default());
    let before = state();
    world.restore(false, marks);
    assert_eq!(state(), before);
}

#[test]
fn a_file_that_lies_about_its_age_is_found_by_its_time_of_change() {
    let world = World::new();
    let marks = world.settle();
    vandalize(&world.target(), 8, 7);
    world.restore(false, marks);
    assert_eq!(picture(&world.target()), picture(&world.template()));
}

#[test]
fn without_a_checkout_only_the_repository_is_there() {
    let world = World::new();
    world.restore(false, Marks::default());
    world.restore(true, Marks::default());
    let names: Vec<_> = picture(&world.target()).into_keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", ".git", ".git/HEAD", ".git/refs"]);
}
