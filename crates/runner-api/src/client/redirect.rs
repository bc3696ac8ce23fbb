//! Where a call with a token may be sent on to by the coordinator (runner-api 11.45).
//!
//! 307 and 308 keep method and body, so a call can follow them; it does so on the same host only, and never from https to
//! http: each call carries a token, which is for the coordinator alone. 301, 302 and 303 make another call of it, which no
//! coordinator means. What is not followed is told with the place, so that a person can write that as the URL.

use http::{StatusCode, header};
use reqwest::Response;
use reqwest::redirect::Policy;
use url::Url;

use super::reply;

/// Hops of one call; what needs more is a ring.
pub(super) const HOPS_MAX: usize = 5;
/// What comes before the calls' own paths.
const API: &str = "/api/v4/";

/// The policy of every client. A body that cannot be sent twice is not; the answer is the redirect then.
pub(super) fn policy() -> Policy {
    Policy::custom(|attempt| {
        let previous = attempt.previous();
        let from = previous.last().filter(|_| previous.len() <= HOPS_MAX);
        if from.is_some_and(|from| may_follow(attempt.status(), from, attempt.url())) {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

/// Whether a call goes on to `to` with its token.
pub(super) fn may_follow(status: StatusCode, from: &Url, to: &Url) -> bool {
    let keeps_the_call = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    let keeps_the_secret = to.scheme() == "https" || (to.scheme() == "http" && from.scheme() == "http");
    keeps_the_call && keeps_the_secret && from.host().is_some() && from.host() == to.host()
}

/// Where a redirect sends a call on to, if it may go there with its token.
pub(super) fn next(response: &Response) -> Option<Url> {
    target(response).filter(|to| may_follow(response.status(), response.url(), to))
}

/// What a redirect names.
pub(super) fn target(response: &Response) -> Option<Url> {
    response.url().join(&reply::text_header(response.headers(), header::LOCATION.as_str())?).ok()
}

/// The words for a redirect that was not followed.
pub(super) fn refused(response: &Response) -> Option<String> {
    let to = target(response).filter(|_| response.status().is_redirection())?;
    Some(format!(
        "the server sends on to `{}`; a call with a token follows only 307 and 308, on the same host, and never from https \
         to http: if that is the coordinator, write it as the URL",
        place(&to)
    ))
}

/// The URL as a person would configure it. The rest of it may be a secret.
fn place(url: &Url) -> String {
    let prefix = url.path().split_once(API).map_or("", |(prefix, _)| prefix);
    format!("{}{prefix}", url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stays_with_its_host_and_never_leaves_encryption() {
        for (status, from, to, may) in [
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
            assert_eq!(may_follow(status, &from, &to), may, "{status} {from} {to}");
        }
    }

    #[test]
    fn a_place_is_told_as_it_would_be_configured() {
        for (url, told) in [
            ("https://g.example/api/v4/jobs/request", "https://g.example"),
            ("https://g.example:81/gitlab/api/v4/runners/verify?token=x", "https://g.example:81/gitlab"),
            ("https://store.example/secret/path?signature=x", "https://store.example"),
        ] {
            assert_eq!(place(&Url::parse(url).unwrap()), told);
        }
    }
}
