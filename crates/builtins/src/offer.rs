//! Inputs for steps of the operator that replace built-in steps (docs/reference/replaceable-steps.md).
//!
//! Operators' steps rely on names and meanings of these inputs.

use std::path::{Path, PathBuf};

use muster_agent_api::builtin::Tls;
use serde_json::{Map, Value, json};

use crate::context::Context;

/// Returns the paths of certificates and key for a server. A missing file has an empty path.
pub(crate) fn certificates(context: &Context, tls: &Tls) -> Map<String, Value> {
    let files = context.tls_files(tls);
    let path = |file: Option<PathBuf>| json!(file.as_deref().unwrap_or(Path::new("")).to_string_lossy());
    map([("ca_file", path(files.ca)), ("certificate_file", path(files.certificate)), ("key_file", path(files.key))])
}

pub(crate) fn map<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
