//! The pipeline room's port to files, over a snapshot and the user's local checkouts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;

use muster_pipeline::context::{Changes, ComponentFields, IncludeTarget, IncludedFile, Origin, SourceError, Sources};
use parking_lot::Mutex;

use super::git::{Git, line, nul_separated};
use super::include::{IncludeConfig, remote};
use super::snapshot::Snapshot;

/// The largest file that is read: a little more than what GitLab takes, so that the loader sees that it is too large.
const FILE_LIMIT: u64 = 11 << 20;

/// The files of a pipeline that runs on a snapshot.
pub struct SnapshotSources {
    snapshot: Arc<Snapshot>,
    config: IncludeConfig,
    /// `group/app` of the pipeline's own project.
    project_path: String,
    /// `CI_SERVER_FQDN`
    server: String,
    runtime: tokio::runtime::Handle,
    reader: Mutex<Option<BlobReader>>,
}

impl SnapshotSources {
    /// The files of `snapshot`; `project_path` and `server` say which components are the project's own.
    ///
    /// The calls of [`Sources`] block, so they must come from a thread that is not one of `runtime`'s workers.
    #[must_use]
    pub fn new(
        snapshot: Arc<Snapshot>,
        config: IncludeConfig,
        project_path: impl Into<String>,
        server: impl Into<String>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            snapshot,
            config,
            project_path: project_path.into(),
            server: server.into(),
            runtime,
            reader: Mutex::new(None),
        }
    }

    /// A file of the snapshot by its path from the root; none if it is not there or is no plain file.
    ///
    /// # Errors
    /// [`SourceError`] if git cannot read it.
    pub fn read_root(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let Some(entry) = self.snapshot.entries.get(path).filter(|entry| entry.mode.starts_with("100")) else {
            return Ok(None);
        };
        let mut reader = self.reader.lock();
        if reader.is_none() {
            *reader = Some(BlobReader::start(&Git::bare(&self.snapshot.repository)).map_err(|error| said(&error))?);
        }
        let Some(open) = reader.as_mut() else { return Ok(None) };
        let bytes = open.read(&entry.object).map_err(|error| said(&error));
        if bytes.is_err() {
            *reader = None; // The conversation is out of step; the next read starts a new one.
        }
        bytes
    }

    /// The checkout of a project, and the commit of it that a ref names.
    fn checkout(&self, project: &str, git_ref: Option<&str>) -> Result<(Git, String), SourceError> {
        let git = if project == self.project_path {
            self.snapshot.git.clone()
        } else {
            let folder = self.config.projects.get(project).ok_or_else(|| {
                SourceError::Unreachable(format!(
                    "project `{project}` is not on this machine; clone it and name its folder in {}:\n\
                     [projects]\n\"{project}\" = \"/path/to/its/checkout\"",
                    self.config.config_file.display()
                ))
            })?;
            Git::discover(folder)
        };
        let commit = resolve(&git, git_ref)?.ok_or_else(|| {
            let git_ref = git_ref.unwrap_or("HEAD");
            SourceError::NotFound(format!("project `{project}` has no branch, tag or commit `{git_ref}`"))
        })?;
        Ok((git, commit))
    }

    /// The repository and version of a component, with the path of its project.
    fn component(&self, address: &str, version: &str) -> Result<(Git, String, Option<String>), SourceError> {
        let (base, _) = address.rsplit_once('/').unwrap_or((address, ""));
        let project = base.split_once('/').map_or(base, |(_, project)| project);
        let own = base == format!("{}/{}", self.server, self.project_path);
        let git = if own {
            self.snapshot.git.clone()
        } else if let Some(folder) = self.config.components.get(base).or_else(|| self.config.projects.get(project)) {
            Git::discover(folder)
        } else {
            return Err(SourceError::Unreachable(format!(
                "the project of component `{address}` is not on this machine; clone it and name its folder in {}:\n\
                 [components]\n\"{base}\" = \"/path/to/its/checkout\"",
                self.config.config_file.display()
            )));
        };
        if own && (version == self.snapshot.head.sha || version == self.snapshot.sha) {
            return Ok((git, self.snapshot.sha.clone(), None));
        }
        if let Some(commit) = resolve(&git, Some(version))? {
            return Ok((git, commit, parse_version(version).map(|_| version.to_owned())));
        }
        let tags = git.run(&["tag", "--list"]).map_err(|error| unreachable(&error))?;
        let tags = String::from_utf8_lossy(&tags).into_owned();
        let tag = newest(tags.lines(), version).ok_or_else(|| {
            SourceError::NotFound(format!("component `{address}` has no version `{version}`: no such tag or branch"))
        })?;
        let commit = resolve(&git, Some(tag))?;
        let commit =
            commit.ok_or_else(|| SourceError::NotFound(format!("tag `{tag}` of `{address}` has no commit")))?;
        Ok((git, commit, Some(tag.to_owned())))
    }

    fn read_component(&self, address: &str, version: &str) -> Result<IncludedFile, SourceError> {
        let (git, commit, tag) = self.component(address, version)?;
        let (base, name) = address.rsplit_once('/').unwrap_or(("", address));
        let paths = [format!("templates/{name}.yml"), format!("templates/{name}/template.yml")];
        for path in &paths {
            if let Some(bytes) = read_at(&git, &commit, path)? {
                let project = base.split_once('/').map_or(base, |(_, project)| project).to_owned();
                return Ok(IncludedFile {
                    name: format!("{address}@{version}"),
                    bytes,
                    origin: Origin::Project { project, git_ref: Some(commit.clone()) },
                    component: Some(ComponentFields {
                        name: name.to_owned(),
                        sha: commit,
                        version: tag,
                        reference: version.to_owned(),
                    }),
                });
            }
        }
        Err(SourceError::NotFound(format!(
            "component `{address}@{version}` has neither `{}` nor `{}`",
            paths[0], paths[1]
        )))
    }

    fn read_template(&self, name: &str) -> Result<IncludedFile, SourceError> {
        let Some(folder) = &self.config.templates else {
            return Err(SourceError::Unreachable(format!(
                "template `{name}` comes with a GitLab server, not with muster; get GitLab's folder of templates \
                 (lib/gitlab/ci/templates) and name it in {}:\n[templates]\nfolder = \"/path/to/templates\"",
                self.config.config_file.display()
            )));
        };
        let plain = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let file = folder.join(name);
        let missing = || SourceError::NotFound(format!("there is no template `{}`", file.display()));
        if !plain {
            return Err(missing());
        }
        // A named pipe would hold up whoever opens it, and a device has no end.
        if !file.is_file() {
            return Err(missing());
        }
        let mut bytes = Vec::new();
        let read = std::fs::File::open(&file).and_then(|file| file.take(FILE_LIMIT).read_to_end(&mut bytes));
        read.map_err(|_| missing())?;
        Ok(IncludedFile { name: name.to_owned(), bytes, origin: Origin::Detached, component: None })
    }
}

