//! One file: bytes to header and body, read once even where it is included many times.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::context::{ComponentFields, IncludedFile, Origin};
use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::node::{Map, SourceId, Span};
use crate::source_map::SourceMap;
use crate::yaml;

/// A file that has been read, before its inputs are known.
#[derive(Debug)]
pub(super) struct File {
    /// The name to show.
    pub(super) name: String,
    pub(super) source: SourceId,
    pub(super) text: Arc<str>,
    /// The document with `spec`, if there is one.
    pub(super) header: Option<Arc<Map>>,
    /// The configuration.
    pub(super) body: Arc<Map>,
    /// Where its `local` includes look.
    pub(super) origin: Origin,
    pub(super) component: Option<ComponentFields>,
    /// Values in it, every alias written out.
    pub(super) nodes: usize,
    /// `sha256-...` of its bytes, as `integrity` has it.
    pub(super) digest: String,
}

/// Reads a file into `sources`. `blank` is the message for a file without content, `at` the include entry.
///
/// # Errors
/// Everything that is wrong with the text. Warnings go to `warnings`.
pub(super) fn read(
    included: IncludedFile,
    blank: &str,
    at: Option<Span>,
    limits: &Limits,
    sources: &mut SourceMap,
    warnings: &mut Vec<Diagnostic>,
) -> Result<File, Vec<Diagnostic>> {
    let IncludedFile { name, bytes, origin, component } = included;
    let text: Arc<str> = match yaml::decode(&name, &bytes, limits) {
        Ok(text) => text.into(),
        Err(problem) => {
            let place = at.unwrap_or_else(|| start_of(sources.add(name.as_str(), "")));
            return Err(vec![Diagnostic { span: Some(place), ..*problem }]);
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
            let place = map.entry("spec").map(|entry| entry.key_span);
            return Err(vec![
                Diagnostic::error(place, "`spec` belongs to a header of its own")
                    .help("put `spec` first and a line with `---` between it and the jobs"),
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
                    Diagnostic::error(root.span, message).help("write jobs as `name:` with `script:` below"),
                ]);
            }
        },
    };
    if body.is_none() && header.is_none() {
        return Err(vec![
            Diagnostic::error(at.unwrap_or(start_of(source)), blank.to_owned())
                .help("it is empty, or has only comments"),
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

/// The place of a whole file.
pub(super) fn start_of(source: SourceId) -> Span {
    Span { source, line: 1, column: 1, start: 0, end: 0 }
}
