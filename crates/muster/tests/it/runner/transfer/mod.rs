//! Commands that transfer artifacts and caches.

mod artifacts;
mod cache;
pub(super) mod store;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use super::support::Home;
use crate::process::CommandResult;

/// Creates `project/out/a`, `project/out/sub/b`, and a link to `a` in a home directory.
fn create_project(home: &Home) {
    std::fs::create_dir_all(home.path("project/out/sub")).unwrap();
    std::fs::write(home.path("project/out/a"), "first").unwrap();
    std::fs::write(home.path("project/out/sub/b"), "second").unwrap();
    std::os::unix::fs::symlink("a", home.path("project/out/link")).unwrap();
}

fn check_unpacked(directory: &Path) {
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!((read("out/a"), read("out/sub/b"), read("out/link")), ("first".into(), "second".into(), "first".into()));
    assert!(directory.join("out/link").is_symlink());
}

fn run_in(home: &Home, directory: &str, arguments: &[&str]) -> CommandResult {
    std::fs::create_dir_all(home.path(directory)).unwrap();
    CommandResult::of(home.command(arguments).current_dir(home.path(directory)).output().unwrap())
}

fn zip_files(content: &[u8]) -> BTreeMap<String, String> {
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(content)).unwrap();
    let mut files = BTreeMap::new();
    for index in 0..zip.len() {
        let mut file = zip.by_index(index).unwrap();
        if file.is_file() && !file.is_symlink() {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            files.insert(file.name().to_owned(), text);
        }
    }
    files
}
