//! Reads the files of a pipeline from the snapshot, local directories of the user, pins, or the network, in this order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_pipeline::context::{Changes, ComponentFields, IncludeTarget, IncludedFile, Origin, SourceError, Sources};
use muster_source::{BlobReader, Git, Snapshot};
use parking_lot::Mutex;

use super::config::IncludeConfig;
use super::pins::{Pin, PinError, name_of, name_of_tree};
use super::remote::{RemoteError, Remotes};
use super::tree::{Tree, is_repository, read_failed, read_file, read_in, resolve, unreadable};
use super::vendor::{Vendor, VendorOptions};
use super::versions;

/// Maximum number of fetches of one URL. Another configuration that begins to load at the same time forgets a failure.
const MAX_FETCHES: u32 = 3;

/// The files of a pipeline on a snapshot.
pub struct SnapshotSources {
    snapshot: Arc<Snapshot>,
    config: IncludeConfig,
    /// Path of the pipeline's project, `group/app`.
    project_path: String,
    /// Value of `CI_SERVER_FQDN`.
    server: String,
    runtime: tokio::runtime::Handle,
    reader: Mutex<Option<BlobReader>>,
    remotes: Remotes,
    /// Fetches and pins files. `None` if existing pins are used.
    vendor: Option<Vendor>,
    /// Pins that were used, by their names.
    used: Mutex<BTreeMap<String, Pin>>,
}

