//! Kinds of variables that steps of the operator export.

use serde::{Deserialize, Serialize};

/// How a variable exported by a step of the operator reaches the rest of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportKind {
    /// Value that is masked in the log and in the results.
    Masked,
    /// Path of a file that contains the value. The value is masked.
    File,
    /// Value that is not masked.
    Plain,
}

impl ExportKind {
    /// Names of all kinds, for messages.
    pub const NAMES: &str = "`masked`, `file` or `plain`";

    /// Returns the kind with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "masked" => Some(Self::Masked),
            "file" => Some(Self::File),
            "plain" => Some(Self::Plain),
            _ => None,
        }
    }

    /// Returns whether the value is masked.
    #[must_use]
    pub fn is_masked(self) -> bool {
        self != Self::Plain
    }
}
