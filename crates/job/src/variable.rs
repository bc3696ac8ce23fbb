//! Variables of jobs and pipelines.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// Deserializes `null` as the default (docs/spec/runner-api.md, section 2.5).
fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// A variable with the flags of the runner API (docs/spec/runner-api.md, section 2.5.4).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Name.
    #[serde(default, deserialize_with = "null_default")]
    pub key: String,
    /// Value. For a file variable, the content of the file.
    #[serde(default, deserialize_with = "null_default")]
    pub value: String,
    /// Whether the value is visible to services and debug output.
    #[serde(default, deserialize_with = "null_default")]
    pub public: bool,
    /// Whether the value must not appear in logs.
    #[serde(default, deserialize_with = "null_default")]
    pub masked: bool,
    /// Whether the value is written to a file, so that the variable contains the path.
    #[serde(default, deserialize_with = "null_default")]
    pub file: bool,
    /// Whether references in the value are kept unexpanded.
    #[serde(default, deserialize_with = "null_default")]
    pub raw: bool,
}

impl Variable {
    /// Creates a public variable without further flags.
    #[must_use]
    pub fn public(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into(), public: true, masked: false, file: false, raw: false }
    }

    /// Creates a masked variable that is hidden from services: a token or secret.
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

/// A value that is never printed, such as a token or password (invariant J6 of ARCHITECTURE.md).
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value, for code that must send it.
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
    fn debug_output_contains_no_masked_value() {
        let text = format!(
            "{:?} {:?} {}",
            Variable::secret("K", "hunter22"),
            Secret::new("hunter22"),
            Secret::new("hunter22")
        );
        assert!(!text.contains("hunter22"), "{text}");
    }
}
