//! `cache-archiver` and `cache-extractor`.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use muster_archive::Limits;
use muster_builtins::cache::remote::{Remote, RemoteError, RemoteObject};
use muster_builtins::cache::{Archive, ArchiveOutcome, Baseline, NO_DOWNLOAD, NO_FILES, NO_UPLOAD, UP_TO_DATE};
use muster_builtins::{FileSelection, Format, extract as extract_archive};
use muster_steps::stop::StopToken;
use url::Url;

use super::context::CommandContext;
use super::{FileArgs, MeterArgs, RetryArgs, TransferError, compression_level, envfile, go_int, path, run};
use crate::unpack::UnpackArgs;

const DEFAULT_MINUTES: u64 = 10;

/// Flags for the store that shares the cache with other machines.
#[derive(Debug, clap::Args)]
struct StoreArgs {
    /// Presigned URL of the cache in the store.
    #[arg(long, default_value = "", hide_default_value = true)]
    url: String,
    /// Go Cloud URL of the cache (not supported).
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    gocloud_url: String,
    /// Timeout of a transfer in minutes; 0 means 10.
    #[arg(long, value_name = "MINUTES", value_parser = go_int, default_value = "0", allow_hyphen_values = true)]
    timeout: i64,
    /// File with variables, as NAME=value.
    #[arg(long, value_name = "FILE", value_parser = path())]
    env_file: Option<PathBuf>,
    #[command(flatten)]
    tuning: TuningArgs,
}

/// Flags for gitlab-runner's multipart transfers. They are accepted and have no effect, because Muster transfers one stream.
#[derive(Debug, clap::Args)]
struct TuningArgs {
    #[arg(long, env = "CACHE_TRANSFER_BUFFER_SIZE", hide = true)]
    transfer_buffer_size: Option<String>,
    #[arg(long, env = "CACHE_CHUNK_SIZE", hide = true)]
    chunk_size: Option<String>,
    #[arg(long, env = "CACHE_CONCURRENCY", hide = true)]
    concurrency: Option<String>,
}

impl StoreArgs {
    fn remote(&self, retry: &RetryArgs) -> Result<Remote, TransferError> {
        let minutes = u64::try_from(self.timeout).unwrap_or(0);
        let minutes = if minutes == 0 { DEFAULT_MINUTES } else { minutes };
        Ok(Remote::new(Duration::from_secs(minutes.saturating_mul(60)), retry.retries(), retry.retry_time)?)
    }

    fn check(&self) -> Result<(), TransferError> {
        reject_go_cloud("--gocloud-url", &self.gocloud_url, "--url")
    }
}

/// Rejects a Go Cloud URL, because ignoring it would silently lose the cache.
fn reject_go_cloud(flag: &str, text: &str, instead: &str) -> Result<(), TransferError> {
    if text.is_empty() {
        return Ok(());
    }
    let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
    let azure = match scheme {
        "azblob" => {
            "; for azblob, use https://ACCOUNT.blob.core.windows.net/CONTAINER/OBJECT?SAS, and for uploads also \
                 --header 'x-ms-blob-type: BlockBlob'"
        }
        _ => "",
    };
    Err(TransferError::Usage(format!(
        "{flag} is not supported, because stores are only accessed by presigned URLs ({scheme:?}); let the store sign a URL of \
             the object, and set {instead} to it{azure}"
    )))
}

fn parse_url(flag: &str, text: &str) -> Result<Url, TransferError> {
    Url::parse(text).map_err(|error| TransferError::Usage(format!("{flag}: {error}")))
}

/// Arguments of `gitlab-runner cache-archiver`.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheArchiveArgs {
    /// Archive to create.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path())]
    file: PathBuf,
    /// Archive of this cache from before FF_HASH_CACHE_KEYS changed. It is renamed to --file if --file does not exist.
    #[arg(long, value_name = "FILE", value_parser = path())]
    alternate_file: Option<PathBuf>,
    /// Presigned URL to check whether the store already has the cache.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    check_url: String,
    /// Header of the upload, as `Name: value`. Can be repeated.
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// Content of metadata.json next to the archive.
    #[arg(long, env = "CACHE_METADATA", hide_env_values = true, value_name = "JSON")]
    metadata: Option<String>,
    /// Compression level: fastest, fast, default, slow or slowest.
    #[arg(long, env = "CACHE_COMPRESSION_LEVEL", hide_env_values = true, value_name = "LEVEL")]
    #[arg(default_value = "", hide_default_value = true)]
    compression_level: String,
    /// Format of the archive: zip, zipzstd or tarzstd.
    #[arg(long, env = "CACHE_COMPRESSION_FORMAT", hide_env_values = true, value_name = "FORMAT")]
    #[arg(default_value = "", hide_default_value = true)]
    compression_format: String,
    /// Maximum size of an uploaded archive in bytes; 0 means no limit.
    #[arg(long, env = "CACHE_MAX_UPLOADED_ARCHIVE_SIZE", hide_env_values = true, value_name = "BYTES")]
    #[arg(value_parser = go_int, default_value = "0", allow_hyphen_values = true)]
    max_uploaded_archive_size: i64,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    retry: RetryArgs,
    #[command(flatten)]
    meter: MeterArgs,
}

