//! What each built-in step takes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Inputs;

/// Brings the project directory to a commit (job-execution 2).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkout {
    /// `fetch`, `clone`, `none` or `empty`.
    pub strategy: String,
    /// The remote, with credentials where it needs them.
    pub repo_url: String,
    /// A bare repository on this machine that has the commit; then no transport is used.
    pub local_repository: Option<String>,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// The branch or tag, for the notice.
    pub ref_name: String,
    /// The commit.
    pub sha: String,
    /// What to fetch.
    pub refspecs: Vec<String>,
    /// 0 means all.
    pub depth: i64,
    /// GIT_CHECKOUT.
    pub checkout: bool,
    /// GIT_CLEAN_FLAGS; none means no clean.
    pub clean_flags: Option<Vec<String>>,
    /// GIT_FETCH_EXTRA_FLAGS.
    pub fetch_flags: Vec<String>,
    /// `none`, `normal` or `recursive`.
    pub submodules: String,
    /// GIT_SUBMODULE_PATHS.
    pub submodule_paths: Vec<String>,
    /// GIT_SUBMODULE_DEPTH; 0 means all.
    pub submodule_depth: i64,
    /// GIT_SUBMODULE_UPDATE_FLAGS.
    pub submodule_flags: Vec<String>,
    /// Files of git LFS are the job's own affair (GIT_LFS_SKIP_SMUDGE).
    pub skip_lfs: bool,
    /// Tell git that the directory may belong to someone else.
    pub safe_directory: bool,
    /// Remove the repository's configuration and hooks before it is used.
    pub clean_config: bool,
    /// Further addresses to replace, beside that of the remote.
    pub rewrites: Vec<Rewrite>,
    /// Git asks for the job's token where it needs it, and no address has one (FF_GIT_URLS_WITHOUT_TOKENS).
    pub credential_helper: bool,
    /// Send credentials without being asked for them (FF_USE_GIT_PROACTIVE_AUTH).
    pub proactive_auth: bool,
    /// FF_USE_GIT_BUNDLE_URIS.
    pub bundle_uris: bool,
    /// How to know the server, and be known to it.
    pub tls: Tls,
    /// The shell of the hooks; the fields of [`Script`].
    pub shell: Script,
    /// The hook before.
    pub pre_script: Vec<String>,
    /// The hook after.
    pub post_script: Vec<String>,
}

impl Inputs for Checkout {
    const BUILTIN: &'static str = "checkout";
}

/// An address that git replaces by another (`url.<to>.insteadOf = <from>`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewrite {
    /// What stands in a repository, without credentials.
    pub from: String,
    /// What git uses.
    pub to: String,
}

/// Names of the job's file variables that hold certificates for the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tls {
    /// The certificates to trust.
    pub ca: Option<String>,
    /// The client's certificate.
    pub certificate: Option<String>,
    /// The key of the client's certificate.
    pub key: Option<String>,
}

/// Starts a second agent, a process on this host, for the steps inside.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentProcess {
    /// Program and arguments. The process serves as an agent on `socket` until it is ended.
    pub command: Vec<String>,
    /// Where it starts.
    pub work_dir: String,
    /// Environment above that of the job's processes.
    pub env: BTreeMap<String, String>,
    /// Path of the socket that it is reached by.
    pub socket: String,
    /// Directory of the job there.
    pub project_dir: String,
}

impl Inputs for AgentProcess {
    const BUILTIN: &'static str = "agent/process";
}

/// Says who executes the job, and where.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepare {
    /// Lines of the executor.
    pub lines: Vec<String>,
    /// Lines as a shell would echo them.
    pub echoed: Vec<String>,
}

impl Inputs for Prepare {
    const BUILTIN: &'static str = "prepare";
}

/// The end of a job (job-execution 2.8).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cleanup {
    /// Also leave the checkout clean, by this strategy (FF_ENABLE_JOB_CLEANUP); empty means that it stays as it is.
    pub checkout: String,
    /// GIT_CLEAN_FLAGS; none means no clean.
    pub clean_flags: Option<Vec<String>>,
    /// `none`, `normal` or `recursive`.
    pub submodules: String,
    /// Remove the repository's configuration and hooks.
    pub clean_config: bool,
}

impl Inputs for Cleanup {
    const BUILTIN: &'static str = "cleanup";
}

