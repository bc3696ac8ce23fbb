//! Checks out a commit with libgit2, over HTTP. Used if the job's `PATH` has no `git` command.
//!
//! LFS files remain pointers, and hooks of the repository are not executed.

mod clean;
mod credentials;
mod submodules;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use git2::build::CheckoutBuilder;
use git2::{
    AutotagOption, CheckoutNotificationType, Config, ErrorCode, FetchOptions, FetchPrune, ObjectType, Oid,
    RemoteCallbacks, Repository, RepositoryInitOptions, TreeWalkMode, TreeWalkResult,
};
use muster_agent_api::builtin::{Checkout, Cleanup};
use muster_runner_api::client::{TlsFiles, http_client, http_client_without_verification};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;
use tokio::runtime::Handle;

use super::{config, mirror, remote, short_sha};
use crate::blocking::blocking;
use crate::context::Context;
use crate::git_http::{self, Clients, Session, without_credentials};
use credentials::credentials;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time without a byte from the server, which may prepare a large repository for minutes.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of files that libgit2 writes without a check for a stop.
const PART_FILES: usize = 1000;
const ACCESS_HINT: &str = "the job's token has no access to this repository";
/// Flags of `git fetch` that exclude tags.
const NO_TAGS: [&str; 2] = ["--no-tags", "-n"];
/// Depth with which libgit2 fetches the missing commits of a shallow repository.
const UNSHALLOW: i32 = i32::MAX;

pub(super) async fn check_out(context: &Arc<Context>, checkout: &Checkout, stop: &StopToken) -> Result<(), Failure> {
    if !matches!(checkout.object_format.as_str(), "" | "sha1") {
        return Err(Failure::Step(format!(
            "failed to get the sources: a repository with object format {} requires the `git` command, but `git` is not in PATH; use an \
             image that has git",
            checkout.object_format
        )));
    }
    context.create_project_dir(stop).await?;
    let template = config::write_template(context, checkout, stop).await?;
    let tls = context.tls_files(&checkout.tls);
    let variable = |name: &str| context.environment_value(name).unwrap_or_default().to_string_lossy().into_owned();
    let accepts_any_certificate = !matches!(variable("GIT_SSL_NO_VERIFY").as_str(), "" | "0" | "false");
    let credentials = credentials(checkout, &variable("CI_JOB_TOKEN"));
    let skips_lfs = checkout.skip_lfs || !checkout.checkout;
    let (shared, checkout, stop_work) = (Arc::clone(context), checkout.clone(), stop.clone());
    let runtime = Handle::current();
    blocking(&**context, "getting the sources", stop, move || {
        let failed = |error: &dyn std::error::Error| Failure::Step(format!("failed to get the sources: {error}"));
        let clients = clients(&checkout.repo_url, &tls, accepts_any_certificate).map_err(|error| failed(&*error))?;
        let session =
            Arc::new(Session { clients, credentials, runtime, stop: stop_work.clone(), access_hint: ACCESS_HINT });
        git_http::register().map_err(|error| failed(&error))?;
        let run = CheckoutRun { context: &shared, checkout: &checkout, session: &session, template };
        session.enter(|| run.run()).map_err(|error| match stop_work.cause() {
            Some(cause) => Failure::Stopped(cause),
            None => Failure::Step(format!("failed to get the sources: {}", error.message())),
        })
    })
    .await?;
    if !skips_lfs && remote::uses_lfs(&context.project_dir).await {
        context.print(&style::warning(remote::NO_LFS));
    }
    Ok(())
}

/// Returns the clients for a job with these certificates.
fn clients(
    coordinator: &str,
    tls: &TlsFiles,
    accepts_any_certificate: bool,
) -> Result<Clients, Box<dyn std::error::Error>> {
    let client = |tls: &TlsFiles| -> Result<_, Box<dyn std::error::Error>> {
        let client = if accepts_any_certificate { http_client_without_verification(tls) } else { http_client(tls) }?;
        let client =
            client.user_agent(config::user_agent()).connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT);
        // A redirect must not lead the job's certificate to another server.
        let client = if tls.is_empty() { client } else { client.redirect(git_http::same_server()) };
        Ok(client.build()?)
    };
    Ok(Clients::new(coordinator, client(tls)?, client(&TlsFiles::default())?))
}

