//! What picking, packing and moving files needs of its surroundings: a job's, or those of a command that someone calls by
//! itself.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_steps::failure::Failure;
use muster_steps::stop::Stop;

use crate::blocking::Report;
use crate::extraction::Extraction;

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
