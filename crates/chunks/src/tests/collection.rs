//! Collections of unused objects, also during saves and after a process was killed.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use filetime::FileTime;

use super::*;
use crate::reference::Object;
use crate::{MAX_MARKS_BYTES, Marks, StoredObject, Sweep};

type Files = BTreeMap<PathBuf, (u32, i64, Vec<u8>)>;

const GRACE: Duration = Duration::from_secs(1000);
const KEYS: [&str; 3] = ["main", "feature", "deep/key"];

/// A save before it sets its reference.
struct Pending {
    reference: Option<Reference>,
    files: Files,
    began: Duration,
}

/// A machine in virtual time, with the expected files of each key.
struct Simulation {
    machine: Machine,
    numbers: RandomNumbers,
    time: Duration,
    pending: Vec<Pending>,
    expected: BTreeMap<String, Files>,
}

impl Simulation {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + self.time
    }

    fn step(&mut self) {
        match self.numbers.below(10) {
            0..=2 => self.begin_save(),
            3..=4 => self.end_save(),
            5 => {
                let key = KEYS[self.numbers.below(KEYS.len())];
                let _ = fs::remove_file(self.machine.store().reference_path(key).unwrap());
                self.expected.remove(key);
            }
            6..=7 => {
                self.time += Duration::from_secs(self.numbers.next() % 700);
                // A job is shorter than the grace period. Its machine may fail.
                let (time, is_lost) = (self.time, self.numbers.below(4) == 0);
                self.pending.retain(|pending| time < pending.began + GRACE);
                if is_lost {
                    self.pending.pop();
                }
            }
            _ => self.collect(),
        }
    }

    fn begin_save(&mut self) {
        let number = self.numbers.below(12);
        // Few different contents, so that unused chunks are used again.
        let content = RandomNumbers(self.numbers.next() % 5).text(20_000);
        self.machine.write(&format!("file{number}"), &content);
        let (marks, references) = (self.machine.store().marks().unwrap(), self.machine.references());
        let key = KEYS[self.numbers.below(KEYS.len())];
        let saved = self.machine.begin_save(key, &marks, &references);
        let objects = saved.packs.iter().chain(saved.reference.iter().map(|reference| &reference.index));
        for object in objects {
            let path = self.machine.store().object(&object.name);
            filetime::set_file_mtime(path, FileTime::from_system_time(self.now())).unwrap();
        }
        let files = tree(&self.machine.root());
        if saved.reference.is_some() {
            self.pending.push(Pending { reference: saved.reference, files, began: self.time });
        }
    }

    fn end_save(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let pending = self.pending.remove(self.numbers.below(self.pending.len()));
        let reference = pending.reference.unwrap();
        self.machine.store().set_reference(&reference).unwrap();
        self.expected.insert(reference.key, pending.files);
    }

    fn collect(&mut self) {
        let store = self.machine.store();
        if self.numbers.below(2) == 0 {
            fs::create_dir_all(store.root()).unwrap();
            store.collect(self.now(), GRACE, None).unwrap();
            return;
        }
        // The process is killed after some changes.
        let (sweep, _) = store.plan(self.now(), GRACE, None).unwrap();
        let mut changes = self.numbers.below(4);
        let proceed = || {
            changes = changes.wrapping_sub(1);
            changes != usize::MAX
        };
        store.carry_out(&sweep, proceed).unwrap();
    }

    fn check(&self, seed: u64) {
        let store = self.machine.store();
        for (key, files) in &self.expected {
            let reference = store.reference(key).unwrap().unwrap();
            for object in reference.objects() {
                assert!(store.has(object), "seed {seed}: {key} must still have {}", object.name);
            }
            let target = tempfile::tempdir().unwrap();
            self.machine.restore_into(key, target.path()).unwrap();
            let found: BTreeMap<_, _> =
                tree(target.path()).into_iter().map(|(path, (.., content))| (path, content)).collect();
            let expected: BTreeMap<_, _> =
                files.iter().map(|(path, (.., content))| (path.clone(), content.clone())).collect();
            assert!(found == expected, "seed {seed}: the files of {key} must be restored");
        }
    }
}

