//! `cache-archiver` and `cache-extractor`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use muster_archive::Limits;
use muster_builtins::cache::remote::{Remote, RemoteError};
use muster_builtins::cache::{Archive, ArchiveOutcome, NO_DOWNLOAD, NO_FILES, NO_UPLOAD, UP_TO_DATE};
use muster_builtins::{FileSelection, Format, extract as extract_archive};
use muster_steps::stop::StopToken;
use url::Url;

use super::site::Here;
use super::{FileArgs, MeterArgs, RetryArgs, TransferError, envfile, go_int, level, path, run};
use crate::unpack::UnpackArgs;

/// Minutes for one transfer, where none are given.
const DEFAULT_MINUTES: u64 = 10;

/// Where the cache is kept for other machines.
#[derive(Debug, clap::Args)]
struct StoreArgs {
    /// Signed address of the cache at the store.
    #[arg(long, default_value = "", hide_default_value = true)]
    url: String,
    /// Address of the cache for Go Cloud; not supported.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    gocloud_url: String,
    /// Minutes that one transfer may take; 0 is 10.
    #[arg(long, value_name = "MINUTES", value_parser = go_int, default_value = "0", allow_hyphen_values = true)]
    timeout: i64,
    /// A file of variables, NAME=value.
    #[arg(long, value_name = "FILE", value_parser = path())]
    env_file: Option<PathBuf>,
    #[command(flatten)]
    tuning: TuningArgs,
}

/// Sizes of gitlab-runner's transfers in parts. They are taken and have no effect: one stream is used.
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
        no_go_cloud("--gocloud-url", &self.gocloud_url, "--url")
    }
}

/// A store that needs more than an address is refused, before any work is done, and not passed over in silence.
fn no_go_cloud(flag: &str, text: &str, instead: &str) -> Result<(), TransferError> {
    if text.is_empty() {
        return Ok(());
    }
    let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
    let azure = match scheme {
        "azblob" => {
            "; for azblob that is https://ACCOUNT.blob.core.windows.net/CONTAINER/OBJECT?SAS, and for an upload \
             --header 'x-ms-blob-type: BlockBlob' too"
        }
        _ => "",
    };
    Err(TransferError::Usage(format!(
        "{flag} is not supported, since stores are not reached by credentials ({scheme:?}): let the store sign an address of \
         the object, and give it as {instead}{azure}"
    )))
}

fn address(flag: &str, text: &str) -> Result<Url, TransferError> {
    Url::parse(text).map_err(|error| TransferError::Usage(format!("{flag}: {error}")))
}

