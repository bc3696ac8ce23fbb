//! Cache of work trees of commits, for checkouts of repositories on this machine. Each is read once and copied for every job.

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
use restore::{Marks, Restore};
pub(crate) use tree::Tree;

/// Maximum number of cached commits. The oldest is evicted first.
const KEPT: usize = 8;
/// Maximum number of project directories whose last state is known. In any other directory, all files are compared.
const KEPT_LEFT: usize = 64;

/// Commit of a template.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Key {
    pub(crate) repository: PathBuf,
    pub(crate) sha: String,
    pub(crate) url: String,
}

/// Work tree of a commit, ready to be copied.
#[derive(Debug)]
pub(crate) struct Template {
    /// Number that is unique in this process.
    number: u64,
    tree: Tree,
    /// Removes the directory that the tree was read from.
    _directory: tempfile::TempDir,
}

/// Template that exists, or that is being created by the first job that needs it.
pub(crate) type Cell = Arc<OnceCell<Arc<Template>>>;

/// Templates of an agent.
#[derive(Debug, Default)]
pub struct Templates {
    directory: PathBuf,
    cells: Mutex<VecDeque<(Key, Cell)>>,
    left: Mutex<VecDeque<Left>>,
    made: AtomicU64,
}

/// State of a project directory after its last restore.
#[derive(Debug)]
struct Left {
    project: PathBuf,
    /// Number of the template.
    number: u64,
    bare: bool,
    marks: Marks,
}

impl Templates {
    /// Returns an empty cache in `directory`. Templates of an earlier agent are removed from it.
    ///
    /// # Errors
    /// The directory cannot be emptied or created.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        remove_tree(&directory)?;
        fs::create_dir_all(&directory)?;
        Ok(Self { directory, ..Self::default() })
    }

    /// Restores a project directory to the state of the template. If that fails, the directory is removed and filled again.
    pub(crate) fn restore(
        &self,
        template: &Template,
        (project, bare): (&Path, bool),
        trash: &Trash,
        go_on: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let fits = |left: &Left| left.number == template.number && left.bare == bare;
        let left = self.take_left(project).filter(fits).map(|left| left.marks).unwrap_or_default();
        let restore = |left| Restore { tree: &template.tree, target: project, bare, trash, go_on, left }.run();
        let marks = match restore(left) {
            Err(error) if go_on() => {
                tracing::debug!(%error, project = %project.display(), "the directory is filled from scratch");
                trash.discard(project)?;
                restore(Marks::default())?
            }
            restored => restored?,
        };
        let mut kept = self.left.lock();
        if kept.len() >= KEPT_LEFT {
            kept.pop_front();
        }
        kept.push_back(Left { project: project.to_owned(), number: template.number, bare, marks });
        Ok(())
    }

    /// Creates an empty directory for a new template.
    pub(crate) fn directory(&self) -> io::Result<tempfile::TempDir> {
        tempfile::TempDir::new_in(&self.directory)
    }

    /// Returns a template with the tree that was read from `directory`.
    pub(crate) fn template(&self, tree: Tree, directory: tempfile::TempDir) -> Arc<Template> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Arc::new(Template { number, tree, _directory: directory })
    }

    fn take_left(&self, project: &Path) -> Option<Left> {
        let mut kept = self.left.lock();
        let index = kept.iter().position(|left| left.project == project)?;
        kept.remove(index)
    }

    pub(crate) fn cell(&self, key: &Key) -> Cell {
        let mut cells = self.cells.lock();
        if let Some((_, cell)) = cells.iter().find(|(own, _)| own == key) {
            return Arc::clone(cell);
        }
        if cells.len() >= KEPT {
            cells.pop_front();
        }
        let cell = Cell::default();
        cells.push_back((key.clone(), Arc::clone(&cell)));
        cell
    }
}
