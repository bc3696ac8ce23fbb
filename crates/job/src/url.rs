//! Removes user names, passwords and queries from URLs that are shown or stored.

/// Returns a URL without user name and password. Text that is not a URL is returned unchanged.
#[must_use]
pub fn without_user_info(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Returns a URL without user name, password, query and fragment.
#[must_use]
pub fn without_user_info_and_query(url: &str) -> String {
    without_user_info(url.split(['?', '#']).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_are_removed_and_the_rest_is_kept() {
        for (url, without) in [
            ("https://user:s3cret@host:8080/a@b?c=d@e#f@g", "https://host:8080/a@b?c=d@e#f@g"),
            ("https://user:p@ss@host", "https://host"),
            ("https://user:s3cret@host?c=d@e", "https://host?c=d@e"),
            ("ssh://git@host/a/b.git", "ssh://host/a/b.git"),
            ("/srv/repo.git", "/srv/repo.git"),
            ("git@host:a/b.git", "git@host:a/b.git"),
        ] {
            assert_eq!(without_user_info(url), without);
        }
        assert_eq!(without_user_info_and_query("https://user@host/a?token=s3cret#f"), "https://host/a");
    }
}