/// Creates the archive of the cache, and uploads it if `--url` is set. If no files match, logs a warning and succeeds.
pub(crate) fn archive(args: &CacheArchiveArgs) -> ExitCode {
    run(async |stop: &StopToken| {
        if args.file.as_os_str().is_empty() {
            return Err(TransferError::Usage("Missing --file".to_owned()));
        }
        args.store.check()?;
        let context = CommandContext::new(None, &args.meter, Limits::default())?;
        let variables = envfile::read(args.store.env_file.as_deref())?;
        let metadata = args.metadata.clone().or_else(|| variables.get("CACHE_METADATA").cloned());
        let format = Format::of_cache(&args.compression_format).unwrap_or_else(|| {
            tracing::warn!("compression format {:?} is not known, falling back to zip", args.compression_format);
            Format::Zip
        });
        let archive = Archive {
            files: FileSelection {
                paths: &args.files.paths,
                exclude: &args.files.exclude,
                untracked: args.files.untracked,
            },
            file: &args.file,
            alternate: args.alternate_file.as_deref().filter(|path| !path.as_os_str().is_empty()),
            format,
            level: compression_level(&args.compression_level),
            baseline: Baseline::ArchiveWritten,
            metadata: metadata.as_deref().filter(|text| !text.is_empty()),
        };
        match archive.write(&context, stop).await? {
            ArchiveOutcome::NoFiles => {
                tracing::warn!("{NO_FILES}");
                return Ok(ExitCode::SUCCESS);
            }
            ArchiveOutcome::UpToDate => {
                tracing::info!("{UP_TO_DATE}");
                if !is_missing_at_store(args, &context, stop).await? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            ArchiveOutcome::Written { .. } => {}
        }
        send(args, &context, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns whether an unchanged archive must be uploaded anyway: the form of the cache's key (hashed or plain) has
/// changed, and the store has no cache under the new form.
async fn is_missing_at_store(
    args: &CacheArchiveArgs,
    context: &CommandContext,
    stop: &StopToken,
) -> Result<bool, TransferError> {
    let key_changed = args.alternate_file.as_ref().is_some_and(|file| *file != args.file);
    if !key_changed || args.check_url.is_empty() || args.store.url.is_empty() {
        return Ok(false);
    }
    let head = parse_url("--check-url", &args.check_url)?;
    Ok(!args.store.remote(&args.retry)?.has(context, &head, stop).await?)
}

/// Uploads the archive to `--url`, unless the flag is not set or the archive is too large.
async fn send(args: &CacheArchiveArgs, context: &CommandContext, stop: &StopToken) -> Result<(), TransferError> {
    if args.store.url.is_empty() {
        tracing::info!("{NO_UPLOAD}");
        return Ok(());
    }
    let max_bytes = u64::try_from(args.max_uploaded_archive_size).unwrap_or(0);
    let url = parse_url("--url", &args.store.url)?;
    Ok(args.store.remote(&args.retry)?.upload(context, &args.file, &url, &args.headers, max_bytes, stop).await?)
}

/// Arguments of `gitlab-runner cache-extractor`.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheExtractArgs {
    /// Archive to extract.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path())]
    file: PathBuf,
    /// Presigned URL of the cache under the other form of its key.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    alternate_url: String,
    /// Go Cloud URL of the cache under the other form of its key (not supported).
    #[arg(long, value_name = "URL", default_value = "", hide = true)]
    alternate_gocloud_url: String,
    /// Presigned URL to query the age of the cache at --url.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    head_url: String,
    /// Presigned URL to query the age of the cache at --alternate-url.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    alternate_head_url: String,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    retry: RetryArgs,
    #[command(flatten)]
    meter: MeterArgs,
    #[command(flatten)]
    limits: UnpackArgs,
}

/// Downloads the cache if `--url` is set, and extracts it. If there is no cache, logs a warning and returns 1. The job
/// continues without the cache.
pub(crate) fn extract(args: &CacheExtractArgs) -> ExitCode {
    run(async |stop: &StopToken| {
        if args.file.as_os_str().is_empty() {
            tracing::warn!("Missing cache file; set --file");
            return Ok(ExitCode::FAILURE);
        }
        args.store.check()?;
        reject_go_cloud("--alternate-gocloud-url", &args.alternate_gocloud_url, "--alternate-url")?;
        let context = CommandContext::new(None, &args.meter, args.limits.limits())?;
        if args.store.url.is_empty() {
            tracing::info!("{NO_DOWNLOAD}");
        } else if let Err(error) = fetch(args, &context, stop).await {
            tracing::warn!("{}", muster_job::error_chain(&error));
            return Ok(ExitCode::FAILURE);
        }
        let archive = match File::open(&args.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!("Cache file does not exist");
                return Ok(ExitCode::FAILURE);
            }
            opened => opened.map_err(|error| RemoteError::File(format!("read `{}`", args.file.display()), error))?,
        };
        extract_archive(&context, archive, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Downloads the newer of the caches at `--url` and `--alternate-url`, unless `--file` is at least as new.
///
/// If `--head-url` or `--alternate-head-url` is missing, downloads `--alternate-url` only if `--url` has no cache.
async fn fetch(args: &CacheExtractArgs, context: &CommandContext, stop: &StopToken) -> Result<(), TransferError> {
    let object = |url: (&str, &str), head: (&str, &str)| {
        let head = (!head.1.is_empty()).then(|| parse_url(head.0, head.1)).transpose()?;
        Ok::<_, TransferError>(RemoteObject { url: parse_url(url.0, url.1)?, head })
    };
    let mut objects = vec![object(("--url", &args.store.url), ("--head-url", &args.head_url))?];
    if !args.alternate_url.is_empty() {
        let head = ("--alternate-head-url", args.alternate_head_url.as_str());
        objects.push(object(("--alternate-url", &args.alternate_url), head)?);
    }
    Ok(args.store.remote(&args.retry)?.download_newest(context, &objects, &args.file, stop).await?)
}
