//! Tests with OpenBao, which has the API of HashiCorp Vault.

use muster_secret_store::VaultOptions;
use muster_test_prerequisites::OpenBao;

use crate::{fetch, options, secret};

const POLICY: &str = r#"path "kv/data/app" { capabilities = ["read"] }
path "old/app" { capabilities = ["read"] }
path "kv/data/missing" { capabilities = ["read"] }"#;

fn prepare(server: &OpenBao, namespace: &str) {
    server.allow_login(namespace, "jwt", POLICY);
    let namespace = format!("-namespace={namespace}");
    server.run(&["secrets", "enable", &namespace, "-path=kv", "-version=2", "kv"], "");
    server.run(&["secrets", "enable", &namespace, "-path=old", "-version=1", "kv"], "");
    server.run(&["kv", "put", &namespace, "-mount=kv", "app", "password=two", "number=7", "private=x"], "");
    server.run(&["kv", "put", &namespace, "-mount=kv", "hidden", "password=never"], "");
    server.run(&["kv", "put", &namespace, "-mount=old", "app", "password=one"], "");
}

#[tokio::test]
async fn secrets_of_both_engines_are_read_with_the_id_token_of_the_job() {
    let Some(server) = OpenBao::start() else { return };
    prepare(&server, "");
    let token = server.id_token("group/project");
    for (engine, mount, value) in [("kv-v2", "kv", "two"), ("kv-v1", "old", "one"), ("generic", "/old/", "one")] {
        assert_eq!(fetch(&options(), &secret(&server.url, &token, engine, mount)).await.unwrap(), value, "{engine}");
    }
    let mut structured = secret(&server.url, &token, "kv-v2", "kv");
    server.run(&["kv", "put", "-mount=kv", "app", "-"], r#"{"password": {"user": "a", "ports": [1, 2]}}"#);
    assert_eq!(fetch(&options(), &structured).await.unwrap(), r#"{"ports":[1,2],"user":"a"}"#);
    structured.path = "/app/".to_owned();
    assert!(fetch(&options(), &structured).await.is_ok());
}

#[tokio::test]
async fn refused_request_has_an_error_with_the_remedy_and_no_token() {
    let Some(server) = OpenBao::start() else { return };
    prepare(&server, "");
    let token = server.id_token("group/project");
    let base = secret(&server.url, &token, "kv-v2", "kv");
    let mut cases = Vec::new();
    let mut case = |name: &str, change: &dyn Fn(&mut muster_secret_store::VaultSecret)| {
        let mut secret = base.clone();
        change(&mut secret);
        cases.push((name.to_owned(), secret));
    };
    case("another project", &|secret| secret.server.jwt = muster_job::Secret::new(server.id_token("group/other")));
    case("not a token", &|secret| secret.server.jwt = muster_job::Secret::new("eyJhbGciOiJFUzI1NiJ9.e30.AAAA"));
    case("unknown role", &|secret| secret.server.role = Some("deploy".to_owned()));
    case("no login method there", &|secret| secret.server.login_path = "auth/other/login".to_owned());
    case("unknown namespace", &|secret| secret.server.namespace = "team".to_owned());
    case("policy", &|secret| secret.path = "hidden".to_owned());
    case("path", &|secret| secret.path = "missing".to_owned());
    case("path outside", &|secret| secret.path = "../../sys/mounts".to_owned());
    case("field", &|secret| secret.field = "user".to_owned());
    case("engine", &|secret| secret.engine.name = "ssh".to_owned());
    let mut texts = Vec::new();
    for (name, secret) in cases {
        let error = fetch(&options(), &secret).await.unwrap_err();
        assert!(!error.is_external(), "{name}: {error}");
        texts.push(format!("{name}: {error}").replace(&server.url, "https://vault.example"));
    }
    let text = texts.join("\n");
    // Tokens of OpenBao begin with `s.`.
    assert!(!text.contains(&token) && !text.contains("s."), "{text}");
    insta::assert_snapshot!(text);
}

#[tokio::test]
async fn deleted_version_is_not_found() {
    let Some(server) = OpenBao::start() else { return };
    prepare(&server, "");
    server.run(&["kv", "delete", "-mount=kv", "app"], "");
    let secret = secret(&server.url, &server.id_token("group/project"), "kv-v2", "kv");
    assert!(fetch(&options(), &secret).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn secret_of_a_namespace_is_read_there() {
    let Some(server) = OpenBao::start() else { return };
    server.run(&["namespace", "create", "team"], "");
    prepare(&server, "team");
    let mut secret = secret(&server.url, &server.id_token("group/project"), "kv-v2", "kv");
    assert!(!fetch(&options(), &secret).await.unwrap_err().is_external());
    secret.server.namespace = "team".to_owned();
    assert_eq!(fetch(&options(), &secret).await.unwrap(), "two");
}

#[tokio::test]
async fn sealed_server_is_an_external_failure() {
    let Some(server) = OpenBao::start() else { return };
    prepare(&server, "");
    let secret = secret(&server.url, &server.id_token("group/project"), "kv-v2", "kv");
    server.run(&["operator", "seal"], "");
    let error = fetch(&options(), &secret).await.unwrap_err();
    assert!(error.is_external() && error.to_string().contains("status code 503"), "{error}");
}

#[tokio::test]
async fn certificate_of_a_private_authority_must_be_trusted() {
    let Some(server) = OpenBao::start_with_tls() else { return };
    prepare(&server, "");
    let secret = secret(&server.url, &server.id_token("group/project"), "kv-v2", "kv");
    let error = fetch(&options(), &secret).await.unwrap_err();
    assert!(error.is_external() && error.to_string().contains("VAULT_CACERT"), "{error}");
    let ca = server.ca_file();
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(&ca, directory.path().join("ca.pem")).unwrap();
    let trusted = [
        VaultOptions { ca_file: Some(ca), ..options() },
        VaultOptions { ca_directory: Some(directory.path().to_owned()), ..options() },
        VaultOptions { skip_verify: true, ..options() },
    ];
    for options in trusted {
        assert_eq!(fetch(&options, &secret).await.unwrap(), "two", "{options:?}");
    }
    let missing = VaultOptions { ca_file: Some("/missing.pem".into()), ..options() };
    let error = fetch(&missing, &secret).await.unwrap_err().to_string();
    assert!(error.contains("failed to read /missing.pem, which VAULT_CACERT names"), "{error}");
}
