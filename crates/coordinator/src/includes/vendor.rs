//! Fetches included files for `muster ci vendor`: over git with the user's own credentials, and over HTTP.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use muster_job::Secret;
use muster_pipeline::context::{ComponentFields, IncludeTarget, IncludedFile, Origin, SourceError};
use muster_source::{Git, MAX_FILE_BYTES, line};
use parking_lot::Mutex;

use super::pins::{Pin, digest, name_of, name_of_tree, write_atomically};
use super::tree::{Tree, unreachable_source};
use super::versions;

const GIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Locations from which `muster ci vendor` fetches.
#[derive(Debug, Clone)]
pub struct VendorOptions {
    /// Prefix of the URL of each project's repository, before the path of the project: `git@host:` or `https://host/`.
    ///
    /// `None` means that the user's repository has no remote with a host.
    pub projects: Option<String>,
    /// User and password, if the URL of the remote is an HTTP URL that contains them.
    pub login: Option<Secret>,
    /// Value of `CI_SERVER_FQDN`. Components of this host are fetched like projects.
    pub server: String,
    /// Prefix of the URL of each template, ending with `/`.
    pub templates: String,
    /// Directory for the contents of pins.
    pub directory: PathBuf,
    /// Directory for fetched repositories.
    pub repositories: PathBuf,
}

pub(super) struct Vendor {
    options: VendorOptions,
    runtime: tokio::runtime::Handle,
    pins: Mutex<BTreeMap<String, Pin>>,
    /// Fetched commits, by project path and ref, so that a run uses the same commit for all files.
    trees: Mutex<HashMap<(String, Option<String>), Source>>,
}

#[derive(Debug, Clone)]
struct Source {
    url: String,
    git: Git,
    commit: String,
    version: Option<String>,
}

impl Source {
    fn tree(&self) -> Tree {
        Tree::Commit { git: self.git.clone(), commit: self.commit.clone() }
    }
}

impl Vendor {
    pub(super) fn new(options: VendorOptions, runtime: tokio::runtime::Handle) -> Self {
        Self { options, runtime, pins: Mutex::default(), trees: Mutex::default() }
    }

    pub(super) fn pins(&self) -> Vec<Pin> {
        self.pins.lock().values().cloned().collect()
    }

    pub(super) fn project(
        &self,
        project: &str,
        git_ref: &Option<String>,
        path: &str,
    ) -> Result<IncludedFile, SourceError> {
        let source = self.source(project, git_ref)?;
        let bytes = source
            .tree()
            .read(path)?
            .ok_or_else(|| SourceError::NotFound(format!("Project `{project}` file `{path}` does not exist!")))?;
        let origin = Origin::Project { project: project.to_owned(), git_ref: git_ref.clone() };
        let target =
            IncludeTarget::Project { project: project.to_owned(), git_ref: git_ref.clone(), path: path.to_owned() };
        self.pin(name_of(&target).unwrap_or_default(), &source, &bytes)?;
        Ok(IncludedFile { name: format!("{project}:{path}"), bytes, origin, component: None })
    }

    pub(super) fn paths(&self, project: &str, git_ref: &Option<String>) -> Result<Vec<String>, SourceError> {
        let source = self.source(project, git_ref)?;
        let paths: Vec<String> = source.tree().paths()?.into_iter().collect();
        self.pin(name_of_tree(project, git_ref), &source, paths.join("\n").as_bytes())?;
        Ok(paths)
    }

    pub(super) fn component(&self, address: &str, version: &str) -> Result<IncludedFile, SourceError> {
        let (base, name) = address.rsplit_once('/').unwrap_or(("", address));
        let (host, project) = base.split_once('/').unwrap_or(("", base));
        let url = match &self.options.projects {
            Some(prefix) if host == self.options.server => repository_url(prefix, project),
            _ => format!("https://{host}/{project}.git"),
        };
        let source = self.versioned(&url, address, version)?;
        let git_ref = Some(source.commit.clone());
        self.trees.lock().insert((project.to_owned(), git_ref.clone()), source.clone());
        let tree = source.tree();
        for path in [format!("templates/{name}.yml"), format!("templates/{name}/template.yml")] {
            let Some(bytes) = tree.read(&path)? else { continue };
            let target = IncludeTarget::Component { address: address.to_owned(), version: version.to_owned() };
            self.pin(name_of(&target).unwrap_or_default(), &source, &bytes)?;
            let origin = Origin::Project { project: project.to_owned(), git_ref };
            let (sha, resolved) = (source.commit.clone(), source.version.clone());
            let (name, reference) = (name.to_owned(), version.to_owned());
            let component = Some(ComponentFields { name, sha, version: resolved, reference });
            return Ok(IncludedFile { name: format!("{address}@{version}"), bytes, origin, component });
        }
        Err(SourceError::NotFound(format!(
            "component `{address}@{version}` has neither `templates/{name}.yml` nor `templates/{name}/template.yml`"
        )))
    }

