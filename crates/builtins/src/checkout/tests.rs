//! Tests of helper functions. Whole checkouts are tested in the crate `muster-agent`.

use super::*;

#[test]
fn credentials_are_removed_from_urls() {
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
