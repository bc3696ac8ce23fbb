//! Redirects of calls with a token (docs/spec/runner-api.md, section 11.45).
//!
//! Only 307 and 308, which keep method and body, are followed, on the same host and never from HTTPS to HTTP. The error
//! for other redirects has the target, so that a user can configure it.

use http::{StatusCode, header};
use reqwest::Response;
use reqwest::redirect::Policy;
use url::Url;

use super::reply;

pub(super) const MAX_REDIRECTS: usize = 5;
const API: &str = "/api/v4/";

/// Returns the redirect policy for HTTP/1.1. If the body of a request cannot be sent again, the client returns the
/// redirect as the response.
pub(super) fn policy() -> Policy {
    Policy::custom(|attempt| {
        let previous = attempt.previous();
        let from = previous.last().filter(|_| previous.len() <= MAX_REDIRECTS);
        if from.is_some_and(|from| may_follow(attempt.status(), from, attempt.url())) {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

pub(super) fn may_follow(status: StatusCode, from: &Url, to: &Url) -> bool {
    let keeps_method_and_body = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    let keeps_token_secret = to.scheme() == "https" || (to.scheme() == "http" && from.scheme() == "http");
    keeps_method_and_body && keeps_token_secret && from.host().is_some() && from.host() == to.host()
}

pub(super) fn next(response: &Response) -> Option<Url> {
    target(response).filter(|to| may_follow(response.status(), response.url(), to))
}

pub(super) fn target(response: &Response) -> Option<Url> {
    response.url().join(&reply::text_header(response.headers(), header::LOCATION.as_str())?).ok()
}

pub(super) fn refusal_message(response: &Response) -> Option<String> {
    let to = target(response).filter(|_| response.status().is_redirection())?;
    Some(format!(
        "the server redirects to `{to}`, which is not followed because requests carry a token; if `{to}` is the coordinator, \
         configure it as the URL (only 307 and 308 on the same host are followed, and never from https to http)",
        to = configured_url(&to)
    ))
}

/// Returns the URL as a user would configure it, without user name and password. Other parts may be secret.
pub(super) fn configured_url(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), path_prefix(url))
}

/// Returns the URL of the coordinator of an API call, with user name and password. Must not be logged.
pub(super) fn coordinator_url(mut url: Url) -> Url {
    let prefix = path_prefix(&url).to_owned();
    url.set_path(&prefix);
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Returns the path before `/api/v4/`. Empty without `/api/v4/`.
fn path_prefix(url: &Url) -> &str {
    url.path().split_once(API).map_or("", |(prefix, _)| prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_only_to_its_host_and_never_from_https_to_http() {
        for (status, from, to, allowed) in [
            (307, "https://g.example/api", "https://g.example/sub/api", true),
            (308, "http://g.example/api", "https://g.example/api", true),
            (308, "http://g.example:8080/api", "https://g.example:8443/api", true),
            (308, "https://g.example/api", "http://g.example/api", false),
            (307, "https://g.example/api", "https://g.example.evil/api", false),
            (307, "https://g.example/api", "https://www.g.example/api", false),
            (307, "https://g.example/api", "ftp://g.example/api", false),
            (302, "https://g.example/api", "https://g.example/sub/api", false),
            (301, "http://g.example/api", "https://g.example/api", false),
        ] {
            let (status, [from, to]) =
                (StatusCode::from_u16(status).unwrap(), [from, to].map(|url| Url::parse(url).unwrap()));
            assert_eq!(may_follow(status, &from, &to), allowed, "{status} {from} {to}");
        }
    }

    #[test]
    fn message_shows_url_as_configured() {
        for (url, shown) in [
            ("https://g.example/api/v4/jobs/request", "https://g.example"),
            ("https://g.example:81/gitlab/api/v4/runners/verify?token=x", "https://g.example:81/gitlab"),
            ("https://store.example/secret/path?signature=x", "https://store.example"),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(configured_url(&url), shown);
            assert_eq!(coordinator_url(url), Url::parse(shown).unwrap());
        }
        let with_password = Url::parse("https://ci:pw@g.example/gitlab/api/v4/jobs/request").unwrap();
        assert_eq!(configured_url(&with_password), "https://g.example/gitlab");
    }
}
