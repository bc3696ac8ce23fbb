//! Archives, and directories that an earlier job prepared, that lead out.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn an_entry_below_a_link_of_the_archive_is_refused() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        let canary = place.canary().display().to_string();
        let items = [link("a", &canary), link("a/keys", "x"), file("a/new", "x"), file("honest", "yes")];
        let left_out = place.attack(format, &archive(&items)).unwrap();
        let line = |name| format!("{name}: skipped: it is below the link `a` of the archive");
        assert_eq!(left_out, [line("a/keys"), line("a/new")], "{format:?}");
        assert_eq!(place.inside(), [format!("a -> {canary}"), "honest: yes".to_owned()], "{format:?}");
    }
}

#[test]
fn a_chain_of_links_leads_nowhere_in_any_order() {
    let chain =
        [link("a", ".."), link("a/b", "canary"), link("a/b/keys", "x"), link("c", "a"), link("c/canary/keys", "x")];
    for (format, archive) in FORMATS {
        for turn in 0..chain.len() {
            let mut items = chain.to_vec();
            items.rotate_left(turn);
            Place::new().attack(format, &archive(&items)).unwrap();
            items.reverse();
            Place::new().attack(format, &archive(&items)).unwrap();
        }
    }
}

#[test]
fn a_link_never_replaces_a_directory_with_entries_of_the_archive() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        let items = [link("a/keys", "x"), directory("empty/"), link("a", "../canary"), link("empty", "../canary")];
        let left_out = place.attack(format, &archive(&items)).unwrap();
        assert_eq!(left_out.len(), 1, "{left_out:?}");
        assert!(left_out[0].starts_with("a: skipped: "), "{left_out:?}");
        assert_eq!(place.inside(), ["a/", "a/keys -> x", "empty -> ../canary"], "{format:?}");
    }
}

#[test]
fn a_directory_that_becomes_a_link_between_two_entries_is_refused() {
    let place = Place::new();
    let items = [directory("a/"), link("a", "../canary"), file("a/keys", "evil")];
    let left_out = place.attack(Format::Tar, &tar(&items)).unwrap();
    assert_eq!(left_out, ["a/keys: skipped: it is below the link `a` of the archive"]);
}

#[test]
fn a_link_that_the_job_before_left_is_not_written_through() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        symlink(place.canary(), place.root().join("absolute")).unwrap();
        symlink("../canary", place.root().join("relative")).unwrap();
        symlink("relative", place.root().join("chain")).unwrap();
        symlink("/proc/self/root", place.root().join("magic")).unwrap();
        symlink("gone", place.root().join("dangling")).unwrap();
        fs::create_dir(place.root().join("sub")).unwrap();
        symlink("../..", place.root().join("sub/up")).unwrap();
        let magic = format!("magic{}/keys", place.canary().display());
        let names =
            ["absolute/keys", "relative/keys", "chain/keys", &magic, "dangling/new", "sub/up/canary/keys", "absolute/"];
        let items: Vec<Item> = names
            .map(|name| if name.ends_with('/') { directory(name) } else { file(name, "evil") })
            .into_iter()
            .chain([link("relative/empty", "x"), file("honest", "")])
            .collect();
        let left_out = place.attack(format, &archive(&items)).unwrap();
        assert_eq!(left_out.len(), 8, "{left_out:?}");
        let reason = "a link on its way leads out of the project or to no directory";
        assert_eq!(left_out[0], format!("absolute/keys: skipped: {reason}"));
        assert!(place.root().join("honest").is_file());
    }
}

#[test]
fn a_link_with_the_name_of_a_file_is_replaced_and_not_followed() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        for name in ["file", "link"] {
            symlink("../canary/keys", place.root().join(name)).unwrap();
        }
        place.attack(format, &archive(&[file("file", "new"), link("link", "file")])).unwrap();
        assert_eq!(place.inside(), ["file: new", "link -> file"], "{format:?}");
    }
}

