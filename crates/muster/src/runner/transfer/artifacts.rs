//! `artifacts-uploader` and `artifacts-downloader`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use muster_agent_api::builtin::{ArtifactsUpload, ProvenanceInfo};
use muster_archive::Limits;
use muster_builtins::artifacts::{Provenance, RetryPolicy, Upload, fetch};
use muster_builtins::extract;
use muster_runner_api::client::UploadTimeouts;
use muster_runner_api::retry::Policy;
use muster_steps::stop::StopToken;

use super::context::CommandContext;
use super::{
    FileArgs, JobArgs, MeterArgs, RetryArgs, TransferError, compression_level, go_bool, go_duration, go_int, path, run,
};
use crate::unpack::UnpackArgs;

/// Number and delays of the attempts to upload, as in gitlab-runner.
const UPLOAD_RETRIES: RetryPolicy = RetryPolicy::FixedAttempts {
    attempts: 3,
    unavailable_attempts: 6,
    backoff: Policy { first: Duration::from_secs(1), cap: Duration::from_secs(5), attempts: None },
};

/// Arguments of `gitlab-runner artifacts-uploader`.
#[derive(Debug, clap::Args)]
pub(crate) struct ArtifactsUploadArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    meter: MeterArgs,
    #[command(flatten)]
    metadata: MetadataArgs,
    /// Base name of the archive.
    #[arg(long, default_value = "artifacts")]
    name: String,
    /// Time after which the artifacts expire.
    #[arg(long, default_value = "", hide_default_value = true)]
    expire_in: String,
    /// Format of the archive: zip, gzip, raw, zipzstd or tarzstd.
    #[arg(long, value_name = "FORMAT", default_value = "", hide_default_value = true)]
    artifact_format: String,
    /// Type of the artifacts: archive, junit, dotenv, ...
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    artifact_type: String,
    /// Compression level: fastest, fast, default, slow or slowest.
    #[arg(long, env = "ARTIFACT_COMPRESSION_LEVEL", hide_env_values = true, value_name = "LEVEL")]
    #[arg(default_value = "", hide_default_value = true)]
    compression_level: String,
    /// Timeout of one attempt.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, default_value = "1h")]
    timeout: Duration,
    /// Timeout for the coordinator's response after the upload.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, default_value = "10m")]
    response_header_timeout: Duration,
    /// Whether the job traces its commands. Has no effect.
    #[arg(long, env = "CI_DEBUG_TRACE", hide_env_values = true, value_parser = go_bool, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide = true)]
    ci_debug_trace: bool,
    /// Directory for the archive while it is created.
    #[arg(long, env = "ARCHIVER_STAGING_DIR", hide_env_values = true, value_name = "DIR", value_parser = path())]
    archiver_staging_dir: Option<PathBuf>,
}

/// Flags for the provenance statement.
#[derive(Debug, clap::Args)]
struct MetadataArgs {
    /// Create a provenance statement (SLSA provenance 1), and add it to the archive.
    #[arg(long, value_parser = go_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(default_value = "false", hide_default_value = true, value_name = "BOOL")]
    generate_artifacts_metadata: bool,
    /// Provenance statement: ID of the runner.
    #[arg(long, value_parser = go_int, default_value = "0", hide_default_value = true)]
    runner_id: i64,
    /// Provenance statement: URL of the repository.
    #[arg(long, default_value = "", hide_default_value = true)]
    repo_url: String,
    /// Provenance statement: commit.
    #[arg(long, default_value = "", hide_default_value = true)]
    repo_digest: String,
    /// Provenance statement: name of the job.
    #[arg(long, default_value = "", hide_default_value = true)]
    job_name: String,
    /// Provenance statement: executor.
    #[arg(long, default_value = "", hide_default_value = true)]
    executor_name: String,
    /// Provenance statement: name of the runner.
    #[arg(long, default_value = "", hide_default_value = true)]
    runner_name: String,
    /// Provenance statement: name of a variable, listed without its value. Can be repeated.
    #[arg(long = "metadata-parameter", value_name = "NAME", allow_hyphen_values = true)]
    metadata_parameters: Vec<String>,
    /// Provenance statement: start time of the job in RFC 3339.
    #[arg(long, default_value = "", hide_default_value = true)]
    started_at: String,
    /// Provenance statement: end time of the job in RFC 3339.
    #[arg(long, default_value = "", hide_default_value = true)]
    ended_at: String,
    /// Version of the statement's schema; only v1 is supported.
    #[arg(long, default_value = "", hide_default_value = true)]
    schema_version: String,
}

