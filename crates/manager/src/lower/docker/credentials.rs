//! Credentials for registries, in their order of precedence (docs/spec/job-execution.md, section 5.8).

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_agent_api::builtin::RegistryCredentials;
use muster_runner_api::payload::JobPayload;
use serde_json::{Map, Value};

use super::super::LowerError;
use super::super::variables::Variables;
use super::{DockerFiles, HelperAnswers, HelperQuestion};

const AUTH_VARIABLE: &str = "DOCKER_AUTH_CONFIG";
const PAYLOAD_SOURCE: &str = "job payload (GitLab Registry)";
const DOCKER_HUB_HOSTS: [&str; 4] = ["docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"];

/// Returns the credentials of the job. Uses the answers of helpers in `files`, if any, for the registries of `images`.
///
/// Fails if a helper's name could select a program other than `docker-credential-<name>`, such as a name with a slash.
pub(super) fn credentials(
    payload: &JobPayload,
    variables: &Variables,
    files: &DockerFiles,
    images: &[&str],
    warnings: &mut Vec<String>,
) -> Result<Vec<RegistryCredentials>, LowerError> {
    let mut all = entries_of_sources(variables, files, warnings)?;
    if let Some(answers) = &files.helpers {
        all = with_answers(all, answers, images, warnings);
    }
    let of_payload = payload.credentials.iter().filter(|credentials| credentials.kind == "registry");
    all.extend(of_payload.map(|credentials| RegistryCredentials {
        registry: registry_path(&credentials.url),
        username: credentials.username.clone(),
        password: credentials.password.clone(),
        source: PAYLOAD_SOURCE.to_owned(),
        ..RegistryCredentials::default()
    }));
    Ok(all)
}

/// Returns the questions that credential helpers must answer for `images`.
pub(super) fn questions(
    variables: &Variables,
    files: &DockerFiles,
    images: &[String],
) -> Result<BTreeSet<HelperQuestion>, LowerError> {
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    let helpers =
        entries_of_sources(variables, files, &mut Vec::new())?.into_iter().filter(|entry| !entry.helper.is_empty());
    Ok(helpers.flat_map(|entry| questions_of(&entry, &images)).collect())
}

/// Returns the entries of `DOCKER_AUTH_CONFIG` and of Docker's configuration file.
fn entries_of_sources(
    variables: &Variables,
    files: &DockerFiles,
    warnings: &mut Vec<String>,
) -> Result<Vec<RegistryCredentials>, LowerError> {
    let mut all = Vec::new();
    let variable = variables.content(AUTH_VARIABLE).filter(|text| !text.trim().is_empty());
    let variable = variable.map(|text| (format!("${AUTH_VARIABLE}"), Ok(text)));
    let file = files.auth_file.as_ref().map(|file| (file.path.clone(), file.content.clone()));
    for (source, text) in variable.into_iter().chain(file) {
        match text.and_then(|text| parse(&text, &source)) {
            Ok(list) => all.extend(list),
            Err(reason) => warnings.push(format!("registry credentials of {source} are not used: {reason}")),
        }
    }
    match all.iter().find(|entry| !is_helper_name(&entry.helper)) {
        Some(entry) => Err(LowerError::configuration(format!(
            "{}: {:?} is not a valid name of a credential helper; use letters, digits, `.`, `_` and `-`",
            entry.source, entry.helper
        ))),
        None => Ok(all),
    }
}

/// An entry without a registry applies to the registries of all images.
fn questions_of(entry: &RegistryCredentials, images: &[&str]) -> BTreeSet<HelperQuestion> {
    let host = entry.registry.split('/').next().unwrap_or_default();
    let registries = images.iter().map(|image| registry_of(image));
    let wanted = registries.filter_map(|registry| match host {
        "" => Some(registry),
        host => (registry == host).then(|| entry.registry.clone()),
    });
    wanted.map(|registry| HelperQuestion { helper: entry.helper.clone(), registry }).collect()
}

/// Replaces each entry that names a helper with the helper's answers.
fn with_answers(
    entries: Vec<RegistryCredentials>,
    answers: &HelperAnswers,
    images: &[&str],
    warnings: &mut Vec<String>,
) -> Vec<RegistryCredentials> {
    let mut all = Vec::new();
    for entry in entries {
        if entry.helper.is_empty() {
            all.push(entry);
            continue;
        }
        for question in questions_of(&entry, images) {
            match answers.get(&question) {
                Some(Ok(Some(login))) => {
                    let (password, identity_token) = match login.is_identity_token {
                        true => (String::new(), login.password.clone()),
                        false => (login.password.clone(), String::new()),
                    };
                    let (username, source) = (login.username.clone(), entry.source.clone());
                    let helper = String::new();
                    all.push(RegistryCredentials {
                        registry: question.registry,
                        username,
                        password,
                        identity_token,
                        helper,
                        source,
                    });
                }
                Some(Err(reason)) => warnings.push(format!(
                    "Failed to get credentials from {}: docker-credential-{} for {}: {reason}",
                    entry.source, question.helper, question.registry
                )),
                Some(Ok(None)) | None => {}
            }
        }
    }
    all
}