impl SnapshotSources {
    /// Returns the files of `snapshot`. `project_path` and `server` identify the components of the project itself.
    ///
    /// The calls of [`Sources`] block, so they must come from a thread that is not a worker of `runtime`.
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
            remotes: Remotes::default(),
            vendor: None,
            used: Mutex::default(),
        }
    }

    /// Makes these sources fetch and pin each file that has no local directory, instead of using existing pins.
    #[must_use]
    pub fn vendoring(mut self, options: VendorOptions) -> Self {
        self.vendor = Some(Vendor::new(options, self.runtime.clone()));
        self
    }

    /// Returns the pins that were created so far.
    #[must_use]
    pub fn created_pins(&self) -> Vec<Pin> {
        self.vendor.as_ref().map(Vendor::pins).unwrap_or_default()
    }

    /// Returns the pins that were used so far.
    #[must_use]
    pub fn used_pins(&self) -> Vec<Pin> {
        self.used.lock().values().cloned().collect()
    }

    /// Returns a file of the snapshot, by its path from the root. `None` if it does not exist or is not a regular file.
    ///
    /// # Errors
    /// [`SourceError`] if git cannot read it.
    pub fn read_root(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let Some(entry) = self.snapshot.entry(path).filter(|entry| entry.mode.starts_with("100")) else {
            return Ok(None);
        };
        let mut reader = self.reader.lock();
        if reader.is_none() {
            *reader =
                Some(BlobReader::start(&Git::bare(&self.snapshot.repository)).map_err(|error| read_failed(&error))?);
        }
        let Some(open) = reader.as_mut() else { return Ok(None) };
        let bytes = open.read(&entry.object).map_err(|error| read_failed(&error));
        if bytes.is_err() {
            *reader = None; // The position in git's output is unknown now, so the next read starts a new process.
        }
        bytes
    }

    /// Returns the files of a project at a ref. `None` if the project is not on this machine.
    fn local_tree(&self, project: &str, git_ref: Option<&str>) -> Result<Option<Tree>, SourceError> {
        let git = if project == self.project_path {
            self.snapshot.git().clone()
        } else {
            match self.config.directory_of(project) {
                None => return Ok(None),
                Some(directory) if is_repository(directory) => Git::discover(directory),
                Some(directory) => return Ok(Some(Tree::Directory(directory.clone()))),
            }
        };
        let commit = resolve(&git, git_ref)?.ok_or_else(|| {
            let git_ref = git_ref.unwrap_or("HEAD");
            SourceError::NotFound(format!("project `{project}` has no branch, tag or commit `{git_ref}`"))
        })?;
        Ok(Some(Tree::Commit { git, commit }))
    }

    fn read_project(&self, project: &str, git_ref: &Option<String>, path: &str) -> Result<IncludedFile, SourceError> {
        let origin = Origin::Project { project: project.to_owned(), git_ref: git_ref.clone() };
        let name = format!("{project}:{path}");
        if let Some(tree) = self.local_tree(project, git_ref.as_deref())? {
            let missing = || SourceError::NotFound(format!("Project `{project}` file `{path}` does not exist!"));
            let bytes = tree.read(path)?.ok_or_else(missing)?;
            return Ok(IncludedFile { name, bytes, origin, component: None });
        }
        let (project, path) = (project.to_owned(), path.to_owned());
        let target = IncludeTarget::Project { project: project.clone(), git_ref: git_ref.clone(), path: path.clone() };
        if let Some((_, bytes)) = self.find_pin(name_of(&target))? {
            return Ok(IncludedFile { name, bytes, origin, component: None });
        }
        match &self.vendor {
            Some(vendor) => vendor.project(&project, git_ref, &path),
            None => Err(self.project_not_local(&project)),
        }
    }

    fn project_not_local(&self, project: &str) -> SourceError {
        SourceError::Unreachable(format!(
            "project `{project}` is not on this machine; run `muster ci vendor` to fetch and pin it, or name a directory with its \
             files in {}:\n[projects]\n\"{project}\" = \"/path/to/its/checkout\"",
            self.config.config_file.display()
        ))
    }

    /// Returns a pin and its content. `None` if there is no such pin, or if this run creates pins (`muster ci vendor`).
    fn find_pin(&self, name: Option<String>) -> Result<Option<(Pin, Vec<u8>)>, SourceError> {
        let pin = name.and_then(|name| self.config.pins.get(&name));
        let Some(pin) = pin.filter(|_| self.vendor.is_none()) else { return Ok(None) };
        let bytes = self.config.pins.content(pin).map_err(|error| match error {
            PinError::Missing(_) => SourceError::Unreachable(error.to_string()),
            PinError::Changed { .. } | PinError::Unreadable { .. } => SourceError::Unreadable(error.to_string()),
        })?;
        self.used.lock().insert(pin.include.clone(), pin.clone());
        Ok(Some((pin.clone(), bytes)))
    }

    /// Returns the files of a component's project at a version, and the tag of the version, if there is one.
    ///
    /// `None` if the project is not on this machine.
    fn local_component(&self, address: &str, version: &str) -> Result<Option<(Tree, Option<String>)>, SourceError> {
        let (base, _) = address.rsplit_once('/').unwrap_or((address, ""));
        let project = base.split_once('/').map_or(base, |(_, project)| project);
        let is_own_project = base == format!("{}/{}", self.server, self.project_path);
        let git = if is_own_project {
            self.snapshot.git().clone()
        } else {
            match self.config.components.get(base).or_else(|| self.config.projects.get(project)) {
                None => return Ok(None),
                Some(directory) if is_repository(directory) => Git::discover(directory),
                Some(directory) => {
                    let version = versions::parse(version).map(|_| version.to_owned());
                    return Ok(Some((Tree::Directory(directory.clone()), version)));
                }
            }
        };
        if is_own_project && (version == self.snapshot.head.sha || version == self.snapshot.sha) {
            return Ok(Some((Tree::Commit { git, commit: self.snapshot.sha.clone() }, None)));
        }
        if let Some(commit) = resolve(&git, Some(version))? {
            let version = versions::parse(version).map(|_| version.to_owned());
            return Ok(Some((Tree::Commit { git, commit }, version)));
        }
        let tags = git.run(&["tag", "--list"]).map_err(|error| super::tree::git_failed(&error))?;
        let tags = String::from_utf8_lossy(&tags).into_owned();
        let tag = versions::newest(tags.lines(), version).ok_or_else(|| {
            SourceError::NotFound(format!("component `{address}` has no version `{version}`: no tag or branch matches"))
        })?;
        let commit = resolve(&git, Some(tag))?;
        let commit =
            commit.ok_or_else(|| SourceError::NotFound(format!("tag `{tag}` of `{address}` has no commit")))?;
        Ok(Some((Tree::Commit { git, commit }, Some(tag.to_owned()))))
    }

    fn read_component(&self, address: &str, version: &str) -> Result<IncludedFile, SourceError> {
        let (base, name) = address.rsplit_once('/').unwrap_or(("", address));
        let project = base.split_once('/').map_or(base, |(_, project)| project).to_owned();
        let included = |bytes, sha: String, tag| IncludedFile {
            name: format!("{address}@{version}"),
            bytes,
            origin: Origin::Project { project, git_ref: (!sha.is_empty()).then(|| sha.clone()) },
            component: Some(ComponentFields {
                name: name.to_owned(),
                sha,
                version: tag,
                reference: version.to_owned(),
            }),
        };
        if let Some((tree, tag)) = self.local_component(address, version)? {
            let paths = [format!("templates/{name}.yml"), format!("templates/{name}/template.yml")];
            for path in &paths {
                if let Some(bytes) = tree.read(path)? {
                    let commit = match tree {
                        Tree::Commit { commit, .. } => commit,
                        Tree::Directory(_) => String::new(),
                    };
                    return Ok(included(bytes, commit, tag));
                }
            }
            return Err(SourceError::NotFound(format!(
                "component `{address}@{version}` has neither `{}` nor `{}`",
                paths[0], paths[1]
            )));
        }
        let target = IncludeTarget::Component { address: address.to_owned(), version: version.to_owned() };
        if let Some((pin, bytes)) = self.find_pin(name_of(&target))? {
            return Ok(included(bytes, pin.commit.unwrap_or_default(), pin.version));
        }
        match &self.vendor {
            Some(vendor) => vendor.component(address, version),
            None => Err(SourceError::Unreachable(format!(
                "the project of component `{address}` is not on this machine; run `muster ci vendor` to fetch and pin it, or name \
                 a directory with its files in {}:\n[components]\n\"{base}\" = \"/path/to/its/checkout\"",
                self.config.config_file.display()
            ))),
        }
    }

    fn read_template(&self, name: &str) -> Result<IncludedFile, SourceError> {
        let included = |bytes| IncludedFile { name: name.to_owned(), bytes, origin: Origin::Detached, component: None };
        if let Some(directory) = &self.config.templates {
            let missing =
                || SourceError::NotFound(format!("template `{}` does not exist", directory.join(name).display()));
            let bytes = read_in(directory, name)?.ok_or_else(missing)?;
            return Ok(included(bytes));
        }
        let target = IncludeTarget::Template { name: name.to_owned() };
        if let Some((_, bytes)) = self.find_pin(name_of(&target))? {
            return Ok(included(bytes));
        }
        let Some(vendor) = &self.vendor else {
            return Err(SourceError::Unreachable(format!(
                "template `{name}` comes with a GitLab server, not with Muster; run `muster ci vendor` to fetch and pin it, or get \
                 GitLab's directory of templates (lib/gitlab/ci/templates) and name it in {}:\n[templates]\ndirectory = \
                 \"/path/to/templates\"",
                self.config.config_file.display()
            )));
        };
        let url = vendor.template_url(name);
        let bytes = self.fetch_url(&url).map_err(|error| {
            SourceError::Unreachable(format!("failed to fetch template `{name}` from {url}: {error}"))
        })?;
        vendor.pin_remote(&target, &url, &bytes)?;
        Ok(included(bytes))
    }

    fn read_remote(&self, url: &str) -> Result<IncludedFile, SourceError> {
        let included = |bytes| IncludedFile { name: url.to_owned(), bytes, origin: Origin::Detached, component: None };
        if let Some(file) = self.config.local_replacement(url) {
            let missing = || format!("`{url}` is mapped to `{}`, which is not a file", file.display());
            let bytes = read_file(&file).map_err(|error| unreadable(&file, &error))?;
            let bytes = bytes.ok_or_else(|| SourceError::NotFound(missing()))?;
            return Ok(included(bytes));
        }
        let target = IncludeTarget::Remote { url: url.to_owned() };
        if let Some((_, bytes)) = self.find_pin(name_of(&target))? {
            return Ok(included(bytes));
        }
        let bytes = self
            .fetch_url(url)
            .map_err(|error| SourceError::Unreachable(format!("Remote file `{url}` could not be fetched: {error}")))?;
        if let Some(vendor) = &self.vendor {
            vendor.pin_remote(&target, url, &bytes)?;
        }
        Ok(included(bytes))
    }

    fn fetch_url(&self, url: &str) -> super::remote::Fetched {
        for _ in 0..MAX_FETCHES {
            self.runtime.block_on(self.remotes.fetch(vec![url.to_owned()], &self.config));
            if let Some(fetched) = self.remotes.get(url) {
                return fetched;
            }
        }
        Err(RemoteError::Http(
            "its result was lost while other configurations began to load; run the pipeline again".to_owned(),
        ))
    }

    /// Returns the URL that must be fetched for `include:remote`. `None` for other includes, or if the file is on this
    /// machine.
    fn url_of(&self, target: &IncludeTarget) -> Option<String> {
        let IncludeTarget::Remote { url } = target else { return None };
        let is_local = self.config.local_replacement(url).is_some()
            || self.vendor.is_none() && name_of(target).is_some_and(|name| self.config.pins.get(&name).is_some());
        (!is_local).then(|| url.clone())
    }
}