    pub(super) fn template_url(&self, name: &str) -> String {
        format!("{}{name}", self.options.templates)
    }

    pub(super) fn pin_remote(&self, target: &IncludeTarget, url: &str, bytes: &[u8]) -> Result<(), SourceError> {
        let include = name_of(target).unwrap_or_default();
        self.store_pin(Pin { include, from: url.to_owned(), commit: None, version: None, sha256: digest(bytes) }, bytes)
    }

    fn pin(&self, include: String, source: &Source, bytes: &[u8]) -> Result<(), SourceError> {
        let (from, commit, version) = (source.url.clone(), Some(source.commit.clone()), source.version.clone());
        self.store_pin(Pin { include, from, commit, version, sha256: digest(bytes) }, bytes)
    }

    fn store_pin(&self, pin: Pin, bytes: &[u8]) -> Result<(), SourceError> {
        // A longer content would be truncated when it is read.
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(SourceError::Unreadable(format!(
                "`{}` has {} bytes, but pins have at most {MAX_FILE_BYTES}; name a local directory with its files in ci.toml instead",
                pin.include,
                bytes.len()
            )));
        }
        let file = self.options.directory.join(&pin.sha256);
        write_atomically(&file, bytes).map_err(|error| {
            SourceError::Unreachable(format!("failed to store `{}` at `{}`: {error}", pin.include, file.display()))
        })?;
        self.pins.lock().insert(pin.include.clone(), pin);
        Ok(())
    }

    fn source(&self, project: &str, git_ref: &Option<String>) -> Result<Source, SourceError> {
        let key = (project.to_owned(), git_ref.clone());
        if let Some(source) = self.trees.lock().get(&key) {
            return Ok(source.clone());
        }
        let prefix = self.options.projects.as_ref().ok_or_else(|| {
            SourceError::Unreachable(format!(
                "failed to fetch project `{project}`: this repository has no remote with a host to fetch from; add one with `git remote add`"
            ))
        })?;
        let source = self.fetch(&repository_url(prefix, project), git_ref.as_deref().unwrap_or("HEAD"))?;
        self.trees.lock().insert(key, source.clone());
        Ok(source)
    }

    /// Fetches the commit of a component's version: a branch, tag or commit, or otherwise the newest matching tag.
    fn versioned(&self, url: &str, address: &str, version: &str) -> Result<Source, SourceError> {
        let git = self.repository(url)?;
        let output = self.git(&git, &["ls-remote", "--", url])?;
        let refs: Vec<String> = String::from_utf8_lossy(&output)
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(_, name)| name.to_owned())
            .collect();
        let is_ref = ["refs/heads/", "refs/tags/"]
            .iter()
            .any(|kind| refs.iter().any(|name| *name == format!("{kind}{version}")));
        if is_ref || is_commit(version) {
            let source = self.fetch(url, version)?;
            return Ok(Source { version: versions::parse(version).map(|_| version.to_owned()), ..source });
        }
        let tags = refs.iter().filter_map(|name| name.strip_prefix("refs/tags/"));
        let tag = versions::newest(tags, version).ok_or_else(|| {
            SourceError::NotFound(format!(
                "component `{address}` has no version `{version}`: no tag or branch at {url} matches"
            ))
        })?;
        Ok(Source { version: Some(tag.to_owned()), ..self.fetch(url, tag)? })
    }

    fn fetch(&self, url: &str, git_ref: &str) -> Result<Source, SourceError> {
        let git = self.repository(url)?;
        if git_ref.starts_with('-') || git_ref.contains([':', '*', '^', '~', ' ', '\n']) {
            return Err(SourceError::NotFound(format!("`{git_ref}` is not a valid name of a branch, tag or commit")));
        }
        let stored_ref = format!("refs/muster/{}", digest(git_ref.as_bytes()));
        let refspec = format!("+{git_ref}:{stored_ref}");
        let fetched = self.git(&git, &["fetch", "--quiet", "--no-tags", "--depth=1", "--", url, &refspec]);
        let name = match fetched {
            Ok(_) => stored_ref,
            // Some servers do not send a commit by its full ID, and no server sends a commit by an abbreviated ID.
            Err(_) if is_commit(git_ref) => {
                let all = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
                let mut arguments = vec!["fetch", "--quiet"];
                if self.git(&git, &["rev-parse", "--is-shallow-repository"]).is_ok_and(|output| line(&output) == "true")
                {
                    arguments.push("--unshallow");
                }
                arguments.extend(["--", url]);
                arguments.extend(all);
                self.git(&git, &arguments)?;
                git_ref.to_owned()
            }
            Err(error) => return Err(error),
        };
        let output = git.run(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]);
        let commit = output.map(|output| line(&output));
        let commit =
            commit.map_err(|_| SourceError::NotFound(format!("`{url}` has no branch, tag or commit `{git_ref}`")))?;
        Ok(Source { url: url.to_owned(), git, commit, version: None })
    }

    fn repository(&self, url: &str) -> Result<Git, SourceError> {
        let directory = self.options.repositories.join(digest(url.as_bytes()));
        if !directory.join("HEAD").is_file() {
            let created = std::fs::create_dir_all(&directory);
            created.map_err(|error| {
                SourceError::Unreachable(format!("failed to create `{}`: {error}", directory.display()))
            })?;
            let git = Git::discover(&directory);
            git.run(&["init", "--quiet", "--bare", "."]).map_err(|error| unreachable_source(&error))?;
        }
        Ok(Git::bare(&directory))
    }

    fn git(&self, git: &Git, arguments: &[&str]) -> Result<Vec<u8>, SourceError> {
        let login = self.options.projects.as_deref().zip(self.options.login.as_ref().map(Secret::expose));
        let mut command = tokio::process::Command::from(git.network_command(arguments, login));
        command.kill_on_drop(true);
        let output = self.runtime.block_on(async { tokio::time::timeout(GIT_TIMEOUT, command.output()).await });
        match output {
            Ok(Ok(output)) if output.status.success() => Ok(output.stdout),
            Ok(Ok(output)) => Err(unreachable_source(&git.failure(arguments, &output))),
            Ok(Err(error)) => Err(SourceError::Unreachable(format!("failed to start git: {error}"))),
            Err(_) => Err(SourceError::Unreachable(format!(
                "`git {}` did not finish within {} minutes",
                arguments.join(" "),
                GIT_TIMEOUT.as_secs() / 60
            ))),
        }
    }
}

