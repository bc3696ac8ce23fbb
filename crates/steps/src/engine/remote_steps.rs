//! Fetches the remote steps of a `run:` list, and obeys the lock file of the checkout (docs/spec/steps.md, sections 2.7 and 2.8).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_files::Limit;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::inputs::expression_error;
use super::reference::clean;
use super::user_steps::{Frame, StepError, UserSteps};
use crate::definition::{Call, StepEntry};
use crate::expression::Scope;
use crate::failure::PortError;
use crate::lock::{LOCK_FILE, StepLock};
use crate::log::{Log, Stream};
use crate::remote::{FetchRequest, FetchedSource, Location, RemoteStep, Source};
use crate::style;

const LOCK_LIMIT: Limit = Limit { bytes: 4 * 1024 * 1024, remedy: "restore it from the repository" };

#[derive(Debug, Default)]
pub(super) struct RemoteSteps {
    /// Lock file as it was before the first step ran. The inner `None` means that the file does not exist or does not
    /// apply.
    lock: tokio::sync::OnceCell<Option<StepLock>>,
    /// Sources that a step has fetched or is fetching. Different sources are fetched at the same time.
    fetched: Mutex<HashMap<Source, Arc<FetchedDir>>>,
    /// Directories of the fetched sources.
    dirs: Mutex<Vec<PathBuf>>,
}

/// Directory of a source, locked during the fetch. `None` means that the source is not fetched yet.
type FetchedDir = tokio::sync::Mutex<Option<PathBuf>>;

impl RemoteSteps {
    /// Returns the directory of the fetched source that contains `path`.
    pub(super) fn source_dir(&self, path: &Path) -> Option<PathBuf> {
        self.dirs.lock().iter().find(|dir| path.starts_with(dir)).cloned()
    }
}

