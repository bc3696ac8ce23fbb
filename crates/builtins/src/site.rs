//! What picking, packing and moving files needs of its surroundings: a job's, or those of a command that someone calls by
//! itself.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_steps::engine::Job as _;
use muster_steps::failure::Failure;
use muster_steps::process::{Command, Ended};
use muster_steps::stop::Stop;
use muster_steps::style;

use crate::blocking::Report;
use crate::context::Context;
use crate::files::extract::Extraction;

/// How a line is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// What happens.
    Plain,
    /// What happens, worth being seen.
    Notice,
    /// What may be wrong.
    Warning,
    /// What is wrong.
    Error,
}

/// Told the number of bytes of each piece that was moved; dropped when all are, or none comes any more.
pub type Meter = Box<dyn FnMut(usize) + Send>;

/// The surroundings of a transfer of files.
#[async_trait]
pub trait Site: Send + Sync {
    /// The directory that patterns are relative to and archives are unpacked into; absolute.
    fn root(&self) -> &Path;

    /// How archives are unpacked.
    fn extraction(&self) -> Extraction;

    /// Where archives are kept while they are made or read.
    fn staging(&self) -> &Path;

    /// The variables that patterns and names may use.
    fn environment(&self) -> Vec<(OsString, OsString)>;

    /// Tells a line, without its end.
    fn tell(&self, tone: Tone, line: &str);

    /// Watches a transfer, of so many bytes where that is known.
    fn meter(&self, _label: &str, _total: Option<u64>) -> Meter {
        Box::new(|_| {})
    }

    /// Runs git in [`Site::root`], its output into `out`; whether it was successful.
    ///
    /// # Errors
    /// [`Failure`] where it could not run, or was stopped.
    async fn git(&self, args: &[&str], out: Arc<File>, stop: &Stop) -> Result<bool, Failure>;
}

impl<S: Site + ?Sized> Report for S {
    fn abandoned(&self, line: &str) {
        let line = format!("{line}; check the file system of `{}`", self.root().display());
        self.tell(Tone::Warning, &line);
        tracing::error!("{line}");
    }
}

#[async_trait]
impl Site for Context {
    fn root(&self) -> &Path {
        &self.project_dir
    }

    fn extraction(&self) -> Extraction {
        self.extraction.clone()
    }

    fn staging(&self) -> &Path {
        &self.temp_dir
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        Context::environment(self)
    }

    fn tell(&self, tone: Tone, line: &str) {
        match tone {
            Tone::Plain => self.say(&format!("{line}\n")),
            Tone::Notice => self.say(&style::info(line)),
            Tone::Warning => self.say(&style::warning(line)),
            Tone::Error => self.say(&style::error(line)),
        }
    }

    async fn git(&self, args: &[&str], out: Arc<File>, stop: &Stop) -> Result<bool, Failure> {
        let command = Command {
            program: "git".into(),
            args: args.iter().map(Into::into).collect(),
            env: Context::environment(self),
            work_dir: Some(self.project_dir.clone()),
            stdin: None,
            stdout: Some(out),
        };
        match self.processes.run(command, &self.log(), stop, self.grace).await? {
            Ended::Stopped(cause) => Err(Failure::Stopped(cause)),
            Ended::Exited(status) => Ok(status.success()),
        }
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use std::path::PathBuf;

    use parking_lot::Mutex;

    use super::*;

    /// A directory and nothing else.
    #[derive(Debug)]
    pub(crate) struct Here {
        root: PathBuf,
        /// The lines that were told.
        pub(crate) told: Arc<Mutex<Vec<String>>>,
    }

    impl Here {
        pub(crate) fn new(root: PathBuf) -> Self {
            Self { root, told: Arc::default() }
        }
    }

    #[async_trait]
    impl Site for Here {
        fn root(&self) -> &Path {
            &self.root
        }

        fn extraction(&self) -> Extraction {
            Extraction::new(self.root.clone())
        }

        fn staging(&self) -> &Path {
            &self.root
        }

        fn environment(&self) -> Vec<(OsString, OsString)> {
            Vec::new()
        }

        fn tell(&self, _: Tone, line: &str) {
            self.told.lock().push(line.to_owned());
        }

        async fn git(&self, _: &[&str], _: Arc<File>, _: &Stop) -> Result<bool, Failure> {
            Ok(false)
        }
    }
}
