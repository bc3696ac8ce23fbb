//! Credentials for the registry of an image (docs/spec/job-execution.md, section 5.8).

use std::ffi::OsString;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use muster_agent_api::builtin::RegistryCredentials;
use muster_job::is_below;
use muster_oci::{CredentialHelper, HelperError};
use serde_json::json;

use super::reference::{HUB, Reference};

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    username: String,
    password: String,
    identity_token: String,
    registry: String,
}

/// Reason why a credential helper did not provide credentials.
#[derive(Debug, thiserror::Error)]
#[error("docker-credential-{helper} for {registry}: {source}{}", cause(.source))]
pub(super) struct CredentialError {
    helper: String,
    registry: String,
    source: HelperError,
}

/// Returns the cause of an error as a suffix of a message.
fn cause(error: &HelperError) -> String {
    use std::error::Error as _;
    error.source().map(|cause| format!(": {cause}")).unwrap_or_default()
}

impl CredentialError {
    /// Returns whether the job must not continue with other credentials.
    pub(super) fn is_fatal(&self) -> bool {
        matches!(self.source, HelperError::Name)
    }
}

impl Login {
    /// Returns the value of `X-Registry-Auth`.
    pub(super) fn to_header(&self) -> String {
        let auth = if self.identity_token.is_empty() {
            json!({"username": self.username, "password": self.password, "serveraddress": self.registry})
        } else {
            json!({"identitytoken": self.identity_token, "serveraddress": self.registry})
        };
        URL_SAFE.encode(auth.to_string())
    }
}

/// Returns the credentials whose registry path is a prefix of the image's path. Longer paths come first, and equal
/// paths keep their order.
///
/// A helper without a registry is for the image's registry.
pub(super) fn matching<'a>(entries: &'a [RegistryCredentials], image: &Reference) -> Vec<&'a RegistryCredentials> {
    let repository = image.repository();
    let mut found: Vec<(usize, &RegistryCredentials)> = entries
        .iter()
        .filter_map(|entry| {
            let path = match path(&entry.registry) {
                path if path.is_empty() && entry.helper.is_empty() => return None,
                path if path.is_empty() => image.registry().to_owned(),
                path => path,
            };
            is_below(repository, &path).then_some((path.len(), entry))
        })
        .collect();
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, entry)| entry).collect()
}

/// Returns the registry path of an entry without scheme and trailing slash. The host is in lower case.
fn path(registry: &str) -> String {
    let (is_url, rest) = match registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://")) {
        Some(rest) => (true, rest),
        None => (false, registry),
    };
    let mut rest = rest.trim_end_matches('/');
    if is_url {
        // Old configuration files of Docker have the address of the API.
        rest = rest.strip_suffix("/v1").or_else(|| rest.strip_suffix("/v2")).unwrap_or(rest);
    }
    let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
    let host = match host.to_ascii_lowercase().as_str() {
        "index.docker.io" | "registry-1.docker.io" => HUB.to_owned(),
        other => other.to_owned(),
    };
    if path.is_empty() { host } else { format!("{host}/{path}") }
}

