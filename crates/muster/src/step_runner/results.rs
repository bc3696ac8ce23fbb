//! Files with the results of the steps.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use super::text_proto::{self, TextProtoError};

/// Arguments that select whether the results are written.
#[derive(Debug, clap::Args)]
pub(super) struct ResultsArgs {
    /// Write the results of the steps to `step-results.json`. They may contain secrets.
    #[arg(long, value_name = "BOOL", env = "CI_STEPS_DEBUG", hide_env_values = true, value_parser = parse_bool)]
    #[arg(num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true")]
    write_steps_results: bool,
}

impl ResultsArgs {
    pub(super) fn is_requested(&self) -> bool {
        self.write_steps_results
    }
}

/// Parses the flag or its environment variable. Any value that step-runner does not accept as true is false.
#[expect(clippy::unnecessary_wraps, reason = "clap requires a result")]
fn parse_bool(text: &str) -> Result<bool, std::convert::Infallible> {
    Ok(matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// Format of a file with results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(super) enum ResultsFormat {
    /// JSON.
    #[default]
    Json,
    /// Text format of protocol buffers.
    Prototext,
}

#[derive(Debug, Default)]
pub(super) struct ResultsFile {
    /// Path of the file. `None` means the default name of the format, in the working directory of this process.
    pub(super) path: Option<PathBuf>,
    pub(super) format: ResultsFormat,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ResultsError {
    #[error("failed to write the results of the steps to {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    TextProto(#[from] TextProtoError),
}

impl ResultsFile {
    /// Writes the results. Replaces the content of an existing file.
    pub(super) fn write(&self, result: Value) -> Result<(), ResultsError> {
        let (text, default_name) = match self.format {
            ResultsFormat::Json => (result.to_string(), "step-results.json"),
            ResultsFormat::Prototext => (text_proto::from_json("proto.StepResult", result)?, "step-results.txtpb"),
        };
        let path = self.path.clone().unwrap_or_else(|| default_name.into());
        let mut options = std::fs::OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o640).open(&path);
        opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|source| ResultsError::Io { path, source })
    }
}
