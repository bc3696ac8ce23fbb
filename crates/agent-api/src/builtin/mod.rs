//! Inputs of the built-in steps: what a manager writes and an agent reads. JSON inside the step's `inputs`.
//!
//! A field that an agent does not know is ignored, one that it misses takes its default: manager and agent may be of
//! neighbouring versions.

mod inputs;
mod share;

use serde::{Deserialize, Serialize};

pub use inputs::{
    ArtifactSource, ArtifactsDownload, ArtifactsUpload, ArtifactsUploads, CacheEntry, Caches, Checkout, Cleanup,
    Origin, Prepare, Rewrite, Script, Tls,
};
pub use share::{Share, StickyContext};

/// The reference of the step that a job is.
pub const JOB: &str = "builtin://job";

/// In the job's temporary directory: git's global configuration, for a job whose git asks for credentials
/// ([`Checkout::credential_helper`]).
pub const GLOBAL_GIT_CONFIG: &str = ".glr.gconf";

/// What `RunRequest.steps` starts with: an empty specification, then the definition (steps 6.4).
const PREAMBLE: &str = "{}\n---\n";

#[derive(Serialize, Deserialize)]
struct Definition<P> {
    run: [Item<P>; 1],
}

#[derive(Serialize, Deserialize)]
struct Item<P> {
    name: String,
    step: String,
    inputs: Inputs<P>,
}

#[derive(Serialize, Deserialize)]
struct Inputs<P> {
    plan: P,
}

/// The text for `RunRequest.steps` that has the agent execute `plan`.
///
/// The plan is opaque to the step language: an expression in it, say in a script, is left as it is.
///
/// # Errors
/// Never in practice: a plan is always JSON.
pub fn job_steps(plan: &JobPlan) -> Result<String, serde_json::Error> {
    let item = Item { name: "job".to_owned(), step: JOB.to_owned(), inputs: Inputs { plan } };
    Ok(format!("{PREAMBLE}{}", serde_json::to_string(&Definition { run: [item] })?))
}

/// The plan in a text made by [`job_steps`]; none where the text is any other list of steps.
#[must_use]
pub fn job_plan(steps: &str) -> Option<JobPlan> {
    let definition: Definition<JobPlan> = serde_json::from_str(steps.strip_prefix(PREAMBLE)?).ok()?;
    let [item] = definition.run;
    (item.step == JOB).then_some(item.inputs.plan)
}

/// Input `plan` of `builtin://job`: the whole job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobPlan {
    /// Lines to print before anything else, each without its line end: who runs the job, and where.
    pub header: Vec<String>,
    /// Further lines behind the header, as good news are shown.
    pub notices: Vec<String>,
    /// What is wrong with the job's settings; each is a warning behind the header.
    pub warnings: Vec<String>,
    /// The job's checkout; its `.tmp` neighbour holds temporary files.
    pub project_dir: String,
    /// The directory above it that an operator chose. A job can change all that is below.
    pub builds_dir: String,
    /// Limit for all phases together, milliseconds; 0 means none.
    pub timeout_ms: u64,
    /// Print `section_start` and `section_end` markers.
    pub trace_sections: bool,
    /// Prefix each line with time and stream (FF_TIMESTAMPS).
    pub timestamps: bool,
    /// Bytes of log after which output is dropped with a notice; 0 means 4 MiB.
    pub output_limit: u64,
    /// Token prefixes to mask beside the built-in ones.
    pub mask_prefixes: Vec<String>,
    /// Of the built-in token prefixes mask `glpat-` only (FF_MASK_ALL_DEFAULT_TOKENS off).
    pub mask_few_prefixes: bool,
    /// From TERM to KILL when the job is ended, milliseconds; 0 means 10 s.
    pub grace_ms: u64,
    /// The wait before a phase is tried again, at first, and the most that it doubles to, milliseconds; 0 means 5 s and
    /// 5 min.
    pub retry_wait_ms: (u64, u64),
    /// Before anything of the user's runs, the job waits until its manager has said that it may: until then another place can
    /// have it instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ask_first: bool,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// Where to send artifacts, and get them from.
    pub coordinator: Coordinator,
    /// Limits of unpacking an artifact or a cache.
    #[serde(skip_serializing_if = "UnpackLimits::is_default")]
    pub unpack: UnpackLimits,
    /// The job's part of a machine that it shares with others; none where it has it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

