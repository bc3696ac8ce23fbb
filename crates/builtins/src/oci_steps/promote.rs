//! Publishes an image under its version, and moves the tags of its series: `latest`, `N` and `N.N`.
//!
//! Two jobs can publish at the same time, and registries cannot change a tag conditionally. So each job publishes its
//! version, moves the tags, and then reads the versions again. If a higher version has appeared, the job moves the tags
//! to that version.

use std::collections::BTreeSet;

use muster_files::Limit;
use muster_job::error_chain;
use muster_oci::{Registry, RegistryError, TagList, copy, read_layout};
use muster_steps::bundled::BundledCall;
use muster_steps::failure::PortError;
use serde_json::Map;

use super::version::{ImageVersion, Series};
use super::{OciSteps, Output, repository, text};
use crate::step_source::oci;

/// Maximum number of attempts while other jobs move the same tags.
const MAX_ROUNDS: usize = 10;
const ARCHIVE_LIMIT: Limit = Limit { bytes: 1024 * 1024 * 1024, remedy: "make the function smaller" };

pub(super) async fn promote(steps: &OciSteps, call: &BundledCall<'_>) -> Output {
    let from = text(call, "from_image")?;
    let (name, reference) = match from.rsplit_once('@') {
        Some((name, digest)) => (name, digest),
        // A colon before a slash precedes a port.
        None => from.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((&from, "latest")),
    };
    let to = repository(&format!("{}/{}", text(call, "to_registry")?, text(call, "to_repository")?))?;
    let version = version(&text(call, "to_version")?)?;
    let source = steps.registry(repository(name)?, call).await?;
    let target = steps.registry(to, call).await?;
    let copied = copy(&source, reference, &target, &[&version.tag()]).await;
    copied.map_err(|error| oci::failed(&error))?;
    report(&target, &version.tag(), call);
    move_series(&version, &target, call).await
}

pub(super) async fn publish_archive(steps: &OciSteps, call: &BundledCall<'_>) -> Output {
    let path = call.work_dir.join(text(call, "archive")?);
    let to = repository(&text(call, "to_repository")?)?;
    let shown = path.display().to_string();
    let failed =
        move |error: String| PortError::Failed(format!("{shown} is not a valid archive of a function: {error}"));
    let read = tokio::task::spawn_blocking(move || {
        let file = muster_files::open(&path).map_err(|error| error.to_string())?;
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        if size > ARCHIVE_LIMIT.bytes {
            return Err(format!(
                "it is larger than {} MiB; {}",
                ARCHIVE_LIMIT.bytes / 1024 / 1024,
                ARCHIVE_LIMIT.remedy
            ));
        }
        read_layout(file).map_err(|error| error_chain(&error))
    });
    let (version_text, built) = read.await.unwrap_or_else(|error| Err(error.to_string())).map_err(failed)?;
    let version = version(&version_text)?;
    let target = steps.registry(to, call).await?;
    built.push(&target, &[&version.tag()]).await.map_err(|error| oci::failed(&error))?;
    report(&target, &version.tag(), call);
    move_series(&version, &target, call).await
}

fn version(text: &str) -> Result<ImageVersion, PortError> {
    ImageVersion::parse(text).ok_or_else(|| {
        PortError::Failed(format!("{text:?} is not a valid version; use N.N.N or N.N.N-SUFFIX, such as 1.4.0-rc1"))
    })
}

/// Moves the tags of the version's series. Repeats this until no tag had to be moved.
async fn move_series(version: &ImageVersion, target: &Registry, call: &BundledCall<'_>) -> Output {
    let mut moved = BTreeSet::new();
    for _ in 0..MAX_ROUNDS {
        let changed = move_once(version, target, &mut moved, call).await.map_err(|error| oci::failed(&error))?;
        if !changed {
            return Ok(Map::new());
        }
    }
    let repository = target.repository();
    Err(PortError::Failed(format!(
        "other jobs still change the tags of {repository} after {MAX_ROUNDS} attempts; run this step again when they have ended"
    )))
}

/// Moves tags to the highest releases of their series. Returns whether one has changed.
///
/// Moves a tag to another version than `version` only if this job has moved the tag before.
async fn move_once(
    version: &ImageVersion,
    target: &Registry,
    moved: &mut BTreeSet<String>,
    call: &BundledCall<'_>,
) -> Result<bool, RegistryError> {
    let repository = target.repository();
    if version.series(&[]).is_empty() {
        return Ok(false);
    }
    let existing = match target.tags().await {
        Ok(TagList::Tags(existing)) => existing,
        // Some registries list tags with a delay, and may not know a new repository yet.
        Err(RegistryError::NotFound { .. }) => Vec::new(),
        Ok(TagList::Unlisted) => {
            (call.print)(&format!("{repository} does not list its tags, so only the tag of the version is published"));
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    let mut has_changed = false;
    for Series { tag, highest } in version.series(&existing) {
        // Another job has published the higher release, and moves this tag.
        if highest != version.tag() && !moved.contains(&tag) {
            continue;
        }
        let wanted = target.digest_of(&highest).await?;
        if wanted.is_none() || wanted == target.digest_of(&tag).await? {
            continue;
        }
        copy(target, &highest, target, &[&tag]).await?;
        if highest == version.tag() {
            report(target, &tag, call);
        } else {
            (call.print)(&format!("moved image={repository}:{tag} to {highest}, which was published meanwhile"));
        }
        moved.insert(tag);
        has_changed = true;
    }
    Ok(has_changed)
}

fn report(target: &Registry, tag: &str, call: &BundledCall<'_>) {
    (call.print)(&format!("published image={}:{tag}", target.repository()));
}
