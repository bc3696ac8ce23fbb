//! Caches work trees of commits. Checkouts of local repositories copy them.

mod restore;
mod tree;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::removal::remove_tree;
use crate::trash::Trash;
use restore::{FileStamps, Restore};
pub(crate) use tree::Tree;

/// Maximum number of cached commits. The oldest one is evicted first.
const MAX_TEMPLATES: usize = 8;
/// Maximum number of project directories whose state is known. In other directories, all files are compared.
const MAX_LAST_RESTORES: usize = 64;

#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct TemplateKey {
    pub(crate) repository: PathBuf,
    pub(crate) sha: String,
    pub(crate) url: String,
}

/// Work tree of a commit.
#[derive(Debug)]
pub(crate) struct Template {
    /// Unique number in the cache.
    number: u64,
    tree: Tree,
    /// Directory of the tree, which is removed with the template.
    _directory: tempfile::TempDir,
}

/// A template that a job may still be creating.
pub(crate) type Cell = Arc<OnceCell<Arc<Template>>>;

/// Templates of an agent.
#[derive(Debug, Default)]
pub struct Templates {
    directory: PathBuf,
    cells: Mutex<VecDeque<(TemplateKey, Cell)>>,
    last_restores: Mutex<VecDeque<LastRestore>>,
    next_number: AtomicU64,
}

/// State of a project directory after a restore.
#[derive(Debug)]
struct LastRestore {
    project: PathBuf,
    number: u64,
    bare: bool,
    stamps: FileStamps,
}

impl Templates {
    /// Removes the content of `directory`, and returns an empty cache there.
    ///
    /// # Errors
    /// If the directory cannot be emptied or created.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        remove_tree(&directory)?;
        fs::create_dir_all(&directory)?;
        Ok(Self { directory, ..Self::default() })
    }

    /// Restores a project directory to the template. After a failure, fills a new directory.
    pub(crate) fn restore(
        &self,
        template: &Template,
        (project, bare): (&Path, bool),
        trash: &Trash,
        should_continue: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let is_same = |last: &LastRestore| last.number == template.number && last.bare == bare;
        let last_stamps = self.take_last_restore(project).filter(is_same).map(|last| last.stamps).unwrap_or_default();
        let restore = |last_stamps| {
            Restore { tree: &template.tree, target: project, bare, trash, should_continue, last_stamps }.run()
        };
        let stamps = match restore(last_stamps) {
            Err(error) if should_continue() => {
                tracing::debug!(%error, project = %project.display(), "failed to restore a directory, filling it from scratch");
                trash.discard(project)?;
                restore(FileStamps::default())?
            }
            restored => restored?,
        };
        let mut last_restores = self.last_restores.lock();
        if last_restores.len() >= MAX_LAST_RESTORES {
            last_restores.pop_front();
        }
        last_restores.push_back(LastRestore { project: project.to_owned(), number: template.number, bare, stamps });
        Ok(())
    }

    /// Creates a directory for a template.
    pub(crate) fn create_directory(&self) -> io::Result<tempfile::TempDir> {
        tempfile::TempDir::new_in(&self.directory)
    }

    /// Returns a new template. It owns `directory`, which contains the tree.
    pub(crate) fn new_template(&self, tree: Tree, directory: tempfile::TempDir) -> Arc<Template> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        Arc::new(Template { number, tree, _directory: directory })
    }

    fn take_last_restore(&self, project: &Path) -> Option<LastRestore> {
        let mut last_restores = self.last_restores.lock();
        let index = last_restores.iter().position(|last| last.project == project)?;
        last_restores.remove(index)
    }

    pub(crate) fn cell(&self, key: &TemplateKey) -> Cell {
        let mut cells = self.cells.lock();
        if let Some((_, cell)) = cells.iter().find(|(known, _)| known == key) {
            return Arc::clone(cell);
        }
        if cells.len() >= MAX_TEMPLATES {
            cells.pop_front();
        }
        let cell = Cell::default();
        cells.push_back((key.clone(), Arc::clone(&cell)));
        cell
    }
}