impl MetadataArgs {
    fn provenance(&self, job_id: i64) -> Result<Option<Provenance>, TransferError> {
        if !self.generate_artifacts_metadata {
            return Ok(None);
        }
        if !matches!(self.schema_version.as_str(), "" | "v1") {
            tracing::warn!("unsupported provenance schema {:?}, using v1", self.schema_version);
        }
        for (flag, time) in [("--started-at", &self.started_at), ("--ended-at", &self.ended_at)] {
            time::OffsetDateTime::parse(time, &time::format_description::well_known::Rfc3339).map_err(|error| {
                TransferError::Usage(format!("{flag}: `{time}` is not a valid RFC 3339 time: {error}"))
            })?;
        }
        let build = &crate::observe::BUILD;
        let version = if build.revision == "unknown" { build.version } else { build.revision };
        Ok(Some(Provenance {
            job_id,
            origin: ProvenanceInfo {
                runner_id: self.runner_id,
                repo_url: self.repo_url.clone(),
                repo_digest: self.repo_digest.clone(),
                job_name: self.job_name.clone(),
                executor_name: self.executor_name.clone(),
                runner_name: self.runner_name.clone(),
                parameters: self.metadata_parameters.clone(),
                version: version.to_owned(),
            },
            started_at: self.started_at.clone(),
            ended_at: self.ended_at.clone(),
        }))
    }
}

/// Creates the archive of the artifacts, and uploads it. Also succeeds if no files match.
pub(crate) fn upload(args: &ArtifactsUploadArgs) -> ExitCode {
    run(async |stop: &StopToken| {
        if args.job.url.is_empty() || args.job.token.is_empty() {
            return Err(TransferError::Usage("Missing runner credentials; set --url and --token".to_owned()));
        }
        if args.job.id <= 0 {
            return Err(TransferError::Usage("Missing build ID; set --id".to_owned()));
        }
        let context = CommandContext::new(args.archiver_staging_dir.as_deref(), &args.meter, Limits::default())?;
        let artifact = ArtifactsUpload {
            name: args.name.clone(),
            paths: args.files.paths.clone(),
            exclude: args.files.exclude.clone(),
            untracked: args.files.untracked,
            artifact_type: args.artifact_type.clone(),
            artifact_format: args.artifact_format.clone(),
            expire_in: args.expire_in.clone(),
            // `Upload` has the provenance instead.
            provenance: None,
        };
        let provenance = args.metadata.provenance(args.job.id)?;
        let upload = Upload {
            artifact: &artifact,
            level: compression_level(&args.compression_level),
            timeouts: UploadTimeouts { total: args.timeout, response: args.response_header_timeout },
            retry_policy: UPLOAD_RETRIES,
            provenance: provenance.as_ref(),
        };
        let endpoint = args.job.artifact_endpoint()?;
        upload.run(&context, async || Ok(endpoint), stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Arguments of `gitlab-runner artifacts-downloader`.
#[derive(Debug, clap::Args)]
pub(crate) struct ArtifactsDownloadArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    retry: RetryArgs,
    #[command(flatten)]
    meter: MeterArgs,
    #[command(flatten)]
    limits: UnpackArgs,
    /// Allow the coordinator to redirect the first attempt to its object storage.
    #[arg(long, env = "FF_USE_DIRECT_DOWNLOAD", hide_env_values = true, value_parser = go_bool, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    #[arg(value_name = "BOOL")]
    direct_download: bool,
    /// Directory for the archive while it is read.
    #[arg(long, env = "ARCHIVER_STAGING_DIR", hide_env_values = true, value_name = "DIR", value_parser = path())]
    archiver_staging_dir: Option<PathBuf>,
}

pub(crate) fn download(args: &ArtifactsDownloadArgs) -> ExitCode {
    run(async |stop: &StopToken| {
        let needed =
            [("--url", args.job.url.is_empty()), ("--token", args.job.token.is_empty()), ("--id", args.job.id <= 0)];
        let missing: Vec<&str> = needed.iter().filter(|(_, missing)| *missing).map(|(flag, _)| *flag).collect();
        if !missing.is_empty() {
            return Err(TransferError::Usage(format!("Incomplete arguments; set {}", missing.join(", "))));
        }
        let context = CommandContext::new(args.archiver_staging_dir.as_deref(), &args.meter, args.limits.limits())?;
        let attempts = args.retry.retries().saturating_add(1);
        let backoff = Policy { first: args.retry.retry_time, cap: args.retry.retry_time, attempts: None };
        let retry_policy = RetryPolicy::FixedAttempts { attempts, unavailable_attempts: attempts, backoff };
        let archive = fetch(&context, &args.job.artifact_endpoint()?, args.direct_download, retry_policy, stop).await?;
        extract(&context, archive, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}
