//! Loads the root file and its includes into one merged tree (docs/spec/pipeline-yaml.md, section 2.1, items 1 to 5).
//!
//! ```text
//! file --yaml--> header + body --interpolate--> body --include, depth first--> merged --extends--> --!reference--> tree
//! ```
//! Each file is parsed once, and interpolated with the inputs of each include entry. Then the file is merged over the files that
//! it includes. The result contains no top-level `include`, no header and no `!reference`. Jobs keep their `extends`.

mod block;
mod body;
mod children;
mod entry;
mod extends;
mod header;
mod inputs;
mod interpolate;
mod loader;
mod merge;
mod read;
mod reference;
mod rules;
mod target;
mod variables;

use std::collections::BTreeMap;

use crate::context::{ChildSource, Context, Sources};
use crate::diagnostic::{Diagnostic, Severity};
use crate::gaps::Gaps;
use crate::limits::Limits;
use crate::node::{Node, SourceId, Span};
use crate::patterns::Patterns;
use crate::source_map::SourceMap;
pub use children::{children, generated_children};

/// Number of diagnostics after which unknown names get no suggestions, because each suggestion compares all known names.
const MAX_DIAGNOSTICS_WITH_SUGGESTIONS: usize = 20;

/// A merged configuration with its sources and diagnostics.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The merged tree, always a map. After errors it may be empty or incomplete.
    pub root: Node,
    /// The texts that were read. The first is the root file or, for a child pipeline, the first entry of `trigger:include`.
    pub sources: SourceMap,
    /// Errors and warnings.
    pub diagnostics: Vec<Diagnostic>,
    /// `# @Description` comments by the name of the job below them.
    pub descriptions: BTreeMap<String, String>,
    /// The files of the include entries, in the order in which they were processed.
    pub includes: Vec<IncludeRecord>,
    /// Parents of every key with `extends`, in the order in which they were merged. Keys that depend on a cycle are missing.
    pub parents: BTreeMap<String, Vec<Parent>>,
    pub(crate) patterns: Patterns,
    pub(crate) gaps: Gaps,
}

impl Loaded {
    /// Returns true if there are errors, so that no pipeline can be created.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// A file of an include entry, and what happened to it.
///
/// An entry that refers to several files has one record per file. An entry that its rules exclude has one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludeRecord {
    /// The file, such as `local ci/build.yml`.
    pub description: String,
    /// Position of the entry.
    pub included_at: Span,
    /// Nesting level: 1 for an entry of the root file, 2 for an entry of a file that it includes.
    pub depth: usize,
    /// Result of the entry.
    pub outcome: IncludeOutcome,
}

/// What happened to a file of an include entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncludeOutcome {
    /// The file was merged. The spans of its keys refer to this source.
    Merged(SourceId),
    /// The rules of the entry excluded the file.
    ExcludedByRules,
    /// The file could not be read or used. A diagnostic reports the error.
    Failed,
    /// The file cannot be reached from this machine and was skipped with a warning
    /// ([`Context::stubs_includes`]).
    Skipped,
}

/// A parent in `extends`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Name of the parent.
    pub name: String,
    /// Position of the name in `extends`.
    pub named_at: Span,
}

/// Loads a configuration from the text of its root file.
#[must_use]
pub fn load(root_text: &[u8], context: &Context, sources: &dyn Sources) -> Loaded {
    loader::Loader::new(context, sources, Limits::default()).load_root(root_text)
}

/// Loads a child pipeline from one to three texts or include entries (docs/spec/pipeline-yaml.md, section 1.9), which
/// are merged in order.
#[must_use]
pub fn load_child(entries: &[ChildSource], context: &Context, sources: &dyn Sources) -> Loaded {
    loader::Loader::new(context, sources, Limits::default()).load_child(entries)
}
