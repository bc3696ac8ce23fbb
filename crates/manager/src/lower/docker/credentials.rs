//! Credentials for registries, in their order of precedence (docs/spec/job-execution.md, section 5.8).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_agent_api::builtin::RegistryCredentials;
use muster_runner_api::payload::JobPayload;
use serde_json::{Map, Value};

use super::super::LowerError;
use super::super::variables::Variables;
use super::DockerFiles;

/// Variable with credentials in the format of Docker's `config.json`.
const VARIABLE: &str = "DOCKER_AUTH_CONFIG";
/// Origin of the payload's credentials, for the log.
const PAYLOAD: &str = "job payload (GitLab Registry)";
/// Names of Docker Hub.
const HUB: [&str; 4] = ["docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"];

/// Returns all credentials. Adds warnings about sources that cannot be used.
///
/// # Errors
/// [`LowerError`] if the name of a credential helper could lead to another program.
pub(super) fn credentials(
    payload: &JobPayload,
    variables: &Variables,
    files: &DockerFiles,
    warnings: &mut Vec<String>,
) -> Result<Vec<RegistryCredentials>, LowerError> {
    let mut all = Vec::new();
    let variable = variables.content(VARIABLE).filter(|text| !text.trim().is_empty());
    let variable = variable.map(|text| (format!("${VARIABLE}"), Ok(text)));
    let file = files.auth_file.as_ref().map(|file| (file.path.clone(), file.content.clone()));
    for (source, text) in variable.into_iter().chain(file) {
        match text.and_then(|text| parse(&text, &source)) {
            Ok(list) => all.extend(list),
            Err(reason) => warnings.push(format!("registry credentials of {source} are not used: {reason}")),
        }
    }
    if let Some(entry) = all.iter().find(|entry| !is_helper_name(&entry.helper)) {
        return Err(LowerError::configuration(format!(
            "{}: {:?} is not a valid name of a credential helper; use letters, digits, `.`, `_` and `-`",
            entry.source, entry.helper
        )));
    }
    let of_payload = payload.credentials.iter().filter(|credentials| credentials.kind == "registry");
    all.extend(of_payload.map(|credentials| RegistryCredentials {
        registry: registry_path(&credentials.url),
        username: credentials.username.clone(),
        password: credentials.password.clone(),
        source: PAYLOAD.to_owned(),
        ..RegistryCredentials::default()
    }));
    Ok(all)
}

/// Parses Docker's `config.json`, or the older `.dockercfg`, which has the registries at the top level.
///
/// The error never quotes a value, because it may be a secret.
fn parse(text: &str, source: &str) -> Result<Vec<RegistryCredentials>, String> {
    let config: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| format!("invalid JSON at line {}, column {}", error.line(), error.column()))?;
    let mut all = Vec::new();
    let helper = |registry: String, name: &Value| {
        let helper = name.as_str().filter(|name| !name.is_empty())?.to_owned();
        Some(RegistryCredentials { registry, helper, source: source.to_owned(), ..RegistryCredentials::default() })
    };
    let helpers = config.get("credHelpers").and_then(Value::as_object).into_iter().flatten();
    all.extend(helpers.filter_map(|(registry, name)| helper(registry_path(registry), name)));
    all.extend(config.get("credsStore").and_then(|name| helper(String::new(), name)));
    let is_old = ["auths", "credHelpers", "credsStore"].iter().all(|key| !config.contains_key(*key));
    let auths = if is_old { Some(&config) } else { config.get("auths").and_then(Value::as_object) };
    for (registry, entry) in auths.into_iter().flatten().filter(|(_, entry)| entry.is_object()) {
        all.extend(entry_of(registry, entry, source)?);
    }
    Ok(all)
}