#[test]
fn a_link_that_a_job_put_into_the_path_of_the_root_is_refused_and_one_above_the_base_is_not() {
    let place = Place::new();
    let outer = place.outer.path();
    fs::create_dir(outer.join("canary/project")).unwrap();
    // The operator's builds directory may be a link, and is missing at first.
    symlink(outer.join("disk"), outer.join("mounted")).unwrap();
    fs::create_dir(outer.join("disk")).unwrap();
    let base = outer.join("mounted/builds");
    let below = |path: &str| create_root(&base.join(path), &Root::Below(base.clone()));
    below("group/project").unwrap().write("file", "").unwrap();
    assert!(outer.join("disk/builds/group/project/file").is_file());
    symlink(outer.join("canary"), base.join("evil")).unwrap();
    symlink("group", base.join("inside")).unwrap();
    symlink("../../canary", base.join("group/last")).unwrap();
    fs::write(base.join("plain"), "").unwrap();
    for path in ["evil/project", "evil/new", "evil", "inside/project", "group/last", "plain", "plain/project"] {
        let error = below(path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotADirectory, "{path}: {error}");
        assert!(error.to_string().contains("is a symbolic link or a file, which a job may have put there"), "{error}");
    }
    assert_eq!(fs::read_dir(outer.join("canary")).unwrap().count(), 3);
    let error = below("../outside").unwrap_err().to_string();
    assert!(error.contains("it is not below the builds directory"), "{error}");
    create_root(&outer.join("elsewhere"), &Root::Below(base.clone())).unwrap_err();
    let chosen = create_root(&base.join("evil/project"), &Root::Chosen).unwrap();
    assert!(chosen.exists(".") && !outer.join("elsewhere").exists() && !outer.join("disk/outside").exists());
}

#[test]
fn hard_links_devices_and_pipes_are_refused() {
    for (kind, target, name) in [
        (EntryType::Link, "../canary/keys", "hard link"),
        (EntryType::Link, "before", "hard link"),
        (EntryType::Link, "link", "hard link"),
        (EntryType::Char, "", "device"),
        (EntryType::Block, "", "device"),
        (EntryType::Fifo, "", "pipe"),
    ] {
        let place = Place::new();
        let items = [file("before", ""), link("link", "../canary/keys"), item(kind, "special", target)];
        let error = place.attack(Format::TarZstd, &tar_zstd(&items)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the archive's `special` is a {name}, and only files, directories and symbolic links are unpacked: \
                 nothing more is unpacked"
            )
        );
    }
    for (kind, name) in [(EntryType::Fifo, "pipe"), (EntryType::Char, "device")] {
        let place = Place::new();
        let error = place.attack(Format::Zip, &zip(&[item(kind, "special", "")])).unwrap_err();
        assert!(matches!(&error, UnpackError::Kind { kind, .. } if *kind == name), "{error:?}");
    }
}

#[test]
fn names_that_lead_out_are_empty_or_invalid_are_refused() {
    let absolute = Place::new().outer.path().join("x").display().to_string();
    for name in ["../x", "a/../../x", "/x", &absolute, "..", "a/..", "."] {
        for (format, archive) in FORMATS {
            let place = Place::new();
            let error = place.attack(format, &archive(&[file(name, "evil")])).unwrap_err();
            assert!(matches!(&error, UnpackError::Outside { .. }), "{format:?} {name}: {error:?}");
            let place = Place::new();
            place.attack(format, &archive(&[link(name, "evil")])).unwrap_err();
            assert_eq!(place.inside(), [""; 0], "{format:?} {name}");
        }
    }
    // An empty name cannot be the root; a NUL would hide the rest of the name from the system.
    for name in ["", "a\0b"] {
        let place = Place::new();
        let error = place.attack(Format::Zip, &zip(&[file(name, "evil")])).unwrap_err();
        assert!(matches!(&error, UnpackError::Outside { .. }), "{name:?}: {error:?}");
    }
    let pax = "12 path=a\0b\n";
    let items = [item(EntryType::XHeader, "x", pax), file("name", "evil")];
    Place::new().attack(Format::Tar, &tar(&items)).unwrap_err();
}

