//! Inputs of the built-in steps.

use std::collections::BTreeMap;

use muster_job::Secret;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Inputs, record};

/// Checks a commit out into the project directory (`docs/spec/job-execution.md`, section 2).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkout {
    /// Strategy: `fetch`, `clone`, `none` or `empty`.
    pub strategy: String,
    /// URL of the remote, with credentials.
    pub repo_url: String,
    /// Repository on this machine with the commit. `None` fetches the commit from `repo_url`.
    pub local_repository: Option<String>,
    /// View of the repository's mirror ([`super::GitMirror`]). `None` fetches everything from the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Hash algorithm of the repository: `sha1` or `sha256`. Empty means `sha1`.
    pub object_format: String,
    /// Branch or tag for the log.
    pub ref_name: String,
    /// Commit to check out.
    pub sha: String,
    /// Refspecs to fetch.
    pub refspecs: Vec<String>,
    /// Number of commits to fetch. 0 means all.
    pub depth: i64,
    /// Whether the commit is checked out (GIT_CHECKOUT).
    pub checkout: bool,
    /// GIT_CLEAN_FLAGS. `None` means no cleaning.
    pub clean_flags: Option<Vec<String>>,
    /// GIT_FETCH_EXTRA_FLAGS.
    pub fetch_flags: Vec<String>,
    /// Submodules: `none`, `normal` or `recursive`. Empty means `none`.
    pub submodules: String,
    /// GIT_SUBMODULE_PATHS.
    pub submodule_paths: Vec<String>,
    /// GIT_SUBMODULE_DEPTH. 0 means all commits.
    pub submodule_depth: i64,
    /// GIT_SUBMODULE_UPDATE_FLAGS.
    pub submodule_flags: Vec<String>,
    /// Whether Git LFS files are not fetched (GIT_LFS_SKIP_SMUDGE).
    pub skip_lfs: bool,
    /// Whether git treats the directory as safe, whoever owns it.
    pub safe_directory: bool,
    /// Whether configuration and hooks of the repository are removed first.
    pub clean_config: bool,
    /// URLs of the coordinator, such as its SSH addresses, which git replaces so that the job can fetch other projects.
    pub rewrites: Vec<Rewrite>,
    /// Whether a credential helper provides the job's token, so that no URL contains the token
    /// (FF_GIT_URLS_WITHOUT_TOKENS).
    pub credential_helper: bool,
    /// Whether git sends credentials before the server requests them (FF_USE_GIT_PROACTIVE_AUTH).
    pub proactive_auth: bool,
    /// Whether git may download bundles of the server (FF_USE_GIT_BUNDLE_URIS).
    pub bundle_uris: bool,
    /// Certificates for the connection to the server.
    pub tls: Tls,
    /// Shell for `pre_script` and `post_script`. The commands of this [`Script`] are ignored.
    pub shell: Script,
    /// Commands before the checkout.
    pub pre_script: Vec<String>,
    /// Commands after the checkout.
    pub post_script: Vec<String>,
}

impl Inputs for Checkout {
    const BUILTIN: &'static str = "checkout";

    fn record(&self) -> Map<String, Value> {
        record::checkout(self)
    }
}

/// URL that git replaces (`url.<to>.insteadOf = <from>`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewrite {
    /// Beginning of the URLs that git replaces, without credentials.
    pub from: String,
    /// Beginning that git uses instead.
    pub to: String,
}

/// Names of the job's file variables with certificates for connections to the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tls {
    /// Certificates to trust.
    pub ca: Option<String>,
    /// Client certificate.
    pub certificate: Option<String>,
    /// Key of the client certificate.
    pub key: Option<String>,
}

/// Starts a second agent for the delegated steps, as a process on this host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentProcess {
    /// Program and arguments. The program serves an agent on `socket` until the step engine stops the process.
    pub command: Vec<String>,
    /// Working directory of the process.
    pub work_dir: String,
    /// Environment variables, which override the variables of the job's processes.
    pub env: BTreeMap<String, String>,
    /// Socket of the process.
    pub socket: String,
    /// Project directory of the job for the second agent.
    pub project_dir: String,
}

impl Inputs for AgentProcess {
    const BUILTIN: &'static str = "agent/process";
}

/// Prints the executor and the environment of the job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepare {
    /// Lines about the executor.
    pub lines: Vec<String>,
    /// Lines in the format of echoed commands.
    pub echoed: Vec<String>,
}

impl Inputs for Prepare {
    const BUILTIN: &'static str = "prepare";
}

