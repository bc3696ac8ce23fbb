//! Which stage a job is in, read from the section marks of its log; and GitLab Runner's names of stages.

use memchr::memmem;

/// The manager's own stages, in their order. `health` runs beside the agent's stages: as long as an agent has the job, its
/// log is followed, its state is told to the server, and what it uses is counted (R200).
pub(super) mod own {
    pub(in crate::observe) const RETRIEVAL: &str = "retrieval";
    pub(in crate::observe) const PRE_CHECKS: &str = "pre_checks";
    pub(in crate::observe) const ENVIRONMENT: &str = "prepare_executor";
    pub(in crate::observe) const HEALTH: &str = "health";
    pub(in crate::observe) const REPORT: &str = "report";
    pub(in crate::observe) const CLEANUP: &str = "cleanup";
}

/// GitLab Runner's stages (runner-config 3.2).
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
const MARK: &[u8] = b"section_start:";
/// The longest mark: the word, seconds, a name.
const MARK_MAX: usize = 96;
/// Marks of one piece of log that are looked at, from its end.
const LOOKS_MAX: usize = 16;

/// The stage of this name, where it is one; other steps of an author are `step_script`. Bounded, since it is a label.
pub(super) fn known(name: &str) -> Option<&'static str> {
    let of_list = STAGES.iter().copied().find(|stage| *stage == name);
    of_list.or_else(|| name.starts_with("step_").then_some("step_script"))
}

/// Looks for marks in a log that comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The end of the last piece, in which a mark may have begun.
    rest: Vec<u8>,
}

impl Marks {
    /// The last stage that begins in this piece.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Option<&'static str> {
        let begin = piece.get(..MARK_MAX).unwrap_or(piece);
        self.rest.extend_from_slice(begin);
        let found = last_stage(piece).or_else(|| last_stage(&self.rest));
        if piece.len() >= MARK_MAX {
            self.rest.clear();
            self.rest.extend_from_slice(piece.get(piece.len() - MARK_MAX..).unwrap_or_default());
        } else {
            let surplus = self.rest.len().saturating_sub(MARK_MAX);
            self.rest.drain(..surplus);
        }
        found
    }
}

fn last_stage(bytes: &[u8]) -> Option<&'static str> {
    memmem::rfind_iter(bytes, MARK).take(LOOKS_MAX).find_map(|at| {
        let mark = bytes.get(at + MARK.len()..)?;
        let mark = mark.get(..MARK_MAX - MARK.len()).unwrap_or(mark);
        let text = mark.split(|byte| matches!(byte, b'\r' | b'\n' | b'[')).next()?;
        // A mark that is cut off is looked at again with what follows.
        if text.len() == mark.len() {
            return None;
        }
        let (seconds, name) = std::str::from_utf8(text).ok()?.split_once(':')?;
        seconds.bytes().all(|digit| digit.is_ascii_digit()).then(|| known(name))?
    })
}
