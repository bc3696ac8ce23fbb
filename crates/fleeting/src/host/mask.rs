//! Masks a plugin's secrets in the log and in the errors of the plugin, because the manager shows both.

use serde_json::Value;

use super::PluginSpec;

const MASKED: &str = "[masked]";
/// Minimum length of a secret in bytes. Shorter texts occur in too many other words to be replaced.
const MIN_SECRET_BYTES: usize = 4;
/// Words in the name of a configuration key that mark its value as secret, unless the name ends in `_path` or `_file`.
/// Strings and numbers under such a key are masked, also in tables and lists.
const SECRET_WORDS: [&str; 8] =
    ["password", "passphrase", "passwd", "secret", "token", "credential", "private", "api_key"];
/// Further names of configuration keys with secret values. Values of other keys whose names end in `key` usually are not
/// secret.
const SECRET_NAMES: [&str; 4] = ["key", "apikey", "access_key", "ssh_key"];

#[derive(Clone, Default)]
pub(crate) struct Mask(Vec<String>);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mask").field("secrets", &self.0.len()).finish()
    }
}

impl Mask {
    /// Collects the secrets of `plugin_config`, by the names of its keys, and of `connector_config`.
    pub(super) fn from_spec(spec: &PluginSpec) -> Self {
        let mut secrets = Vec::new();
        collect_secrets(&spec.config, false, &mut secrets);
        add_secret(&spec.connector.password, &mut secrets);
        add_secret(&String::from_utf8_lossy(&spec.connector.key), &mut secrets);
        // Longer secrets are replaced first, so that a secret that contains another secret is hidden completely.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self(secrets)
    }

    pub(super) fn hide(&self, text: String) -> String {
        let hidden = |text: String, secret: &String| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), MASKED) } else { text }
        };
        self.0.iter().fold(text, hidden)
    }
}

fn collect_secrets(value: &Value, is_secret: bool, secrets: &mut Vec<String>) {
    match value {
        Value::String(text) if is_secret => add_secret(text, secrets),
        Value::Number(number) if is_secret => add_secret(&number.to_string(), secrets),
        Value::Array(values) => values.iter().for_each(|value| collect_secrets(value, is_secret, secrets)),
        Value::Object(object) => {
            for (key, value) in object {
                let key = key.to_lowercase().replace('-', "_");
                let has_secret_name =
                    SECRET_NAMES.contains(&key.as_str()) || SECRET_WORDS.iter().any(|word| key.contains(word));
                // The path of a secret is not secret.
                let is_path = ["_path", "_file"].iter().any(|suffix| key.ends_with(suffix));
                collect_secrets(value, is_secret || has_secret_name && !is_path, secrets);
            }
        }
        _ => {}
    }
}

/// Adds each line of a secret, because the log is masked line by line.
/// Omits short lines and the first and last line of PEM blocks.
fn add_secret(text: &str, secrets: &mut Vec<String>) {
    let lines = text.lines().map(str::trim).filter(|line| line.len() >= MIN_SECRET_BYTES && !line.starts_with("-----"));
    secrets.extend(lines.map(str::to_owned));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_found_by_key_names() {
        let mut spec = PluginSpec::new("x");
        spec.config = json!({
            "name": "fleet", "Password": "hunter2-and-more", "settings": {"secret": {"a": ["s3cr3t"]}, "region": "mars-1"},
            "key_path": "/etc/key.pem", "AccessToken": 123_456_789, "short_token": "abc",
        });
        spec.connector.password = "hunter2".to_owned();
        spec.connector.key = b"-----BEGIN KEY-----\nAAAAB3Nza\n-----END KEY-----\n".to_vec();
        let mask = Mask::from_spec(&spec);
        let hide = |text: &str| mask.hide(text.to_owned());
        assert_eq!(
            hide("fleet mars-1 hunter2-and-more hunter2 s3cr3t 123456789 AAAAB3Nza"),
            "fleet mars-1 [masked] [masked] [masked] [masked] [masked]"
        );
        assert_eq!(hide("abc of /etc/key.pem -----BEGIN KEY-----"), "abc of /etc/key.pem -----BEGIN KEY-----");
        assert!(!format!("{mask:?}").contains("hunter2"));
    }
}
