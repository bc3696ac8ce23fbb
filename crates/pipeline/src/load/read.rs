//! Reads a file into a header and a body. The loader does this once for a file that is included several times.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::context::{ComponentFields, IncludedFile, Origin};
use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::node::{Map, SourceId, Span};
use crate::source_map::SourceMap;
use crate::yaml;

#[derive(Debug)]
pub(super) struct File {
    /// Name for messages.
    pub(super) name: String,
    pub(super) source: SourceId,
    pub(super) text: Arc<str>,
    /// The document with `spec`, if there is one.
    pub(super) header: Option<Arc<Map>>,
    pub(super) body: Arc<Map>,
    /// Tree in which the `local` includes of the file are resolved.
    pub(super) origin: Origin,
    pub(super) component: Option<ComponentFields>,
    pub(super) nodes: usize,
    /// Digest of the content, in the form of `integrity`: `sha256-...`.
    pub(super) digest: String,
}

/// Parses the content of a file. `blank_message` is the error for an empty file. `at` is the position of the include
/// entry, if any.
///
/// # Errors
/// Returns the errors in the file. Warnings are added to `warnings`.
pub(super) fn read(
    included: IncludedFile,
    blank_message: &str,
    at: Option<Span>,
    limits: &Limits,
    sources: &mut SourceMap,
    warnings: &mut Vec<Diagnostic>,
) -> Result<File, Vec<Diagnostic>> {
    let IncludedFile { name, bytes, origin, component } = included;
    let text: Arc<str> = match yaml::decode(&name, &bytes, limits) {
        Ok(text) => text.into(),
        Err(problem) => {
            let span = at.unwrap_or_else(|| start_of(sources.add(name.as_str(), "")));
            return Err(vec![Diagnostic { span: Some(span), ..*problem }]);
        }
    };
    let source = sources.add(name.as_str(), Arc::clone(&text));
    let parsed = yaml::parse(source, &text, limits)?;
    warnings.extend(parsed.warnings);
    let nodes = parsed.nodes;
    let mut documents = parsed.documents.into_iter();
    let mut root = documents.next().map(|document| document.root);
    let mut header = None;
    if let Some(map) = root.as_ref().and_then(|root| root.as_map()).filter(|map| map.get("spec").is_some()) {
        let map = Arc::new(map.clone());
        root = documents.next().map(|document| document.root);
        if root.is_none() && map.len() > 1 {
            let span = map.entry("spec").map(|entry| entry.key_span);
            return Err(vec![
                Diagnostic::error(span, "`spec` must be in a separate header")
                    .help("put `spec` first and separate it from the jobs with a line `---`"),
            ]);
        }
        header = Some(map);
    }
    let body = match root {
        None => None,
        Some(root) if root.is_null() => None,
        Some(root) => match root.as_map() {
            Some(map) => Some(Arc::new(map.clone())),
            None => {
                let message = format!("invalid configuration format: `{name}` is {}, not a map of jobs", root.kind());
                return Err(vec![
                    Diagnostic::error(root.span, message).help("write each job as `name:` with a nested `script:`"),
                ]);
            }
        },
    };
    if body.is_none() && header.is_none() {
        return Err(vec![
            Diagnostic::error(at.unwrap_or(start_of(source)), blank_message.to_owned())
                .help("the file is empty, or contains only comments; add a job"),
        ]);
    }
    let digest = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, Sha256::digest(&bytes));
    Ok(File {
        name,
        source,
        text,
        header,
        body: body.unwrap_or_default(),
        origin,
        component,
        nodes,
        digest: format!("sha256-{digest}"),
    })
}

pub(super) fn start_of(source: SourceId) -> Span {
    Span { source, line: 1, column: 1, start: 0, end: 0 }
}
