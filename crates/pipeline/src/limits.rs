//! Limits on the size of a configuration (docs/spec/pipeline-yaml.md, section 1.0).

/// Limits of one compilation. In [`Limits::default`], the limits on file size, depth and includes are GitLab's; those
/// on the number of values are Muster's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a file in bytes.
    pub file_bytes: usize,
    /// Maximum nesting depth of lists and maps, after aliases and references have been expanded.
    pub depth: usize,
    /// Maximum number of values in a file, after aliases and merge keys have been expanded.
    pub file_nodes: usize,
    /// Maximum number of values that loading may read, copy or visit, including the values that `extends` and
    /// `!reference` expand to.
    pub merged_nodes: usize,
    /// Maximum number of included files, including nested and repeated ones.
    pub includes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { file_bytes: 2 * 1024 * 1024, depth: 150, file_nodes: 500_000, merged_nodes: 2_000_000, includes: 150 }
    }
}

/// Maximum depth of `extends`, including the job itself (docs/spec/pipeline-yaml.md, section 1.0).
pub const MAX_EXTENDS_LEVELS: usize = 11;
/// Maximum number of `!reference` tags that refer to each other in a chain (docs/spec/pipeline-yaml.md, section 2.5).
pub const MAX_REFERENCE_CHAIN: usize = 10;
/// Maximum number of functions in an interpolation block (docs/spec/pipeline-yaml.md, section 2.7).
pub const MAX_INTERPOLATION_FUNCTIONS: usize = 3;
/// Maximum length of an interpolation block in bytes.
pub const MAX_INTERPOLATION_BLOCK_BYTES: usize = 1024;
/// Maximum length in bytes of a text with interpolation blocks, before and after interpolation.
pub const MAX_INTERPOLATED_TEXT_BYTES: usize = 1024 * 1024;
/// Maximum number of entries in `spec:inputs:<name>:options`.
pub const MAX_INPUT_OPTIONS: usize = 50;
/// Maximum size in bytes of all jobs of a pipeline, counting defaults and global variables for each instance.
pub const MAX_JOBS_BYTES: usize = 256 * 1024 * 1024;
/// Maximum number of bytes that the expansion of variables in the texts of all jobs may copy.
pub const MAX_EXPANDED_BYTES: usize = 256 * 1024 * 1024;
/// Maximum number of bytes that variables may insert into `include` and interpolation blocks.
pub const MAX_INCLUDE_VARIABLES_BYTES: usize = 64 * 1024 * 1024;
/// Maximum size in bytes of all `include` entries of a compilation, after aliases have been expanded.
pub const MAX_INCLUDE_ENTRIES_BYTES: usize = 64 * 1024 * 1024;
/// Maximum compiled size in bytes of all regular expressions of a configuration. Each expression counts as at least 16 KiB.
pub const MAX_PATTERNS_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of inputs whose rules refer to each other in a chain.
pub const MAX_INPUT_RULES_CHAIN: usize = 50;
/// Maximum number of entries in `trigger:include` (docs/spec/pipeline-yaml.md, section 1.9).
pub const MAX_CHILD_INCLUDES: usize = 3;
/// Maximum number of entries in `rules:changes` and in `rules:exists` (docs/spec/pipeline-yaml.md, section 1.0).
pub const MAX_RULE_PATHS: usize = 50;
