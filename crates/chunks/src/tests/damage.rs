//! Damaged stores, from which no wrong file may be restored.

use super::*;

/// Returns a machine with two keys whose caches share chunks.
fn two_keys() -> Machine {
    let mut machine = Machine::new();
    let mut numbers = RandomNumbers(5);
    for number in 0..30 {
        machine.write(&format!("d/file{number}"), &numbers.text(30_000));
    }
    machine.write("d/large", &numbers.text(2_500_000));
    machine.save("branch");
    machine.write("d/file3", b"other");
    machine.save("main");
    machine
}

/// Restores a damaged cache over old files. Each file must have its old content or the right one.
fn check_no_wrong_file(machine: &Machine, what: &str) -> Result<(), String> {
    let target = tempfile::tempdir().unwrap();
    fs::create_dir(target.path().join("d")).unwrap();
    for name in ["d/file0", "d/file3", "d/large"] {
        fs::write(target.path().join(name), "old content").unwrap();
    }
    let restored = machine.restore_into("main", target.path()).map(drop);
    let right = tree(&machine.root());
    for (path, (_, _, content)) in tree(target.path()) {
        let is_old = content == b"old content";
        assert!(is_old || right.get(&path).is_some_and(|(.., right)| *right == content), "{what}: {}", path.display());
    }
    if restored.is_ok() {
        machine.check("main");
    }
    restored
}

#[test]
fn flipped_missing_and_additional_bytes_are_detected() {
    let machine = two_keys();
    let store = machine.store();
    let mut paths: Vec<PathBuf> = fs::read_dir(store.objects()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.push(store.reference_path("main").unwrap());
    // Restoring `main` does not read the index of `branch`.
    paths.retain(|path| !path.ends_with("save1-index"));
    paths.sort();
    let mut numbers = RandomNumbers(11);
    for path in paths {
        let original = fs::read(&path).unwrap();
        for case in 0..40 {
            let mut bytes = original.clone();
            let at = numbers.below(bytes.len());
            let what = match case % 4 {
                0 => {
                    bytes.truncate(at);
                    format!("{} cut to {at} bytes", path.display())
                }
                1 => {
                    bytes.insert(at, 0);
                    format!("{} with an additional byte at {at}", path.display())
                }
                _ => {
                    bytes[at] ^= 1 << numbers.below(8);
                    format!("{} with a flipped bit at {at}", path.display())
                }
            };
            fs::write(&path, &bytes).unwrap();
            let restored = check_no_wrong_file(&machine, &what);
            // `main` does not use one chunk of each of these packs, so damage to that chunk may remain undetected.
            let has_unused_chunk = path.ends_with("save1-0") || path.ends_with("save1-1") || path.ends_with("save1-2");
            assert!(restored.is_err() || has_unused_chunk, "{what}");
        }
        fs::write(&path, &original).unwrap();
        assert_eq!(check_no_wrong_file(&machine, "undamaged"), Ok(()));
    }
}

#[test]
fn missing_object_is_detected_and_saved_again() {
    let mut machine = two_keys();
    let store = machine.store();
    let reference = store.reference("main").unwrap().unwrap();
    for object in reference.objects() {
        let path = store.object(&object.name);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        check_no_wrong_file(&machine, &object.name).unwrap_err();
        fs::write(&path, content).unwrap();
    }
    let pack = &reference.packs[0];
    fs::remove_file(store.object(&pack.name)).unwrap();
    let saved = machine.save("main");
    assert!(!saved.packs.is_empty(), "the chunks must be stored again");
    machine.check("main");
}

#[test]
fn error_names_the_damaged_packs() {
    let machine = two_keys();
    let store = machine.store();
    let reference = store.reference("main").unwrap().unwrap();
    let index = store.index(&reference, &Limits::default()).unwrap();
    let path = store.object(&reference.packs[0].name);
    let length = fs::metadata(&path).unwrap().len();
    fs::write(&path, vec![7; usize::try_from(length).unwrap()]).unwrap();
    let target = tempfile::tempdir().unwrap();
    let into = Dir::open_ambient_dir(target.path(), ambient_authority()).unwrap();
    let restore = Restore { store: &store, index: &index, spool: None, limits: Limits::default(), stop: &|| false };
    let error = restore.run(&into).unwrap_err();
    assert_eq!(error.damaged, [reference.packs[0].clone()]);
    assert!(matches!(error.error, muster_archive::UnpackError::Broken(_)), "{error:?}");
}

#[test]
fn index_and_reference_of_another_cache_are_not_used() {
    let mut machine = two_keys();
    let store = machine.store();
    let (main, branch) = (store.reference("main").unwrap().unwrap(), store.reference("branch").unwrap().unwrap());
    // The file with the reference of `main` gets the reference of another key.
    fs::copy(store.reference_path("branch").unwrap(), store.reference_path("main").unwrap()).unwrap();
    let error = check_no_wrong_file(&machine, "reference").unwrap_err();
    assert!(error.contains("belongs to another cache"), "{error}");
    // The reference of `main` names the index of another key.
    let mut other_reference = branch.clone();
    other_reference.key = "main".to_owned();
    store.set_reference(&other_reference).unwrap();
    let error = check_no_wrong_file(&machine, "index").unwrap_err();
    assert!(error.contains("belongs to another cache"), "{error}");
    // The index of `main` is overwritten with the bytes of another index.
    store.set_reference(&main).unwrap();
    fs::copy(store.object(&branch.index.name), store.object(&main.index.name)).unwrap();
    check_no_wrong_file(&machine, "bytes of the index").unwrap_err();
    machine.save("main");
    machine.check("main");
    // The directory of another protection level is a link to this store.
    let other = Store::new(&machine.directory.path().join("cache"), "protected").unwrap();
    fs::create_dir_all(other.root().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(store.root(), other.root()).unwrap();
    let error = other.reference("main").unwrap_err().to_string();
    assert!(error.contains("belongs to another cache"), "{error}");
}
