//! Credentials for the repositories that a job may read (docs/spec/job-execution.md, section 2.6).

use muster_job::without_user_info;
use reqwest::RequestBuilder;
use url::Url;

/// Rules that add credentials to URLs.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// Each pair is a replacement, which contains credentials, and the URL prefix that it replaces. The first match is
    /// used.
    rewrites: Vec<(String, String)>,
}

pub(crate) struct Repository {
    /// URL without credentials.
    pub(crate) url: String,
    user: Option<(String, Option<String>)>,
}

impl Credentials {
    /// Returns the rules. Each pair is a replacement and a URL prefix.
    pub(crate) fn new(rewrites: Vec<(String, String)>) -> Self {
        Self { rewrites }
    }

    /// Replaces the prefix of a URL by the first matching rule.
    pub(crate) fn rewrite(&self, url: &str) -> String {
        let matching = self.rewrites.iter().find_map(|(to, from)| {
            let rest = url.strip_prefix(from.as_str())?;
            // `https://host` must match neither `https://host.example.com` nor another port.
            let is_whole = from.ends_with(['/', ':']) || rest.is_empty() || rest.starts_with('/');
            is_whole.then(|| format!("{to}{rest}"))
        });
        matching.unwrap_or_else(|| url.to_owned())
    }

    /// Returns the repository at a URL with its credentials.
    pub(crate) fn apply(&self, url: &str) -> Repository {
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
    /// Returns user and password, if there are any.
    #[cfg(test)]
    pub(crate) fn user(&self) -> Option<(&str, Option<&str>)> {
        self.user.as_ref().map(|(user, password)| (user.as_str(), password.as_deref()))
    }

    pub(crate) fn authorize(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.user {
            Some((user, password)) => request.basic_auth(user, password.as_ref()),
            None => request,
        }
    }

    /// Returns whether a URL has the repository's scheme, host and port.
    pub(crate) fn is_at(&self, url: &str) -> bool {
        let origin = |url: &str| Url::parse(url).map(|url| url.origin());
        matches!((origin(&self.url), origin(url)), (Ok(own), Ok(other)) if own == other)
    }
}

/// Returns a URL without secret user information, for files and the trace.
pub(crate) fn without_credentials(url: &str) -> String {
    let is_http = matches!(url.split_once("://"), Some(("http" | "https", _)));
    // An SSH URL needs its user. The user is not secret.
    if is_http { without_user_info(url) } else { url.to_owned() }
}

#[cfg(test)]
mod tests {
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
}