impl Sources for SnapshotSources {
    fn read(&self, target: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        let plain = |name: String, bytes, origin| IncludedFile { name, bytes, origin, component: None };
        match target {
            IncludeTarget::Local { origin: Origin::Root, path } => match self.read_root(path)? {
                Some(bytes) => Ok(plain(path.clone(), bytes, Origin::Root)),
                None => Err(SourceError::NotFound(format!("Local file `{path}` does not exist!"))),
            },
            IncludeTarget::Local { origin: Origin::Project { project, git_ref }, path }
            | IncludeTarget::Project { project, git_ref, path } => {
                let (git, commit) = self.checkout(project, git_ref.as_deref())?;
                let bytes = read_at(&git, &commit, path)?.ok_or_else(|| {
                    SourceError::NotFound(format!("Project `{project}` file `{path}` does not exist!"))
                })?;
                let origin = Origin::Project { project: project.clone(), git_ref: git_ref.clone() };
                Ok(plain(format!("{project}:{path}"), bytes, origin))
            }
            IncludeTarget::Local { origin: Origin::Detached, path } => Err(SourceError::NotFound(format!(
                "Local file `{path}` cannot be included from a remote file or a template: it has no repository"
            ))),
            IncludeTarget::Remote { url } => match self.runtime.block_on(remote(url, &self.config)) {
                Ok(bytes) => Ok(plain(url.clone(), bytes, Origin::Detached)),
                Err(error) => {
                    Err(SourceError::Unreachable(format!("Remote file `{url}` could not be fetched: {error}")))
                }
            },
            IncludeTarget::Template { name } => self.read_template(name),
            IncludeTarget::Component { address, version } => self.read_component(address, version),
        }
    }

    fn paths(&self, origin: &Origin) -> Result<Arc<BTreeSet<String>>, SourceError> {
        match origin {
            Origin::Root => Ok(Arc::clone(&self.snapshot.tracked_paths)),
            Origin::Project { project, git_ref } => {
                let (git, commit) = self.checkout(project, git_ref.as_deref())?;
                let output = git.run(&["ls-tree", "-r", "-z", "--name-only", "--full-tree", &commit]);
                let output = output.map_err(|error| unreachable(&error))?;
                Ok(Arc::new(nul_separated(&output).map(|path| String::from_utf8_lossy(path).into_owned()).collect()))
            }
            Origin::Detached => Ok(Arc::default()),
        }
    }

    fn changed_since(&self, compare_to: &str) -> Option<Changes> {
        self.snapshot.changed_since(compare_to)
    }