#[test]
fn no_collection_deletes_what_a_cache_or_a_save_needs() {
    for seed in 0..40 {
        let mut simulation = Simulation {
            machine: Machine::new(),
            numbers: RandomNumbers(seed),
            time: Duration::ZERO,
            pending: Vec::new(),
            expected: BTreeMap::new(),
        };
        for _ in 0..60 {
            simulation.step();
        }
        simulation.check(seed);
        while !simulation.pending.is_empty() {
            simulation.end_save();
        }
        simulation.check(seed);
        // Without saves, unused objects are deleted after two grace periods.
        for _ in 0..3 {
            simulation.time += GRACE + GRACE;
            let store = simulation.machine.store();
            fs::create_dir_all(store.root()).unwrap();
            store.collect(simulation.now(), GRACE, None).unwrap();
        }
        simulation.check(seed);
        let store = simulation.machine.store();
        let used: Vec<String> =
            simulation.machine.references().iter().flat_map(Reference::objects).map(|o| o.name.clone()).collect();
        for left in fs::read_dir(store.objects()).into_iter().flatten() {
            let left = left.unwrap().file_name().into_string().unwrap();
            assert!(used.contains(&left), "seed {seed}: {left} must be deleted");
        }
    }
}

#[test]
fn old_references_and_files_of_killed_saves_are_deleted() {
    let mut machine = Machine::new();
    machine.write("file", b"content");
    machine.save("old");
    let store = machine.store();
    let day = Duration::from_secs(24 * 60 * 60);
    let path = store.reference_path("old").unwrap();
    let long_ago = SystemTime::now() - 40 * day;
    filetime::set_file_mtime(&path, FileTime::from_system_time(long_ago)).unwrap();
    machine.write("file", b"other");
    machine.save("new");
    store.distrust("damaged-0").unwrap();
    let directories =
        [store.objects(), store.keys().join("new"), store.root().to_owned(), store.root().join("distrusted")];
    let temporary = |name: &str| directories.each_ref().map(|directory| directory.join(name));
    for (path, is_old) in
        temporary("tmp-killed").iter().zip([true; 4]).chain(temporary("tmp-new").iter().zip([false; 4]))
    {
        fs::write(path, "part").unwrap();
        if is_old {
            filetime::set_file_mtime(path, FileTime::from_system_time(long_ago)).unwrap();
        }
    }
    let collection = store.collect(SystemTime::now(), day, Some(30 * day)).unwrap();
    assert_eq!((collection.expired, collection.deleted.0, collection.used.0), (1, 0, 2));
    assert!(!path.exists());
    assert_eq!(temporary("tmp-killed").map(|path| path.exists()), [false; 4]);
    assert_eq!(temporary("tmp-new").map(|path| path.exists()), [true; 4], "running processes may use these files");
    let later = |days: u32| SystemTime::now() + days * day;
    assert_eq!(store.collect(later(2), day, None).unwrap().marked, 2);
    assert_eq!(store.collect(later(4), day, None).unwrap().deleted.0, 2);
    machine.check("new");
}

#[test]
fn plan_counts_references_that_are_too_old_and_changes_nothing() {
    let mut machine = Machine::new();
    machine.write("file", b"content");
    machine.save("old");
    let store = machine.store();
    let path = store.reference_path("old").unwrap();
    let (now, max_age) = (SystemTime::now(), 30 * GRACE);
    filetime::set_file_mtime(&path, FileTime::from_system_time(now - 40 * GRACE)).unwrap();
    let (_, all) = store.plan(now, GRACE, None).unwrap();
    assert_eq!((all.expired, all.used.0), (0, 2));
    let (_, planned) = store.plan(now, GRACE, Some(max_age)).unwrap();
    assert_eq!((planned.expired, planned.used.0), (1, 0));
    assert!(path.exists());
    assert_eq!(store.collect(now, GRACE, Some(max_age)).unwrap(), planned);
}

