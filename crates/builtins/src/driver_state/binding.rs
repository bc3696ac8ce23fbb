//! Replaces placeholders for directories in a plan with paths of the driver or the configuration.

use muster_agent_api::builtin::{DRIVER_BUILDS_DIR, DRIVER_CACHE_DIR, DRIVER_LAYOUT, DriverDirectories};
use muster_steps::failure::Failure;
use serde_json::Value;

use super::config_output::ConfigOutput;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binding {
    builds: String,
    cache: String,
    /// Value of [`DRIVER_LAYOUT`], such as `/token/3`. Empty unless the builds directory is shared.
    layout: String,
}

impl Binding {
    /// Returns the directories that the driver reported, or else those of the configuration.
    ///
    /// # Errors
    /// [`Failure::Configuration`] if a directory is not set or not an absolute path.
    pub(crate) fn new(configured: &DriverDirectories, reported: &ConfigOutput) -> Result<Self, Failure> {
        let directory = |name: &str, reported: &Option<String>, configured: &str| {
            let path = reported.as_deref().filter(|path| !path.is_empty()).unwrap_or(configured);
            match path {
                "" => Err(Failure::Configuration(format!(
                    "the {name} is not configured; set it in the [[runners]] entry, or in the JSON \
                     that config_exec prints"
                ))),
                path if !path.starts_with('/') => Err(Failure::Configuration(format!(
                    "the {name} `{path}` of the custom executor is not an absolute path; correct it where it is set: in \
                     the [[runners]] entry, or in the output of config_exec"
                ))),
                path => Ok(path.trim_end_matches('/').to_owned()),
            }
        };
        let is_shared = reported.builds_dir_is_shared.unwrap_or_default();
        Ok(Self {
            builds: directory("builds_dir", &reported.builds_dir, &configured.builds)?,
            cache: directory("cache_dir", &reported.cache_dir, &configured.cache)?,
            layout: if is_shared { configured.shared_layout.clone() } else { String::new() },
        })
    }

    pub(crate) fn expand(&self, text: &str) -> String {
        if !has_placeholder(text) {
            return text.to_owned();
        }
        let text = text.replace(DRIVER_LAYOUT, &self.layout).replace(DRIVER_BUILDS_DIR, &self.builds);
        text.replace(DRIVER_CACHE_DIR, &self.cache)
    }

    pub(crate) fn expand_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.expand(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.expand_value(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.expand_value(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

pub(crate) fn has_placeholder(text: &str) -> bool {
    [DRIVER_BUILDS_DIR, DRIVER_CACHE_DIR, DRIVER_LAYOUT].iter().any(|token| text.contains(token))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configured(builds: &str) -> DriverDirectories {
        let (builds, cache, shared_layout) = (builds.to_owned(), "/c".to_owned(), "/token/3".to_owned());
        DriverDirectories { builds, cache, shared_layout, ..DriverDirectories::default() }
    }

    #[test]
    fn reported_directories_take_precedence_and_may_be_shared() {
        let project = format!("{DRIVER_BUILDS_DIR}{DRIVER_LAYOUT}/group/project");
        let unreported = Binding::new(&configured("/b/"), &ConfigOutput::default()).unwrap();
        assert_eq!(unreported.expand(&project), "/b/group/project");
        let reported = ConfigOutput::parse(br#"{"builds_dir":"/r","builds_dir_is_shared":true}"#).unwrap();
        let shared = Binding::new(&configured("/b"), &reported).unwrap();
        assert_eq!(shared.expand(&project), "/r/token/3/group/project");
        let mut value = json!({ "a": [format!("{DRIVER_CACHE_DIR}/x"), 1], "b": "plain" });
        shared.expand_value(&mut value);
        assert_eq!(value, json!({ "a": ["/c/x", 1], "b": "plain" }));
    }

    #[test]
    fn missing_or_relative_directory_is_a_configuration_error() {
        let error = Binding::new(&configured(""), &ConfigOutput::default()).unwrap_err();
        assert!(
            matches!(&error, Failure::Configuration(text) if text.starts_with("the builds_dir is not configured; set it"))
        );
        let error = Binding::new(&configured("builds"), &ConfigOutput::default()).unwrap_err().to_string();
        assert!(error.contains("`builds`") && error.contains("config_exec"), "{error}");
    }
}