fn registry_of(image: &str) -> String {
    let first = image.split_once('/').map(|(first, _)| first);
    let registry = first.filter(|first| *first == "localhost" || first.contains(['.', ':']));
    registry_path(registry.unwrap_or("docker.io"))
}

/// Parses Docker's `config.json`, or the older `.dockercfg`, which has the registries at the top level.
///
/// The error quotes no value, because it may be a secret.
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

/// `None` means that the entry has no credentials, for example because a helper has them.
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

/// Returns host and path. The path of a URL with a scheme is ignored.
fn registry_path(text: &str) -> String {
    let text = text.trim();
    let without_scheme = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let path = match without_scheme {
        Some(rest) => rest.split('/').next().unwrap_or_default(),
        None => text.trim_end_matches('/'),
    };
    let (host, rest) = path.split_at_checked(path.find('/').unwrap_or(path.len())).unwrap_or((path, ""));
    let host = host.to_ascii_lowercase();
    if DOCKER_HUB_HOSTS.contains(&host.as_str()) {
        // `v1` and `v2` are versions of the registry's API.
        let rest = if matches!(rest, "/v1" | "/v2") { "" } else { rest };
        return format!("docker.io{rest}");
    }
    format!("{host}{rest}")
}

/// Returns whether the name can only lead to `docker-credential-<name>`. True for an empty name.
fn is_helper_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::super::HelperLogin;
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
    fn helpers_are_queried_for_the_registries_of_the_images_and_replaced_by_their_answers() {
        let helper = |registry: &str, name: &str| RegistryCredentials {
            registry: registry.to_owned(),
            helper: name.to_owned(),
            source: "S".to_owned(),
            ..RegistryCredentials::default()
        };
        let images = ["redis:7", "r.example:5000/group/app", "localhost/app@sha256:0"];
        let queried = |entry: &RegistryCredentials| {
            questions_of(entry, &images).into_iter().map(|question| question.registry).collect::<Vec<_>>()
        };
        assert_eq!(queried(&helper("", "store")), ["docker.io", "localhost", "r.example:5000"]);
        assert_eq!(queried(&helper("r.example:5000/group", "one")), ["r.example:5000/group"]);
        assert_eq!(queried(&helper("other.example", "one")), [""; 0]);

        let question =
            |name: &str, registry: &str| HelperQuestion { helper: name.to_owned(), registry: registry.to_owned() };
        let login = |username: &str, password: &str, is_identity_token| {
            Ok(Some(HelperLogin { username: username.to_owned(), password: password.to_owned(), is_identity_token }))
        };
        let answers = HelperAnswers::from([
            (question("store", "docker.io"), login("u", "p", false)),
            (question("store", "localhost"), Ok(None)),
            (question("store", "r.example:5000"), Err("it is not installed".to_owned())),
            (question("one", "r.example:5000/group"), login("", "t", true)),
        ]);
        let plain = RegistryCredentials { registry: "plain".to_owned(), ..RegistryCredentials::default() };
        let entries = vec![helper("", "store"), plain, helper("r.example:5000/group", "one")];
        let mut warnings = Vec::new();
        let found = with_answers(entries, &answers, &images, &mut warnings);
        let shown: Vec<String> = found
            .iter()
            .map(|entry| {
                format!(
                    "{} {} {} {}{}",
                    entry.registry, entry.username, entry.password, entry.identity_token, entry.helper
                )
            })
            .collect();
        assert_eq!(shown, ["docker.io u p ", "plain   ", "r.example:5000/group   t"]);
        assert_eq!(
            warnings,
            ["Failed to get credentials from S: docker-credential-store for r.example:5000: it is not installed"]
        );
    }

    #[test]
    fn errors_quote_no_secret() {
        for text in ["{ \"auths\": hunter22", "[\"hunter22\"]", r#"{"auths":{"a.example":{"auth":"hunter22"}}}"#] {
            let error = parse(text, "S").unwrap_err();
            assert!(!error.contains("hunter22"), "{error}");
        }
    }

    #[test]
    fn helper_name_cannot_be_a_path() {
        assert!(is_helper_name("") && is_helper_name("ecr-login") && is_helper_name("a.b_c"));
        assert!(!is_helper_name("../evil") && !is_helper_name("a b") && !is_helper_name("a\\b"));
    }
}
