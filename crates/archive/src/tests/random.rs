//! Unpacks random archives into random directories. Nothing outside of the root may change.

use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

/// Returns names from a small set, so that entries collide. `CANARY` stands for the path of the canary.
fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        8 => prop::sample::select(vec!["a", "b", "c", "canary", "keys"]),
        1 => prop::sample::select(vec!["..", ".", "", "a\\b", "root", "ünï", "a\0b", "CANARY"]),
    ];
    (prop::collection::vec(part, 1..4), 0..20).prop_map(|(parts, start)| match start {
        0 => format!("/{}", parts.join("/")),
        1 => format!("{}/", parts.join("/")),
        2 => format!("{}/{}", "n".repeat(120), parts.join("/")),
        _ => parts.join("/"),
    })
}

fn target() -> impl Strategy<Value = String> {
    let targets =
        ["", ".", "..", "../..", "/", "../canary", "../canary/keys", "CANARY", "CANARY/keys", "a", "b/..", "c"];
    prop_oneof![3 => prop::sample::select(targets.to_vec()).prop_map(str::to_owned), 1 => name()]
}

fn any_item() -> impl Strategy<Value = Item> {
    let kind = prop_oneof![
        4 => Just(EntryType::Regular),
        4 => Just(EntryType::Symlink),
        2 => Just(EntryType::Directory),
        1 => prop::sample::select(vec![EntryType::Link, EntryType::Fifo, EntryType::GNUSparse, EntryType::XHeader]),
    ];
    (kind, name(), target(), 0_u32..0o10_000).prop_map(|(kind, name, content, mode)| Item { name, kind, mode, content })
}

/// Creates files as a hostile job could.
fn prepare(sandbox: &Sandbox, items: &[Item]) {
    for item in items {
        let path = sandbox.root().join(&item.name);
        // Skips items that cannot be created, or would be outside of the root.
        let inside = path.starts_with(sandbox.root()) && !item.name.contains("..");
        let parent = path.parent().filter(|_| inside).and_then(|parent| {
            fs::create_dir_all(parent).ok()?;
            parent.canonicalize().ok().filter(|parent| parent.starts_with(sandbox.root().canonicalize().unwrap()))
        });
        let (Some(parent), Some(name)) = (parent, path.file_name()) else { continue };
        let path = parent.join(name);
        match item.kind {
            EntryType::Symlink => drop(symlink(&item.content, path)),
            EntryType::Directory => drop(fs::create_dir(path)),
            _ if path.is_symlink() => {}
            _ => drop(fs::write(path, "old")),
        }
    }
}

