//! Fetches a commit with libgit2, over HTTP (docs/spec/steps.md, section 2.7).
//!
//! The cache has a bare repository for each commit. libgit2 verifies the hash of each object.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use git2::build::CheckoutBuilder;
use git2::{AutotagOption, Direction, FetchOptions, Oid, RemoteCallbacks, Repository};
use muster_runner_api::client::{TlsFiles, http_client};
use muster_steps::failure::PortError;
use muster_steps::remote::{FetchRequest, FetchedSource, Lookup, Notice};
use muster_steps::stop::StopToken;
use tokio::runtime::Handle;

use super::{StepFetcher, entry_name, git_notices, system};
use crate::git_http::{self, Clients, Credentials, Session, without_credentials};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum number of bytes per fetch. A source can need several fetches.
const MAX_BYTES: usize = 1024 * 1024 * 1024;
const MIN_HASH_DIGITS: usize = 8;
/// Reference to the fetched commit in the cache.
const FETCHED: &str = "refs/muster/step";
/// Explanation if the server refuses access.
const ACCESS_HINT: &str = "check the name of the repository. On the GitLab server of the job, the job's token must have access to the repository. \
     For another server, write a user and a token into the URL: https://USER:TOKEN@HOST/PATH";

struct Resolved {
    commit: String,
    /// Reference to the commit at the server. `None` means that the commit is fetched by hash.
    reference: Option<String>,
}

const MAX_FILES: u64 = 200_000;
/// Maximum size of a commit's files in bytes.
const MAX_FILE_BYTES: u64 = 8 << 30;

struct Connection {
    url: String,
    session: Arc<Session>,
}

pub(super) async fn fetch(
    fetcher: &StepFetcher,
    url: &str,
    revision: &str,
    request: FetchRequest<'_>,
    stop: &StopToken,
) -> Result<FetchedSource, PortError> {
    let connection = connect(fetcher, url, request.lookup, stop).map_err(PortError::Failed)?;
    let (revision, pin) = (revision.to_owned(), request.pin.map(str::to_owned));
    let (connection, resolved, notices) = run(stop, move || {
        let references = connection.session.enter(|| connection.references()).map_err(with_remedy)?;
        let resolved = connection.resolve(&references, &revision, pin.as_deref()).map_err(with_remedy)?;
        let has_notices = references.iter().any(|(name, _)| name == git_notices::BRANCH);
        let notices = if has_notices { connection.notices(&revision, &resolved.commit)? } else { Vec::new() };
        Ok((connection, resolved, notices))
    })
    .await?;
    let commit = resolved.commit.clone();
    let name = entry_name(request.source, &commit);
    // Another job may hold the entry.
    let entry = tokio::select! {
        biased;
        cause = stop.stopped() => return Err(PortError::Stopped(cause)),
        entry = fetcher.cache.entry("git", &name) => entry,
    };
    let entry = entry.map_err(system("failed to use the cache of steps"))?;
    let into = fetcher.new_directory()?;
    let (dir, stopped) = (into.clone(), stop.clone());
    let is_new = run(stop, move || {
        if entry.path.exists() {
            match export(&entry.path, &resolved.commit, &into, &stopped) {
                Ok(()) => return Ok(false),
                Err(error) => {
                    // A job whose processes run as the agent's user can change the cache.
                    tracing::warn!(%error, commit = resolved.commit, "invalid entry in the cache of steps, fetching it again");
                    entry.discard().and_then(|()| crate::removal::remove_tree(&into)).map_err(io_failed)?;
                    fs::create_dir_all(&into).map_err(io_failed)?;
                }
            }
        }
        let incomplete = tempfile::Builder::new().tempdir_in(&entry.incomplete).map_err(io_failed)?;
        let repository = incomplete.path().join("repository");
        connection.download(&resolved, &repository)?;
        entry.complete(&repository).map_err(io_failed)?;
        export(&entry.path, &resolved.commit, &into, &stopped).map(|()| true)
    })
    .await?;
    if is_new {
        let cache = Arc::clone(&fetcher.cache);
        run(stop, move || cache.prune().map_err(io_failed)).await?;
    }
    Ok(FetchedSource { dir, digest: commit, notices })
}

fn connect(fetcher: &StepFetcher, url: &str, lookup: Lookup<'_>, stop: &StopToken) -> Result<Connection, String> {
    let token = lookup("CI_JOB_TOKEN").filter(|token| !token.is_empty());
    let mut servers = fetcher.servers.clone();
    servers.extend(lookup("CI_SERVER_URL"));
    let origins: Vec<String> = servers.iter().filter_map(|server| origin(server)).collect();
    let is_own = origin(&without_credentials(url)).is_some_and(|origin| origins.contains(&origin));
    let rewrites = token.into_iter().flat_map(|token| {
        let with_token = |origin: &String| {
            let (scheme, host) = origin.split_once("://")?;
            Some((format!("{scheme}://gitlab-ci-token:{token}@{host}"), origin.clone()))
        };
        origins.iter().filter_map(with_token).collect::<Vec<_>>()
    });
    let client = |tls: &TlsFiles| {
        let client = http_client(tls).map_err(|error| error.to_string())?;
        let client = client.connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT);
        let client = client.user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")));
        // A redirect must not lead the job's certificate to another server.
        let client = if tls.is_empty() { client } else { client.redirect(git_http::same_server()) };
        client.build().map_err(|error| format!("failed to create an HTTP client: {error}"))
    };
    let coordinator = if is_own { url } else { "" };
    let clients = Clients::new(coordinator, client(&fetcher.tls)?, client(&TlsFiles::default())?);
    let credentials = Credentials::new(rewrites.collect());
    let session =
        Session { clients, credentials, runtime: Handle::current(), stop: stop.clone(), access_hint: ACCESS_HINT };
    Ok(Connection { url: url.to_owned(), session: Arc::new(session) })
}