impl Sources for SnapshotSources {
    fn begin_load(&self) {
        self.remotes.begin_load();
    }

    fn prefetch(&self, targets: &[IncludeTarget]) {
        let urls: Vec<String> = targets.iter().filter_map(|target| self.url_of(target)).collect();
        if urls.len() > 1 {
            self.runtime.block_on(self.remotes.fetch(urls, &self.config));
        }
    }

    fn read(&self, target: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        match target {
            IncludeTarget::Local { origin: Origin::Root, path } => match self.read_root(path)? {
                Some(bytes) => Ok(IncludedFile { name: path.clone(), bytes, origin: Origin::Root, component: None }),
                None => Err(SourceError::NotFound(format!("Local file `{path}` does not exist!"))),
            },
            IncludeTarget::Local { origin: Origin::Project { project, git_ref }, path }
            | IncludeTarget::Project { project, git_ref, path } => self.read_project(project, git_ref, path),
            IncludeTarget::Local { origin: Origin::Detached, path } => Err(SourceError::NotFound(format!(
                "Local file `{path}` cannot be included from a remote file or a template, because neither has a repository"
            ))),
            IncludeTarget::Remote { url } => self.read_remote(url),
            IncludeTarget::Template { name } => self.read_template(name),
            IncludeTarget::Component { address, version } => self.read_component(address, version),
        }
    }

