//! Servers that misbehave: they send redirects, nothing, too much, or answers that Vault never sends.

use std::time::Duration;

use muster_secret_store::VaultOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::{fetch, options, secret};

const TOKEN: &str = r#"{"auth": {"client_token": "s.token"}}"#;
const VALUE: &str = r#"{"data": {"data": {"password": "two"}}}"#;

/// Starts a server that sends `answers`, one per connection. The connection of an empty answer stays open. Returns the
/// URL and the received requests.
async fn serve(answers: Vec<String>) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (requests, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut open = Vec::new();
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !is_complete(&request) {
                let Ok(read @ 1..) = stream.read(&mut buffer).await else { break };
                request.extend_from_slice(buffer.get(..read).unwrap_or_default());
            }
            let _ = requests.send(String::from_utf8_lossy(&request).into_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
            if answer.is_empty() {
                open.push(stream);
            }
        }
        std::future::pending::<()>().await;
    });
    (url, received)
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    body.len() >= length
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

#[tokio::test]
async fn one_redirect_of_a_standby_server_is_followed_with_the_token() {
    let (active, mut at_active) = serve(vec![answer("200 OK", "", TOKEN), answer("200 OK", "", VALUE)]).await;
    let redirect = |path: &str| answer("307 Temporary Redirect", &format!("Location: {active}{path}\r\n"), "");
    let (standby, mut at_standby) = serve(vec![redirect("/v1/auth/jwt/login"), redirect("/v1/kv/data/app")]).await;
    let value = fetch(&options(), &secret(&standby, "the.id.token", "kv-v2", "kv")).await.unwrap();
    assert_eq!(value, "two");
    let (login, read) = (at_active.recv().await.unwrap(), at_active.recv().await.unwrap());
    assert!(login.starts_with("POST /v1/auth/jwt/login") && login.contains("the.id.token"), "{login}");
    assert!(read.starts_with("GET /v1/kv/data/app") && read.contains("x-vault-token: s.token"), "{read}");
    assert!(at_standby.recv().await.unwrap().contains("x-vault-request: true"));
}

#[tokio::test]
async fn second_redirect_and_other_schemes_are_refused() {
    let (url, _requests) = serve(vec![
        answer("307 Temporary Redirect", "Location: /v1/again\r\n", ""),
        answer("307 Temporary Redirect", "Location: /v1/again\r\n", ""),
    ])
    .await;
    let error = fetch(&options(), &secret(&url, "the.id.token", "kv-v2", "kv")).await.unwrap_err().to_string();
    assert!(error.contains("which is a second redirect"), "{error}");
    let (url, _requests) = serve(vec![answer("302 Found", "Location: ftp://example.org/\r\n", "")]).await;
    let error = fetch(&options(), &secret(&url, "the.id.token", "kv-v2", "kv")).await.unwrap_err().to_string();
    assert!(error.contains("without encryption") && !error.contains("the.id.token"), "{error}");
}

#[tokio::test]
async fn silent_server_ends_with_a_timeout() {
    let (url, _requests) = serve(vec![String::new()]).await;
    let options = VaultOptions { timeout: Duration::from_millis(50), ..options() };
    let error = fetch(&options, &secret(&url, "the.id.token", "kv-v2", "kv")).await.unwrap_err();
    assert!(error.is_external() && error.to_string().contains("did not answer within 0.05 s"), "{error}");
}

#[tokio::test]
async fn request_to_unavailable_server_is_retried() {
    let sealed = answer("503 Service Unavailable", "", r#"{"errors": ["Vault is sealed"]}"#);
    let answers = vec![sealed.clone(), answer("200 OK", "", TOKEN), sealed.clone(), answer("200 OK", "", VALUE)];
    let (url, _requests) = serve(answers).await;
    let with_retry = VaultOptions { max_retries: 1, ..options() };
    assert_eq!(fetch(&with_retry, &secret(&url, "the.id.token", "kv-v2", "kv")).await.unwrap(), "two");
    let (url, _requests) = serve(vec![sealed.clone(), sealed]).await;
    let error = fetch(&with_retry, &secret(&url, "the.id.token", "kv-v2", "kv")).await.unwrap_err();
    assert!(error.is_external() && error.to_string().contains("status code 503: Vault is sealed"), "{error}");
}

#[tokio::test]
async fn login_is_shared_by_the_secrets_of_one_job() {
    let answers = [TOKEN, VALUE, VALUE].map(|body| answer("200 OK", "", body)).to_vec();
    let (url, mut requests) = serve(answers).await;
    let secret = secret(&url, "the.id.token", "kv-v2", "kv");
    let mut session = muster_secret_store::VaultSession::open(&options()).await.unwrap();
    session.fetch(&secret).await.unwrap();
    session.fetch(&secret).await.unwrap();
    let methods = [requests.recv().await, requests.recv().await, requests.recv().await];
    let methods = methods.map(|request| request.unwrap().chars().take(4).collect::<String>());
    assert_eq!(methods, ["POST", "GET ", "GET "]);
}

#[tokio::test]
async fn answers_that_vault_never_sends_are_errors() {
    let long = format!("{{\"data\": \"{}\"}}", "x".repeat(5 * 1024 * 1024));
    let html = answer("200 OK", "", "<html>Sign in</html>");
    let control = answer("400 Bad Request", "", &format!("{{\"errors\": [\"a\\u001b[31m\\nb{}\"]}}", "x".repeat(9000)));
    for (answers, expected) in [
        (vec![html.clone()], "the answer to the login at auth/jwt/login has no token"),
        (vec![answer("200 OK", "", TOKEN), html], "no field `password` at kv/data/app"),
        (vec![answer("200 OK", "", TOKEN), answer("200 OK", "", &long)], "longer than 4 MiB"),
        (vec![answer("200 OK", "", r#"{"auth": {"client_token": "a\nb"}}"#)], "not a valid HTTP header"),
        (vec![control], "status code 400: a [31m b"),
    ] {
        let (url, _requests) = serve(answers).await;
        let error = fetch(&options(), &secret(&url, "the.id.token", "kv-v2", "kv")).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.len() < 1500, "{expected}: {error}");
    }
}

#[tokio::test]
async fn invalid_addresses_are_refused_before_anything_is_sent() {
    for url in ["", "vault.example", "unix:///run/vault.sock", "https://user:word@vault.example"] {
        let error = fetch(&options(), &secret(url, "the.id.token", "kv-v2", "kv")).await.unwrap_err().to_string();
        assert!(error.contains("is not a valid address of a Vault server") && !error.contains("word"), "{error}");
    }
    let mut invalid = secret("http://127.0.0.1:1", "the.id.token", "kv-v2", "kv");
    invalid.server.namespace = "team\n".to_owned();
    let error = fetch(&options(), &invalid).await.unwrap_err().to_string();
    assert!(error.contains(r#""team\n" is not a valid namespace"#) && error.contains("VAULT_NAMESPACE"), "{error}");
    // Nothing listens on this port.
    let error = fetch(&options(), &secret("http://127.0.0.1:1", "the.id.token", "kv-v2", "kv")).await.unwrap_err();
    assert!(error.is_external() && error.to_string().contains("refused"), "{error}");
}