fn origin(url: &str) -> Option<String> {
    let url = url::Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    Some(url.origin().ascii_serialization())
}

/// Runs work on a thread that may block. A stop ends its requests.
async fn run<T: Send + 'static>(
    stop: &StopToken,
    work: impl FnOnce() -> Result<T, git2::Error> + Send + 'static,
) -> Result<T, PortError> {
    let done = tokio::task::spawn_blocking(move || git_http::register().and_then(|()| work())).await;
    let result = done.map_err(|error| PortError::System(format!("fetching a step panicked: {error}")))?;
    result.map_err(|error| match stop.cause() {
        Some(cause) => PortError::Stopped(cause),
        None if error.class() == git2::ErrorClass::Os => PortError::System(error.message().to_owned()),
        None => PortError::Failed(error.message().to_owned()),
    })
}

/// Adds a remedy to a network error without one.
fn with_remedy(error: git2::Error) -> git2::Error {
    if error.class() != git2::ErrorClass::Net || error.message().ends_with(ACCESS_HINT) {
        return error;
    }
    let remedy = "check the URL, and that this machine can reach the server";
    git2::Error::new(error.code(), error.class(), format!("{}; {remedy}", error.message()))
}

fn io_failed(error: std::io::Error) -> git2::Error {
    let message = format!("failed to store the step: {error}");
    git2::Error::new(git2::ErrorCode::GenericError, git2::ErrorClass::Os, message)
}

