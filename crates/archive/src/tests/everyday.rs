//! What jobs do every day.

use std::os::unix::fs::{PermissionsExt, symlink};

use filetime::FileTime;

use super::*;

fn everyday() -> Vec<Item> {
    let long = format!("d/{}", "name ".repeat(40));
    vec![
        directory("d/"),
        Item { mode: 0o750, ..file("d/run", "content") },
        file(&long, "long"),
        link("node_modules/.bin/tool", "../tool/cli.js"),
        file("node_modules/tool/cli.js", "cli"),
        link("current", "releases/1"),
        file("releases/1/app", "app"),
        link("python", "/usr/bin/python3"),
        link("above", "../elsewhere"),
    ]
}

#[test]
fn files_links_modes_and_times_are_restored() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        assert_eq!(place.attack(format, &archive(&everyday())).unwrap(), [""; 0], "{format:?}");
        let read = |name: &str| fs::read_to_string(place.root().join(name)).unwrap();
        assert_eq!(read("node_modules/.bin/tool"), "cli");
        assert_eq!(read("current/app"), "app");
        assert_eq!(read(&format!("d/{}", "name ".repeat(40))), "long");
        assert_eq!(fs::read_link(place.root().join("python")).unwrap(), Path::new("/usr/bin/python3"));
        assert_eq!(fs::read_link(place.root().join("above")).unwrap(), Path::new("../elsewhere"));
        let metadata = fs::metadata(place.root().join("d/run")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o750, "{format:?}");
        if format != Format::Zip {
            let times = ["d", "d/run"].map(|name| fs::metadata(place.root().join(name)).unwrap());
            let times = times.map(|metadata| FileTime::from_last_modification_time(&metadata).unix_seconds());
            assert_eq!(times, [1_700_000_000; 2], "{format:?}");
        }
        // The same again, over what is there.
        let before = place.inside();
        assert_eq!(place.attack(format, &archive(&everyday())).unwrap(), [""; 0], "{format:?}");
        assert_eq!(place.inside(), before);
    }
}

#[test]
fn older_files_links_and_empty_directories_are_replaced() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        let root = place.root();
        fs::write(root.join("file"), "older").unwrap();
        fs::set_permissions(root.join("file"), fs::Permissions::from_mode(0o400)).unwrap();
        fs::write(root.join("directory"), "").unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        symlink("file", root.join("link")).unwrap();
        symlink("file", root.join("relinked")).unwrap();
        let items = [
            file("file", "new"),
            file("directory/new", "new"),
            file("empty", "new"),
            file("link", "new"),
            link("relinked", "empty"),
        ];
        assert_eq!(place.attack(format, &archive(&items)).unwrap(), [""; 0], "{format:?}");
        assert_eq!(
            place.inside(),
            ["directory/", "directory/new: new", "empty: new", "file: new", "link: new", "relinked -> empty"]
        );
    }
}

#[test]
fn a_filled_directory_is_kept_and_the_rest_is_unpacked() {
    let place = Place::new();
    for name in ["file", "link"] {
        fs::create_dir_all(place.root().join(name)).unwrap();
        fs::write(place.root().join(name).join("kept"), "").unwrap();
    }
    let items = [file("file", "x"), file("other", "x"), link("link", "other")];
    let left_out = place.attack(Format::Zip, &zip(&items)).unwrap();
    assert_eq!(left_out.len(), 2, "{left_out:?}");
    for (line, name) in left_out.iter().zip(["file", "link"]) {
        assert!(line.starts_with(&format!("{name}: skipped: Directory not empty")), "{line}");
    }
    assert_eq!(place.inside(), ["file/", "file/kept: ", "link/", "link/kept: ", "other: x"]);
}

#[test]
fn a_relative_link_of_the_checkout_to_a_directory_inside_is_followed() {
    for (format, archive) in FORMATS {
        let place = Place::new();
        fs::create_dir_all(place.root().join("releases/1")).unwrap();
        symlink("releases/1", place.root().join("current")).unwrap();
        let items = [directory("current/"), file("current/app", "app"), link("current/tool", "app")];
        assert_eq!(place.attack(format, &archive(&items)).unwrap(), [""; 0], "{format:?}");
        assert_eq!(
            place.inside(),
            ["current -> releases/1", "releases/", "releases/1/", "releases/1/app: app", "releases/1/tool -> app"]
        );
    }
}

#[test]
fn records_about_the_whole_archive_are_passed_over() {
    let place = Place::new();
    let items = [item(EntryType::XGlobalHeader, "pax_global_header", "20 comment=abcdefgh\n"), file("a", "x")];
    place.attack(Format::TarGzip, &tar_gzip(&items)).unwrap();
    assert_eq!(place.inside(), ["a: x"]);
}

#[test]
fn the_format_is_known_by_the_first_bytes() {
    for (format, archive) in FORMATS {
        let expected = Some(format).filter(|format| *format != Format::Tar);
        assert_eq!(Format::from_magic(&archive(&[file("a", "")])), expected);
    }
    assert_eq!(Format::from_magic(b""), None);
}
