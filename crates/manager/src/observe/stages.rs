//! The stage of a job, read from the section markers in its log.

use memchr::memmem;

/// The manager's own stages, in order. `health` runs in parallel with the agent's stages.
pub(super) mod manager_stage {
    pub(in crate::observe) const RETRIEVAL: &str = "retrieval";
    pub(in crate::observe) const PRE_CHECKS: &str = "pre_checks";
    pub(in crate::observe) const ENVIRONMENT: &str = "prepare_executor";
    pub(in crate::observe) const HEALTH: &str = "health";
    pub(in crate::observe) const REPORT: &str = "report";
    pub(in crate::observe) const CLEANUP: &str = "cleanup";
}

/// Names of gitlab-runner's stages (docs/spec/runner-config.md, section 3.2).
const STAGES: &[&str] = &[
    "resolve_secrets",
    "prepare_executor",
    "prepare_script",
    "get_sources",
    "clear_worktree",
    "restore_cache",
    "download_artifacts",
    "step_script",
    "step_run",
    "step_release",
    "after_script",
    "archive_cache",
    "archive_cache_on_failure",
    "upload_artifacts_on_success",
    "upload_artifacts_on_failure",
    "cleanup_file_variables",
];
const SECTION_START: &[u8] = b"section_start:";
/// Maximum length of a marker: `section_start:`, the seconds, and the name.
const MAX_MARKER_BYTES: usize = 96;
/// Maximum number of markers that are checked in one piece, from its end.
const MAX_MARKERS: usize = 16;

/// Returns the stage that a section of this name belongs to. `None` means that the section is not a stage.
///
/// All unknown steps become `step_script`: stages are labels of metrics, so their number must be limited.
pub(super) fn stage_name(name: &str) -> Option<&'static str> {
    let known = STAGES.iter().copied().find(|stage| *stage == name);
    known.or_else(|| name.starts_with("step_").then_some("step_script"))
}

#[derive(Debug, Default)]
pub(super) struct SectionMarkers {
    /// Last bytes of the pieces so far, in which a marker may have begun.
    tail: Vec<u8>,
}

impl SectionMarkers {
    /// Returns the stage of the last marker in this piece. If the piece has none, returns that of the last marker that
    /// begins in `tail`, even if an earlier call returned it.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Option<&'static str> {
        let begin = piece.get(..MAX_MARKER_BYTES).unwrap_or(piece);
        self.tail.extend_from_slice(begin);
        let found = last_stage(piece).or_else(|| last_stage(&self.tail));
        if piece.len() >= MAX_MARKER_BYTES {
            self.tail.clear();
            self.tail.extend_from_slice(piece.get(piece.len() - MAX_MARKER_BYTES..).unwrap_or_default());
        } else {
            let surplus = self.tail.len().saturating_sub(MAX_MARKER_BYTES);
            self.tail.drain(..surplus);
        }
        found
    }
}

fn last_stage(bytes: &[u8]) -> Option<&'static str> {
    memmem::rfind_iter(bytes, SECTION_START).take(MAX_MARKERS).find_map(|at| {
        let marker = bytes.get(at + SECTION_START.len()..)?;
        let marker = marker.get(..MAX_MARKER_BYTES - SECTION_START.len()).unwrap_or(marker);
        let text = marker.split(|byte| matches!(byte, b'\r' | b'\n' | b'[')).next()?;
        // A marker that is cut off is checked again with the next piece.
        if text.len() == marker.len() {
            return None;
        }
        let (seconds, name) = std::str::from_utf8(text).ok()?.split_once(':')?;
        seconds.bytes().all(|digit| digit.is_ascii_digit()).then(|| stage_name(name))?
    })
}
