//! Archives with names or links that lead out of the root, and directories with such links.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn an_entry_below_a_link_of_the_archive_is_skipped() {
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        let canary = sandbox.canary().display().to_string();
        let items = [link("a", &canary), link("a/keys", "x"), file("a/new", "x"), file("honest", "yes")];
        let skipped = sandbox.unpack_checked(format, &archive(&items)).unwrap();
        let line = |name| format!("{name}: skipped: it is below the link `a` of the archive");
        assert_eq!(skipped, [line("a/keys"), line("a/new")], "{format:?}");
        assert_eq!(sandbox.inside(), [format!("a -> {canary}"), "honest: yes".to_owned()], "{format:?}");
    }
}

#[test]
fn a_chain_of_links_writes_nothing_outside_in_any_order() {
    let chain =
        [link("a", ".."), link("a/b", "canary"), link("a/b/keys", "x"), link("c", "a"), link("c/canary/keys", "x")];
    for (format, archive) in FORMATS {
        for turn in 0..chain.len() {
            let mut items = chain.to_vec();
            items.rotate_left(turn);
            Sandbox::new().unpack_checked(format, &archive(&items)).unwrap();
            items.reverse();
            Sandbox::new().unpack_checked(format, &archive(&items)).unwrap();
        }
    }
}

#[test]
fn a_link_never_replaces_a_directory_that_has_entries_of_the_archive() {
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        let items = [link("a/keys", "x"), directory("empty/"), link("a", "../canary"), link("empty", "../canary")];
        let skipped = sandbox.unpack_checked(format, &archive(&items)).unwrap();
        assert_eq!(skipped.len(), 1, "{skipped:?}");
        assert!(skipped[0].starts_with("a: skipped: "), "{skipped:?}");
        assert_eq!(sandbox.inside(), ["a/", "a/keys -> x", "empty -> ../canary"], "{format:?}");
    }
}

#[test]
fn an_entry_below_a_directory_that_a_link_replaced_is_skipped() {
    let sandbox = Sandbox::new();
    let items = [directory("a/"), link("a", "../canary"), file("a/keys", "evil")];
    let skipped = sandbox.unpack_checked(Format::Tar, &tar(&items)).unwrap();
    assert_eq!(skipped, ["a/keys: skipped: it is below the link `a` of the archive"]);
}

#[test]
fn a_link_of_an_earlier_job_is_not_written_through() {
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        symlink(sandbox.canary(), sandbox.root().join("absolute")).unwrap();
        symlink("../canary", sandbox.root().join("relative")).unwrap();
        symlink("relative", sandbox.root().join("chain")).unwrap();
        symlink("/proc/self/root", sandbox.root().join("magic")).unwrap();
        symlink("missing", sandbox.root().join("dangling")).unwrap();
        fs::create_dir(sandbox.root().join("sub")).unwrap();
        symlink("../..", sandbox.root().join("sub/up")).unwrap();
        let magic = format!("magic{}/keys", sandbox.canary().display());
        let names =
            ["absolute/keys", "relative/keys", "chain/keys", &magic, "dangling/new", "sub/up/canary/keys", "absolute/"];
        let items: Vec<Item> = names
            .map(|name| if name.ends_with('/') { directory(name) } else { file(name, "evil") })
            .into_iter()
            .chain([link("relative/empty", "x"), file("honest", "")])
            .collect();
        let skipped = sandbox.unpack_checked(format, &archive(&items)).unwrap();
        assert_eq!(skipped.len(), 8, "{skipped:?}");
        let reason = "a link in its path leads out of the project, or does not lead to a directory";
        assert_eq!(skipped[0], format!("absolute/keys: skipped: {reason}"));
        assert!(sandbox.root().join("honest").is_file());
    }
}

#[test]
fn a_link_with_the_name_of_a_file_is_replaced_and_not_followed() {
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        for name in ["file", "link"] {
            symlink("../canary/keys", sandbox.root().join(name)).unwrap();
        }
        sandbox.unpack_checked(format, &archive(&[file("file", "new"), link("link", "file")])).unwrap();
        assert_eq!(sandbox.inside(), ["file: new", "link -> file"], "{format:?}");
    }
}

