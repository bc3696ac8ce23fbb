//! Bounds on what one configuration may be (pipeline-yaml 1.0), so that hostile text ends soon with a clear error.

/// The bounds of a load. [`Limits::default`] holds GitLab's numbers; tests make them smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one file.
    pub file_bytes: usize,
    /// Levels of lists and maps inside each other, aliases and references counted as what they stand for.
    pub depth: usize,
    /// Values of one file when every alias and merge key is written out.
    pub file_nodes: usize,
    /// Values of the merged configuration when every `extends` and `!reference` is written out.
    pub merged_nodes: usize,
    /// Included files, nested ones and repeats counted.
    pub includes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { file_bytes: 2 * 1024 * 1024, depth: 150, file_nodes: 500_000, merged_nodes: 2_000_000, includes: 150 }
    }
}

/// Levels of `extends`, the job itself included (pipeline-yaml 2.4).
pub const EXTENDS_LEVELS: usize = 11;
/// How many `!reference` may lead from one to the next (pipeline-yaml 2.5).
pub const REFERENCE_CHAIN: usize = 10;
/// Functions in one interpolation block (pipeline-yaml 2.7).
pub const INTERPOLATION_FUNCTIONS: usize = 3;
/// Bytes of one interpolation block.
pub const INTERPOLATION_BLOCK_BYTES: usize = 1024;
/// Bytes of a text with interpolation blocks in it, before and after their replacement.
pub const INTERPOLATED_TEXT_BYTES: usize = 1024 * 1024;
/// Entries of `spec:inputs:<name>:options`.
pub const INPUT_OPTIONS: usize = 50;
/// Bytes of all jobs of a pipeline, each with its defaults, its global variables and a copy for each instance.
pub const JOBS_BYTES: usize = 256 * 1024 * 1024;
/// Bytes of all regular expressions of a configuration, compiled; the least that one counts for is 16 KiB.
pub const PATTERNS_BYTES: usize = 64 * 1024 * 1024;
/// How many inputs may lead from one to the next through their rules.
pub const INPUT_RULES_CHAIN: usize = 50;
/// Entries of `trigger:include` (pipeline-yaml 1.9).
pub const CHILD_INCLUDES: usize = 3;
/// Entries of `rules:changes` and of `rules:exists` (pipeline-yaml 1.0).
pub const RULE_PATHS: usize = 50;
