//! R033: what an instance is, its life, how many there are, which job gets which, and what runs there are five concerns, each in
//! a room of its own, and a room knows of another one's only downwards.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The concerns, each with its rooms and the concerns that it may know of.
const CONCERNS: [(&str, &[&str], &[&str]); 5] = [
    ("what an instance is", &["local", "script", "static", "docker-machine"], &["the life of an instance"]),
    ("the life of an instance", &["fleeting", "remote"], &[]),
    ("how many there are", &["taskscaler"], &["the life of an instance"]),
    ("which job gets which", &["executor"], &["how many there are", "the life of an instance"]),
    ("what runs there", &["agent", "steps", "builtins"], &[]),
];

/// What each room uses of our own, by the manifests: rooms of `crates/` and `plugins/`.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rooms = ["crates", "plugins"].map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let manifests = rooms.into_iter().flatten().map(|room| room.unwrap().path());
    let read = |room: std::path::PathBuf| {
        let text = std::fs::read_to_string(room.join("Cargo.toml")).ok()?;
        let manifest: toml::Table = text.parse().unwrap();
        let names =
            manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
        let ours = names.filter_map(|name| name.strip_prefix("muster-").map(str::to_owned)).collect();
        Some((room.file_name().unwrap().to_str().unwrap().to_owned(), ours))
    };
    manifests.filter_map(read).collect()
}

/// All that a room uses, directly or not.
fn reaches(room: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![room.to_owned()]);
    while let Some(room) = left.pop() {
        for used in uses.get(&room).into_iter().flatten() {
            if found.insert(used.clone()) {
                left.push(used.clone());
            }
        }
    }
    found
}

#[test]
fn five_concerns_know_each_other_only_downwards() {
    let uses = uses();
    for room in uses.keys() {
        assert!(!reaches(room, &uses).contains(room), "{room} uses itself, over others");
    }
    for (concern, rooms, below) in CONCERNS {
        for room in rooms {
            assert!(uses.contains_key(*room), "there is no room {room}: {:?}", uses.keys());
            let reached = reaches(room, &uses);
            for (other, its, _) in CONCERNS.iter().filter(|(other, ..)| *other != concern && !below.contains(other)) {
                let known: Vec<_> = its.iter().filter(|room| reached.contains(**room)).collect();
                assert!(known.is_empty(), "{concern} ({room}) knows of {other}: {known:?}");
            }
        }
    }
}