impl UserSteps<'_> {
    /// Reads the lock file, before a step can change it.
    pub(super) async fn read_lock_file(&self) -> Result<(), StepError> {
        self.remote.lock.get_or_try_init(async || self.load_lock_file().await).await.map(drop)
    }

    async fn load_lock_file(&self) -> Result<Option<StepLock>, StepError> {
        if !self.obeys_lock_file {
            return Ok(None);
        }
        match muster_files::read(self.work_dir.join(LOCK_FILE), LOCK_LIMIT).await {
            Ok(text) => StepLock::parse(&text).map(Some).map_err(|error| StepError::Step(error.to_string())),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(StepError::Step(error.to_string())),
        }
    }

    /// Fetches a source, unless the list has fetched it before. Returns its directory.
    pub(super) async fn fetch(&self, source: &Source) -> Result<PathBuf, StepError> {
        let failed = |message: String| StepError::Fetch { source_name: source.to_string(), message };
        self.read_lock_file().await?;
        let pin = match self.remote.lock.get().and_then(Option::as_ref) {
            Some(lock) => Some(lock.digest(source).ok_or_else(|| failed(not_locked_message()))?),
            None => None,
        };
        let Some(port) = &self.step_source else {
            return Err(failed(
                "remote steps are not available here; copy the step and call it as `./directory`".into(),
            ));
        };
        if let Some(password) = source.password() {
            self.log.add_sensitive(&Value::String(password.to_owned()));
        }
        let fetched = Arc::clone(self.remote.fetched.lock().entry(source.clone()).or_default());
        let mut fetched = tokio::select! {
            biased;
            fetched = fetched.lock() => fetched,
            // Another step may still fetch the source when the timeout of this step expires.
            cause = self.stop.stopped() => return Err(StepError::Stopped(cause)),
        };
        if let Some(dir) = &*fetched {
            return Ok(dir.clone());
        }
        let lookup = |name: &str| self.variable(name);
        let request = FetchRequest { source, pin, lookup: &lookup };
        let result = port.fetch(request, self.stop).await.map_err(|error| match error {
            PortError::Stopped(cause) => StepError::Stopped(cause),
            PortError::Failed(message) => failed(message),
            PortError::System(message) => StepError::System(format!("failed to fetch the step {source}: {message}")),
        })?;
        if let Some(pin) = pin.filter(|pin| *pin != result.digest) {
            let message = format!("{LOCK_FILE} has the digest {pin}, but the content has {}", result.digest);
            return Err(failed(format!(
                "{message}; run `muster step update {source}` to accept it, and commit the file"
            )));
        }
        self.report(source, &result);
        *fetched = Some(result.dir.clone());
        self.remote.dirs.lock().push(clean(&result.dir));
        Ok(result.dir)
    }

    /// Logs what was fetched, with the notices of its publisher.
    fn report(&self, source: &Source, fetched: &FetchedSource) {
        let is_pinned = self.remote.lock.get().is_some_and(Option::is_some);
        let locked = if is_pinned { ", as locked" } else { "" };
        let line = style::info(&format!("Fetched the step {source} ({}{locked})", fetched.digest));
        self.log.write(Stream::Runner, line.as_bytes());
        for notice in &fetched.notices {
            let warning = style::warning(&format!("the step {source} is {}: {}", notice.kind.name(), notice.message));
            self.log.write(Stream::Runner, warning.as_bytes());
        }
    }

    /// Returns the value of an export, of a variable of the job, or of the agent's environment.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        let variable = || self.variables.get(name).and_then(Value::as_str).map(str::to_owned);
        let inherited = || self.environment.iter().rev().find(|(key, _)| key == name)?.1.to_str().map(str::to_owned);
        self.exports.lock().get(name).cloned().or_else(variable).or_else(inherited)
    }

    /// Returns the step at a location.
    ///
    /// In the legacy dialect (step-runner 0.11.0), only the URL of a Git repository can have expressions.
    pub(super) fn step_at(&self, location: &Location, scope: &Scope) -> Result<RemoteStep, StepError> {
        let expand = |text: &String| {
            let site = "failed to load: fetching step: interpolating reference";
            scope.expand_text(text).map_err(expression_error(site))
        };
        let expanded = match location {
            Location::Git { url, rev, dir, file } if self.is_legacy() => {
                Location::Git { url: expand(url)?, rev: rev.clone(), dir: dir.clone(), file: file.clone() }
            }
            Location::Oci { .. } if self.is_legacy() => location.clone(),
            Location::Git { url, rev, dir, file } => {
                Location::Git { url: expand(url)?, rev: expand(rev)?, dir: expand(dir)?, file: expand(file)? }
            }
            Location::Oci { registry, repository, tag, dir, file } => Location::Oci {
                registry: expand(registry)?,
                repository: expand(repository)?,
                tag: expand(tag)?,
                dir: expand(dir)?,
                file: expand(file)?,
            },
        };
        Ok(RemoteStep::at(&expanded, self.settings.dialect)?)
    }

    /// Returns the scope of the expressions in an entry.
    ///
    /// In the legacy dialect, an entry that calls an image cannot read its caller's inputs and earlier steps
    /// (docs/spec/steps.md, section 2.8).
    pub(super) fn entry_scope(&self, entry: &StepEntry, frame: &Frame<'_>) -> Scope {
        if self.is_legacy() && matches!(entry.call, Call::Remote(Location::Oci { .. })) {
            let (env, path) = (frame.env.clone(), frame.path.clone());
            let matrix = frame.matrix.clone();
            return self.scope(&Frame { env, path, inputs: Map::new(), steps: Map::new(), matrix, ..*frame });
        }
        self.scope(frame)
    }

    /// Returns the error of an entry whose source could not be fetched.
    ///
    /// In step-runner 0.11.0, a separate step fetches an image and prints the error (docs/spec/steps.md, section 2.8).
    pub(super) fn fetch_error(&self, entry: &StepEntry, error: StepError) -> StepError {
        match error {
            StepError::Fetch { .. } if self.is_legacy() && matches!(entry.call, Call::Remote(Location::Oci { .. })) => {
                self.log.write(Stream::Runner, style::error(&error.to_string()).as_bytes());
                StepError::Exit(1).within(&format!("fetch_step_{}", entry.name))
            }
            other => other,
        }
    }
}

fn not_locked_message() -> String {
    format!("{LOCK_FILE} does not name this step; run `muster step lock` and commit the file")
}