/// Reverts the changes of a job, as `git clean` and `git reset --hard` do.
pub(super) async fn clean_up(
    context: &Arc<Context>,
    cleanup: &Cleanup,
    flags: &[String],
    stop: &StopToken,
) -> Result<(), Failure> {
    let (project, shared, flags) = (context.project_dir.clone(), Arc::clone(context), flags.to_owned());
    let (submodules, stop_work) = (cleanup.submodules.clone(), stop.clone());
    blocking(&**context, "cleaning the checkout", stop, move || {
        let clean = || -> Result<(), git2::Error> {
            git_http::register()?;
            let repository = Repository::open(&project)?;
            check_work_tree(&repository, &project)?;
            clean::clean(&repository, &flags, &stop_work, &|line| shared.print(line))?;
            check_out_head(&repository, &stop_work)?;
            match submodules.as_str() {
                mode @ ("normal" | "recursive") => {
                    let print = |line: &str| shared.print(line);
                    submodules::clean(&repository, mode == "recursive", &flags, &stop_work, &print)
                }
                _ => Ok(()),
            }
        };
        clean().map_err(|error| match stop_work.cause() {
            Some(cause) => Failure::Stopped(cause),
            None => Failure::Step(format!("failed to clean the checkout: {}", error.message())),
        })
    })
    .await
}

struct CheckoutRun<'a> {
    context: &'a Context,
    checkout: &'a Checkout,
    session: &'a Arc<Session>,
    /// Directory with the configuration for a new repository.
    template: PathBuf,
}