/// Returns the credentials of an entry. `None` means that it has none for the image.
pub(super) async fn login(
    entry: &RegistryCredentials,
    image: &Reference,
    helper_path: Option<&OsString>,
) -> Result<Option<Login>, CredentialError> {
    let registry = image.registry().to_owned();
    if entry.helper.is_empty() {
        let login = Login {
            username: entry.username.clone(),
            password: entry.password.clone(),
            identity_token: entry.identity_token.clone(),
            registry,
        };
        return Ok((!login.username.is_empty() || !login.identity_token.is_empty()).then_some(login));
    }
    let server = if entry.registry.is_empty() { &registry } else { &entry.registry };
    let failed = |source| CredentialError { helper: entry.helper.clone(), registry: server.clone(), source };
    let mut helper = CredentialHelper::new(&entry.helper).map_err(failed)?;
    if let Some(path) = helper_path {
        helper = helper.with_search_path(path.clone());
    }
    let found = helper.get(server).await.map_err(failed)?;
    Ok(found.map(|found| {
        let (password, identity_token) =
            if found.is_identity_token { (String::new(), found.password) } else { (found.password, String::new()) };
        Login { username: found.username, password, identity_token, registry: image.registry().to_owned() }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(registry: &str, username: &str) -> RegistryCredentials {
        let (registry, username) = (registry.to_owned(), username.to_owned());
        RegistryCredentials { registry, username, password: "p".to_owned(), ..RegistryCredentials::default() }
    }

    fn helper(registry: &str, name: &str) -> RegistryCredentials {
        let (registry, helper) = (registry.to_owned(), name.to_owned());
        RegistryCredentials { registry, helper, ..RegistryCredentials::default() }
    }

    fn users(entries: &[RegistryCredentials], image: &str) -> Vec<String> {
        let image = Reference::parse(image).unwrap();
        let name = |entry: &RegistryCredentials| {
            if entry.helper.is_empty() { entry.username.clone() } else { entry.helper.clone() }
        };
        matching(entries, &image).into_iter().map(name).collect()
    }

    #[test]
    fn longest_path_comes_first_and_equal_paths_keep_their_order() {
        let entries = [
            entry("r.example", "host"),
            entry("r.example/group", "group"),
            entry("r.example/group", "group-2"),
            entry("r.example/group/app", "app"),
            entry("r.example/gro", "no-component"),
            entry("other.example", "other"),
        ];
        assert_eq!(users(&entries, "r.example/group/app:1"), ["app", "group", "group-2", "host"]);
        assert_eq!(users(&entries, "R.Example/groups/app"), ["host"]);
        assert!(users(&entries, "app").is_empty());
    }

    #[test]
    fn all_names_of_docker_hub_are_the_same_registry() {
        for name in
            ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io", "https://docker.io"]
        {
            assert_eq!(users(&[entry(name, "hub")], "busybox"), ["hub"], "{name}");
            assert_eq!(users(&[entry(name, "hub")], "docker.io/group/app"), ["hub"], "{name}");
        }
    }

    #[test]
    fn address_of_a_registry_can_be_a_url_and_upper_case() {
        assert_eq!(users(&[entry("https://R.Example:5000/v2/", "url")], "r.example:5000/app"), ["url"]);
        assert_eq!(users(&[entry("http://r.example/group/", "url")], "r.example/group/app"), ["url"]);
    }

    #[test]
    fn helper_without_registry_counts_as_an_entry_for_the_registry_of_the_image() {
        let entries =
            [helper("", "store"), entry("", "no-registry"), entry("r.example", "user"), entry("r.example/app", "app")];
        assert_eq!(users(&entries, "r.example/app"), ["app", "store", "user"]);
        assert_eq!(users(&entries, "busybox"), ["store"]);
    }

    #[tokio::test]
    async fn header_is_url_safe_and_has_the_token_instead_of_a_password() {
        let image = Reference::parse("r.example/app").unwrap();
        let mut with_password = entry("r.example", "u");
        // In the standard alphabet of base64, this password contains `+` and `/`, which engines do not accept.
        with_password.password = "~?~?~?>>>".to_owned();
        let header = login(&with_password, &image, None).await.unwrap().unwrap().to_header();
        assert!(!header.contains(['+', '/']), "{header}");
        let sent: serde_json::Value = serde_json::from_slice(&URL_SAFE.decode(header).unwrap()).unwrap();
        assert_eq!(sent, json!({"username": "u", "password": "~?~?~?>>>", "serveraddress": "r.example"}));

        let with_token = RegistryCredentials { identity_token: "t".to_owned(), ..entry("r.example", "u") };
        let header = login(&with_token, &image, None).await.unwrap().unwrap().to_header();
        let sent: serde_json::Value = serde_json::from_slice(&URL_SAFE.decode(header).unwrap()).unwrap();
        assert_eq!(sent, json!({"identitytoken": "t", "serveraddress": "r.example"}));
    }

    #[tokio::test]
    async fn unsafe_name_of_a_helper_is_fatal_and_a_missing_helper_is_not() {
        let image = Reference::parse("r.example/app").unwrap();
        let error = login(&helper("r.example", "../evil"), &image, None).await.err().unwrap();
        assert!(error.is_fatal(), "{error}");
        let error = login(&helper("r.example", "muster-test-none"), &image, None).await.err().unwrap();
        assert!(!error.is_fatal() && error.to_string().contains("PATH"), "{error}");
    }
}
