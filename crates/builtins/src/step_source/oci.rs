//! Fetches an image with steps from a registry (docs/spec/steps.md, section 2.8).
//!
//! The cache contains layers. Each layer is verified before it is unpacked.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use muster_archive::{Format, Limits, Root, create_root, unpack};
use muster_job::error_chain;
use muster_oci::{
    Credentials, Descriptor, Digest, HostPlatform, Index, Registry, RegistryError, Repository, credentials_in,
};
use muster_runner_api::client::{TlsFiles, http_client};
use muster_steps::failure::PortError;
use muster_steps::remote::{FetchRequest, FetchedSource, Lookup, Notice, NoticeKind};
use muster_steps::stop::StopToken;
use sha2::{Digest as _, Sha256};

use super::cache::EntryGuard;
use super::{StepFetcher, entry_name, system};

/// Media type of a layer of a step.
pub const LAYER_TYPE: &str = "application/vnd.gitlab.step.layer.v1.tar+zstd";
/// Type of a document with notices about a step.
pub const NOTICE_TYPE: &str = "application/vnd.muster.step.notice.v1";
/// Annotation with the creation time of a document (OCI image specification, "annotations").
pub const CREATED: &str = "org.opencontainers.image.created";
/// Value of `os` for an image that runs on every platform.
const GENERIC: &str = "generic";
const MAX_BYTES: u64 = 2 * 1024 * 1024 * 1024;
const MAX_LAYERS: usize = 128;
const LIMITS: Limits =
    Limits { bytes: 8 << 30, entries: 200_000, ratio: 1000, ratio_floor: 1 << 30, header_bytes: 64 << 20 };

/// Fetches an image, or the pinned image of the same repository.
pub(super) async fn fetch(
    fetcher: &StepFetcher,
    (host, path, tag): (&str, &str, &str),
    request: FetchRequest<'_>,
    stop: &StopToken,
) -> Result<FetchedSource, PortError> {
    let repository = Repository { registry: host.to_owned(), path: path.to_owned() };
    let work = async {
        let registry = open(fetcher, repository, request.lookup).await?;
        if let Some(pin) = request.pin.filter(|pin| pin.parse::<Digest>().is_err()) {
            return Err(PortError::Failed(format!(
                "{pin:?} in the lock file is not a valid digest; run `muster step update`"
            )));
        }
        let (digest, index) = registry.resolve(request.pin.unwrap_or(tag)).await.map_err(|error| failed(&error))?;
        // Unreadable notices must not fail jobs.
        let notices = registry_notices(&registry, digest, &index).await.unwrap_or_else(|error| {
            tracing::warn!(error = error_chain(&error), "failed to read the notices about a step, ignoring them");
            Vec::new()
        });
        let image = select(&index).map_err(PortError::Failed)?;
        let manifest = registry.manifest(image).await.map_err(|error| failed(&error))?;
        let bytes = manifest.layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
        if manifest.layers.len() > MAX_LAYERS || bytes.is_none_or(|bytes| bytes > MAX_BYTES) {
            let limit = MAX_BYTES / 1024 / 1024;
            return Err(PortError::Failed(format!(
                "the image has more than {MAX_LAYERS} layers or {limit} MiB; make the step smaller"
            )));
        }
        let dir = fetcher.new_directory()?;
        for layer in &manifest.layers {
            let name = entry_name(request.source, &layer.digest);
            fetch_layer(fetcher, &registry, (layer, &name), &dir, stop).await?;
        }
        Ok(FetchedSource { dir, digest: digest.to_string(), notices })
    };
    tokio::select! {
        biased;
        cause = stop.stopped() => Err(PortError::Stopped(cause)),
        done = work => done,
    }
}