impl CheckoutRun<'_> {
    fn run(&self) -> Result<(), git2::Error> {
        let (checkout, project) = (self.checkout, &self.context.project_dir);
        self.print(&match checkout.depth {
            depth @ 1.. => format!("Fetching changes with git depth set to {depth}..."),
            _ => "Fetching changes...".to_owned(),
        });
        let sha = Oid::from_str(&checkout.sha)?;
        let mut repository = match self.open_from_mirror(project, sha) {
            Some(repository) => repository,
            None => self.open_from_server(project, sha)?,
        };
        fail_if(&|| self.is_stopped())?;
        if checkout.checkout {
            let (short, name) = (short_sha(&checkout.sha), &checkout.ref_name);
            self.print(&format!("Checking out {short} as detached HEAD (ref is {name})..."));
            match check_out_commit(&repository, sha, &|| self.is_stopped()) {
                // An object of the mirror is missing or damaged.
                Err(error) if mirror::is_borrowing(project) && !self.is_stopped() => {
                    mirror::report_broken(self.context, error.message());
                    drop(repository);
                    mirror::remove_borrowing_repository(project);
                    repository = self.open_from_server(project, sha)?;
                    check_out_commit(&repository, sha, &|| self.is_stopped())?;
                }
                checked_out => checked_out?,
            }
            if let Some(flags) = &checkout.clean_flags {
                clean::clean(&repository, flags, &self.session.stop, &|line| self.context.print(line))?;
            }
        } else {
            self.print("Skipping Git checkout");
        }
        match checkout.submodules.as_str() {
            "" | "none" => self.print("Skipping Git submodules setup"),
            mode => submodules::update(self, &repository, mode == "recursive")?,
        }
        Ok(())
    }

    /// Returns a new repository with the objects and refs of the machine's mirror, if the job has a usable view of it.
    fn open_from_mirror(&self, project: &Path, sha: Oid) -> Option<Repository> {
        let view = Path::new(self.checkout.mirror.as_ref()?);
        let open = || -> Result<Option<Repository>, git2::Error> {
            let git = project.join(".git");
            crate::removal::remove_tree(&git).map_err(|error| git2::Error::from_str(&error.to_string()))?;
            drop(self.open(project, true)?);
            let borrowed = mirror::borrow_with_refs(view, &git, &self.checkout.refspecs, !self.has_flag(NO_TAGS));
            if !borrowed.map_err(|error| git2::Error::from_str(&error.to_string()))? {
                return Ok(None);
            }
            let repository = self.open(project, false)?;
            repository.find_commit(sha)?.tree()?;
            Ok(Some(repository))
        };
        match open() {
            Ok(Some(repository)) => {
                self.print("Created fresh repository.");
                return Some(repository);
            }
            Ok(None) => {}
            Err(error) => {
                mirror::report_broken(self.context, error.message());
                mirror::remove_borrowing_repository(project);
            }
        }
        None
    }

    /// Opens or creates the repository, and fetches the commit.
    fn open_from_server(&self, project: &Path, sha: Oid) -> Result<Repository, git2::Error> {
        let checkout = self.checkout;
        let is_new = !project.join(".git").exists();
        let mut repository = self.open(project, is_new)?;
        if is_new {
            self.print("Created fresh repository.");
        }
        let url = without_credentials(&checkout.repo_url);
        let (refspecs, depth) = (checkout.refspecs.as_slice(), checkout.depth);
        if let Err(error) = self.fetch(&repository, &url, refspecs, depth) {
            if is_new || error.class() == git2::ErrorClass::Net || self.session.stop.cause().is_some() {
                return Err(error);
            }
            // An earlier job may have damaged the repository.
            self.print("Failed to fetch into the existing repository, replacing it with a new one");
            drop(repository);
            std::fs::remove_dir_all(project.join(".git")).map_err(|error| git2::Error::from_str(&error.to_string()))?;
            repository = self.open(project, true)?;
            self.fetch(&repository, &url, refspecs, depth)?;
        }
        if repository.find_commit(sha).is_err() {
            // A server may hide the refs of pipelines, so the commit is fetched by its hash.
            self.fetch(&repository, &url, &[checkout.sha.as_str()], depth)?;
        }
        Ok(repository)
    }

    fn is_stopped(&self) -> bool {
        self.session.stop.cause().is_some()
    }

    fn print(&self, line: &str) {
        self.context.print(&style::info(line));
    }

    /// Opens or creates the repository with the configuration of [`config::write_template`].
    fn open(&self, directory: &Path, is_new: bool) -> Result<Repository, git2::Error> {
        let mut options = RepositoryInitOptions::new();
        options.external_template(true).template_path(&self.template).initial_head("none");
        let repository = if is_new || self.checkout.clean_config {
            Repository::init_opts(directory, &options)?
        } else {
            Repository::open(directory)?
        };
        check_work_tree(&repository, directory)?;
        let mut config = repository.config()?;
        replace_all(&mut config, "remote.origin.url", &without_credentials(&self.checkout.repo_url))?;
        replace_all(&mut config, "include.path", &config::external_path(&self.context.temp_dir).to_string_lossy())?;
        Ok(repository)
    }

    fn fetch(
        &self,
        repository: &Repository,
        url: &str,
        refspecs: &[impl AsRef<str>],
        depth: i64,
    ) -> Result<(), git2::Error> {
        let refspecs: Vec<&str> = refspecs.iter().map(AsRef::as_ref).collect();
        repository.remote_anonymous(url)?.fetch(&refspecs, Some(&mut self.fetch_options(repository, depth)), None)
    }

    /// Returns whether `GIT_FETCH_EXTRA_FLAGS` contains a flag under one of its names.
    fn has_flag(&self, names: [&str; 2]) -> bool {
        self.checkout.fetch_flags.iter().any(|flag| names.contains(&flag.as_str()))
    }

    /// Returns the options of a fetch. Of `GIT_FETCH_EXTRA_FLAGS`, only flags for tags and pruning are supported.
    fn fetch_options(&self, repository: &Repository, depth: i64) -> FetchOptions<'_> {
        let mut callbacks = RemoteCallbacks::new();
        callbacks.transfer_progress(|_| self.session.stop.cause().is_none());
        let mut options = FetchOptions::new();
        options.remote_callbacks(callbacks).update_fetchhead(true);
        options.prune(if self.has_flag(["--prune", "-p"]) { FetchPrune::On } else { FetchPrune::Off });
        options.download_tags(match () {
            () if self.has_flag(NO_TAGS) => AutotagOption::None,
            () if self.has_flag(["--tags", "-t"]) => AutotagOption::All,
            () => AutotagOption::Auto,
        });
        match i32::try_from(depth) {
            Ok(depth @ 1..) => options.depth(depth),
            _ if repository.is_shallow() => options.depth(UNSHALLOW),
            _ => &mut options,
        };
        options
    }
}

