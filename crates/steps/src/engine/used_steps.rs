//! Finds the remote steps that a list of steps uses, directly or through other steps, without running steps.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::call::load;
use super::reference::{Target, is_dynamic};
use super::user_steps::{MAX_DEPTH, StepError};
use crate::definition::{Body, Call, StepEntry};
use crate::expression::Dialect;
use crate::failure::PortError;
use crate::remote::{FetchRequest, FetchedSource, Lookup, RemoteStep, Source, StepSource};
use crate::stop::StopToken;

/// Remote steps that lists of steps use.
#[derive(Debug, Default)]
pub struct UsedSteps {
    /// Sources with their content, in the order in which they were found.
    pub sources: Vec<(Source, FetchedSource)>,
    /// References that contain expressions. Their steps are only known when a job runs.
    pub dynamic: Vec<String>,
    /// Local steps that could not be read, with the reason. A job may create them.
    pub unreadable: Vec<String>,
    visited: HashSet<(PathBuf, Vec<String>)>,
}

/// Access to steps for [`UsedSteps::add`].
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// Port that fetches remote steps.
    pub port: &'a dyn StepSource,
    /// Returns the only acceptable digest of a source. `None` accepts any content.
    pub pin: &'a (dyn Fn(&Source) -> Option<String> + Sync),
    /// Variables, which can contain credentials.
    pub lookup: Lookup<'a>,
    /// Dialect of the step files.
    pub dialect: Dialect,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

impl UsedSteps {
    /// Adds the remote steps that a list uses. Local references are relative to `dir`.
    ///
    /// # Errors
    /// A remote step cannot be fetched or read, or a reference is invalid.
    pub async fn add(&mut self, entries: &[StepEntry], dir: &Path, reader: Reader<'_>) -> Result<(), StepError> {
        self.add_at(entries, dir, reader, (0, false)).await
    }

    /// Fetches a source, unless it was fetched before. Returns its directory.
    ///
    /// # Errors
    /// The source cannot be fetched.
    pub async fn fetch(&mut self, source: &Source, reader: Reader<'_>) -> Result<PathBuf, StepError> {
        if let Some((_, fetched)) = self.sources.iter().find(|(known, _)| known == source) {
            return Ok(fetched.dir.clone());
        }
        let pin = (reader.pin)(source);
        let request = FetchRequest { source, pin: pin.as_deref(), lookup: reader.lookup };
        let fetched = reader.port.fetch(request, &StopToken::new()).await.map_err(|error| match error {
            PortError::System(message) => StepError::System(message),
            error => StepError::Fetch { source_name: source.to_string(), message: error.to_string() },
        })?;
        let dir = fetched.dir.clone();
        self.sources.push((source.clone(), fetched));
        Ok(dir)
    }

    /// Adds the remote steps that a list uses. `depth` is the number of steps around the list. `is_remote` means that
    /// the list is in a fetched source.
    async fn add_at(
        &mut self,
        entries: &[StepEntry],
        dir: &Path,
        reader: Reader<'_>,
        (depth, is_remote): (usize, bool),
    ) -> Result<(), StepError> {
        if depth >= MAX_DEPTH {
            return Err(StepError::Call(format!("steps are nested more than {MAX_DEPTH} levels deep")));
        }
        for entry in entries {
            // Boxed, because this function is recursive.
            let added = Box::pin(self.add_entry(entry, dir, reader, (depth, is_remote))).await;
            added.map_err(|error| error.within(&entry.name))?;
        }
        Ok(())
    }

    async fn add_entry(
        &mut self,
        entry: &StepEntry,
        dir: &Path,
        reader: Reader<'_>,
        (depth, is_remote): (usize, bool),
    ) -> Result<(), StepError> {
        let target = match &entry.call {
            Call::Script(_) => return Ok(()),
            Call::Step(text) if is_dynamic(text) => {
                self.dynamic.push(text.clone());
                return Ok(());
            }
            Call::Remote(location) if location.is_dynamic() => {
                self.dynamic.push(location.to_string());
                return Ok(());
            }
            Call::Step(text) => Target::parse(text, dir, reader.dialect)?,
            Call::Remote(location) => Target::Remote(RemoteStep::at(location, reader.dialect)?),
        };
        let (dir, names, is_remote) = match target {
            Target::Script | Target::Bundled(_) => return Ok(()),
            Target::File { dir, names } => (dir, names, is_remote),
            Target::Remote(step) => (self.fetch(&step.source, reader).await?.join(step.dir), step.names, true),
        };
        if !self.visited.insert((dir.clone(), names.clone())) {
            return Ok(());
        }
        let file = match load(&dir, &names).await {
            Ok(file) => file,
            Err(error) if !is_remote => {
                self.unreadable.push(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match &file.body {
            Body::Run { entries, .. } => self.add_at(entries, &dir, reader, (depth + 1, is_remote)).await,
            Body::Exec { .. } | Body::Script | Body::Bundled(_) | Body::Fake(_) => Ok(()),
        }
    }
}
