//! `muster ci vendor`: fetches what includes name, and pins it.

use std::path::{Component, Path, PathBuf};

use muster_coordinator::includes::{Pin, SnapshotSources, VendorOptions};
use muster_pipeline::context::{ChildSource, Context};
use muster_pipeline::load::{self, IncludeOutcome, Loaded};
use muster_pipeline::render::render;

use super::args::VendorArgs;
use super::error::{CiError, ExitStatus};
use super::pins::{LOCK_FILE, Lock};
use super::prepare::{Gathered, Purpose, Target, gather, locate};
use super::ui::{self, Table};

/// How deep child pipelines are followed: GitLab's own limit.
const CHILD_LEVELS: usize = 2;

/// Fetches and pins; offline it checks that all is there.
pub(super) async fn vendor(args: VendorArgs) -> Result<ExitStatus, CiError> {
    let project = locate(&args.pipeline.place.directory)?;
    let temporary = tempfile::Builder::new().prefix("muster-").tempdir();
    let temporary = temporary.map_err(CiError::system("cannot make a temporary directory"))?;
    let store = temporary.path().join("store.git");
    let runtime = tokio::runtime::Handle::current();
    let work = tokio::task::spawn_blocking(move || {
        let target = Target { store: &store, server_url: None, iid: 1, purpose: Purpose::Look, stubs_includes: false };
        let gathered = gather(&args.pipeline, project, &target, runtime)?;
        if args.pipeline.offline { check(gathered) } else { fetch(gathered, args.into.as_deref()) }
    });
    work.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Fetches everything and writes the pins.
fn fetch(gathered: Gathered, into: Option<&Path>) -> Result<ExitStatus, CiError> {
    let worktree = gathered.snapshot.worktree.clone();
    let cache = gathered.project.includes();
    let folder = match into {
        Some(folder) => Some(inside(&worktree, folder)?),
        None => Lock::read(&worktree)?.and_then(|lock| lock.folder),
    };
    let lock = Lock::new(folder.clone(), Vec::new());
    let identity = &gathered.identity;
    let options = VendorOptions {
        projects: identity.clone_start.clone(),
        login: identity.login.clone(),
        server: gathered.server.clone(),
        templates: gathered.config.template_url(),
        directory: lock.contents(&worktree, &cache),
        repositories: cache.join("repositories"),
    };
    let sources = gathered.sources.vendoring(options);
    if !load_all(&gathered.text, &gathered.context, &sources) {
        return Err(CiError::Usage(format!("not every include could be fetched; `{LOCK_FILE}` is as it was")));
    }
    let pins = sources.pinned();
    show(&pins);
    Lock::new(folder, pins).write(&worktree)?;
    Ok(ExitStatus::Passed)
}

/// Checks that what is pinned is all that is needed, without a network.
fn check(gathered: Gathered) -> Result<ExitStatus, CiError> {
    if !load_all(&gathered.text, &gathered.context, &gathered.sources) {
        return Err(CiError::Usage("not every include is on this machine; `muster ci vendor` fetches them".to_owned()));
    }
    show(&gathered.sources.used_pins());
    Ok(ExitStatus::Passed)
}

/// Loads the configuration and its child pipelines, first as the event wants it, then with all includes whatever their
/// rules say. Answers whether the event has all it needs.
fn load_all(text: &[u8], context: &Context, sources: &SnapshotSources) -> bool {
    let wanted = Level { context, sources, is_wanted: true };
    let all = Context { ignores_include_rules: true, ..context.clone() };
    let all = Level { context: &all, sources, is_wanted: false };
    [wanted, all].iter().all(|level| level.follow(load::load(text, level.context, sources), 0))
}

/// One way to read the configuration.
struct Level<'a> {
    context: &'a Context,
    sources: &'a SnapshotSources,
    /// What is missing matters.
    is_wanted: bool,
}

impl Level<'_> {
    fn follow(&self, loaded: Loaded, depth: usize) -> bool {
        let failed = loaded.includes.iter().any(|include| include.outcome == IncludeOutcome::Failed);
        if failed {
            ui::errln(render(&loaded.diagnostics, &loaded.sources, ui::stderr_has_colour()).trim_end());
        }
        if failed && self.is_wanted {
            return false;
        }
        if failed {
            ui::warning("what is shown above is asked for only under rules that do not hold now, and is not pinned");
        }
        if depth == CHILD_LEVELS {
            return true;
        }
        let children: Vec<Vec<ChildSource>> = load::children(&loaded.root);
        children.iter().all(|child| self.follow(load::load_child(child, self.context, self.sources), depth + 1))
    }
}

fn show(pins: &[Pin]) {
    if pins.is_empty() {
        ui::note("the configuration includes nothing that has to be fetched");
        return;
    }
    let mut table = Table::new(&["INCLUDE", "PINNED TO", "FROM"]);
    let plain = anstyle::Style::new();
    for pin in pins {
        let commit = pin.commit.as_deref().map(|commit| commit.get(..8).unwrap_or(commit).to_owned());
        let id = match (&pin.version, commit) {
            (Some(version), Some(commit)) => format!("{version} ({commit})"),
            (None, Some(commit)) => commit,
            _ => format!("sha256 {}", pin.sha256.get(..8).unwrap_or_default()),
        };
        table.row([(pin.include.clone(), plain), (id, plain), (pin.from.clone(), ui::DIM)]);
    }
    ui::out(&table.to_string());
}

/// A folder as a path from the top of the repository.
fn inside(worktree: &Path, folder: &Path) -> Result<PathBuf, CiError> {
    let absolute =
        std::path::absolute(folder).map_err(CiError::system(format!("cannot use `{}`", folder.display())))?;
    let top = std::fs::canonicalize(worktree).unwrap_or_else(|_| worktree.to_owned());
    let path = absolute.strip_prefix(&top).or_else(|_| absolute.strip_prefix(worktree)).unwrap_or(folder);
    let is_inside = path.components().all(|part| matches!(part, Component::Normal(_))) && path.components().count() > 0;
    if is_inside {
        Ok(path.to_owned())
    } else {
        Err(CiError::Usage(format!("`--into {}` has to name a directory inside the repository", folder.display())))
    }
}