/// Cleans up after a job (`docs/spec/job-execution.md`, section 2.8).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cleanup {
    /// GIT_STRATEGY, which selects the cleanup (FF_ENABLE_JOB_CLEANUP): `fetch` cleans the checkout, `clone` and
    /// `empty` delete it, and `none` and an empty string keep it.
    pub checkout: String,
    /// GIT_CLEAN_FLAGS. `None` means no cleaning.
    pub clean_flags: Option<Vec<String>>,
    /// Submodules: `none`, `normal` or `recursive`. Empty means `none`.
    pub submodules: String,
    /// Whether configuration and hooks of the repository are removed.
    pub clean_config: bool,
}

impl Inputs for Cleanup {
    const BUILTIN: &'static str = "cleanup";

    fn record(&self) -> Map<String, Value> {
        record::cleanup(self)
    }
}

/// Runs commands like GitLab's shell scripts (`docs/spec/job-execution.md`, section 4).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Script {
    /// Shell: `bash` (or else `sh`), `sh`, `pwsh` or `powershell`. Empty means `bash`.
    pub shell: String,
    /// Whether the shell is a login shell.
    pub login: bool,
    /// Commands of the runner's configuration, in the same shell before the job's commands.
    pub before: Vec<String>,
    /// Commands of the job, which are echoed.
    pub commands: Vec<String>,
    /// Commands of the runner's configuration, in the same shell after the job's commands.
    pub after: Vec<String>,
    /// Whether this is `after_script`, which has a notice in the log and the current `CI_JOB_STATUS`.
    pub after_script: bool,
    /// Whether the shell prints executed commands (CI_DEBUG_TRACE).
    pub debug: bool,
    /// Whether multi-line commands are printed completely, in separate sections (FF_SCRIPT_SECTIONS).
    pub sections: bool,
    /// Whether the exit status is checked after each command (FF_ENABLE_BASH_EXIT_CODE_CHECK).
    pub check_exit_codes: bool,
    /// Whether the script is a file. Only for `powershell` (FF_DISABLE_POWERSHELL_STDIN).
    pub as_file: bool,
    /// Variables of this script, which replace variables of the job.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether the operator wrote the script. The script then does not get those of the job's variables that select
    /// programs, such as `PATH`.
    pub by_operator: bool,
}

impl Inputs for Script {
    const BUILTIN: &'static str = "script";

    fn record(&self) -> Map<String, Value> {
        record::script(self)
    }
}

/// Restores caches one by one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheRestore {
    /// Caches, in the order of the payload.
    pub caches: Vec<CacheEntry>,
}

impl Inputs for CacheRestore {
    const BUILTIN: &'static str = "cache/restore";

    fn record(&self) -> Map<String, Value> {
        record::caches(&self.caches)
    }
}

/// Saves caches one by one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheSave {
    /// Caches, in the order of the payload.
    pub caches: Vec<CacheEntry>,
}

impl Inputs for CacheSave {
    const BUILTIN: &'static str = "cache/save";

    fn record(&self) -> Map<String, Value> {
        record::caches(&self.caches)
    }
}

/// Cache (`docs/spec/job-execution.md`, section 10).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheEntry {
    /// Key, expanded and sanitized.
    pub key: String,
    /// Keys to restore if there is no cache for `key`.
    pub fallback_keys: Vec<String>,
    /// Directory that contains `<key>/cache.zip`.
    pub cache_dir: String,
    /// Patterns relative to the project directory.
    pub paths: Vec<String>,
    /// Whether files that git does not track are included.
    pub untracked: bool,
    /// Policy: `pull-push`, `pull` or `push`. Empty means `pull-push`.
    pub policy: String,
    /// Human-readable keys: `key`, then `fallback_keys`. Empty means the keys themselves.
    pub names: Vec<String>,
    /// Other form of `key` (hashed or plain), under which an earlier job may have saved the cache.
    pub alternate: String,
    /// Whether the files of a failed extraction are deleted (FF_CLEAN_UP_FAILED_CACHE_EXTRACT).
    pub clean_up_failed: bool,
    /// Objects of `key`, `fallback_keys` and `alternate` in the shared store. Empty means no store.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub objects: BTreeMap<String, CacheObject>,
    /// Maximum number of bytes of an upload. A larger cache is not uploaded. 0 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_upload_bytes: u64,
    /// Storage as chunks that caches share. `None` means an archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks: Option<ChunkCache>,
}

