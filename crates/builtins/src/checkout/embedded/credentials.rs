//! Credentials for the repositories that a job may read (docs/spec/job-execution.md, section 2.6).

use muster_agent_api::builtin::Checkout;
use reqwest::RequestBuilder;
use url::Url;

use crate::checkout::config::{TOKEN_USER, host, rewrites};
use crate::checkout::without_credentials;

/// Rules for the URLs of a job.
#[derive(Debug)]
pub(super) struct Credentials {
    /// URLs, or beginnings of URLs, and by what they are replaced. The first that matches is used.
    rewrites: Vec<(String, String)>,
}

/// A repository as it is requested.
pub(super) struct Repository {
    /// URL without credentials.
    pub(super) url: String,
    user: Option<(String, Option<String>)>,
}

impl Credentials {
    /// `token` is the job's token, for a job whose URLs do not contain it.
    pub(super) fn new(checkout: &Checkout, token: &str) -> Self {
        let plain = without_credentials(&checkout.repo_url);
        let mut rewrites = rewrites(checkout, &plain);
        if checkout.credential_helper
            && let Some(host) = host(&plain)
            && let Some((scheme, rest)) = host.split_once("://")
        {
            rewrites.push((format!("{scheme}://{TOKEN_USER}:{token}@{rest}"), host.clone()));
        }
        Self { rewrites }
    }

    /// Returns the URL that replaces this one, which may contain credentials.
    pub(super) fn rewrite(&self, url: &str) -> String {
        let matching = self.rewrites.iter().find_map(|(to, from)| {
            let rest = url.strip_prefix(from.as_str())?;
            // `https://host` must not match `https://host.example.com`, nor another port.
            let is_whole = from.ends_with(['/', ':']) || rest.is_empty() || rest.starts_with('/');
            is_whole.then(|| format!("{to}{rest}"))
        });
        matching.unwrap_or_else(|| url.to_owned())
    }

    /// Returns the repository at a URL, with its credentials.
    pub(super) fn apply(&self, url: &str) -> Repository {
        let has_user = without_credentials(url) != url;
        let url = if has_user { url.to_owned() } else { self.rewrite(url) };
        let parsed = Url::parse(&url).ok().filter(|parsed| !parsed.username().is_empty());
        let user = parsed.map(|parsed| (percent_decoded(parsed.username()), parsed.password().map(percent_decoded)));
        Repository { url: without_credentials(&url).trim_end_matches('/').to_owned(), user }
    }
}

fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

impl Repository {
    /// Adds the credentials to a request.
    pub(super) fn authorize(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.user {
            Some((user, password)) => request.basic_auth(user, password.as_ref()),
            None => request,
        }
    }

    /// Returns whether a URL has the same scheme, host and port.
    pub(super) fn is_at(&self, url: &str) -> bool {
        let origin = |url: &str| Url::parse(url).map(|url| url.origin());
        matches!((origin(&self.url), origin(url)), (Ok(own), Ok(other)) if own == other)
    }
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
        let credentials = Credentials::new(&checkout, "");
        let user = Some(("gitlab-ci-token".to_owned(), Some("a/b".to_owned())));
        for (url, plain, user) in [
            ("https://gitlab.example/g/p.git", "https://gitlab.example/g/p.git", user.clone()),
            ("https://gitlab.example/other/q.git/", "https://gitlab.example/other/q.git", user.clone()),
            ("git@gitlab.example:other/q.git", "https://gitlab.example/other/q.git", user),
            ("https://gitlab.example.org/q.git", "https://gitlab.example.org/q.git", None),
            ("https://gitlab.example:8443/q.git", "https://gitlab.example:8443/q.git", None),
            ("http://gitlab.example/q.git", "http://gitlab.example/q.git", None),
            ("https://me@other.example/q.git", "https://other.example/q.git", Some(("me".to_owned(), None))),
        ] {
            let found = credentials.apply(url);
            assert_eq!((found.url.as_str(), found.user), (plain, user), "{url}");
        }
    }

    #[test]
    fn token_is_added_if_no_url_contains_it() {
        let checkout = Checkout {
            repo_url: "https://gitlab.example/g/p.git".to_owned(),
            credential_helper: true,
            ..Checkout::default()
        };
        let found = Credentials::new(&checkout, "t0ken").apply("https://gitlab.example/g/q.git");
        assert_eq!(found.user, Some(("gitlab-ci-token".to_owned(), Some("t0ken".to_owned()))));
    }
}
