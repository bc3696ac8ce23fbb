//! Types of the values of inputs and outputs.

use serde_json::Value;

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the format")]
pub enum Kind {
    String,
    Number,
    Boolean,
    Struct,
    Array,
}

impl Kind {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "string" => Self::String,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            "struct" => Self::Struct,
            "array" => Self::Array,
            _ => return None,
        })
    }

    /// Returns the type of a value. `None` means null.
    #[must_use]
    pub fn from_value(value: &Value) -> Option<Self> {
        Some(match value {
            Value::String(_) => Self::String,
            Value::Number(_) => Self::Number,
            Value::Bool(_) => Self::Boolean,
            Value::Object(_) => Self::Struct,
            Value::Array(_) => Self::Array,
            Value::Null => return None,
        })
    }

    /// Returns the type's name in step files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Struct => "struct",
            Self::Array => "array",
        }
    }
}
