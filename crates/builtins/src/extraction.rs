use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;

use cap_std::fs::Dir;
use muster_archive::{Format, Limit, Limits, Root, SkippedEntries, UnpackError, create_root};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

/// Source of the limits, for the message about an exceeded limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsFrom {
    /// `[runners.unpack]` in config.toml.
    Config,
    /// `[unpack]` in `ci.toml`.
    CiConfig,
    /// Flags of a command.
    Flags,
    /// Built-in defaults.
    Defaults,
}

/// Directory and limits for unpacking archives.
#[derive(Debug, Clone)]
pub struct Extraction {
    /// Directory for the content. It is created if necessary.
    pub root: PathBuf,
    /// Part of the path that jobs can change, and in which links are not followed.
    pub root_trust: Root,
    /// Limits for each archive.
    pub limits: Limits,
    /// Source of the limits.
    pub limits_from: LimitsFrom,
}

impl Extraction {
    /// Returns settings for a directory that the user chose, with default limits.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root, root_trust: Root::Chosen, limits: Limits::default(), limits_from: LimitsFrom::Defaults }
    }

    /// Unpacks an archive, whose first bytes determine the format. Returns the skipped entries.
    ///
    /// # Errors
    /// [`Failure::Step`] if the archive is invalid or exceeds a limit, [`Failure::System`] if a file cannot be used, or
    /// [`Failure::Stopped`].
    pub fn run(&self, mut archive: File, stop: &StopToken) -> Result<SkippedEntries, Failure> {
        let mut head = [0; 4];
        let length = archive.read(&mut head).and_then(|length| archive.rewind().map(|()| length));
        let length = length.map_err(Failure::io("failed to read the archive"))?;
        // As in gitlab-runner, an unknown format is zip.
        let format = Format::from_magic(head.get(..length).unwrap_or_default()).unwrap_or(Format::Zip);
        if format == Format::TarGzip {
            return Err(Failure::Step("the archive is a gzip file, which is not supported".to_owned()));
        }
        let root = self.open_root()?;
        let unpacked = muster_archive::unpack(&archive, &root, &self.limits, format, &|| stop.cause().is_some());
        unpacked.map_err(|error| self.failure(&error, stop))
    }

    /// Opens the directory. Creates it if necessary. Rejects links that a job could have created ([`create_root`]).
    pub(crate) fn open_root(&self) -> Result<Dir, Failure> {
        create_root(&self.root, &self.root_trust).map_err(|error| {
            Failure::System(format!("failed to open the directory `{}`: {error}", self.root.display()))
        })
    }

    /// Creates the parent of [`Extraction::root`], with the checks of [`Extraction::open_root`].
    pub(crate) fn create_parent(&self) -> Result<(), Failure> {
        let Some(parent) = self.root.parent() else { return Ok(()) };
        Self { root: parent.to_owned(), ..self.clone() }.open_root().map(drop)
    }

    /// Returns the failure for an error of an archive.
    pub(crate) fn failure(&self, error: &UnpackError, stop: &StopToken) -> Failure {
        if let Some(cause) = stop.cause() {
            return Failure::Stopped(cause);
        }
        match error {
            UnpackError::Limit(exceeded) => Failure::Step(format!("{exceeded}{}", self.remedy(exceeded.limit))),
            UnpackError::Broken(source) => Failure::Step(format!("{error}: {source}")),
            UnpackError::Io { source, .. } | UnpackError::NoThread(source) => {
                Failure::System(format!("{error}: {source}"))
            }
            UnpackError::Stopped | UnpackError::Outside { .. } | UnpackError::Kind { .. } => {
                Failure::Step(error.to_string())
            }
        }
    }

    fn remedy(&self, limit: Limit) -> String {
        let key = match limit {
            Limit::Bytes => "max_bytes",
            Limit::Entries => "max_entries",
            Limit::Ratio => "max_ratio",
            Limit::HeaderBytes => "max_header_bytes",
        };
        match self.limits_from {
            LimitsFrom::Config => format!("; to raise the limit, set `{key}` of [runners.unpack] in config.toml"),
            LimitsFrom::CiConfig => format!("; to raise the limit, set `{key}` of [unpack] in ci.toml"),
            LimitsFrom::Flags => format!("; to raise the limit, set --{}", key.replace('_', "-")),
            LimitsFrom::Defaults => String::new(),
        }
    }
}