impl Connection {
    /// Returns the pinned commit, or else the commit of the revision.
    ///
    /// `references` are the references of the server. It returned them, so the job has access to the repository.
    fn resolve(
        &self,
        references: &[(String, String)],
        revision: &str,
        pin: Option<&str>,
    ) -> Result<Resolved, git2::Error> {
        if let Some(pin) = pin {
            // The pin comes from a lock file of the job, so it is validated.
            if pin.len() != 40 || !pin.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(not_found(pin));
            }
            let reference = references.iter().find(|(_, commit)| commit == pin).map(|(name, _)| name.clone());
            return Ok(Resolved { commit: pin.to_owned(), reference });
        }
        for prefix in ["refs/tags/", "refs/heads/"] {
            let name = format!("{prefix}{revision}");
            if let Some((_, commit)) = references.iter().find(|(found, _)| *found == name) {
                return Ok(Resolved { commit: commit.clone(), reference: Some(name) });
            }
        }
        let is_hash = revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash || revision.len() < MIN_HASH_DIGITS || revision.len() > 40 {
            return Err(not_found(revision));
        }
        let digits = revision.to_ascii_lowercase();
        if let Some((name, commit)) = references.iter().find(|(_, commit)| commit.starts_with(&digits)) {
            return Ok(Resolved { commit: commit.clone(), reference: Some(name.clone()) });
        }
        if digits.len() == 40 {
            return Ok(Resolved { commit: digits, reference: None });
        }
        let directory = tempfile::tempdir().map_err(io_failed)?;
        let repository = self.session.enter(|| self.fetch_all(&directory.path().join("repository")))?;
        let object = repository.revparse_single(&digits).and_then(|object| object.peel_to_commit());
        let commit = object.map_err(|_| not_found(revision))?.id().to_string();
        Ok(Resolved { commit, reference: None })
    }

    /// Returns the references of the server with their commits.
    fn references(&self) -> Result<Vec<(String, String)>, git2::Error> {
        let mut remote = git2::Remote::create_detached(self.url.as_str())?;
        remote.connect(Direction::Fetch)?;
        let mut found: Vec<(String, String)> = Vec::new();
        for head in remote.list()? {
            let (name, id) = (head.name(), head.oid().to_string());
            // The commit of an annotated tag follows the tag.
            match (name.strip_suffix("^{}"), found.last_mut()) {
                (Some(name), Some((last, commit))) if last == name => *commit = id,
                _ => found.push((name.to_owned(), id)),
            }
        }
        Ok(found)
    }

    /// Returns the notices about a revision. An invalid file must not fail jobs, and is ignored.
    fn notices(&self, revision: &str, commit: &str) -> Result<Vec<Notice>, git2::Error> {
        let directory = tempfile::tempdir().map_err(io_failed)?;
        let repository = Repository::init_bare(directory.path())?;
        let refspec = format!("+{}:{FETCHED}", git_notices::BRANCH);
        self.session.enter(|| self.fetch_into(&repository, &refspec, 1))?;
        let tree = repository.find_reference(FETCHED)?.peel_to_tree()?;
        let Some(file) = tree.get_name(git_notices::FILE).map(|entry| entry.id()) else { return Ok(Vec::new()) };
        let (size, kind) = repository.odb()?.read_header(file)?;
        let ignored = |error: &dyn std::fmt::Display| {
            tracing::warn!(%error, url = without_credentials(&self.url), "invalid notices about a step, ignoring them");
            Vec::new()
        };
        if kind != git2::ObjectType::Blob || size > git_notices::MAX_FILE_BYTES {
            return Ok(ignored(&format!("{} is not a file of at most 1 MiB", git_notices::FILE)));
        }
        let blob = repository.find_blob(file)?;
        let text = String::from_utf8_lossy(blob.content());
        Ok(git_notices::parse(&text, revision, commit).unwrap_or_else(|error| ignored(&error)))
    }

    fn download(&self, resolved: &Resolved, directory: &Path) -> Result<(), git2::Error> {
        let commit = Oid::from_str(&resolved.commit)?;
        let download = || -> Result<(), git2::Error> {
            let refspec = format!("+{}:{FETCHED}", resolved.reference.as_deref().unwrap_or(&resolved.commit));
            let repository = Repository::init_bare(directory)?;
            let fetched = self.fetch_into(&repository, &refspec, 1);
            if fetched.is_ok() && repository.find_commit(commit).is_ok() {
                return Ok(());
            }
            // The branch may have changed, or the server may refuse hashes to which no reference points.
            if self.session.stop.cause().is_some() {
                return fetched;
            }
            crate::removal::remove_tree(directory).map_err(io_failed)?;
            let repository = self.fetch_all(directory)?;
            repository.find_commit(commit).map(drop).map_err(|_| not_found(&resolved.commit))
        };
        self.session.enter(download)
    }

    fn fetch_all(&self, directory: &Path) -> Result<Repository, git2::Error> {
        let repository = Repository::init_bare(directory)?;
        for refspec in ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"] {
            self.fetch_into(&repository, refspec, 0)?;
        }
        Ok(repository)
    }

    fn fetch_into(&self, repository: &Repository, refspec: &str, depth: i32) -> Result<(), git2::Error> {
        let mut is_too_large = false;
        let mut callbacks = RemoteCallbacks::new();
        callbacks.transfer_progress(|progress| {
            is_too_large |= progress.received_bytes() > MAX_BYTES;
            !is_too_large && self.session.stop.cause().is_none()
        });
        let mut options = FetchOptions::new();
        options.remote_callbacks(callbacks).download_tags(AutotagOption::None).depth(depth);
        let fetched = repository.remote_anonymous(&self.url)?.fetch(&[refspec], Some(&mut options), None);
        drop(options);
        if is_too_large {
            let limit = MAX_BYTES / 1024 / 1024;
            return Err(git2::Error::from_str(&format!(
                "the repository has more than {limit} MiB; use a smaller repository"
            )));
        }
        fetched
    }
}

fn export(repository: &Path, commit: &str, into: &Path, stop: &StopToken) -> Result<(), git2::Error> {
    let repository = Repository::open_bare(repository)?;
    let tree = repository.find_commit(Oid::from_str(commit)?)?.tree()?;
    check_size(&repository, &tree, stop)?;
    let mut options = CheckoutBuilder::new();
    options.force().target_dir(into).update_index(false).disable_filters(true);
    repository.checkout_tree(tree.as_object(), Some(&mut options))
}

/// Checks the number and size of the files, because a small pack can contain a large tree.
fn check_size(repository: &Repository, tree: &git2::Tree<'_>, stop: &StopToken) -> Result<(), git2::Error> {
    let odb = repository.odb()?;
    let (mut files, mut bytes) = (0_u64, 0_u64);
    let walked = tree.walk(git2::TreeWalkMode::PreOrder, |_, entry| {
        files += 1;
        if entry.kind() == Some(git2::ObjectType::Blob) {
            let size = odb.read_header(entry.id()).map_or(0, |(size, _)| size as u64);
            bytes = bytes.saturating_add(size);
        }
        let is_over = files > MAX_FILES || bytes > MAX_FILE_BYTES;
        if is_over || stop.cause().is_some() { git2::TreeWalkResult::Abort } else { git2::TreeWalkResult::Ok }
    });
    if files > MAX_FILES || bytes > MAX_FILE_BYTES {
        let limit = MAX_FILE_BYTES / 1024 / 1024;
        return Err(git2::Error::from_str(&format!(
            "the repository has more than {MAX_FILES} files or {limit} MiB; make the step smaller"
        )));
    }
    walked
}

fn not_found(revision: &str) -> git2::Error {
    let remedy = "the server has no such tag, branch or commit; check the spelling";
    git2::Error::from_str(&format!("cannot find version {revision:?}: {remedy}"))
}