/// Jobs and later collections treat a list above the limit as empty. With such a list, no object would ever be deleted.
#[test]
fn list_of_marks_stays_readable_however_many_objects_are_unused() {
    let old = SystemTime::UNIX_EPOCH;
    let now = old + Duration::from_secs(1_800_000_000);
    let object = |number: u32| Object { name: format!("{:0>60}-{number}", ""), size: 1 };
    let listed: Vec<StoredObject> =
        (0..200_000).map(|number| StoredObject { object: object(number), stored_at: old }).collect();
    let first = Sweep::plan(&Marks::default(), &listed, &HashSet::new(), now, GRACE);
    let stored = first.after.to_bytes();
    let bytes = stored.len() as u64;
    assert!(bytes <= MAX_MARKS_BYTES && bytes > MAX_MARKS_BYTES / 2, "{bytes}");
    // The marked objects are deleted, and then others are marked.
    let marks = Marks::parse(&stored);
    let second = Sweep::plan(&marks, &listed, &HashSet::new(), now + 2 * GRACE, GRACE);
    assert_eq!(second.delete.len(), marks.names().count());
    let deleted: HashSet<&str> = marks.names().collect();
    let left: Vec<StoredObject> =
        listed.iter().filter(|listed| !deleted.contains(listed.object.name.as_str())).cloned().collect();
    let third = Sweep::plan(&second.after, &left, &HashSet::new(), now + 3 * GRACE, GRACE);
    assert!(third.after.names().count() > 0 && third.after.to_bytes().len() as u64 <= MAX_MARKS_BYTES);
}

#[test]
fn two_collections_do_not_run_at_the_same_time() {
    let mut machine = Machine::new();
    machine.write("file", b"content");
    machine.save("main");
    let store = machine.store();
    let lock = fs::File::create(store.root().join("lock")).unwrap();
    lock.lock().unwrap();
    let error = store.collect(SystemTime::now(), GRACE, None).unwrap_err();
    assert!(matches!(error, ChunkError::Busy(_)), "{error}");
    lock.unlock().unwrap();
    store.collect(SystemTime::now(), GRACE, None).unwrap();
    assert_eq!(stores_below(machine.directory.path()), [store]);
}

#[test]
fn unreadable_marks_do_not_count_as_no_marks() {
    let mut machine = Machine::new();
    machine.write("file", b"content");
    machine.save("main");
    let marks = machine.store().root().join("marks.json");
    fs::create_dir(&marks).unwrap();
    let error = machine.store().marks().unwrap_err().to_string();
    assert!(error.starts_with("failed to read `") && error.contains("marks.json"), "{error}");
    fs::remove_dir(&marks).unwrap();
    fs::write(&marks, "damaged").unwrap();
    assert_eq!(machine.store().marks().unwrap(), Marks::default());
}

#[test]
fn files_of_a_collection_belong_to_the_owner_of_the_store() {
    let mut machine = Machine::new();
    machine.write("file", b"content");
    machine.save("main");
    let root = machine.store().root().to_owned();
    // Only root can do this. For other users, all files have the same owner anyway.
    let _ = std::os::unix::fs::chown(&root, Some(12_345), Some(12_346));
    machine.store().collect(SystemTime::now(), GRACE, None).unwrap();
    let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&path.metadata().unwrap());
    for file in ["marks.json", "lock"] {
        assert_eq!(owner(&root.join(file)), owner(&root), "{file}");
    }
}

#[test]
fn reference_that_was_saved_after_the_listing_is_not_removed() {
    let mut machine = Machine::new();
    machine.write("file", b"content");
    machine.save("main");
    let path = machine.store().reference_path("main").unwrap();
    let (now, max_age) = (SystemTime::now(), Duration::from_secs(60));
    assert!(!crate::gc::remove_expired(&path, now, max_age).unwrap() && path.exists());
    assert!(crate::gc::remove_expired(&path, now + max_age * 2, max_age).unwrap() && !path.exists());
    assert!(!crate::gc::remove_expired(&path, now + max_age * 2, max_age).unwrap());
}
