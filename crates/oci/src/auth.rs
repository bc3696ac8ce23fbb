//! Authentication at a registry: Basic, or a token of a token server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_auth::ChallengeRef;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use serde::Deserialize;
use url::Url;

use crate::body::read_body;
use crate::credentials::Credentials;
use crate::error::{RegistryError, ResponseError};
use crate::idle::{self, SentBytes};

const MAX_TOKEN_BYTES: u64 = 1024 * 1024;

/// Authentication method that a registry requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Returns the preferred challenge: Bearer with a realm, or else Basic. `None` means neither.
pub(super) fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let mut basic = None;
    for text in texts {
        for challenge in http_auth::parse_challenges(text).unwrap_or_default() {
            if challenge.scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = parameter(&challenge, "realm")
            {
                let (service, scope) = (parameter(&challenge, "service"), parameter(&challenge, "scope"));
                return Some(Challenge::Bearer { realm, service, scope });
            }
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            }
        }
    }
    basic
}

fn parameter(challenge: &ChallengeRef<'_>, name: &str) -> Option<String> {
    let parameter = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    parameter.map(|(_, value)| value.to_unescaped())
}

/// Returns the value of `Authorization` for Basic authentication.
pub(super) fn basic(credentials: &Credentials) -> String {
    format!("Basic {}", STANDARD.encode(format!("{}:{}", credentials.username, credentials.password)))
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

/// Fetches a token, with credentials or anonymously. Returns the value of `Authorization`.
///
/// `plain_http` means that the registry is reached without encryption. `challenge` is the realm (URL of the token
/// server), the service and the scope.
pub(super) async fn fetch_bearer(
    http: &reqwest::Client,
    registry: &str,
    plain_http: bool,
    challenge: (&str, Option<&str>, Option<&str>),
    credentials: Option<&Credentials>,
) -> Result<String, RegistryError> {
    let (realm, service, scope) = challenge;
    let invalid = |error: ResponseError| RegistryError::invalid(realm, error);
    let mut url = Url::parse(realm).map_err(|error| invalid(error.into()))?;
    // Only an unencrypted registry may use an unencrypted token server.
    if url.scheme() != "https" && !(plain_http && url.scheme() == "http") {
        return Err(invalid(ResponseError::InsecureTokenUrl { registry: registry.to_owned() }));
    }
    let mut query: Vec<(&str, &str)> = scope.map(|scope| ("scope", scope)).into_iter().collect();
    query.extend(service.map(|service| ("service", service)));
    let request = match credentials {
        Some(credentials) if credentials.is_identity_token => {
            query.push(("grant_type", "refresh_token"));
            query.push(("client_id", "muster"));
            query.push(("refresh_token", &credentials.password));
            http.post(url.clone()).form(&query)
        }
        _ => {
            url.query_pairs_mut().extend_pairs(&query);
            let request = http.get(url.clone());
            match credentials {
                Some(credentials) => request.header("authorization", basic(credentials)),
                None => request,
            }
        }
    };
    let response = idle::send(request, realm, &SentBytes::default()).await?;
    let status = response.status();
    let body = read_body(response, realm, MAX_TOKEN_BYTES).await?;
    if !status.is_success() {
        let user = credentials.map_or("anonymously".to_owned(), |credentials| format!("as {:?}", credentials.username));
        let reason = format!("it did not issue a token: {status}, {user}");
        return Err(RegistryError::Refused { url: realm.into(), registry: registry.to_owned(), reason });
    }
    let token: Token = serde_json::from_slice(&body).map_err(|error| invalid(error.into()))?;
    let token = if token.token.is_empty() { token.access_token } else { token.token };
    if token.is_empty() || token.contains(|c: char| c.is_control()) {
        return Err(invalid(ResponseError::NoToken));
    }
    Ok(format!("Bearer {token}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for text in texts {
            headers.append(WWW_AUTHENTICATE, text.parse().unwrap());
        }
        challenge(&headers)
    }

    #[test]
    fn bearer_challenge_is_preferred() {
        let bearer =
            r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:g/p:pull,push""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.example/token".to_owned(),
            service: Some("r.example".to_owned()),
            scope: Some("repository:g/p:pull,push".to_owned()),
        };
        assert_eq!(parse(&["Basic realm=\"x\"", bearer]), Some(expected));
        assert_eq!(parse(&["basic realm=\"x\""]), Some(Challenge::Basic));
        assert_eq!(parse(&["Digest realm=\"x\", nonce=\"1\""]), None);
        assert_eq!(parse(&["invalid \"", ""]), None);
    }
}