/// Returns the credentials of an entry of `auths`. `None` if it has none, for example because a helper has them.
fn entry_of(registry: &str, entry: &Value, source: &str) -> Result<Option<RegistryCredentials>, String> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut credentials = RegistryCredentials {
        registry: registry_path(registry),
        username: text("username").to_owned(),
        password: text("password").to_owned(),
        identity_token: text("identitytoken").to_owned(),
        source: source.to_owned(),
        ..RegistryCredentials::default()
    };
    if !text("auth").is_empty() {
        let decoded = STANDARD.decode(text("auth").trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let Some((username, password)) = decoded.as_deref().and_then(|text| text.split_once(':')) else {
            return Err(format!("auths.{registry}.auth is not NAME:PASSWORD in base64"));
        };
        username.clone_into(&mut credentials.username);
        password.trim_end_matches('\0').clone_into(&mut credentials.password);
    }
    let is_empty = credentials.username.is_empty() && credentials.identity_token.is_empty();
    Ok((!is_empty).then_some(credentials))
}

/// Returns a registry's host and path. A URL with a scheme is an old entry, of which only the host counts.
fn registry_path(text: &str) -> String {
    let text = text.trim();
    let without_scheme = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let path = match without_scheme {
        Some(rest) => rest.split('/').next().unwrap_or_default(),
        None => text.trim_end_matches('/'),
    };
    let (host, rest) = path.split_at_checked(path.find('/').unwrap_or(path.len())).unwrap_or((path, ""));
    let host = host.to_ascii_lowercase();
    if HUB.contains(&host.as_str()) {
        // `v1` and `v2` are versions of the registry's API.
        let rest = if matches!(rest, "/v1" | "/v2") { "" } else { rest };
        return format!("docker.io{rest}");
    }
    format!("{host}{rest}")
}

/// Returns whether a helper's name can only lead to a program `docker-credential-<name>`. An empty name means no helper, and is valid.
fn is_helper_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_have_one_spelling() {
        for (text, path) in [
            ("https://index.docker.io/v1/", "docker.io"),
            ("index.docker.io/v1/", "docker.io"),
            ("docker.io/group", "docker.io/group"),
            ("https://Registry.Example:5000/v2/", "registry.example:5000"),
            ("registry.example/Group/project/", "registry.example/Group/project"),
            ("registry.example", "registry.example"),
        ] {
            assert_eq!(registry_path(text), path, "{text}");
        }
    }

    #[test]
    fn entries_have_password_token_or_helper() {
        let text = r#"{
            "credHelpers": { "gcr.example": "gcloud" },
            "credsStore": "secretservice",
            "auths": {
                "a.example": { "auth": "dXNlcjpwYXNzOndvcmQ=" },
                "b.example/group": { "username": "u", "password": "p" },
                "c.example": { "identitytoken": "t" },
                "https://index.docker.io/v1/": {}
            }
        }"#;
        let list = parse(text, "S").unwrap();
        let shown: Vec<String> = list
            .iter()
            .map(|entry| {
                let RegistryCredentials { registry, username, password, identity_token, helper, source } = entry;
                format!("{registry} {username} {password} {identity_token} {helper} {source}")
            })
            .collect();
        let expected = [
            "gcr.example    gcloud S",
            "    secretservice S",
            "a.example user pass:word   S",
            "b.example/group u p   S",
            "c.example   t  S",
        ];
        assert_eq!(shown, expected);
        let old = parse(r#"{ "https://old.example/v1/": { "auth": "dTpw", "email": "x" } }"#, "S").unwrap();
        assert_eq!((old[0].registry.as_str(), old[0].username.as_str()), ("old.example", "u"));
    }

    #[test]
    fn errors_quote_no_secret() {
        for text in ["{ \"auths\": hunter22", "[\"hunter22\"]", r#"{"auths":{"a.example":{"auth":"hunter22"}}}"#] {
            let error = parse(text, "S").unwrap_err();
            assert!(!error.contains("hunter22"), "{error}");
        }
    }

    #[test]
    fn helper_names_cannot_leave_the_search_path() {
        assert!(is_helper_name("") && is_helper_name("ecr-login") && is_helper_name("a.b_c"));
        assert!(!is_helper_name("../evil") && !is_helper_name("a b") && !is_helper_name("a\\b"));
    }
}
