//! `muster ci clean`: deletes what past runs left.

use super::args::CleanArgs;
use super::error::{CiError, ExitStatus};
use super::prepare::locate;
use super::state::{ProjectState, all_projects, folder_size, remove_all};
use super::ui;

/// Deletes runs and caches; runs that are under way stay.
pub(super) fn clean(args: &CleanArgs) -> Result<ExitStatus, CiError> {
    let projects = if args.all { all_projects()? } else { vec![locate(&args.place.directory)?] };
    let mut freed = 0;
    let mut living = 0;
    for project in &projects {
        let (bytes, left) = clean_project(project)?;
        freed += bytes;
        living += left;
    }
    ui::outln(&format!("deleted {}", ui::size(freed)));
    if living > 0 {
        ui::note(&format!(
            "{living} run{} under way; cancel, and clean again",
            if living == 1 { " is" } else { "s are" }
        ));
    }
    Ok(ExitStatus::Passed)
}

/// The bytes that were freed, and how many runs are under way.
fn clean_project(project: &ProjectState) -> Result<(u64, usize), CiError> {
    let before = folder_size(&project.folder);
    let mut living = 0;
    for number in project.run_numbers() {
        let deleted = project.delete_run(number);
        if !deleted.map_err(|source| CiError::State { path: project.run_folder(number), source })? {
            living += 1;
        }
    }
    // The counter stays, so that the number of a run means one run for ever.
    if living == 0 {
        for folder in [project.cache(), project.includes()] {
            remove_all(&folder).map_err(|source| CiError::State { path: folder, source })?;
        }
    }
    Ok((before.saturating_sub(folder_size(&project.folder)), living))
}
