use muster_archive::{Entry, EntryKind};

use super::*;
use crate::index::Chunk;

/// Stores an index for the key `main`, and reads it.
fn store_and_read(machine: &Machine, index: &Index, limits: &Limits) -> Result<Index, String> {
    let store = machine.store();
    let object = index.encode("main", store.level()).unwrap();
    let described = store.write_object("evil-index", &object).unwrap();
    let hash = blake3::hash(&object).to_hex().to_string();
    let reference = Reference::new("main", store.level(), described, hash, index.packs.clone());
    store.set_reference(&reference).unwrap();
    let reference = store.reference("main").map_err(|error| error.to_string())?.unwrap();
    store.index(&reference, limits).map_err(|error| error.to_string())
}

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry { path: path.into(), kind, mode: Some(0o644), modified: None, size: Some(0) }
}

fn without_entries(packs: Vec<Object>, chunks: Vec<Chunk>) -> Index {
    let mut index = Index::default();
    (index.packs, index.chunks) = (packs, chunks);
    index
}

fn with_chunk(chunk: Chunk) -> Index {
    let mut index = without_entries(vec![Object { name: "save-0".to_owned(), size: 100 }], vec![chunk]);
    index.add(&entry("file", EntryKind::File), vec![0]);
    index
}

const CHUNK: Chunk = Chunk { hash: [0; 32], pack: 0, offset: 0, packed: 10, length: 10 };

#[test]
fn names_outside_of_the_directory_are_rejected() {
    let machine = Machine::new();
    for path in ["../file", "/etc/passwd", "a/../../file", "", "a\0b"] {
        let mut index = Index::default();
        index.add(&entry(path, EntryKind::File), Vec::new());
        let error = store_and_read(&machine, &index, &Limits::default()).unwrap_err();
        assert!(error.contains("no valid path"), "{path}: {error}");
    }
    for name in ["../../save-0", "passwd", "-0", "save-", "save-x"] {
        let named = without_entries(vec![Object { name: name.to_owned(), size: 1 }], Vec::new());
        assert!(
            store_and_read(&machine, &named, &Limits::default()).unwrap_err().contains("not a valid object name"),
            "{name}"
        );
    }
}

#[test]
fn sizes_and_numbers_are_limited() {
    let machine = Machine::new();
    let fails = |index: &Index, limits: Limits, what: &str| {
        let error = store_and_read(&machine, index, &limits).unwrap_err();
        assert!(error.contains(what), "{error}");
    };
    let limits = Limits::default();
    store_and_read(&machine, &with_chunk(CHUNK), &limits).unwrap();
    for chunk in [
        Chunk { length: u32::MAX, ..CHUNK },
        Chunk { length: 0, packed: 0, ..CHUNK },
        Chunk { offset: 95, ..CHUNK },
        Chunk { offset: u64::MAX, ..CHUNK },
        Chunk { pack: 1, ..CHUNK },
        Chunk { packed: 11, ..CHUNK },
    ] {
        fails(&with_chunk(chunk), limits, "a chunk with an invalid position or length");
    }
    let mut unknown = with_chunk(CHUNK);
    unknown.add(&entry("other", EntryKind::File), vec![1]);
    fails(&unknown, limits, "a chunk that does not exist");
    let mut many = Index::default();
    (0..20).for_each(|number| many.add(&entry(&format!("file{number}"), EntryKind::File), Vec::new()));
    fails(&many, Limits { entries: 19, ..limits }, "more than 19 entries");
    fails(&many, Limits { header_bytes: 100, ..limits }, "longer than 100 bytes");
    // 10 bytes once in one file, and a hundred times in the other.
    let mut bomb = with_chunk(CHUNK);
    bomb.add(&entry("bomb", EntryKind::File), vec![0; 100]);
    fails(&bomb, Limits { bytes: 1009, ..limits }, "more than 1009 bytes");
}

#[test]
fn no_file_is_written_through_a_link() {
    let mut machine = Machine::new();
    machine.write("file", b"content");
    machine.save("main");
    let reference = machine.store().reference("main").unwrap().unwrap();
    let good = machine.store().index(&reference, &Limits::default()).unwrap();
    let outside = machine.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut index = without_entries(good.packs.clone(), good.chunks.clone());
    index.add(&entry("link", EntryKind::Link(outside.clone())), Vec::new());
    index.add(&entry("link/file", EntryKind::File), vec![0]);
    index.add(&entry("link", EntryKind::Link("/etc".into())), Vec::new());
    let index = store_and_read(&machine, &index, &Limits::default()).unwrap();
    let target = tempfile::tempdir().unwrap();
    let restored = restore(&machine.store(), &index, target.path()).unwrap();
    assert_eq!(restored.skipped.lines().count(), 1);
    // The target has links in place of a directory and of a file.
    fs::remove_file(target.path().join("link")).unwrap();
    std::os::unix::fs::symlink(&outside, target.path().join("d")).unwrap();
    std::os::unix::fs::symlink(outside.join("new"), target.path().join("f")).unwrap();
    let mut index = without_entries(good.packs.clone(), good.chunks.clone());
    index.add(&entry("d/file", EntryKind::File), vec![0]);
    index.add(&entry("f", EntryKind::File), vec![0]);
    restore(&machine.store(), &store_and_read(&machine, &index, &Limits::default()).unwrap(), target.path()).unwrap();
    assert_eq!(fs::read_to_string(target.path().join("f")).unwrap(), "content");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "no file may be written outside");
}
