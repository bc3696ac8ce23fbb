//! `muster ci clean`: deletes what past runs left.

use std::path::Path;

use super::args::CleanArgs;
use super::error::{CiError, ExitStatus};
use super::prepare::locate;
use super::state::{ProjectState, all_projects, folder_size, remove_what_can_be};
use super::ui;

/// What was done.
#[derive(Debug, Default)]
struct Cleaned {
    /// Bytes that were freed.
    freed: u64,
    /// Runs that are under way.
    living: usize,
    /// Folders of which something is left that should not be.
    left: usize,
}

/// Deletes runs and caches; runs that are under way stay, and what cannot be deleted keeps nothing else.
pub(super) fn clean(args: &CleanArgs) -> Result<ExitStatus, CiError> {
    let projects = if args.all { all_projects()? } else { vec![locate(&args.place.directory)?] };
    let mut cleaned = Cleaned::default();
    for project in &projects {
        cleaned.project(project);
    }
    ui::outln(&format!("deleted {}", ui::size(cleaned.freed)));
    let living = cleaned.living;
    if living > 0 {
        ui::note(&format!(
            "{living} run{} under way; cancel, and clean again",
            if living == 1 { " is" } else { "s are" }
        ));
    }
    if cleaned.left == 0 { Ok(ExitStatus::Passed) } else { Err(CiError::NotDeleted { places: cleaned.left }) }
}

impl Cleaned {
    fn project(&mut self, project: &ProjectState) {
        let before = folder_size(&project.folder);
        let mut living = 0;
        for number in project.run_numbers() {
            if project.is_live(number) {
                living += 1;
            } else {
                self.delete(&project.run_folder(number));
            }
        }
        // The counter stays, so that the number of a run means one run for ever.
        if living == 0 {
            self.delete(&project.cache());
            self.delete(&project.includes());
        }
        self.freed += before.saturating_sub(folder_size(&project.folder));
        self.living += living;
    }

    fn delete(&mut self, folder: &Path) {
        if let Err((path, error)) = remove_what_can_be(folder) {
            self.left += 1;
            ui::error(&format!("cannot delete `{}`: {error}", path.display()));
        }
    }
}
