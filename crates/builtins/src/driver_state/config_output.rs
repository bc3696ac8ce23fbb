//! Output of a driver's configuration stage.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigOutput {
    /// Driver, for the log. `None` means that the log does not name it.
    pub(crate) driver: Option<DriverInfo>,
    /// Name of the host, for the log. `None` or empty means `uname -n` in the environment.
    pub(crate) hostname: Option<String>,
    /// Directory for builds. `None` or empty means the configured directory.
    pub(crate) builds_dir: Option<String>,
    /// Directory for caches. `None` or empty means the configured directory.
    pub(crate) cache_dir: Option<String>,
    /// Whether jobs share the directory for builds. `None` means false.
    pub(crate) builds_dir_is_shared: Option<bool>,
    /// Environment variables for later programs of the driver.
    pub(crate) job_env: Option<BTreeMap<String, String>>,
    /// Shell of the scripts. `None` or empty means the configured shell.
    pub(crate) shell: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct DriverInfo {
    name: Option<String>,
    version: Option<String>,
}

impl ConfigOutput {
    /// Parses the output, which may be empty.
    pub(crate) fn parse(output: &[u8]) -> Result<Self, serde_json::Error> {
        if output.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        // Parsing the type directly would also accept a list.
        let members: Map<String, Value> = serde_json::from_slice(output)?;
        serde_json::from_value(Value::Object(members))
    }

    pub(crate) fn title(&self) -> String {
        let info = self.driver.clone().unwrap_or_default();
        let text = |part: Option<String>| part.filter(|text| !text.is_empty());
        match (text(info.name), text(info.version)) {
            (Some(name), Some(version)) => format!("Using Custom executor with driver {name} {version}..."),
            (Some(name), None) => format!("Using Custom executor with driver {name}..."),
            (None, _) => "Using Custom executor...".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_optional() {
        for empty in ["", " \n", "{}", r#"{"driver":null,"job_env":null,"later":1}"#] {
            assert_eq!(ConfigOutput::parse(empty.as_bytes()).unwrap(), ConfigOutput::default(), "{empty}");
        }
        let output = ConfigOutput::parse(br#"{"driver":{"name":"vm","version":"1.2"},"job_env":{"A":"b"}}"#).unwrap();
        assert_eq!(output.job_env.clone().unwrap(), [("A".to_owned(), "b".to_owned())].into());
        assert_eq!(output.title(), "Using Custom executor with driver vm 1.2...");
        let output = ConfigOutput::parse(br#"{"driver":{"name":"vm"}}"#).unwrap();
        assert_eq!(output.title(), "Using Custom executor with driver vm...");
        assert_eq!(ConfigOutput::default().title(), "Using Custom executor...");
        for invalid in ["[]", "text", r#"{"builds_dir":1}"#] {
            ConfigOutput::parse(invalid.as_bytes()).unwrap_err();
        }
    }
}