    fn object_ids(&self, paths: &[String], commits: bool) -> Vec<String> {
        let entries: &BTreeMap<_, _> = &self.snapshot.entries;
        let present = paths.iter().filter_map(|path| entries.get(path).map(|entry| (path, entry)));
        if !commits {
            return present.map(|(_, entry)| entry.object.clone()).collect();
        }
        present
            .filter_map(|(path, _)| {
                let git = &self.snapshot.git;
                let literal = format!(":(literal){path}");
                let output = git.run(&["log", "-1", "--format=%H", &self.snapshot.sha, "--", &literal]).ok()?;
                let commit = line(&output);
                (!commit.is_empty()).then_some(commit)
            })
            .collect()
    }
}

/// The commit of a ref in a checkout; `HEAD` without one.
fn resolve(git: &Git, git_ref: Option<&str>) -> Result<Option<String>, SourceError> {
    let name = git_ref.unwrap_or("HEAD");
    if name.starts_with('-') {
        return Ok(None);
    }
    for asked in [name.to_owned(), format!("refs/remotes/origin/{name}")] {
        let asked = format!("{asked}^{{commit}}");
        let output = git.output(&["rev-parse", "--verify", "--quiet", &asked]).map_err(|error| unreachable(&error))?;
        if output.status.success() {
            return Ok(Some(line(&output.stdout)));
        }
        // `--quiet` is silent for a missing ref, so words mean something worse.
        if !output.stderr.is_empty() {
            return Err(unreachable(&git.failure(&["rev-parse"], &output)));
        }
    }
    Ok(None)
}

/// A plain file of a commit; none if it is not there.
fn read_at(git: &Git, commit: &str, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
    let mut reader = BlobReader::start(git).map_err(|error| said(&error))?;
    // The protocol is one line per question, so a path with a line break cannot be asked for, and no file has one here.
    if path.contains('\n') {
        return Ok(None);
    }
    reader.read(&format!("{commit}:{path}")).map_err(|error| said(&error))
}

fn unreachable(error: &super::SnapshotError) -> SourceError {
    SourceError::Unreachable(error.to_string())
}

fn said(error: &std::io::Error) -> SourceError {
    SourceError::Unreachable(format!("cannot read files through `git cat-file`: {error}"))
}

/// A conversation with `git cat-file --batch`.
struct BlobReader {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl BlobReader {
    fn start(git: &Git) -> std::io::Result<Self> {
        let mut command = git.command(&["cat-file", "--batch"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(questions), Some(answers)) => Ok(Self { child, questions, answers: BufReader::new(answers) }),
            _ => Err(std::io::Error::other("the process has no pipes")),
        }
    }

    /// The bytes of a file by its name in git's terms; none if there is none, or it is no file.
    fn read(&mut self, name: &str) -> std::io::Result<Option<Vec<u8>>> {
        writeln!(self.questions, "{name}")?;
        let mut head = String::new();
        self.answers.read_line(&mut head)?;
        let mut words = head.trim_end().rsplit(' ');
        let (size, kind) = (words.next().and_then(|size| size.parse::<u64>().ok()), words.next());
        let Some(size) = size else {
            return if head.is_empty() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
        };
        let mut bytes = Vec::new();
        self.answers.by_ref().take(size.min(FILE_LIMIT)).read_to_end(&mut bytes)?;
        let rest = size.saturating_sub(FILE_LIMIT) + 1; // The line end after the content.
        std::io::copy(&mut self.answers.by_ref().take(rest), &mut std::io::sink())?;
        Ok((kind == Some("blob")).then_some(bytes))
    }
}

impl Drop for BlobReader {
    fn drop(&mut self) {
        // It ends by itself when its input closes; this makes sure, and leaves no zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `1.2.3` or `v1.2.3` as numbers; none for pre-releases and other tags.
fn parse_version(text: &str) -> Option<(u64, u64, u64)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let text = text.split_once('+').map_or(text, |(text, _)| text);
    let mut parts = text.split('.').map(|part| part.parse().ok());
    let version = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(version)
}

/// The newest of `tags` that `wanted` (`~latest`, `1`, `1.2`) admits.
fn newest<'a>(tags: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let parts: Option<Vec<u64>> = match wanted {
        "~latest" => Some(Vec::new()),
        _ => wanted.split('.').map(|part| part.parse().ok()).collect(),
    };
    let parts = parts.filter(|parts| parts.len() < 3)?;
    tags.filter_map(|tag| parse_version(tag).map(|version| (version, tag)))
        .filter(|((major, minor, patch), _)| [*major, *minor, *patch].starts_with(&parts))
        .max()
        .map(|(_, tag)| tag)
}

#[cfg(test)]
mod tests;