fn with_canary(items: Vec<Item>, canary: &str) -> Vec<Item> {
    let replaced = |text: &str| text.replace("CANARY", canary);
    let items = items.into_iter();
    items.map(|item| Item { name: replaced(&item.name), content: replaced(&item.content), ..item }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn no_archive_changes_anything_outside_of_the_root(
        existing in prop::collection::vec(any_item(), 0..6),
        items in prop::collection::vec(any_item(), 0..12),
        format in 0..FORMATS.len(),
    ) {
        let sandbox = Sandbox::new();
        let canary = sandbox.canary().display().to_string();
        prepare(&sandbox, &with_canary(existing, &canary));
        let (format, archive) = FORMATS[format];
        let mut items = with_canary(items, &canary);
        // A tar header cannot store NUL in a name.
        items.retain(|item| format == Format::Zip || !item.name.contains('\0'));
        let before = sandbox.outside();
        let result = sandbox.unpack(format, &archive(&items), &Limits { bytes: 1 << 20, ..Limits::default() });
        prop_assert_eq!(sandbox.outside(), before, "{:?}", result);
    }

    #[test]
    fn random_bytes_do_not_panic(
        head in prop::sample::select(vec![&b""[..], &[0x28, 0xb5, 0x2f, 0xfd], &[0x1f, 0x8b], b"PK\x03\x04", b"PK\x05\x06"]),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let sandbox = Sandbox::new();
        for (format, _) in FORMATS {
            let _ = sandbox.unpack(format, &[head, &bytes].concat(), &Limits::default());
        }
    }

    #[test]
    fn a_damaged_archive_does_not_panic_and_changes_nothing_outside(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        length in any::<prop::sample::Index>(),
    ) {
        let items = [directory("d/"), file("d/a", &"content".repeat(50)), link("l", "../canary"), file("z", "")];
        for (format, archive) in FORMATS {
            let sandbox = Sandbox::new();
            let before = sandbox.outside();
            let mut bytes = archive(&items);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = sandbox.unpack(format, &bytes, &Limits::default());
            bytes.truncate(length.index(bytes.len()));
            let _ = sandbox.unpack(format, &bytes, &Limits::default());
            prop_assert_eq!(sandbox.outside(), before);
        }
    }
}

/// Returns entries whose names collide often. No link leads out of the root.
fn ordinary_item() -> impl Strategy<Value = Item> {
    let kind = prop_oneof![
        6 => Just(EntryType::Regular),
        1 => Just(EntryType::Symlink),
        2 => Just(EntryType::Directory),
    ];
    let part = prop::sample::select(vec!["a", "b", "c"]);
    let name = prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"));
    // Some contents are too large to be unpacked in memory.
    let content = prop_oneof![9 => "[a-z]{0,9}", 1 => Just("large ".repeat(200_000))];
    (kind, name, content).prop_map(|(kind, name, content)| match kind {
        EntryType::Symlink => link(&name, "a"),
        kind => Item { mode: 0o755, ..item(kind, &name, &content) },
    })
}

/// Returns a zip archive with duplicate names, which the zip writer does not allow.
fn zip_with_duplicates(items: &[Item]) -> Vec<u8> {
    let renamed = |(index, item): (usize, &Item)| Item { name: format!("{index:04}/{}", item.name), ..item.clone() };
    let items: Vec<Item> = items.iter().enumerate().map(renamed).collect();
    let mut bytes = zip(&items);
    // Names of the same length replace the unique ones: `0001/a` becomes `././/a`, which is `a`.
    for item in &items {
        let (old, new) = (item.name.as_bytes(), format!("././/{}", &item.name[5..]));
        while let Some(at) = bytes.windows(old.len()).position(|window| window == old) {
            bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn unpacking_with_threads_has_the_same_result_as_unpacking_one_entry_after_the_other(
        existing in prop::collection::vec(ordinary_item(), 0..4),
        items in prop::collection::vec(ordinary_item(), 0..80),
    ) {
        let archive = zip_with_duplicates(&items);
        let (parallel, sequential) = (Sandbox::new(), Sandbox::new());
        prepare(&parallel, &existing);
        prepare(&sequential, &existing);
        let skipped = parallel.unpack(Format::Zip, &archive, &Limits::default()).unwrap();
        let root = sequential.open_root();
        let meter = Meter::new(Limits::default(), &|| false);
        let mut tree = Tree::new(&root, &meter);
        read(Cursor::new(&archive), Format::Zip, &meter, &mut |entry, content| tree.add(entry, content)).unwrap();
        let expected: Vec<String> = tree.finish().unwrap().lines().collect();
        prop_assert_eq!(skipped, expected);
        prop_assert_eq!(parallel.inside(), sequential.inside());
    }
}

#[test]
fn entries_behind_an_existing_link_are_written_in_the_order_of_the_archive() {
    let large = "large ".repeat(200_000);
    let items =
        [file("a/x", &large), file("c/x", "last"), file("a/y", &large), directory("c/y/"), file("c/y/z", "below")];
    for _ in 0..20 {
        let sandbox = Sandbox::new();
        prepare(&sandbox, &[directory("a"), link("c", "a")]);
        sandbox.unpack(Format::Zip, &zip(&items), &Limits::default()).unwrap();
        assert_eq!(sandbox.inside(), ["a/", "a/x: last", "a/y/", "a/y/z: below", "c -> a"]);
    }
}
