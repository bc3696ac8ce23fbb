//! `muster step publish` and `mark`: publishes steps in a registry, and marks published steps as deprecated or defective.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use muster_builtins::{CREATED, LAYER_TYPE, NOTICE_TYPE, notice_annotation};
use muster_oci::{Image, PackOptions, Platform, Registry, RegistryError, Repository, pack};
use muster_steps::definition::StepFile;
use muster_steps::expression::Dialect;
use muster_steps::remote::{NoticeKind, RemoteStep, Source};

use super::error::StepCommandError;
use super::fetcher::registry;
use super::index::{self, IndexEntry};
use crate::ci::ui;

pub(super) const DESCRIPTION: &str = "org.opencontainers.image.description";
const MAX_LAYER_BYTES: u64 = 1024 * 1024 * 1024;
/// Operating system and architecture of an image that runs on every platform, in the OCI index of its tag.
const GENERIC: &str = "generic";

/// Arguments of `muster step publish`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepPublishArgs {
    /// Directory with `func.yml` or `step.yml`, and the files of the step. Directories in it can contain more steps.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Image to publish. The tag must not exist yet.
    #[arg(value_name = "REGISTRY/NAME:TAG")]
    reference: String,
    /// Directory with files for one platform only. They are added to the files of DIR. Can be repeated.
    #[arg(long, value_name = "OS/ARCHITECTURE=DIR", value_parser = parse_platform)]
    platform: Vec<(Platform, PathBuf)>,
    /// Description of the step, which `search` and `info` print.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Directory of an index, in which an entry for the step is written.
    #[arg(long, value_name = "DIR")]
    index: Option<PathBuf>,
}

/// Arguments of `muster step mark`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepMarkArgs {
    /// Image to mark.
    #[arg(value_name = "REGISTRY/NAME:TAG")]
    reference: String,
    #[command(flatten)]
    marks: Marks,
    /// Directory of an index. Its entry for the step is also changed, unless it is for another version.
    #[arg(long, value_name = "DIR")]
    index: Option<PathBuf>,
}

/// Marks of a step. They replace its earlier marks.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Marks {
    /// Mark the step as deprecated, with a message to its users.
    #[arg(long, value_name = "MESSAGE")]
    deprecated: Option<String>,
    /// Mark the step as defective, with a message to its users.
    #[arg(long, value_name = "MESSAGE")]
    defective: Option<String>,
    /// Remove the marks.
    #[arg(long, conflicts_with_all = ["deprecated", "defective"])]
    clear: bool,
}

fn parse_platform(text: &str) -> Result<(Platform, PathBuf), String> {
    let parts = text.split_once('=').and_then(|(platform, dir)| Some((platform.split_once('/')?, dir)));
    let Some(((os, architecture), dir)) =
        parts.filter(|((os, arch), dir)| !os.is_empty() && !arch.is_empty() && !dir.is_empty())
    else {
        return Err("write OS/ARCHITECTURE=DIR, such as linux/amd64=build/amd64".to_owned());
    };
    let (architecture, variant) = architecture.split_once('/').unwrap_or((architecture, ""));
    let platform = Platform {
        os: os.to_owned(),
        architecture: architecture.to_owned(),
        variant: variant.to_owned(),
        ..Platform::default()
    };
    Ok((platform, PathBuf::from(dir)))
}

