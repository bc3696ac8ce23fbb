//! `muster ci clean`: deletes past runs and caches.

use std::path::Path;

use super::args::CleanArgs;
use super::error::{CiError, ExitStatus};
use super::prepare::locate;
use super::state::{ProjectState, all_projects};
use super::trash::remove_as_much_as_possible;
use super::ui;

#[derive(Debug, Default)]
struct Cleaned {
    freed: u64,
    /// Runs that were skipped because they are still running.
    running: usize,
    /// Directories that could not be deleted completely, or whose lock could not be obtained.
    not_deleted: usize,
}

pub(super) fn clean(args: &CleanArgs) -> Result<ExitStatus, CiError> {
    let projects = if args.all { all_projects()? } else { vec![locate(&args.repository.directory)?] };
    let mut cleaned = Cleaned::default();
    for project in &projects {
        cleaned.delete_project(project);
    }
    ui::outln(&format!("deleted {}", ui::size(cleaned.freed)));
    let running = cleaned.running;
    if running > 0 {
        ui::note(&format!(
            "skipped {running} running pipeline{}; cancel {} and clean again",
            if running == 1 { "" } else { "s" },
            if running == 1 { "it" } else { "them" }
        ));
    }
    if cleaned.not_deleted == 0 {
        Ok(ExitStatus::Passed)
    } else {
        Err(CiError::NotDeleted { directories: cleaned.not_deleted })
    }
}

impl Cleaned {
    /// Deletes the runs of a project that are not active. Also deletes the project's caches if no run is active.
    fn delete_project(&mut self, project: &ProjectState) {
        if !project.directory.exists() {
            return;
        }
        // Without the lock, a run could be started meanwhile and use the caches.
        let lock = match project.lock() {
            Ok(lock) => lock,
            Err(error) => return self.report("lock", &project.directory, &error),
        };
        let mut running = 0;
        for number in project.run_numbers() {
            if project.is_active(number) {
                running += 1;
            } else {
                self.discard(project, &project.run_directory(number));
            }
        }
        // The counter of run numbers is not deleted, so that no number is reused.
        if running == 0 {
            self.discard(project, &project.cache());
            self.discard(project, &project.includes());
        }
        self.running += running;
        // Release the lock, so that runs can start while the files are being deleted.
        drop(lock);
        let freed = project.trash().empty(&mut |path, error| self.report("delete", path, error));
        self.freed += freed;
    }

    /// Moves a directory to the trash. Deletes a directory that cannot be moved, such as a mount point.
    fn discard(&mut self, project: &ProjectState, directory: &Path) {
        if project.trash().add(directory).is_err() {
            let freed = remove_as_much_as_possible(directory, &mut |path, error| self.report("delete", path, error));
            self.freed += freed;
        }
    }

    fn report(&mut self, action: &str, path: &Path, error: &std::io::Error) {
        self.not_deleted += 1;
        ui::error(&format!("failed to {action} `{}`: {error}", ui::plain(&path.display().to_string())));
    }
}
