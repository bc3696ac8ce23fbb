//! `muster step search` and `info`: finds and shows published steps.

use std::path::{Path, PathBuf};

use muster_builtins::registry_notices;
use muster_oci::{Index, RegistryError, Repository, ResponseError, TagList};
use muster_steps::definition::{Outputs, Parameter, STEP_FILE_LIMIT, StepFile};
use muster_steps::expression::Dialect;
use muster_steps::remote::{FetchRequest, RemoteStep, Source, StepSource as _};
use muster_steps::stop::StopToken;

use super::error::StepCommandError;
use super::fetcher::{CommandFetcher, environment, registry};
use super::index;
use super::publish::DESCRIPTION;
use crate::ci::ui::{self, Table};

/// Arguments of `muster step search`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepSearchArgs {
    /// Text in the name or the description of a step. Case is ignored. An empty text finds all steps.
    #[arg(value_name = "TERM", default_value = "", hide_default_value = true)]
    term: String,
    #[command(flatten)]
    target: SearchTarget,
}

/// Registry or index to search.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct SearchTarget {
    /// Registry that lists its repositories: HOST or HOST/PATH. Most public registries do not list them.
    #[arg(long, value_name = "HOST[/PATH]")]
    registry: Option<String>,
    /// Directory of an index: one TOML file for each step.
    #[arg(long, value_name = "DIR")]
    index: Option<PathBuf>,
}

/// Arguments of `muster step info`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepInfoArgs {
    /// Reference of the step, as a `run:` list names it.
    #[arg(value_name = "REFERENCE")]
    reference: String,
}

struct FoundStep {
    step: String,
    description: String,
    /// The words `deprecated` and `defective`, each with the publisher's message. Empty if the step is neither.
    marks: String,
}

/// Returns whether a step was found.
pub(super) async fn search(args: &StepSearchArgs) -> Result<bool, StepCommandError> {
    let term = args.term.to_lowercase();
    let all = match (&args.target.registry, &args.target.index) {
        (Some(name), _) => in_registry(name, &term).await?,
        (None, Some(directory)) => in_index(directory)?,
        (None, None) => Vec::new(),
    };
    let matches = |found: &FoundStep| {
        found.step.to_lowercase().contains(&term) || found.description.to_lowercase().contains(&term)
    };
    let all: Vec<FoundStep> = all.into_iter().filter(matches).collect();
    if all.is_empty() {
        ui::note(&format!("no step matches {:?}", args.term));
        return Ok(false);
    }
    let mut table = Table::new(&["STEP", "DESCRIPTION", "MARK"]);
    let plain = anstyle::Style::new();
    for found in all {
        table.row([(found.step, plain), (found.description, plain), (found.marks, ui::WARN)]);
    }
    ui::out(&table.to_string());
    Ok(true)
}

fn in_index(directory: &Path) -> Result<Vec<FoundStep>, StepCommandError> {
    let found = |entry: index::IndexEntry| {
        let marks = [("deprecated", &entry.deprecated), ("defective", &entry.defective)];
        let marks = marks.iter().filter_map(|(kind, message)| Some(format!("{kind}: {}", message.as_ref()?)));
        FoundStep { marks: marks.collect::<Vec<_>>().join("; "), step: entry.step, description: entry.description }
    };
    Ok(index::read(directory)?.into_iter().map(found).collect())
}

/// Returns the newest version of each step at or below `name` (HOST/PATH) whose name or description contains `term`.
async fn in_registry(name: &str, term: &str) -> Result<Vec<FoundStep>, StepCommandError> {
    let (host, path) = name.split_once('/').unwrap_or((name, ""));
    let repository = |path: &str| Repository { registry: host.to_owned(), path: path.to_owned() };
    // The client lists all repositories of the registry, so the path `catalog` is only a placeholder.
    let repositories = registry(repository("catalog")).await?.repositories().await?;
    let mut found = Vec::new();
    for repository_path in repositories.iter().filter(|repository| is_within(repository, path)) {
        let client = registry(repository(repository_path)).await?;
        let tags = match client.tags().await {
            Ok(TagList::Tags(tags)) => tags,
            // Registries may still list repositories whose images were deleted.
            Ok(_) | Err(RegistryError::NotFound { .. }) => continue,
            Err(error) => {
                skipped(repository_path, &error);
                continue;
            }
        };
        let Some(tag) = newest(&tags) else { continue };
        let (digest, index) = match client.resolve(tag).await {
            Ok(resolved) => resolved,
            // Content that is not an index, such as the image of a container, is not a step.
            Err(
                RegistryError::InvalidResponse { source: ResponseError::NotAnIndex, .. }
                | RegistryError::NotFound { .. },
            ) => continue,
            Err(error) => {
                skipped(&format!("{repository_path}:{tag}"), &error);
                continue;
            }
        };
        let description = description(&index);
        let is_match = repository_path.to_lowercase().contains(term) || description.to_lowercase().contains(term);
        if !is_match {
            continue;
        }
        let notices = match registry_notices(&client, digest, &index).await {
            Ok(notices) => notices,
            Err(error) => {
                skipped(&format!("{repository_path}:{tag}"), &error);
                continue;
            }
        };
        let marks = notices.iter().map(|notice| format!("{}: {}", notice.kind.name(), notice.message));
        let marks = marks.collect::<Vec<_>>().join("; ");
        found.push(FoundStep { step: format!("{host}/{repository_path}:{tag}"), description, marks });
    }
    Ok(found)
}

