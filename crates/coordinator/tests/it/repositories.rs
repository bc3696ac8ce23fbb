//! Repositories for the tests, from which child configurations are read.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_coordinator::NoFiles;
use muster_pipeline::context::{Changes, IncludeTarget, IncludedFile, Origin, SourceError, Sources};

pub(crate) struct Files(pub(crate) Vec<(&'static str, &'static str)>);

impl Sources for Files {
    fn read(&self, target: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        let found = match target {
            IncludeTarget::Local { path, .. } => self.0.iter().find(|(name, _)| name == path),
            _ => None,
        };
        let (name, text) = found.ok_or_else(|| SourceError::NotFound(format!("{target:?} does not exist")))?;
        let (name, bytes) = ((*name).to_owned(), text.as_bytes().to_vec());
        Ok(IncludedFile { name, bytes, origin: Origin::Root, component: None })
    }

    fn paths(&self, _: &Origin) -> Result<Arc<BTreeSet<String>>, SourceError> {
        Ok(Arc::new(self.0.iter().map(|(name, _)| (*name).to_owned()).collect()))
    }

    fn changed_since(&self, _: &str) -> Option<Changes> {
        None
    }

    fn object_ids(&self, _: &[String], _: bool) -> Vec<String> {
        Vec::new()
    }
}

/// A repository without files, of which every read blocks until the channel `.0` is closed.
pub(crate) struct BlockingFiles(pub(crate) std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Sources for BlockingFiles {
    fn read(&self, target: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        let _ = self.0.lock().expect("panicked").recv();
        NoFiles.read(target)
    }

    fn paths(&self, origin: &Origin) -> Result<Arc<BTreeSet<String>>, SourceError> {
        NoFiles.paths(origin)
    }

    fn changed_since(&self, _: &str) -> Option<Changes> {
        None
    }

    fn object_ids(&self, _: &[String], _: bool) -> Vec<String> {
        Vec::new()
    }
}