/// Writes the files of the commit, and removes files of the previous commit. Keeps untracked files.
///
/// Writes in parts with a check for a stop before each, because libgit2 cannot be interrupted while it writes.
fn check_out_commit(repository: &Repository, sha: Oid, is_stopped: &dyn Fn() -> bool) -> Result<(), git2::Error> {
    let commit = repository.find_commit(sha).map_err(|error| match error.code() {
        ErrorCode::NotFound => git2::Error::from_str(&format!("the server has no commit {sha}")),
        _ => error,
    })?;
    let paths = paths(&commit.tree()?)?;
    for part in paths.chunks(PART_FILES).filter(|_| paths.len() > PART_FILES) {
        fail_if(is_stopped)?;
        let mut options = checkout_options(is_stopped);
        options.disable_pathspec_match(true);
        for path in part {
            options.path(path.as_slice());
        }
        repository.checkout_tree(commit.as_object(), Some(&mut options))?;
    }
    fail_if(is_stopped)?;
    // This call removes files that the commit does not have.
    repository.checkout_tree(commit.as_object(), Some(&mut checkout_options(is_stopped)))?;
    fail_if(is_stopped)?;
    repository.set_head_detached(sha)?;
    // HEAD now names the commit, so this call also recreates directories that an earlier job removed. `checkout_tree`
    // does not recreate them.
    repository.checkout_head(Some(&mut checkout_options(is_stopped)))
}

/// Reverts the changes to tracked files.
fn check_out_head(repository: &Repository, stop: &StopToken) -> Result<(), git2::Error> {
    let sha = repository.head()?.peel_to_commit()?.id();
    check_out_commit(repository, sha, &|| stop.cause().is_some())
}

/// Returns options of a checkout that can be stopped while it compares files.
fn checkout_options(is_stopped: &dyn Fn() -> bool) -> CheckoutBuilder<'_> {
    let mut options = CheckoutBuilder::new();
    options.force();
    options.notify_on(CheckoutNotificationType::UPDATED | CheckoutNotificationType::CONFLICT);
    options.notify(move |_, _, _, _, _| !is_stopped());
    options
}

fn paths(tree: &git2::Tree<'_>) -> Result<Vec<Vec<u8>>, git2::Error> {
    let mut paths = Vec::new();
    tree.walk(TreeWalkMode::PreOrder, |directory, entry| {
        if entry.kind() != Some(ObjectType::Tree) {
            paths.push([directory.as_bytes(), entry.name_bytes()].concat());
        }
        TreeWalkResult::Ok
    })?;
    Ok(paths)
}

fn fail_if(is_stopped: &dyn Fn() -> bool) -> Result<(), git2::Error> {
    if is_stopped() { Err(git2::Error::from_str("stopped")) } else { Ok(()) }
}

/// Fails if an earlier job set another work tree, whose files would be overwritten and deleted.
fn check_work_tree(repository: &Repository, directory: &Path) -> Result<(), git2::Error> {
    let found = repository.workdir().and_then(|found| found.canonicalize().ok());
    if found.is_some() && found == directory.canonicalize().ok() {
        return Ok(());
    }
    Err(git2::Error::from_str(&format!(
        "the repository in {} has another work tree; use GIT_STRATEGY=clone to replace it",
        directory.display()
    )))
}

/// Replaces all values of a key with one value. `set_str` fails if an earlier job left several values.
pub(super) fn replace_all(config: &mut Config, key: &str, value: &str) -> Result<(), git2::Error> {
    match config.remove_multivar(key, ".*") {
        Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
        _ => {}
    }
    config.set_str(key, value)
}

#[cfg(test)]
mod tests;
