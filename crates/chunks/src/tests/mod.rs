mod collection;
mod damage;
mod everyday;
mod hostile;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use muster_archive::Limits;
use tempfile::TempDir;

use super::*;

struct RandomNumbers(u64);

impl RandomNumbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    fn text(&mut self, length: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(length + 16);
        while text.len() < length {
            text.extend(format!("word{} ", self.next() % 5000).as_bytes());
        }
        text.truncate(length);
        text
    }
}

/// A directory with the files of a project, and one with caches.
struct Machine {
    directory: TempDir,
    saves: u32,
}

impl Machine {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), saves: 0 }
    }

    fn root(&self) -> PathBuf {
        let root = self.directory.path().join("project");
        fs::create_dir_all(&root).unwrap();
        root
    }

    fn store(&self) -> Store {
        Store::new(&self.directory.path().join("cache"), "unprotected").unwrap()
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn files(&self) -> Vec<PathBuf> {
        let root = self.root();
        let found = walkdir::WalkDir::new(&root).min_depth(1).sort_by_file_name().into_iter();
        found.map(|found| found.unwrap().path().strip_prefix(&root).unwrap().to_owned()).collect()
    }

    /// Stores the files, but does not set the reference.
    fn begin_save(&mut self, key: &str, marks: &Marks, references: &[Reference]) -> Saved {
        self.saves += 1;
        let store = self.store();
        let (mut known, mut current) = (Known::default(), None);
        for reference in references {
            let Ok(index) = store.index(reference, &Limits::default()) else { continue };
            let is_usable = |pack: &Object| !marks.contains(&pack.name) && store.has(pack);
            known.add_index(&index, is_usable);
            if reference.key == key && index.packs().iter().all(is_usable) {
                current = Some(index);
            }
        }
        let save = Save {
            root: &self.root(),
            files: &self.files(),
            key,
            store: &store,
            known: &known,
            current: current.as_ref(),
            id: &format!("save{}", self.saves),
            pack_bytes: 1 << 20,
            max_packs: 100,
            level: 3,
            stop: &|| false,
        };
        save.run().unwrap()
    }

    fn references(&self) -> Vec<Reference> {
        self.store().latest_references(100).unwrap()
    }

    fn save(&mut self, key: &str) -> Saved {
        let saved = self.begin_save(key, &self.store().marks().unwrap(), &self.references());
        if let Some(reference) = &saved.reference {
            self.store().set_reference(reference).unwrap();
        }
        saved
    }

    fn restore_into(&self, key: &str, target: &Path) -> Result<Restored, String> {
        let store = self.store();
        let reference = store.reference(key).map_err(|error| error.to_string())?.ok_or("the key has no cache")?;
        let index = store.index(&reference, &Limits::default()).map_err(|error| error.to_string())?;
        restore(&store, &index, target)
    }

    /// Restores a cache, and compares it with the files.
    fn check(&self, key: &str) {
        let target = tempfile::tempdir().unwrap();
        self.restore_into(key, target.path()).unwrap();
        assert_eq!(tree(target.path()), tree(&self.root()));
    }
}

fn restore(store: &Store, index: &Index, target: &Path) -> Result<Restored, String> {
    let into = Dir::open_ambient_dir(target, ambient_authority()).unwrap();
    let restore = Restore { store, index, spool: None, limits: Limits::default(), stop: &|| false };
    restore.run(&into).map_err(|error| error.to_string())
}

fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
    let found = walkdir::WalkDir::new(root).min_depth(1).into_iter().map(Result::unwrap);
    let described = found.map(|found| {
        let metadata = found.path().symlink_metadata().unwrap();
        let content = match () {
            () if metadata.is_symlink() => fs::read_link(found.path()).unwrap().into_os_string().into_encoded_bytes(),
            () if metadata.is_file() => fs::read(found.path()).unwrap(),
            () => Vec::new(),
        };
        let time = if metadata.is_file() { metadata.mtime_nsec() } else { 0 };
        let mode = if metadata.is_symlink() { 0 } else { metadata.permissions().mode() & 0o777 };
        (found.path().strip_prefix(root).unwrap().to_owned(), (mode, time, content))
    });
    described.collect()
}