pub(super) async fn publish(args: &StepPublishArgs) -> Result<bool, StepCommandError> {
    let (source, repository, tag) = parse_image(&args.reference)?;
    check_step_file(&args.directory)?;
    let client = registry(repository).await?;
    match client.resolve(&tag).await {
        Ok((digest, _)) => {
            let problem = format!("{source} is already published ({digest}); publish it with another tag");
            return Err(StepCommandError::Usage(problem));
        }
        Err(RegistryError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let temp_dir = std::env::temp_dir();
    let packed = |directory: &Path| {
        let options = PackOptions { temp_dir: &temp_dir, limit: MAX_LAYER_BYTES, is_stopped: &|| false };
        pack(&[(PathBuf::from("."), directory.to_owned())], options)
    };
    let common = packed(&args.directory)?;
    let generic = Platform { os: GENERIC.to_owned(), architecture: GENERIC.to_owned(), ..Platform::default() };
    let mut images = Vec::new();
    for (platform, directory) in &args.platform {
        let own = packed(directory)?;
        images.push(Image { platform: platform.clone(), layers: vec![common.clone(), own] });
    }
    if images.is_empty() {
        images.push(Image { platform: generic, layers: vec![common] });
    }
    let mut annotations = BTreeMap::from([(CREATED.to_owned(), now())]);
    annotations.extend(args.description.clone().map(|text| (DESCRIPTION.to_owned(), text)));
    let digest = muster_oci::publish(&client, &tag, LAYER_TYPE, images, &annotations).await?;
    if let Some(directory) = &args.index {
        let description = args.description.clone().unwrap_or_default();
        index::write(directory, &IndexEntry { step: source.to_string(), description, ..IndexEntry::default() })?;
    }
    ui::outln(&format!("published {source}: {digest}"));
    Ok(true)
}

pub(super) async fn mark(args: &StepMarkArgs) -> Result<bool, StepCommandError> {
    let (source, repository, tag) = parse_image(&args.reference)?;
    let client = registry(repository).await?;
    let marks = [(NoticeKind::Deprecated, &args.marks.deprecated), (NoticeKind::Defective, &args.marks.defective)];
    let marks: Vec<(NoticeKind, String)> =
        marks.into_iter().filter_map(|(kind, message)| Some((kind, message.clone()?))).collect();
    if marks.iter().any(|(_, message)| message.trim().is_empty()) {
        return Err(StepCommandError::Usage("the message is empty; write what users of the step should do".to_owned()));
    }
    let digest = write_marks(&client, &tag, &marks).await?;
    if let Some(directory) = &args.index {
        let message = |kind| marks.iter().find(|(found, _)| *found == kind).map(|(_, text)| text.clone());
        let other = index::change(directory, &source.to_string(), |entry| {
            entry.deprecated = message(NoticeKind::Deprecated);
            entry.defective = message(NoticeKind::Defective);
        })?;
        if let Some(other) = other {
            ui::note(&format!("the index has {}; its entry is unchanged", ui::plain(&other)));
        }
    }
    let action = if marks.is_empty() { "removed the marks of" } else { "marked" };
    ui::outln(&format!("{action} {source} ({digest})"));
    Ok(true)
}

async fn write_marks(
    client: &Registry,
    tag: &str,
    marks: &[(NoticeKind, String)],
) -> Result<muster_oci::Digest, StepCommandError> {
    let (digest, index) = client.resolve(tag).await?;
    let created = (CREATED.to_owned(), now());
    let marks = marks.iter().map(|(kind, message)| (notice_annotation(*kind), message.clone()));
    let annotations = marks.chain([created]).collect();
    client.publish_referrer(digest, index.bytes, NOTICE_TYPE, &annotations).await?;
    Ok(digest)
}

fn parse_image(text: &str) -> Result<(Source, Repository, String), StepCommandError> {
    let source = RemoteStep::parse(text, Dialect::Current)?.source;
    let Source::Oci { registry, repository, tag } = &source else {
        let problem =
            format!("{source} is a Git repository; name an image, such as registry.example.com/group/step:1.0.0");
        return Err(StepCommandError::Usage(problem));
    };
    let repository = Repository { registry: registry.clone(), path: repository.clone() };
    Ok((source.clone(), repository, tag.clone()))
}

/// Checks the step file at the top of a directory.
fn check_step_file(directory: &Path) -> Result<(), StepCommandError> {
    for name in ["func.yml", "step.yml"] {
        let path = directory.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                return StepFile::parse(&text).map(drop).map_err(|source| StepCommandError::StepFile { path, source });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(StepCommandError::File { path, source }),
        }
    }
    let directory = directory.display();
    Err(StepCommandError::Usage(format!("{directory} has neither func.yml nor step.yml; name the directory of a step")))
}

fn now() -> String {
    let now = time::OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or_else(|_| time::OffsetDateTime::now_utc());
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}
