//! Credentials for the repositories that a checkout may read (docs/spec/job-execution.md, section 2.6).

use muster_agent_api::builtin::Checkout;

use crate::checkout::config::{TOKEN_USER, host, rewrites};
use crate::git_http::{Credentials, without_credentials};

/// Returns the credentials of a checkout. `token` is used only with the credential helper.
pub(super) fn credentials(checkout: &Checkout, token: &str) -> Credentials {
    let plain = without_credentials(&checkout.repo_url);
    let mut rewrites = rewrites(checkout, &plain);
    if checkout.credential_helper
        && let Some(host) = host(&plain)
        && let Some((scheme, rest)) = host.split_once("://")
    {
        rewrites.push((format!("{scheme}://{TOKEN_USER}:{token}@{rest}"), host.clone()));
    }
    Credentials::new(rewrites)
}

#[cfg(test)]
mod tests {
    use muster_agent_api::builtin::Rewrite;

    use super::*;

    #[test]
    fn only_urls_of_the_coordinator_get_the_token() {
        let checkout = Checkout {
            repo_url: "https://gitlab-ci-token:a%2Fb@gitlab.example/g/p.git".to_owned(),
            rewrites: vec![Rewrite {
                from: "git@gitlab.example:".to_owned(),
                to: "https://gitlab-ci-token:a%2Fb@gitlab.example/".to_owned(),
            }],
            ..Checkout::default()
        };
        let credentials = credentials(&checkout, "");
        let user = Some(("gitlab-ci-token", Some("a/b")));
        for (url, plain, user) in [
            ("https://gitlab.example/g/p.git", "https://gitlab.example/g/p.git", user),
            ("https://gitlab.example/other/q.git/", "https://gitlab.example/other/q.git", user),
            ("git@gitlab.example:other/q.git", "https://gitlab.example/other/q.git", user),
            ("https://gitlab.example.org/q.git", "https://gitlab.example.org/q.git", None),
            ("https://gitlab.example:8443/q.git", "https://gitlab.example:8443/q.git", None),
            ("http://gitlab.example/q.git", "http://gitlab.example/q.git", None),
            ("https://me@other.example/q.git", "https://other.example/q.git", Some(("me", None))),
        ] {
            let found = credentials.apply(url);
            assert_eq!((found.url.as_str(), found.user()), (plain, user), "{url}");
        }
    }

    #[test]
    fn token_is_added_if_the_credential_helper_is_used() {
        let checkout = Checkout {
            repo_url: "https://gitlab.example/g/p.git".to_owned(),
            credential_helper: true,
            ..Checkout::default()
        };
        let found = credentials(&checkout, "t0ken").apply("https://gitlab.example/g/q.git");
        assert_eq!(found.user(), Some(("gitlab-ci-token", Some("t0ken"))));
    }
}