    fn paths(&self, origin: &Origin) -> Result<Arc<BTreeSet<String>>, SourceError> {
        let (project, git_ref) = match origin {
            Origin::Root => return Ok(Arc::clone(&self.snapshot.tracked_paths)),
            Origin::Detached => return Ok(Arc::default()),
            Origin::Project { project, git_ref } => (project, git_ref),
        };
        if let Some(tree) = self.local_tree(project, git_ref.as_deref())? {
            return Ok(Arc::new(tree.paths()?));
        }
        if let Some((_, bytes)) = self.find_pin(Some(name_of_tree(project, git_ref)))? {
            let text = String::from_utf8_lossy(&bytes);
            return Ok(Arc::new(text.lines().map(str::to_owned).collect()));
        }
        match &self.vendor {
            Some(vendor) => Ok(Arc::new(vendor.paths(project, git_ref)?.into_iter().collect())),
            None => Err(self.project_not_local(project)),
        }
    }

    fn changed_since(&self, compare_to: &str) -> Option<Changes> {
        let found = self.snapshot.changed_since(compare_to)?;
        Some(Changes { paths: found.paths, since: found.since })
    }

    fn object_ids(&self, paths: &[String], commits: bool) -> Vec<String> {
        let present = paths.iter().filter_map(|path| self.snapshot.entry(path).map(|entry| (path, entry)));
        if !commits {
            return present.map(|(_, entry)| entry.object.clone()).collect();
        }
        present.filter_map(|(path, _)| self.snapshot.last_commit_of(path)).collect()
    }
}

#[cfg(test)]
mod tests;