/// Storage of a cache as chunks (`docs/how-to/use-caches.md`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChunkCache {
    /// Protection level. Different levels share nothing.
    pub level: String,
    /// Objects in the shared store. `None` means only this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<ChunkStore>,
}

/// Objects of a chunk store for a job, with presigned URLs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChunkStore {
    /// Contents of the references by cache key. A reference names the index of a cache.
    ///
    /// The key `""` has the last saved reference of this level, for any cache key.
    pub references: BTreeMap<String, String>,
    /// GET URLs of the objects in the references.
    pub downloads: BTreeMap<String, Secret>,
    /// Objects that will be deleted, and must not be used by saves.
    pub marked: Vec<String>,
    /// Objects to create. `None` means no upload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<ChunkUpload>,
}

/// Presigned PUT URLs for one save.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChunkUpload {
    /// Prefix of the object names: `<id>-index`, and `<id>-0`, `<id>-1`, ... for the packs.
    pub id: String,
    /// URLs of the packs.
    pub packs: Vec<Secret>,
    /// URL of the index.
    pub index: Secret,
    /// URL of the key's reference.
    pub reference: Secret,
    /// URL to store the reference as the last saved reference of this level.
    pub last: Secret,
    /// Headers of each upload.
    pub headers: Vec<(String, String)>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Presigned URLs of an object, which are secrets.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheObject {
    /// URL for GET. Empty means no permission.
    pub download: Secret,
    /// URL for HEAD.
    pub head: Secret,
    /// URL for PUT. Empty means no permission.
    pub upload: Secret,
    /// Headers of an upload.
    pub upload_headers: Vec<(String, String)>,
}

/// Downloads and unpacks the archives of other jobs (`docs/spec/job-execution.md`, section 9.6).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsDownload {
    /// Jobs with the archives. Later archives overwrite files of earlier archives.
    pub from: Vec<ArtifactSource>,
}

impl Inputs for ArtifactsDownload {
    const BUILTIN: &'static str = "artifacts/download";

    fn record(&self) -> Map<String, Value> {
        record::artifacts_download(self)
    }
}

/// Job with an archive.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactSource {
    /// ID of the job.
    pub job_id: i64,
    /// Name of the job.
    pub name: String,
    /// Token for the download.
    pub token: String,
}

/// Uploads artifacts one by one, until one fails.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsUploadList {
    /// Artifacts, in the order of the payload.
    pub artifacts: Vec<ArtifactsUpload>,
}

impl Inputs for ArtifactsUploadList {
    const BUILTIN: &'static str = "artifacts/upload";

    fn record(&self) -> Map<String, Value> {
        record::artifacts_upload(self)
    }
}

/// Lists the files of artifacts for the operator's steps that check or sign them.
///
/// `MUSTER_ARTIFACT_FILES` is the path of a file with one path per line, relative to the project directory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsList {
    /// Artifacts, in the order of the payload.
    pub artifacts: Vec<ArtifactsUpload>,
}

impl Inputs for ArtifactsList {
    const BUILTIN: &'static str = "artifacts/list";
}

/// Packs and uploads files (`docs/spec/job-execution.md`, section 9).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsUpload {
    /// Base name of the file, before expansion. Empty means `artifacts`.
    pub name: String,
    /// Patterns of files to upload.
    pub paths: Vec<String>,
    /// Patterns of excluded files.
    pub exclude: Vec<String>,
    /// Whether files that git does not track are included.
    pub untracked: bool,
    /// Type: `archive`, `junit`, `dotenv`, ... Empty means `archive`.
    pub artifact_type: String,
    /// Format, such as `zip`, `gzip` or `raw`. Empty means `zip`.
    pub artifact_format: String,
    /// Retention time, as in the pipeline configuration.
    pub expire_in: String,
    /// Facts for the provenance statement in the archive. `None` means no statement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<ProvenanceInfo>,
}

/// Facts about the job for a provenance statement (`docs/spec/job-execution.md`, section 9.8).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProvenanceInfo {
    /// ID of the runner on the server.
    pub runner_id: i64,
    /// URL of the repository, without credentials and `.git`.
    pub repo_url: String,
    /// Commit of the job.
    pub repo_digest: String,
    /// Name of the job.
    pub job_name: String,
    /// Name of the executor.
    pub executor_name: String,
    /// Name of the runner.
    pub runner_name: String,
    /// Names of the job's variables.
    pub parameters: Vec<String>,
    /// Version of the program that creates the statement.
    pub version: String,
}
