use muster_secret_store::VaultServer;

use super::super::secrets::{SecretRequests, requests};
use super::*;

fn vault(file: Value, data: Value) -> Value {
    json!({
        "file": file, "token": null, "azure_key_vault": null,
        "vault": {
            "server": { "url": "$VAULT_SERVER_URL/", "namespace": null, "auth": { "name": "jwt", "path": "/jwt/", "data": data } },
            "engine": { "name": "kv-v2", "path": "kv" }, "path": "$STAGE/db", "field": "password"
        }
    })
}

fn requests_for(secrets: Value) -> Result<SecretRequests, LowerError> {
    let mut extra = variables(&[
        ("VAULT_SERVER_URL", "https://vault.example"),
        ("STAGE", "production"),
        ("TOKEN", "the.id.token"),
        ("SECRETS_RETRIEVAL_ATTEMPTS", "3"),
        ("FF_SECRET_RESOLVING_FAILS_IF_MISSING", "false"),
    ]);
    extra["secrets"] = secrets;
    requests(&payload(extra), &context())
}

#[test]
fn references_in_the_requests_of_vault_are_expanded() {
    let found =
        requests_for(json!({ "A": vault(json!(null), json!({ "jwt": "$TOKEN", "role": "", "ignored": [1] })) }))
            .unwrap();
    assert_eq!((found.attempts, found.missing_fails), (3, false));
    let secret = &found.list[0].secret;
    let server = VaultServer {
        url: "https://vault.example/".to_owned(),
        namespace: String::new(),
        login_path: "auth/jwt/login".to_owned(),
        jwt: Secret::new("the.id.token"),
        role: None,
    };
    assert_eq!((&secret.server, secret.path.as_str(), secret.field.as_str()), (&server, "production/db", "password"));
    let variable = found.list[0].variable(&Secret::new("a$b"));
    assert_eq!((variable.value.as_str(), variable.file, variable.raw, variable.masked), ("a$b", true, true, true));
    assert!(!variable.public, "services do not get secrets");
}

#[test]
fn request_of_gitlab_secrets_manager_is_not_expanded() {
    let secret = |auth: Value| {
        json!({ "A": { "file": false, "gitlab_secrets_manager": {
            "server": { "url": "https://secrets.example", "inline_auth": auth },
            "engine": { "name": "kv-v2", "path": "secrets/kv" }, "path": "explicit/$A", "field": "value"
        } } })
    };
    let found = requests_for(secret(json!({ "jwt": "t", "role": "r", "auth_mount": "gitlab_rails_jwt" }))).unwrap();
    let found = &found.list[0].secret;
    assert_eq!((found.path.as_str(), found.server.login_path.as_str()), ("explicit/$A", "auth/gitlab_rails_jwt/login"));
    let found = requests_for(secret(json!({ "jwt": "t", "path": "auth/own/login", "auth_mount": "m" }))).unwrap();
    assert_eq!(found.list[0].secret.server.login_path, "auth/own/login");
}

#[test]
fn invalid_secrets_are_named() {
    let errors = [
        json!({ "A": vault(json!(true), json!({ "role": "r" })) }),
        json!({ "A": vault(json!(true), json!({ "jwt": "$MISSING" })) }),
        json!({ "A": { "vault": { "server": { "auth": { "name": "approle" } } } } }),
        json!({ "A": { "vault": [] } }),
        json!({ "A": { "file": true } }),
        json!({ "A": "text" }),
    ]
    .map(|secrets| requests_for(secrets).unwrap_err().message);
    insta::assert_json_snapshot!(errors);
}

#[test]
fn other_variables_can_refer_to_fetched_secrets() {
    let mut extra = variables(&[("URL", "postgres://app:$PASSWORD@db"), ("PASSWORD", "of the payload")]);
    extra["secrets"] = json!({ "PASSWORD": vault(json!(false), json!({ "jwt": "t" })) });
    let fetched = Variable { raw: true, ..Variable::secret("PASSWORD", "a$URL") };
    let job = lower(&payload(extra), &JobContext { secrets: vec![fetched], ..context() }).unwrap();
    assert_eq!(value(&job, "URL").as_deref(), Some("postgres://app:a$URL@db"));
    assert_eq!(value(&job, "PASSWORD").as_deref(), Some("a$URL"));
    let steps: Vec<&str> = job.plan.steps.iter().map(|step| step.name.as_str()).take(2).collect();
    assert_eq!(steps, ["resolve_secrets", "prepare_executor"]);
}
