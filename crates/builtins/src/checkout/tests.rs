//! Small rules of checking out; whole checkouts are tested through the agent.

use std::fs;

use super::*;

#[test]
fn credentials_are_taken_out_of_urls() {
    for (url, plain) in [
        ("https://gitlab-ci-token:s3cret@host/a/b.git", "https://host/a/b.git"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("/srv/repo.git", "/srv/repo.git"),
        ("git@host:a/b.git", "git@host:a/b.git"),
        ("ssh://git@host/a/b.git", "ssh://git@host/a/b.git"),
    ] {
        assert_eq!(without_credentials(url), plain);
    }
}

#[test]
fn a_tree_without_permissions_is_removed() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("locked/inner")).unwrap();
    fs::set_permissions(tree.join("locked"), fs::Permissions::from_mode(0o500)).unwrap();
    remove_tree(&tree).unwrap();
    assert!(!tree.exists());
    remove_tree(&tree).unwrap();
}

/// More levels than a stack holds, where each takes a call.
#[test]
fn a_tree_of_any_depth_is_removed_on_a_small_stack() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut deepest = openat(CWD, &tree, flags, Mode::empty()).unwrap();
    for _ in 0..40_000 {
        mkdirat(&deepest, "d", 0o755.into()).unwrap();
        deepest = openat(&deepest, "d", flags, Mode::empty()).unwrap();
    }
    // The second way through the tree too: the deepest directory can be emptied only after its permissions have changed.
    mkdirat(&deepest, "inner", 0o755.into()).unwrap();
    rustix::fs::fchmod(&deepest, 0o500.into()).unwrap();
    let removed = tree.clone();
    let removing = std::thread::Builder::new().stack_size(256 * 1024).spawn(move || remove_tree(&removed));
    removing.unwrap().join().unwrap().unwrap();
    assert!(!tree.exists());
}
