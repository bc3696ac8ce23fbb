//! Fetches from the job's view of the machine's mirror ([`crate::git_mirror`]) instead of the server.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_agent_api::builtin::Checkout;
use muster_files::Limit;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::blocking::blocking;
use crate::context::Context;
use crate::mirrors::{Refspec, read_refs};
use crate::removal::remove_tree;

/// File with the refs of a view. A view without this file is incomplete.
const REFS: &str = "packed-refs";
const REFS_LIMIT: Limit = Limit { bytes: 256 * 1024 * 1024, remedy: "the sources are fetched from the server" };
/// File that marks a repository that borrows objects from a view.
const BORROWS: &str = "muster-borrows-objects";

/// Returns a repository from which `git fetch` gets the content of the job's view. `None` means that there is no usable
/// view.
///
/// git accepts this repository, because it belongs to the job's user. An earlier job cannot have changed its
/// configuration.
pub(super) async fn repository(
    context: &Arc<Context>,
    checkout: &Checkout,
    stop: &StopToken,
) -> Result<Option<PathBuf>, Failure> {
    let Some(view) = checkout.mirror.clone() else { return Ok(None) };
    let dir = context.temp_dir.join("git-mirror");
    let created = blocking(&**context, "opening the git mirror", stop, move || {
        Ok(create(Path::new(&view), &dir).map(|is_complete| is_complete.then_some(dir)))
    });
    match created.await? {
        Ok(repository) => Ok(repository),
        Err(error) => {
            report_broken(context, &error.to_string());
            Ok(None)
        }
    }
}

/// Creates the repository in `dir`. Returns false if the view is incomplete.
fn create(view: &Path, dir: &Path) -> io::Result<bool> {
    let Some(refs) = refs(view)? else { return Ok(false) };
    remove_tree(dir)?;
    for path in ["objects/info", "objects/pack", "refs"] {
        fs::create_dir_all(dir.join(path))?;
    }
    fs::write(dir.join("HEAD"), "ref: refs/heads/none\n")?;
    fs::write(dir.join("config"), "[core]\n\trepositoryformatversion = 0\n\tbare = true\n")?;
    borrow(view, dir)?;
    let text: String = refs.iter().map(|(hash, name)| format!("{hash} {name}\n")).collect();
    fs::write(dir.join(REFS), text)?;
    Ok(true)
}

/// Returns the refs of a view. `None` means that the view is incomplete.
fn refs(view: &Path) -> io::Result<Option<Vec<(String, String)>>> {
    let path = view.join(REFS);
    if !path.exists() {
        return Ok(None);
    }
    let text = muster_files::open(&path).and_then(|file| muster_files::read_open(file, &path, REFS_LIMIT));
    Ok(Some(read_refs(&String::from_utf8_lossy(&text.map_err(io::Error::other)?))))
}

fn borrow(view: &Path, repository: &Path) -> io::Result<()> {
    fs::write(repository.join("objects/info/alternates"), format!("{}\n", view.join("objects").display()))
}

/// Reports that the job fetches from the server because its view is unusable.
pub(super) fn report_broken(context: &Context, reason: &str) {
    let line = format!("The sources cannot be read from the git mirror, fetching from the server: {reason}");
    context.print(&style::warning(&line));
    if let Some(view) = &mut *context.mirror_view.lock() {
        view.set_broken();
    }
}

/// Makes a new repository borrow the objects of a view, and writes the refs that the refspecs select. Returns false if
/// the view is incomplete.
///
/// Used with libgit2, which detects damaged objects by their hash.
pub(super) fn borrow_with_refs(
    view: &Path,
    repository: &Path,
    refspecs: &[String],
    with_tags: bool,
) -> io::Result<bool> {
    let Some(refs) = refs(view)? else { return Ok(false) };
    let tags = with_tags.then(|| "refs/tags/*:refs/tags/*".to_owned());
    let refspecs: Vec<Refspec> = refspecs.iter().chain(&tags).filter_map(|text| Refspec::parse(text)).collect();
    let mut own: Vec<(String, String)> = refs
        .iter()
        .flat_map(|(hash, name)| {
            refspecs.iter().filter_map(move |refspec| Some((refspec.destination(name)?, hash.clone())))
        })
        .collect();
    own.sort();
    own.dedup_by(|one, other| one.0 == other.0);
    fs::create_dir_all(repository.join("objects/info"))?;
    fs::write(repository.join(BORROWS), "")?;
    borrow(view, repository)?;
    let text: String = own.iter().map(|(name, hash)| format!("{hash} {name}\n")).collect();
    fs::write(repository.join(REFS), text)?;
    Ok(true)
}

/// Returns whether the repository of a project borrows objects from a view.
pub(super) fn is_borrowing(project: &Path) -> bool {
    fs::symlink_metadata(project.join(".git").join(BORROWS)).is_ok()
}

pub(super) fn remove_borrowing_repository(project: &Path) {
    if is_borrowing(project) {
        let _ = remove_tree(&project.join(".git"));
    }
}
