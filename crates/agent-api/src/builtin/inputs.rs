//! Inputs of each built-in step.

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
    /// URL of the remote, with credentials if it needs them.
    pub repo_url: String,
    /// Repository on this machine that has the commit. `None` means that the commit is fetched from `repo_url`.
    pub local_repository: Option<String>,
    /// View of the machine's mirror of the repository ([`super::GitMirror`]). `None` means that everything is fetched from the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Hash algorithm of the repository: `sha1` or `sha256`. Empty means `sha1`.
    pub object_format: String,
    /// Branch or tag, for the notice in the log.
    pub ref_name: String,
    /// Commit to check out.
    pub sha: String,
    /// Refspecs to fetch.
    pub refspecs: Vec<String>,
    /// Number of commits to fetch. 0 means all.
    pub depth: i64,
    /// Whether to check the commit out (GIT_CHECKOUT).
    pub checkout: bool,
    /// GIT_CLEAN_FLAGS. `None` means that the directory is not cleaned.
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
    /// Whether files of Git LFS are not fetched (GIT_LFS_SKIP_SMUDGE).
    pub skip_lfs: bool,
    /// Whether git treats the directory as safe, even if another user owns it.
    pub safe_directory: bool,
    /// Whether configuration and hooks of the repository are removed before it is used.
    pub clean_config: bool,
    /// URLs that git replaces, for other projects of the coordinator and for its SSH addresses.
    pub rewrites: Vec<Rewrite>,
    /// Whether git gets the job's token from a credential helper, so that no URL contains it (FF_GIT_URLS_WITHOUT_TOKENS).
    pub credential_helper: bool,
    /// Whether git sends credentials before the server requests them (FF_USE_GIT_PROACTIVE_AUTH).
    pub proactive_auth: bool,
    /// Whether git may download bundles that the server announces (FF_USE_GIT_BUNDLE_URIS).
    pub bundle_uris: bool,
    /// Certificates for the connection to the server.
    pub tls: Tls,
    /// Shell for `pre_script` and `post_script`. The commands in it are ignored.
    pub shell: Script,
    /// Commands to run before the checkout.
    pub pre_script: Vec<String>,
    /// Commands to run after the checkout.
    pub post_script: Vec<String>,
}

impl Inputs for Checkout {
    const BUILTIN: &'static str = "checkout";

    fn record(&self) -> Map<String, Value> {
        record::checkout(self)
    }
}

/// A URL that git replaces by another one (`url.<to>.insteadOf = <from>`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewrite {
    /// URL as written in the repository, without credentials.
    pub from: String,
    /// URL that git uses instead.
    pub to: String,
}

/// Names of the job's file variables that contain the certificates for connections to the coordinator.
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

/// Starts a second agent, which runs the delegated steps, as a process on this host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentProcess {
    /// Program and arguments. The process serves as an agent on `socket` until the step engine stops it.
    pub command: Vec<String>,
    /// Working directory of the process.
    pub work_dir: String,
    /// Environment variables that override those of the job's processes.
    pub env: BTreeMap<String, String>,
    /// Path of the socket on which the process listens.
    pub socket: String,
    /// Project directory of the job as the second agent sees it.
    pub project_dir: String,
}

impl Inputs for AgentProcess {
    const BUILTIN: &'static str = "agent/process";
}

/// Prints which executor and which environment the job uses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepare {
    /// Lines that the executor provides.
    pub lines: Vec<String>,
    /// Lines in the format in which a shell echoes commands.
    pub echoed: Vec<String>,
}

impl Inputs for Prepare {
    const BUILTIN: &'static str = "prepare";
}

/// Cleans up after a job (`docs/spec/job-execution.md`, section 2.8).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cleanup {
    /// GIT_STRATEGY, which selects how the checkout is cleaned up (FF_ENABLE_JOB_CLEANUP): `fetch` cleans it, `clone` and `empty`
    /// delete it. `none` and an empty string keep it.
    pub checkout: String,
    /// GIT_CLEAN_FLAGS. `None` means that the checkout is not cleaned.
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

/// Runs commands in the same way as GitLab's shell scripts (`docs/spec/job-execution.md`, section 4).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Script {
    /// Shell: `bash` (falls back to `sh`), `sh`, `pwsh` or `powershell`. Empty means `bash`.
    pub shell: String,
    /// Whether the shell is a login shell.
    pub login: bool,
    /// Commands from the runner's configuration that run in the same shell before the job's commands.
    pub before: Vec<String>,
    /// The job's commands. Each one is echoed before it runs.
    pub commands: Vec<String>,
    /// Commands from the runner's configuration that run in the same shell after the job's commands.
    pub after: Vec<String>,
    /// Whether this is `after_script`, which is announced in the log and sees the current `CI_JOB_STATUS`.
    pub after_script: bool,
    /// Whether the shell prints each command that it executes (CI_DEBUG_TRACE).
    pub debug: bool,
    /// Whether commands of several lines are printed completely, each in a separate section (FF_SCRIPT_SECTIONS).
    pub sections: bool,
    /// Whether the exit status is checked after each command (FF_ENABLE_BASH_EXIT_CODE_CHECK).
    pub check_exit_codes: bool,
    /// Whether the script is passed as a file. Only for `powershell` (FF_DISABLE_POWERSHELL_STDIN).
    pub as_file: bool,
    /// Variables of this script only. They replace variables of the job.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether the operator wrote the script. Such a script gets no variables of the job that change which programs run.
    pub by_operator: bool,
}

