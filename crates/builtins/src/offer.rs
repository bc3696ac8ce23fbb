//! Values of the inputs for steps of the operator that replace built-in steps.
//!
//! Each replaceable step has a module `offer`. The names and meaning of the inputs are documented in docs/reference/replaceable-steps.md: a
//! change of one breaks steps of operators.

use std::path::{Path, PathBuf};

use muster_agent_api::builtin::Tls;
use serde_json::{Map, Value, json};

use crate::context::Context;

/// Returns the paths of the certificates for a server. A path is empty if there is no such certificate.
pub(crate) fn certificates(context: &Context, tls: &Tls) -> Map<String, Value> {
    let files = context.tls_files(tls);
    let path = |file: Option<PathBuf>| json!(file.as_deref().unwrap_or(Path::new("")).to_string_lossy());
    map([("ca_file", path(files.ca)), ("certificate_file", path(files.certificate)), ("key_file", path(files.key))])
}

/// Returns the inputs with these names and values.
pub(crate) fn map<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