fn skipped(step: &str, error: &RegistryError) {
    ui::warning(&format!("{} is skipped: {}", ui::plain(step), ui::plain(&muster_job::error_chain(error))));
}

/// Returns whether a repository is at or below `path`. An empty path contains all repositories.
fn is_within(repository: &str, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path.is_empty() || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the tag with the highest version, or else the last tag that is not a list of referrers (`sha256-...`).
fn newest(tags: &[String]) -> Option<&str> {
    let versions = tags.iter().filter_map(|tag| Some((tag.parse::<muster_oci::Version>().ok()?, tag)));
    let highest = versions.max().map(|(_, tag)| tag.as_str());
    highest.or_else(|| tags.iter().map(String::as_str).rfind(|tag| !tag.starts_with("sha256-")))
}

fn description(index: &Index) -> String {
    index.annotations.get(DESCRIPTION).cloned().unwrap_or_default()
}

pub(super) async fn info(args: &StepInfoArgs) -> Result<bool, StepCommandError> {
    let step = RemoteStep::parse(&args.reference, Dialect::Current)?;
    let fetcher = CommandFetcher::new()?;
    let request = FetchRequest { source: &step.source, pin: None, lookup: &environment };
    let fetched = fetcher.fetcher.fetch(request, &StopToken::new()).await?;
    ui::outln(&format!("step: {}", step.source));
    ui::outln(&format!("digest: {}", fetched.digest));
    if let Source::Oci { registry: host, repository, .. } = &step.source {
        let client = registry(Repository { registry: host.clone(), path: repository.clone() }).await?;
        let (_, index) = client.resolve(&fetched.digest).await?;
        let platforms = index.manifests.iter().filter_map(|entry| entry.platform.as_ref());
        let platforms: Vec<String> = platforms.map(ToString::to_string).collect();
        ui::outln(&format!("platforms: {}", platforms.join(", ")));
        let description = description(&index);
        if !description.is_empty() {
            ui::outln(&format!("description: {}", ui::plain(&description)));
        }
    }
    for notice in &fetched.notices {
        ui::warning(&format!("the step is {}: {}", notice.kind.name(), ui::plain(&notice.message)));
    }
    show_file(&fetched.dir.join(&step.dir), &step.names).await?;
    Ok(true)
}

async fn show_file(dir: &Path, names: &[String]) -> Result<(), StepCommandError> {
    let Some(file) = step_file(dir, names).await? else {
        ui::warning(&format!(
            "found no step file {}; add the directory of the step to the reference",
            names.join(" or ")
        ));
        return Ok(());
    };
    for (name, parameter) in &file.spec.inputs {
        ui::outln(&format!("input {}", parameter_text(name, parameter)));
    }
    if let Outputs::Declared(outputs) = &file.spec.outputs {
        for (name, parameter) in outputs {
            ui::outln(&format!("output {}", parameter_text(name, parameter)));
        }
    }
    Ok(())
}

fn parameter_text(name: &str, parameter: &Parameter) -> String {
    let default = match &parameter.default {
        Some(default) => format!(", default {default}"),
        None => String::new(),
    };
    ui::plain(&format!("{name}: {}{default}", parameter.kind.name()))
}

/// Reads the first file of `names` that exists. Accepts only regular files: the publisher may have put any type of file
/// there.
async fn step_file(dir: &Path, names: &[String]) -> Result<Option<StepFile>, StepCommandError> {
    for name in names {
        let path = dir.join(name);
        match muster_files::read(path.clone(), STEP_FILE_LIMIT).await {
            Ok(text) => {
                let file = StepFile::parse(&text);
                return file.map(Some).map_err(|source| StepCommandError::StepFile { path, source });
            }
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_regular_step_file_is_shown() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = ["func.yml", "step.yml"].map(str::to_owned);
        assert!(step_file(dir.path(), &names).await.unwrap().is_none());
        let text = "spec: {inputs: {secret: {type: string}}}\n---\nexec: {command: [ls]}\n";
        std::fs::write(outside.path().join("file"), text).unwrap();
        std::fs::write(dir.path().join("step.yml"), text).unwrap();
        assert!(step_file(dir.path(), &names).await.unwrap().is_some());
        std::os::unix::fs::symlink(outside.path().join("file"), dir.path().join("func.yml")).unwrap();
        let error = step_file(dir.path(), &names).await.unwrap_err().to_string();
        assert!(error.contains("func.yml") && error.contains("it is a symbolic link"), "{error}");
        std::fs::remove_file(dir.path().join("func.yml")).unwrap();
        std::fs::File::create(dir.path().join("func.yml")).unwrap().set_len(1 << 40).unwrap();
        let error = step_file(dir.path(), &names).await.unwrap_err().to_string();
        assert!(error.contains("it is larger than 1048576 bytes"), "{error}");
    }
}