impl Inputs for Script {
    const BUILTIN: &'static str = "script";

    fn record(&self) -> Map<String, Value> {
        record::script(self)
    }
}

/// Restores caches, one after the other.
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

/// Saves caches, one after the other.
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

/// A cache (`docs/spec/job-execution.md`, section 10).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheEntry {
    /// Key, expanded and sanitized.
    pub key: String,
    /// Keys to try if there is no cache for `key`. Only for restoring.
    pub fallback_keys: Vec<String>,
    /// Directory that contains `<key>/cache.zip`.
    pub cache_dir: String,
    /// Patterns, relative to the project directory.
    pub paths: Vec<String>,
    /// Whether files that git does not track are included.
    pub untracked: bool,
    /// Policy: `pull-push`, `pull` or `push`. Empty means `pull-push`.
    pub policy: String,
    /// Human-readable forms of the keys: `key` first, then `fallback_keys`. Empty means the keys themselves.
    pub names: Vec<String>,
    /// Other form of the key (hashed or plain), under which an earlier job may have saved the cache.
    pub alternate: String,
    /// Whether to delete the files of a failed extraction (FF_CLEAN_UP_FAILED_CACHE_EXTRACT).
    pub clean_up_failed: bool,
    /// Objects of `key`, `fallback_keys` and `alternate` in the store that machines share. Empty means that there is no store.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub objects: BTreeMap<String, CacheObject>,
    /// Maximum number of bytes to upload in one save. If there are more, nothing is uploaded. 0 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_upload_bytes: u64,
    /// Storage as chunks that caches share. `None` means that the cache is an archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks: Option<ChunkCache>,
}

/// Storage of a cache as chunks (`docs/how-to/use-caches.md`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChunkCache {
    /// Protection level. Caches of different levels share nothing.
    pub level: String,
    /// Objects in the store that machines share. `None` means that the chunks are stored only on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<ChunkStore>,
}

/// Objects of a chunk store that a job may use, with presigned URLs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChunkStore {
    /// Contents of the reference objects, by cache key. A reference names the index of a cache.
    ///
    /// The entry with the key `""` is the reference that was saved last at this level, for any cache key.
    pub references: BTreeMap<String, String>,
    /// URLs for GET of the objects that the references name.
    pub downloads: BTreeMap<String, Secret>,
    /// Names of objects that will be deleted, so that no save may use them.
    pub marked: Vec<String>,
    /// Objects to create. `None` means that the cache is not uploaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<ChunkUpload>,
}

/// Presigned URLs for PUT of the objects of one save.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChunkUpload {
    /// Prefix of the names of the objects: `<id>-index`, and `<id>-0`, `<id>-1`, ... for the packs.
    pub id: String,
    /// URLs of the packs.
    pub packs: Vec<Secret>,
    /// URL of the index.
    pub index: Secret,
    /// URL of the key's reference.
    pub reference: Secret,
    /// URL for a second copy of the reference, which later saves at this level find as the last one.
    pub last: Secret,
    /// Names and values of the headers of each upload.
    pub headers: Vec<(String, String)>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Presigned URLs of an object in a store. Anyone who has such a URL can use it, so it is a secret.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheObject {
    /// URL for GET. Empty if the job must not download the object.
    pub download: Secret,
    /// URL for HEAD.
    pub head: Secret,
    /// URL for PUT. Empty if the job must not upload the object.
    pub upload: Secret,
    /// Names and values of the headers of an upload.
    pub upload_headers: Vec<(String, String)>,
}

/// Downloads and unpacks the archives of other jobs (`docs/spec/job-execution.md`, section 9.6).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactsDownload {
    /// Jobs that produced the archives, in order. Later ones overwrite files of earlier ones.
    pub from: Vec<ArtifactSource>,
}

impl Inputs for ArtifactsDownload {
    const BUILTIN: &'static str = "artifacts/download";

    fn record(&self) -> Map<String, Value> {
        record::artifacts_download(self)
    }
}

/// A job that produced an archive.
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

/// Uploads artifacts one after the other, until one fails.
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

/// Lists the files of artifacts for steps of the operator that check or sign them.
///
/// The variable `MUSTER_ARTIFACT_FILES` gets the path of a file with one path per line, relative to the project directory.
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
    /// Base name of the file, before variables are expanded. Empty means `artifacts`.
    pub name: String,
    /// Patterns of files to upload.
    pub paths: Vec<String>,
    /// Patterns of files to leave out.
    pub exclude: Vec<String>,
    /// Whether files that git does not track are included.
    pub untracked: bool,
    /// Type: `archive`, `junit`, `dotenv`, ... Empty means `archive`.
    pub artifact_type: String,
    /// Format, such as `zip`, `gzip` or `raw`. Empty means `zip`.
    pub artifact_format: String,
    /// Retention time of the artifact, as written in the pipeline configuration.
    pub expire_in: String,
    /// Provenance statement to pack with the files. `None` means no statement.
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
    /// Version or revision of the program that creates the statement.
    pub version: String,
}