/// Arguments of `cache-archiver`.
#[derive(Debug, clap::Args)]
pub(crate) struct ArchiveArgs {
    /// The archive.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path())]
    file: PathBuf,
    /// Where an earlier archive may be, under the other form of the cache's key; it is taken from there.
    #[arg(long, value_name = "FILE", value_parser = path())]
    alternate_file: Option<PathBuf>,
    /// Signed address to ask with whether the store has the cache already.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    check_url: String,
    /// A header of the upload, as `Name: value`; may be given again.
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// Text for metadata.json beside the archive.
    #[arg(long, env = "CACHE_METADATA", hide_env_values = true, value_name = "JSON")]
    metadata: Option<String>,
    /// How hard to compress: fastest, fast, default, slow or slowest.
    #[arg(long, env = "CACHE_COMPRESSION_LEVEL", hide_env_values = true, value_name = "LEVEL")]
    #[arg(default_value = "", hide_default_value = true)]
    compression_level: String,
    /// Format of the archive: zip, zipzstd or tarzstd.
    #[arg(long, env = "CACHE_COMPRESSION_FORMAT", hide_env_values = true, value_name = "FORMAT")]
    #[arg(default_value = "", hide_default_value = true)]
    compression_format: String,
    /// Bytes beyond which an archive is not uploaded; 0 is no limit.
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

/// Runs `cache-archiver`. No files are a warning, and no failure.
pub(crate) fn archive(args: &ArchiveArgs) -> ExitCode {
    run(async |stop: &StopToken| {
        if args.file.as_os_str().is_empty() {
            return Err(TransferError::Usage("Missing --file".to_owned()));
        }
        args.store.check()?;
        let site = Here::new(None, &args.meter, Limits::default())?;
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
            level: level(&args.compression_level),
            metadata: metadata.as_deref().filter(|text| !text.is_empty()),
        };
        let size = match archive.write(&site, stop).await? {
            ArchiveOutcome::NoFiles => {
                tracing::warn!("{NO_FILES}");
                return Ok(ExitCode::SUCCESS);
            }
            ArchiveOutcome::UpToDate => {
                tracing::info!("{UP_TO_DATE}");
                if !is_missing_at_the_store(args).await? {
                    return Ok(ExitCode::SUCCESS);
                }
                let metadata = std::fs::metadata(&args.file);
                metadata.map_err(|error| RemoteError::File(format!("read `{}`", args.file.display()), error))?.len()
            }
            ArchiveOutcome::Written { size } => size,
        };
        send(args, &site, size, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Whether an archive that has not changed is to be uploaded all the same: the cache's key has another form now, and the
/// store does not have it under that.
async fn is_missing_at_the_store(args: &ArchiveArgs) -> Result<bool, TransferError> {
    let changed_form = args.alternate_file.as_ref().is_some_and(|file| *file != args.file);
    if !changed_form || args.check_url.is_empty() || args.store.url.is_empty() {
        return Ok(false);
    }
    let remote = args.store.remote(&args.retry)?;
    if remote.modified(&address("--check-url", &args.check_url)?).await?.is_some() {
        tracing::info!("Primary cache already exists remotely, skipping upload");
        return Ok(false);
    }
    tracing::info!("Primary cache does not exist remotely, uploading existing archive");
    Ok(true)
}

async fn send(args: &ArchiveArgs, site: &Here, size: u64, stop: &StopToken) -> Result<(), TransferError> {
    if args.store.url.is_empty() {
        tracing::info!("{NO_UPLOAD}");
        return Ok(());
    }
    let most = u64::try_from(args.max_uploaded_archive_size).unwrap_or(0);
    if most != 0 && size > most {
        tracing::info!(
            "Cache archive size ({size}) is too big (Limit is set to {most}). Cache will be stored only locally."
        );
        return Ok(());
    }
    let url = address("--url", &args.store.url)?;
    Ok(args.store.remote(&args.retry)?.upload(site, &args.file, &url, &args.headers, stop).await?)
}

/// Arguments of `cache-extractor`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExtractArgs {
    /// The archive.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path())]
    file: PathBuf,
    /// Signed address of the cache under the other form of its key.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    alternate_url: String,
    /// Address for Go Cloud of the cache under the other form of its key; not supported.
    #[arg(long, value_name = "URL", default_value = "", hide = true)]
    alternate_gocloud_url: String,
    /// Signed address to ask with how new the cache at --url is.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    head_url: String,
    /// Signed address to ask with how new the cache at --alternate-url is.
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

/// Runs `cache-extractor`. A cache that cannot be had is a warning, and exit code 1: the job goes on without.
pub(crate) fn extract(args: &ExtractArgs) -> ExitCode {
    run(async |stop: &StopToken| {
        if args.file.as_os_str().is_empty() {
            tracing::warn!("Missing cache file: give --file");
            return Ok(ExitCode::FAILURE);
        }
        args.store.check()?;
        no_go_cloud("--alternate-gocloud-url", &args.alternate_gocloud_url, "--alternate-url")?;
        let site = Here::new(None, &args.meter, args.limits.limits())?;
        if args.store.url.is_empty() {
            tracing::info!("{NO_DOWNLOAD}");
        } else if let Err(error) = fetch(args, &site, stop).await {
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
        extract_archive(&site, archive, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Fetches the newer of the two forms; where that cannot be told, the other one is for when the first is missing.
async fn fetch(args: &ExtractArgs, site: &Here, stop: &StopToken) -> Result<(), TransferError> {
    let remote = args.store.remote(&args.retry)?;
    let mut urls = vec![address("--url", &args.store.url)?];
    if !args.alternate_url.is_empty() {
        urls.push(address("--alternate-url", &args.alternate_url)?);
        if !args.head_url.is_empty() && !args.alternate_head_url.is_empty() {
            let own = remote.modified(&address("--head-url", &args.head_url)?).await?;
            let other = remote.modified(&address("--alternate-head-url", &args.alternate_head_url)?).await?;
            if other > own {
                urls.reverse();
            }
        }
    }
    let file: &Path = &args.file;
    let mut ended = Err(RemoteError::Missing);
    for url in &urls {
        ended = remote.download(site, url, file, stop).await;
        if !matches!(ended, Err(RemoteError::Missing)) {
            break;
        }
    }
    Ok(ended?)
}