fn repository_url(prefix: &str, project: &str) -> String {
    format!("{prefix}{project}.git")
}

fn is_commit(name: &str) -> bool {
    name.len() >= 7 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn content_that_cannot_be_read_again_is_not_pinned() {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let options = VendorOptions {
            projects: None,
            login: None,
            server: String::new(),
            templates: String::new(),
            directory: dir.path().join("contents"),
            repositories: dir.path().join("repositories"),
        };
        let vendor = Vendor::new(options, tokio::runtime::Handle::current());
        let pin = |bytes: &[u8]| {
            vendor.pin_remote(&IncludeTarget::Remote { url: "https://x/a.yml".to_owned() }, "https://x/a.yml", bytes)
        };
        let longest = vec![b'a'; usize::try_from(MAX_FILE_BYTES).expect("too large")];
        let error = pin(&[longest.as_slice(), b"a"].concat()).expect_err("was pinned").to_string();
        assert!(error.contains("`remote https://x/a.yml` has 11534337 bytes"), "{error}");
        assert!(vendor.pins().is_empty());
        pin(&longest).expect("was not pinned");
        let pins = super::super::pins::Pins::new(dir.path().join("contents"), []);
        assert_eq!(pins.content(&vendor.pins()[0]).expect("failed to read").len(), longest.len());
    }
}