#[test]
fn create_root_rejects_links_below_the_base_but_follows_links_above_it() {
    let sandbox = Sandbox::new();
    let outer = sandbox.outer.path();
    fs::create_dir(outer.join("canary/project")).unwrap();
    // The builds directory may be below a link, and is missing at first.
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
    assert_eq!(
        fs::read_dir(outer.join("canary")).unwrap().count(),
        3,
        "`canary` must contain only `empty`, `keys` and `project`"
    );
    let error = below("../outside").unwrap_err().to_string();
    assert!(error.contains("is not below the builds directory"), "{error}");
    create_root(&outer.join("elsewhere"), &Root::Below(base.clone())).unwrap_err();
    let chosen = create_root(&base.join("evil/project"), &Root::Chosen).unwrap();
    assert!(chosen.exists(".") && !outer.join("elsewhere").exists() && !outer.join("disk/outside").exists());
}

#[test]
fn hard_links_devices_and_pipes_are_rejected() {
    for (kind, target, name) in [
        (EntryType::Link, "../canary/keys", "hard link"),
        (EntryType::Link, "before", "hard link"),
        (EntryType::Link, "link", "hard link"),
        (EntryType::Char, "", "device"),
        (EntryType::Block, "", "device"),
        (EntryType::Fifo, "", "pipe"),
    ] {
        let sandbox = Sandbox::new();
        let items = [file("before", ""), link("link", "../canary/keys"), item(kind, "special", target)];
        let error = sandbox.unpack_checked(Format::TarZstd, &tar_zstd(&items)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "entry `special` of the archive is a {name}, which cannot be unpacked; the remaining entries were not unpacked"
            )
        );
    }
    for (kind, name) in [(EntryType::Fifo, "pipe"), (EntryType::Char, "device")] {
        let sandbox = Sandbox::new();
        let error = sandbox.unpack_checked(Format::Zip, &zip(&[item(kind, "special", "")])).unwrap_err();
        assert!(matches!(&error, UnpackError::Kind { kind, .. } if *kind == name), "{error:?}");
    }
}

#[test]
fn names_that_are_empty_invalid_or_lead_out_are_rejected() {
    let absolute = Sandbox::new().outer.path().join("x").display().to_string();
    for name in ["../x", "a/../../x", "/x", &absolute, "..", "a/..", "."] {
        for (format, archive) in FORMATS {
            let sandbox = Sandbox::new();
            let error = sandbox.unpack_checked(format, &archive(&[file(name, "evil")])).unwrap_err();
            assert!(matches!(&error, UnpackError::Outside { .. }), "{format:?} {name}: {error:?}");
            let sandbox = Sandbox::new();
            sandbox.unpack_checked(format, &archive(&[link(name, "evil")])).unwrap_err();
            assert_eq!(sandbox.inside(), [""; 0], "{format:?} {name}");
        }
    }
    // A file with an empty name would be the root itself. A NUL would hide the rest of the name from the system.
    for name in ["", "a\0b"] {
        let sandbox = Sandbox::new();
        let error = sandbox.unpack_checked(Format::Zip, &zip(&[file(name, "evil")])).unwrap_err();
        assert!(matches!(&error, UnpackError::Outside { .. }), "{name:?}: {error:?}");
    }
    let pax = "12 path=a\0b\n";
    let items = [item(EntryType::XHeader, "x", pax), file("name", "evil")];
    Sandbox::new().unpack_checked(Format::Tar, &tar(&items)).unwrap_err();
}

#[test]
fn a_long_name_that_leads_out_is_rejected() {
    let long = format!("{}../../../x", "a/".repeat(80));
    let name = format!("{}{long}", "../".repeat(90));
    for name in [&name, &format!("/{long}")] {
        let error = Sandbox::new().unpack_checked(Format::Tar, &tar(&[file(name, "evil")])).unwrap_err();
        assert!(matches!(&error, UnpackError::Outside { .. }), "{error:?}");
    }
    let pax = "19 path=../../../x\n";
    let items = [item(EntryType::XHeader, "x", pax), file("name", "evil")];
    Sandbox::new().unpack_checked(Format::Tar, &tar(&items)).unwrap_err();
}

