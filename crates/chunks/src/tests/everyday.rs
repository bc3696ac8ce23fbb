//! Ordinary saves and restores.

use std::os::unix::fs::symlink;

use super::*;

fn fill(machine: &Machine, files: usize) {
    let mut numbers = RandomNumbers(1);
    for number in 0..files {
        let length = if number % 50 == 0 { 700_000 } else { 1_000 + numbers.below(40_000) };
        machine.write(&format!("d{}/file{number}", number % 7), &numbers.text(length));
    }
}

fn stored_bytes(saved: &Saved) -> u64 {
    let index = saved.reference.as_ref().map_or(0, |reference| reference.index.size);
    index + saved.packs.iter().map(|pack| pack.size).sum::<u64>()
}

#[test]
fn files_links_and_attributes_are_restored() {
    let mut machine = Machine::new();
    machine.write("d/empty", b"");
    machine.write("d/run", b"#!/bin/sh\n");
    machine.write("d/large", &RandomNumbers(3).text(5_000_000));
    fs::set_permissions(machine.root().join("d/run"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("run", machine.root().join("d/link")).unwrap();
    fs::create_dir_all(machine.root().join("d/nothing")).unwrap();
    fs::set_permissions(machine.root().join("d/nothing"), fs::Permissions::from_mode(0o700)).unwrap();
    let saved = machine.save("main");
    assert_eq!(saved.bytes, 5_000_010);
    machine.check("main");
}

#[test]
fn change_of_one_percent_stores_and_loads_at_most_three_percent() {
    let mut machine = Machine::new();
    fill(&machine, 600);
    let first = machine.save("main");
    assert!(stored_bytes(&first) < first.bytes, "text must be compressed");
    let target = tempfile::tempdir().unwrap();
    machine.restore_into("main", target.path()).unwrap();

    // Six of 600 files get other content, and a large file gets one more byte at its start.
    let mut numbers = RandomNumbers(9);
    for number in [60, 120, 180, 240, 301, 590] {
        let path = machine.root().join(format!("d{}/file{number}", number % 7));
        let length = usize::try_from(path.metadata().unwrap().len()).unwrap();
        fs::write(&path, numbers.text(length)).unwrap();
    }
    let shifted = machine.root().join("d0/file350");
    let old = fs::read(&shifted).unwrap();
    fs::write(&shifted, [b"x", old.as_slice()].concat()).unwrap();
    let second = machine.save("main");
    let (all, changed) = (stored_bytes(&first), stored_bytes(&second));
    assert!(changed * 100 <= all * 3, "{changed} of {all}");

    let restored = machine.restore_into("main", target.path()).unwrap();
    assert!(restored.loaded * 100 <= second.bytes * 3, "{restored:?} of {}", second.bytes);
    assert_eq!(tree(target.path()), tree(&machine.root()));
    machine.check("main");
}

#[test]
fn unchanged_cache_stores_nothing_and_another_key_only_an_index() {
    let mut machine = Machine::new();
    fill(&machine, 60);
    let first = machine.save("main");
    for file in machine.files().iter().filter(|file| machine.root().join(file).is_file()) {
        let content = fs::read(machine.root().join(file)).unwrap();
        fs::write(machine.root().join(file), content).unwrap();
    }
    let unchanged = machine.save("main");
    assert!(unchanged.reference.is_none() && unchanged.packs.is_empty());
    let branch = machine.save("branch");
    assert!(branch.packs.is_empty(), "{branch:?}");
    assert_eq!(branch.reference.unwrap().packs, first.reference.unwrap().packs);
    fs::remove_file(machine.root().join("d1/file1")).unwrap();
    assert!(machine.save("main").reference.is_some(), "a removed file is a change");
}

#[test]
fn content_with_the_old_size_and_time_is_saved() {
    let mut machine = Machine::new();
    machine.write("package.json", b"version 1.2.3");
    // npm gives all files this time.
    let time = filetime::FileTime::from_unix_time(499_162_500, 0);
    filetime::set_file_mtime(machine.root().join("package.json"), time).unwrap();
    machine.save("main");
    machine.write("package.json", b"version 1.2.4");
    filetime::set_file_mtime(machine.root().join("package.json"), time).unwrap();
    machine.save("main");
    machine.check("main");
}

#[test]
fn file_that_exists_is_kept_only_with_the_right_content() {
    let mut machine = Machine::new();
    fill(&machine, 20);
    machine.write("d0/other", b"0123456789");
    machine.save("main");
    let target = tempfile::tempdir().unwrap();
    machine.restore_into("main", target.path()).unwrap();
    let untouched = target.path().join("d0/file7");
    let before = untouched.metadata().unwrap();
    // Other content of the same size and time.
    let changed = target.path().join("d0/other");
    let time = filetime::FileTime::from_last_modification_time(&changed.metadata().unwrap());
    fs::write(&changed, "9876543210").unwrap();
    filetime::set_file_mtime(&changed, time).unwrap();
    // A hard link to a file outside of the directory.
    let outside = machine.directory.path().join("outside");
    fs::write(&outside, "0123456789").unwrap();
    fs::remove_file(target.path().join("d1/file1")).unwrap();
    fs::hard_link(&outside, target.path().join("d1/file1")).unwrap();
    machine.restore_into("main", target.path()).unwrap();
    assert_eq!(tree(target.path()), tree(&machine.root()));
    assert_eq!(untouched.metadata().unwrap().ino(), before.ino(), "the unchanged file must be kept");
    assert_eq!(fs::read_to_string(outside).unwrap(), "0123456789");
}

#[test]
fn number_of_packs_stays_small() {
    let mut machine = Machine::new();
    fill(&machine, 100);
    machine.save("main");
    let mut numbers = RandomNumbers(4);
    // Each save adds a file, which later saves do not change. So the pack with this file stays in use until its chunks
    // are copied to a newer pack.
    for number in 0..150 {
        machine.write(&format!("new/file{number}"), &numbers.text(1_000));
        machine.save("main");
    }
    let packs = machine.store().reference("main").unwrap().unwrap().packs.len();
    assert!(packs < 20, "{packs} packs");
    machine.check("main");
}
