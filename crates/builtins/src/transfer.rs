//! Context of a file transfer: a job, or a command such as `artifacts-uploader`.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::blocking::ReportAbandoned;
use crate::extraction::Extraction;

/// Level of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageLevel {
    /// Detail.
    Plain,
    /// Highlighted action or result.
    Notice,
    /// Possible problem.
    Warning,
    /// Error.
    Error,
}

/// Callback with the number of bytes of each chunk. It is dropped at the end of the transfer.
pub type Meter = Box<dyn FnMut(usize) + Send>;

/// Context of a file transfer.
#[async_trait]
pub trait TransferContext: Send + Sync {
    /// Returns the absolute directory of the files to pack, to which patterns are relative.
    fn root(&self) -> &Path;

    /// Returns the directory and limits for unpacking archives.
    fn extraction(&self) -> Extraction;

    /// Returns the directory for temporary archives.
    fn staging(&self) -> &Path;

    /// Returns the variables for patterns and names.
    fn environment(&self) -> Vec<(OsString, OsString)>;

    /// Prints a message as a line. `line` has no line break at its end.
    fn report(&self, level: MessageLevel, line: &str);

    /// Returns the progress callback of a transfer. `_total` is its size in bytes, if known.
    fn meter(&self, _label: &str, _total: Option<u64>) -> Meter {
        Box::new(|_| {})
    }

    /// Runs git in [`TransferContext::root`], and writes its output to `out`. Returns whether git succeeded.
    ///
    /// # Errors
    /// [`Failure`] if git cannot be started or is stopped.
    async fn git(&self, args: &[&str], out: Arc<File>, stop: &StopToken) -> Result<bool, Failure>;
}

impl<S: TransferContext + ?Sized> ReportAbandoned for S {
    fn warn_about_abandoned_work(&self, line: &str) {
        let line = format!("{line}; check the file system of `{}`", self.root().display());
        self.report(MessageLevel::Warning, &line);
        tracing::error!("{line}");
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use std::path::PathBuf;

    use parking_lot::Mutex;

    use super::*;

    /// Context with a directory, which records messages.
    #[derive(Debug)]
    pub(crate) struct RecordingContext {
        root: PathBuf,
        pub(crate) messages: Arc<Mutex<Vec<String>>>,
    }

    impl RecordingContext {
        pub(crate) fn new(root: PathBuf) -> Self {
            Self { root, messages: Arc::default() }
        }
    }

    #[async_trait]
    impl TransferContext for RecordingContext {
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

        fn report(&self, _: MessageLevel, line: &str) {
            self.messages.lock().push(line.to_owned());
        }

        async fn git(&self, _: &[&str], _: Arc<File>, _: &StopToken) -> Result<bool, Failure> {
            Ok(false)
        }
    }
}