#[test]
fn a_name_over_the_length_limit_is_rejected_and_the_error_quotes_its_start() {
    for (format, archive) in FORMATS {
        let longest = format!("{}n", "long/".repeat(819));
        Sandbox::new().unpack(format, &archive(&[file(&longest, "")]), &Limits::default()).unwrap();
        for item in [file(&format!("{longest}n"), ""), directory(&"d/".repeat(30_000))] {
            let sandbox = Sandbox::new();
            let error = sandbox.unpack_checked(format, &archive(&[item])).unwrap_err();
            let kind = "file with a name of more than 4096 bytes";
            assert!(error.to_string().contains(kind) && error.to_string().len() < 400, "{format:?}: {error}");
            assert_eq!(sandbox.inside(), [""; 0], "{format:?}");
        }
    }
}

#[test]
fn a_backslash_is_an_ordinary_character_of_a_name() {
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        sandbox.unpack_checked(format, &archive(&[file("a\\..\\..\\x", "text")])).unwrap();
        assert_eq!(sandbox.inside(), ["a\\..\\..\\x: text"], "{format:?}");
    }
}

#[test]
fn special_mode_bits_are_dropped_and_read_only_directories_are_filled() {
    for (format, archive) in FORMATS {
        let sandbox = Sandbox::new();
        let closed = Item { mode: 0o7500, ..directory("closed/") };
        let suid = Item { mode: 0o6755, ..file("closed/suid", "x") };
        let root_entry = Item { mode: 0o7000, ..directory("./") };
        sandbox
            .unpack_checked(format, &archive(&[root_entry, closed.clone(), suid, closed, file("closed/b", "")]))
            .unwrap();
        let mode = |name: &str| fs::metadata(sandbox.root().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("closed"), mode("closed/suid")), (0o500, 0o755), "{format:?}");
        assert_ne!(mode("."), 0, "the archive must not change the directory itself");
        fs::set_permissions(sandbox.root().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn the_last_of_several_entries_with_the_same_name_is_used() {
    let sandbox = Sandbox::new();
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
    let skipped = sandbox.unpack_checked(Format::Tar, &tar(&items)).unwrap();
    assert_eq!(skipped, [""; 0]);
    assert_eq!(sandbox.inside(), ["a: file", "b -> ../canary/keys", "c/", "c/keys: file", "d: 2"]);
}

#[test]
fn an_existing_pipe_is_replaced_without_waiting_for_a_writer() {
    let sandbox = Sandbox::new();
    for name in ["file", "dir", "link"] {
        assert!(Command::new("mkfifo").arg(sandbox.root().join(name)).status().unwrap().success());
    }
    sandbox.unpack_checked(Format::Zip, &zip(&[file("file", "x"), file("dir/x", "x"), link("link", "file")])).unwrap();
    assert_eq!(sandbox.inside(), ["dir/", "dir/x: x", "file: x", "link -> file"]);
}

#[test]
fn nothing_outside_changes_while_a_process_swaps_a_directory_for_a_link() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let sandbox = Sandbox::new();
    let (dir, trap) = (sandbox.root().join("dir"), sandbox.root().join("trap"));
    fs::create_dir(&dir).unwrap();
    symlink("../canary", &trap).unwrap();
    // The alternation makes every second entry open `dir` again.
    let items: Vec<Item> = (0..500).flat_map(|n| [file("dir/keys", "evil"), file(&format!("other/{n}"), "")]).collect();
    let archive = tar(&items);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                renameat_with(CWD, &dir, CWD, &trap, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let result = std::panic::catch_unwind(|| sandbox.unpack_checked(Format::Tar, &archive));
        is_done.store(true, Ordering::Relaxed);
        result.unwrap().unwrap();
    });
}