/// Runs commands as GitLab frames them (job-execution 4).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Script {
    /// `bash` (falls back to `sh`), `sh`, `pwsh` or `powershell`.
    pub shell: String,
    /// Start it as a login shell.
    pub login: bool,
    /// From the runner's configuration, in the same shell, before the commands.
    pub before: Vec<String>,
    /// The commands, each one echoed before it runs.
    pub commands: Vec<String>,
    /// From the runner's configuration, in the same shell, after the commands.
    pub after: Vec<String>,
    /// This is `after_script`: says so, and sees CI_JOB_STATUS as it stands.
    pub after_script: bool,
    /// Have the shell print what it does (CI_DEBUG_TRACE).
    pub debug: bool,
    /// Commands of several lines are shown whole, each in a section of its own (FF_SCRIPT_SECTIONS).
    pub sections: bool,
    /// Look at the status after each command (FF_ENABLE_BASH_EXIT_CODE_CHECK).
    pub check_exit_codes: bool,
    /// Hand the script over as a file: only for `powershell` (FF_DISABLE_POWERSHELL_STDIN).
    pub as_file: bool,
}

impl Inputs for Script {
    const BUILTIN: &'static str = "script";
}

/// Restores caches, one after the other.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheRestore {
    /// In the order of the payload.
    pub caches: Vec<CacheEntry>,
}

impl Inputs for CacheRestore {
    const BUILTIN: &'static str = "cache/restore";
}

/// Saves caches, one after the other.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheSave {
    /// In the order of the payload.
    pub caches: Vec<CacheEntry>,
}

impl Inputs for CacheSave {
    const BUILTIN: &'static str = "cache/save";
}

/// One cache (job-execution 10).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheEntry {
    /// The key, expanded and sanitised.
    pub key: String,
    /// Keys to try after it; only when restoring.
    pub fallback_keys: Vec<String>,
    /// The directory that holds `<key>/cache.zip`.
    pub cache_dir: String,
    /// Patterns, relative to the project directory.
    pub paths: Vec<String>,
    /// Also what git does not track.
    pub untracked: bool,
    /// `pull-push`, `pull` or `push`.
    pub policy: String,
    /// The keys as people know them, `key` first, then those of `fallback_keys`; empty means the keys themselves.
    pub names: Vec<String>,
    /// The other form of the key (hashed or plain), under which an earlier job may have kept the cache.
    pub alternate: String,
    /// Remove what a failed extraction left (FF_CLEAN_UP_FAILED_CACHE_EXTRACT).
    pub clean_up_failed: bool,
}

/// Downloads and unpacks the archives of other jobs (job-execution 9.6).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsDownload {
    /// The producers, in order; later ones overwrite earlier ones.
    pub from: Vec<ArtifactSource>,
}

impl Inputs for ArtifactsDownload {
    const BUILTIN: &'static str = "artifacts/download";
}

/// One producer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactSource {
    /// Its id.
    pub job_id: i64,
    /// Its name.
    pub name: String,
    /// The token to ask with.
    pub token: String,
}

/// Uploads artifacts, one after the other; the first that fails ends it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsUploads {
    /// In the order of the payload.
    pub artifacts: Vec<ArtifactsUpload>,
}

impl Inputs for ArtifactsUploads {
    const BUILTIN: &'static str = "artifacts/upload";
}

/// Packs and uploads files (job-execution 9).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsUpload {
    /// Base name of the file, before expansion.
    pub name: String,
    /// Patterns.
    pub paths: Vec<String>,
    /// Patterns to leave out.
    pub exclude: Vec<String>,
    /// Also what git does not track.
    pub untracked: bool,
    /// `archive`, `junit`, `dotenv`, ...
    pub artifact_type: String,
    /// `zip`, `gzip` or `raw`.
    pub artifact_format: String,
    /// As the author wrote it.
    pub expire_in: String,
    /// A statement of where the files come from is packed with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Origin>,
}

/// What a statement of provenance says of the job (job-execution 9.8).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The runner's id at the server.
    pub runner_id: i64,
    /// The repository, without credentials and `.git`.
    pub repo_url: String,
    /// The commit.
    pub repo_digest: String,
    /// The job's name.
    pub job_name: String,
    /// The executor.
    pub executor_name: String,
    /// The runner's name.
    pub runner_name: String,
    /// Names of the job's variables.
    pub parameters: Vec<String>,
    /// Which program makes the statement: its version or revision.
    pub version: String,
}