/// Most that an artifact or a cache may unpack to. 0 stands for the agent's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnpackLimits {
    /// Bytes of all files together.
    pub max_bytes: u64,
    /// Number of entries.
    pub max_entries: u64,
    /// Unpacked bytes for each byte of the archive. Counts only for large archives.
    pub max_ratio: u64,
    /// Bytes of headers: of all entries of a zip, of one entry of a tar.
    pub max_header_bytes: u64,
    /// The limits are set in `ci.toml`, which errors then name instead of `config.toml`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub set_in_ci_toml: bool,
}

impl UnpackLimits {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The door for artifacts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Coordinator {
    /// Base URL, without `/api/v4`.
    pub url: String,
    /// The job.
    pub job_id: i64,
    /// The job's token. The spool file that holds it is 0600.
    pub token: String,
    /// How to know it, and be known to it.
    pub tls: Tls,
    /// Limit for one upload, milliseconds; 0 means one hour.
    pub upload_timeout_ms: u64,
    /// Limit for the answer once an upload is sent, milliseconds; 0 means ten minutes.
    pub response_timeout_ms: u64,
    /// Downloads ask for the object storage first (FF_USE_DIRECT_DOWNLOAD).
    pub direct_download: bool,
}

/// One phase of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// GitLab's stage id: `get_sources`, `step_script`, ... Also the section's name.
    pub name: String,
    /// The section's description line.
    pub title: String,
    /// When it runs.
    #[serde(default)]
    pub when: PhaseWhen,
    /// Times to try, at least 1.
    #[serde(default = "one")]
    pub attempts: u32,
    /// Limit in milliseconds; 0 means that of the job.
    #[serde(default)]
    pub timeout_ms: u64,
    /// A failure is a warning and nothing else.
    #[serde(default)]
    pub allow_failure: bool,
    /// What it does.
    pub run: Builtin,
}

fn one() -> u32 {
    1
}

/// When a phase runs, given how the job stands at that point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseWhen {
    /// Nothing failed yet, and the job was not canceled.
    #[default]
    OnSuccess,
    /// Something failed.
    OnFailure,
    /// Success or failure; not after a job timeout.
    Always,
    /// Whatever happened, also after a timeout or a cancel: cleaning up.
    Finally,
}

/// What a phase does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "builtin")]
#[expect(clippy::large_enum_variant, reason = "a job has a handful of phases, and one of them is the checkout")]
pub enum Builtin {
    /// What stands before the first command: who executes the job, and where.
    Prepare(Prepare),
    /// `builtin://checkout`
    Checkout(Checkout),
    /// `builtin://script`
    Script(Script),
    /// `builtin://cache/restore`
    CacheRestore(Caches),
    /// `builtin://cache/save`
    CacheSave(Caches),
    /// `builtin://artifacts/download`
    ArtifactsDownload(ArtifactsDownload),
    /// `builtin://artifacts/upload`
    ArtifactsUpload(ArtifactsUploads),
    /// A `run:` list of the author's: steps in GitLab's step format, as JSON.
    Steps {
        /// The list, as it came in the payload.
        steps: serde_json::Value,
    },
    /// `builtin://cleanup`: file variables and temporary files; the checkout where that is wanted.
    Cleanup(Cleanup),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_the_way_through_the_steps_text() {
        let script = Script { commands: vec!["echo ${{ not.ours }}".to_owned()], ..Script::default() };
        let phase = Phase {
            name: "step_script".to_owned(),
            title: "Executing".to_owned(),
            when: PhaseWhen::Always,
            attempts: 1,
            timeout_ms: 0,
            allow_failure: false,
            run: Builtin::Script(script),
        };
        let plan = JobPlan { project_dir: "/p".to_owned(), phases: vec![phase], ..JobPlan::default() };
        assert_eq!(job_plan(&job_steps(&plan).unwrap()), Some(plan));
        assert_eq!(job_plan("{}\n---\nrun: []"), None);
    }
}
