//! Publishes an image under its version, and moves the tags of its series: `latest`, `N` and `N.N`.

use muster_files::Limit;
use muster_job::error_chain;
use muster_oci::{Registry, RegistryError, TagList, copy, read_layout};
use muster_steps::bundled::{BundledCall, BundledError};
use serde_json::Map;

use super::version::ImageVersion;
use super::{OciSteps, Output, registry_failed, repository, text};

/// Maximum size of an archive with an image.
const ARCHIVE_LIMIT: Limit = Limit { bytes: 1024 * 1024 * 1024, remedy: "make the function smaller" };

/// Runs `step/oci/promote`.
pub(super) async fn promote(steps: &OciSteps, call: &BundledCall<'_>) -> Output {
    let from = text(call, "from_image")?;
    let (name, reference) = match from.rsplit_once('@') {
        Some((name, digest)) => (name, digest),
        // A colon before a slash belongs to the port of the registry.
        None => from.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((&from, "latest")),
    };
    let to = repository(&format!("{}/{}", text(call, "to_registry")?, text(call, "to_repository")?))?;
    let version = version(&text(call, "to_version")?)?;
    let source = steps.registry(repository(name)?, call).await?;
    let target = steps.registry(to, call).await?;
    let tags = tags(&version, &target, call).await?;
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    copy(&source, reference, &target, &tags).await.map_err(|error| registry_failed(&error))?;
    report(&target, &tags, call);
    Ok(Map::new())
}

/// Runs `function/oci/publish`.
pub(super) async fn publish_archive(steps: &OciSteps, call: &BundledCall<'_>) -> Output {
    let path = call.work_dir.join(text(call, "archive")?);
    let to = repository(&text(call, "to_repository")?)?;
    let shown = path.display().to_string();
    let failed =
        move |error: String| BundledError::Failed(format!("{shown} is not a valid archive of a function: {error}"));
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
        read_layout(std::io::BufReader::new(file)).map_err(|error| error_chain(&error))
    });
    let (version_text, built) = read.await.unwrap_or_else(|error| Err(error.to_string())).map_err(failed)?;
    let version = version(&version_text)?;
    let target = steps.registry(to, call).await?;
    let tags = tags(&version, &target, call).await?;
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    built.push(&target, &tags).await.map_err(|error| registry_failed(&error))?;
    report(&target, &tags, call);
    Ok(Map::new())
}

fn version(text: &str) -> Result<ImageVersion, BundledError> {
    ImageVersion::parse(text).ok_or_else(|| {
        BundledError::Failed(format!("{text:?} is not a valid version; use N.N.N or N.N.N-SUFFIX, such as 1.4.0-rc1"))
    })
}

/// Returns the tags that a version gets in a repository.
async fn tags(version: &ImageVersion, target: &Registry, call: &BundledCall<'_>) -> Result<Vec<String>, BundledError> {
    match target.tags().await {
        Ok(TagList::Tags(existing)) => Ok(version.tags(&existing)),
        // A repository without content does not exist.
        Err(RegistryError::NotFound { .. }) => Ok(version.tags(&[])),
        Ok(TagList::Unlisted) => {
            (call.print)(&format!(
                "{} does not list its tags, so only the tag of the version is published",
                target.repository()
            ));
            Ok(version.tags(&[]).into_iter().take(1).collect())
        }
        Err(error) => Err(registry_failed(&error)),
    }
}

fn report(target: &Registry, tags: &[&str], call: &BundledCall<'_>) {
    for tag in tags {
        (call.print)(&format!("published image={}:{tag}", target.repository()));
    }
}
