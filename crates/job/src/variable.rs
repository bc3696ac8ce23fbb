//! Variables of jobs and pipelines.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// `null` reads as the default (runner-api 2.5).
fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// A variable with the flags that the runner API knows (runner-api 2.5.4).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Its name.
    #[serde(default, deserialize_with = "null_default")]
    pub key: String,
    /// Its value; of a file variable, the content.
    #[serde(default, deserialize_with = "null_default")]
    pub value: String,
    /// Services and debug output may see it.
    #[serde(default, deserialize_with = "null_default")]
    pub public: bool,
    /// Its value must not appear in a log.
    #[serde(default, deserialize_with = "null_default")]
    pub masked: bool,
    /// Its value is written to a file, and the job sees the path.
    #[serde(default, deserialize_with = "null_default")]
    pub file: bool,
    /// Its value is taken as it is, references are not expanded.
    #[serde(default, deserialize_with = "null_default")]
    pub raw: bool,
}

impl Variable {
    /// A public, plain variable: what a pipeline's author writes, and most predefined ones.
    #[must_use]
    pub fn public(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into(), public: true, masked: false, file: false, raw: false }
    }

    /// A masked variable that services do not see: tokens and secrets.
    #[must_use]
    pub fn secret(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into(), public: false, masked: true, file: false, raw: false }
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value: &dyn fmt::Debug = if self.masked { &"[masked]" } else { &self.value };
        f.debug_struct("Variable")
            .field("key", &self.key)
            .field("value", value)
            .field("public", &self.public)
            .field("file", &self.file)
            .field("raw", &self.raw)
            .finish()
    }
}

/// A value that never prints: tokens and passwords (invariant J6).
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the place that has to send it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[masked]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[masked]")
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_value_is_in_no_debug_text() {
        let text = format!(
            "{:?} {:?} {}",
            Variable::secret("K", "hunter22"),
            Secret::new("hunter22"),
            Secret::new("hunter22")
        );
        assert!(!text.contains("hunter22"), "{text}");
    }
}