/// Returns a client with credentials from variables or the Docker configuration.
pub(crate) async fn open(
    fetcher: &StepFetcher,
    repository: Repository,
    lookup: Lookup<'_>,
) -> Result<Registry, PortError> {
    let text = lookup("DOCKER_AUTH_CONFIG").unwrap_or_default();
    let problem = |problem| PortError::Failed(format!("DOCKER_AUTH_CONFIG: {problem}; correct the variable"));
    let mut credentials = credentials_in(&text, &repository).map_err(problem)?;
    if credentials.is_none() && lookup("CI_REGISTRY").as_deref() == Some(repository.registry.as_str()) {
        let (user, password) = (lookup("CI_REGISTRY_USER"), lookup("CI_REGISTRY_PASSWORD"));
        credentials = user.zip(password).map(|(user, password)| Credentials::new(user, password));
    }
    if let (None, Some(docker)) = (&credentials, &fetcher.docker) {
        let found = docker.get(&repository.registry).await;
        credentials = found.map_err(|error| PortError::Failed(error_chain(&error)))?;
    }
    let tls = TlsFiles { ca: fetcher.tls.ca.clone(), ..TlsFiles::default() };
    let client = http_client(&tls).map_err(|error| PortError::Failed(error.to_string()))?;
    Registry::with_client(repository, credentials, client).map_err(|error| failed(&error))
}

pub(crate) fn failed(error: &RegistryError) -> PortError {
    let remedy = match error {
        RegistryError::Refused { .. } => "; set DOCKER_AUTH_CONFIG to credentials for this registry",
        _ => "",
    };
    PortError::Failed(format!("{}{remedy}", error_chain(error)))
}

/// Returns the image for this platform, or else the generic image, which runs on every platform.
fn select(index: &Index) -> Result<&Descriptor, String> {
    let this = HostPlatform::this();
    let is_generic = |entry: &&Descriptor| entry.platform.as_ref().is_some_and(|platform| platform.os == GENERIC);
    this.select(&index.manifests).or_else(|| index.manifests.iter().find(is_generic)).ok_or_else(|| {
        let platforms = index.manifests.iter().filter_map(|entry| entry.platform.as_ref());
        let platforms: Vec<String> = platforms.map(ToString::to_string).collect();
        format!(
            "didn't find an image matching platform {this} or {GENERIC}; publish the step for one of them. It exists for: {}",
            platforms.join(", ")
        )
    })
}

/// Returns the notices about an index: those in its own annotations, and those in the annotations of the newest
/// document about it.
///
/// # Errors
/// [`RegistryError`] if the registry does not list the documents.
pub async fn registry_notices(
    registry: &Registry,
    digest: Digest,
    index: &Index,
) -> Result<Vec<Notice>, RegistryError> {
    let mut found = Vec::new();
    let referrers = registry.referrers(digest).await?;
    let newest = newest_notice(&referrers).map(|entry| &entry.annotations);
    for annotations in [&index.annotations].into_iter().chain(newest) {
        for kind in [NoticeKind::Deprecated, NoticeKind::Defective] {
            let message = annotations.get(&notice_annotation(kind)).filter(|message| !message.is_empty());
            found.extend(message.map(|message| Notice { kind, message: message.clone() }));
        }
    }
    Ok(found)
}

/// Returns the newest document with notices. Older ones are ignored, because the publisher may have withdrawn them.
fn newest_notice(referrers: &[Descriptor]) -> Option<&Descriptor> {
    let created = |entry: &&Descriptor| -> jiff::Timestamp {
        entry.annotations.get(CREATED).and_then(|time| time.parse().ok()).unwrap_or(jiff::Timestamp::MIN)
    };
    referrers.iter().filter(|entry| entry.artifact_type == NOTICE_TYPE).max_by_key(created)
}

/// Returns the annotation for notices of a kind.
#[must_use]
pub fn notice_annotation(kind: NoticeKind) -> String {
    format!("io.muster.step.{}", kind.name())
}