#[test]
fn a_long_name_that_leads_out_is_refused() {
    let long = format!("{}../../../x", "a/".repeat(80));
    let name = format!("{}{long}", "../".repeat(90));
    for name in [&name, &format!("/{long}")] {
        let error = Place::new().attack(Format::Tar, &tar(&[file(name, "evil")])).unwrap_err();
        assert!(matches!(&error, UnpackError::Outside { .. }), "{error:?}");
    }
    let pax = "19 path=../../../x\n";
    let items = [item(EntryType::XHeader, "x", pax), file("name", "evil")];
    Place::new().attack(Format::Tar, &tar(&items)).unwrap_err();
}

#[test]
fn a_name_that_no_system_can_open_is_refused_and_quoted_in_part() {
    for (format, archive) in FORMATS {
        let longest = format!("{}n", "long/".repeat(819));
        Place::new().unpack(format, &archive(&[file(&longest, "")]), &Limits::default()).unwrap();
        for item in [file(&format!("{longest}n"), ""), directory(&"d/".repeat(30_000))] {
            let place = Place::new();
            let error = place.attack(format, &archive(&[item])).unwrap_err();
            let kind = "entry with a name of more than 4096 bytes";
            assert!(error.to_string().contains(kind) && error.to_string().len() < 400, "{format:?}: {error}");
            assert_eq!(place.inside(), [""; 0], "{format:?}");
        }
    }
}

#[test]
fn a_backslash_is_a_letter_of_the_name() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        place.attack(format, &archive(&[file("a\\..\\..\\x", "text")])).unwrap();
        assert_eq!(place.inside(), ["a\\..\\..\\x: text"], "{format:?}");
    }
}

#[test]
fn setuid_and_its_like_are_dropped_and_unwritable_directories_are_filled() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        let closed = Item { mode: 0o7500, ..directory("closed/") };
        let suid = Item { mode: 0o6755, ..file("closed/suid", "x") };
        let own = Item { mode: 0o7000, ..directory("./") };
        place.attack(format, &archive(&[own, closed.clone(), suid, closed, file("closed/b", "")])).unwrap();
        let mode = |name: &str| fs::metadata(place.root().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("closed"), mode("closed/suid")), (0o500, 0o755), "{format:?}");
        assert_ne!(mode("."), 0, "the archive does not change the directory itself");
        fs::set_permissions(place.root().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn the_last_of_several_entries_with_a_name_counts() {
    let place = Place::new();
    let items = [
        link("a", "../canary/keys"),
        file("a", "file"),
        file("b", "file"),
        link("b", "../canary/keys"),
        link("c", "../canary"),
        directory("c/"),
        file("c/keys", "file"),
        file("d", "1"),
        file("./d", "2"),
    ];
    let left_out = place.attack(Format::Tar, &tar(&items)).unwrap();
    assert_eq!(left_out, [""; 0]);
    assert_eq!(place.inside(), ["a: file", "b -> ../canary/keys", "c/", "c/keys: file", "d: 2"]);
}

#[test]
fn a_pipe_in_the_way_is_replaced_without_waiting_for_a_writer() {
    let place = Place::new();
    for name in ["file", "dir", "link"] {
        assert!(Command::new("mkfifo").arg(place.root().join(name)).status().unwrap().success());
    }
    place.attack(Format::Zip, &zip(&[file("file", "x"), file("dir/x", "x"), link("link", "file")])).unwrap();
    assert_eq!(place.inside(), ["dir/", "dir/x: x", "file: x", "link -> file"]);
}

#[test]
fn a_process_that_swaps_a_directory_for_a_link_meanwhile_gains_nothing() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let place = Place::new();
    let (dir, trap) = (place.root().join("dir"), place.root().join("trap"));
    fs::create_dir(&dir).unwrap();
    symlink("../canary", &trap).unwrap();
    // Every other entry opens the directory again.
    let items: Vec<Item> = (0..500).flat_map(|n| [file("dir/keys", "evil"), file(&format!("other/{n}"), "")]).collect();
    let archive = tar(&items);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &dir, CWD, &trap, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let result = std::panic::catch_unwind(|| place.attack(Format::Tar, &archive));
        done.store(true, Ordering::Relaxed);
        result.unwrap().unwrap();
    });
}
