//! Small rules of checking out; whole checkouts are tested through the agent.

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