/// Unpacks a layer. Downloads it first if the cache does not have it.
async fn fetch_layer(
    fetcher: &StepFetcher,
    registry: &Registry,
    (layer, name): (&Descriptor, &str),
    dir: &Path,
    stop: &StopToken,
) -> Result<(), PortError> {
    let digest: Digest =
        layer.digest.parse().map_err(|error| PortError::Failed(format!("a layer of the image: {error}")))?;
    let entry = fetcher.cache.entry("oci", name).await.map_err(system("failed to use the cache of steps"))?;
    let entry = Arc::new(entry);
    if entry.path.exists() {
        match unpack_layer(&entry, digest, dir, stop).await {
            Ok(()) => return Ok(()),
            Err(LayerError::Changed) => {
                // A job whose processes run as the agent's user can change the cache.
                tracing::warn!(layer = layer.digest, "invalid entry in the cache of steps, fetching it again");
                entry.discard().map_err(system("failed to remove a layer from the cache of steps"))?;
            }
            Err(LayerError::Failed(error)) => return Err(error),
        }
    }
    let incomplete = tempfile::Builder::new().tempdir_in(&entry.incomplete);
    let incomplete = incomplete.map_err(system("failed to create a file for a layer"))?;
    let file = incomplete.path().join("layer");
    registry.download(layer, &file).await.map_err(|error| failed(&error))?;
    entry.complete(&file).map_err(system("failed to put a layer into the cache of steps"))?;
    let unpacked = unpack_layer(&entry, digest, dir, stop).await;
    drop(entry);
    fetcher.cache.prune().map_err(system("failed to remove old entries from the cache of steps"))?;
    unpacked.map_err(|error| match error {
        LayerError::Changed => {
            PortError::Failed("a layer was changed while it was unpacked; start the job again".into())
        }
        LayerError::Failed(error) => error,
    })
}

enum LayerError {
    /// The file cannot be opened or does not match the digest.
    Changed,
    Failed(PortError),
}

async fn unpack_layer(entry: &Arc<EntryGuard>, digest: Digest, dir: &Path, stop: &StopToken) -> Result<(), LayerError> {
    let (entry, dir, stop) = (Arc::clone(entry), dir.to_owned(), stop.clone());
    let work = move || unpack_verified(&entry.path, digest, &dir, &stop);
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(LayerError::Failed(PortError::System(format!("unpacking a layer panicked: {error}"))))
    })
}

/// Unpacks a private copy of a layer after its digest was verified, because a job can change the original.
fn unpack_verified(path: &Path, digest: Digest, dir: &Path, stop: &StopToken) -> Result<(), LayerError> {
    let io = |error: io::Error| LayerError::Failed(PortError::System(format!("failed to unpack a layer: {error}")));
    let mut layer = muster_files::open(path).map_err(|_| LayerError::Changed)?;
    let mut copy = tempfile::tempfile_in(dir).map_err(io)?;
    if copy_hashed(&mut layer, &mut copy).map_err(io)? != digest.to_string() {
        return Err(LayerError::Changed);
    }
    let mut head = [0; 4];
    copy.seek(SeekFrom::Start(0)).and_then(|_| copy.read(&mut head)).map_err(io)?;
    copy.rewind().map_err(io)?;
    let format = Format::from_magic(&head).filter(|format| *format != Format::Zip).unwrap_or(Format::Tar);
    let root = create_root(dir, &Root::Chosen).map_err(io)?;
    let unpacked = unpack(&copy, &root, &LIMITS, format, &|| stop.cause().is_some());
    unpacked.map(drop).map_err(|error| {
        LayerError::Failed(PortError::Failed(format!("a layer of the image is invalid: {}", error_chain(&error))))
    })
}

fn copy_hashed(from: &mut File, to: &mut File) -> io::Result<String> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 64 * 1024]);
    loop {
        let length = from.read(&mut buffer)?;
        let read = buffer.get(..length).unwrap_or_default();
        if read.is_empty() {
            return Ok(format!("sha256:{}", hex::encode(hash.finalize())));
        }
        hash.update(read);
        io::Write::write_all(to, read)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_document_replaces_the_notices_of_earlier_ones() {
        let document = |created: &str, artifact_type: &str| Descriptor {
            artifact_type: artifact_type.to_owned(),
            annotations: [(CREATED.to_owned(), created.to_owned())].into(),
            ..Descriptor::default()
        };
        let first = document("2026-01-31T10:00:00.5Z", NOTICE_TYPE);
        let withdrawn = document("2026-01-31T10:00:01Z", NOTICE_TYPE);
        let other = document("2027-01-01T00:00:00Z", "application/spdx+json");
        let undated = document("", NOTICE_TYPE);
        let newest =
            |referrers: &[Descriptor]| newest_notice(referrers).map(|entry| entry.annotations[CREATED].clone());
        let all = [first, withdrawn, other.clone(), undated.clone()];
        assert_eq!(newest(&all).as_deref(), Some("2026-01-31T10:00:01Z"));
        assert_eq!(newest(&[undated, other]).as_deref(), Some(""));
        assert_eq!(newest(&[]), None);
    }
}
