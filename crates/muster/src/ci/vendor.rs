//! `muster ci vendor`: downloads included files, and pins them in `muster-ci.lock`.

use std::path::{Path, PathBuf};

use muster_coordinator::includes::{Pin, SnapshotSources, VendorOptions};
use muster_pipeline::context::{ChildSource, Context};
use muster_pipeline::load::{self, IncludeOutcome, Loaded};
use muster_pipeline::render::render;

use super::args::VendorArgs;
use super::error::{CiError, ExitStatus};
use super::pins::{LOCK_FILE, LockFile};
use super::prepare::{PipelineSources, with_sources};
use super::ui::{self, Table};

/// Maximum depth of child pipelines. GitLab's limit.
pub(super) const MAX_CHILD_DEPTH: usize = 2;

/// Downloads the included files and pins them. With `--offline`, only checks that all of them are available.
pub(super) async fn vendor(args: VendorArgs) -> Result<ExitStatus, CiError> {
    let offline = args.pipeline.offline;
    // The path is relative to the current directory, or to `--directory`.
    let into = args.into.map(|into| args.pipeline.repository.directory.join(into));
    let work = move |sources| if offline { check(sources) } else { fetch(sources, into.as_deref()) };
    with_sources(args.pipeline, work).await
}

fn fetch(pipeline: PipelineSources, into: Option<&Path>) -> Result<ExitStatus, CiError> {
    let worktree = pipeline.snapshot.worktree.clone();
    let cache = pipeline.project.includes();
    let directory = match into {
        Some(directory) => Some(path_in_repository(&worktree, directory)?),
        None => LockFile::read(&worktree)?.and_then(|file| file.directory),
    };
    let file = LockFile::new(directory.clone(), Vec::new());
    let identity = &pipeline.identity;
    let options = VendorOptions {
        projects: identity.clone_url_prefix.clone(),
        login: identity.login.clone(),
        server: pipeline.server.clone(),
        templates: pipeline.config.template_url(),
        directory: file.contents_directory(&worktree, &cache),
        repositories: cache.join("repositories"),
    };
    let sources = pipeline.sources.vendoring(options);
    if !load_all(&pipeline.text, &pipeline.context, &sources) {
        return Err(CiError::Failed(format!(
            "failed to download some of the included files; `{LOCK_FILE}` is unchanged"
        )));
    }
    let pins = sources.created_pins();
    show(&pins);
    LockFile::new(directory, pins).write(&worktree)?;
    Ok(ExitStatus::Passed)
}

fn check(pipeline: PipelineSources) -> Result<ExitStatus, CiError> {
    if !load_all(&pipeline.text, &pipeline.context, &pipeline.sources) {
        return Err(CiError::Failed(
            "not all included files are available on this machine; run `muster ci vendor` to download them".to_owned(),
        ));
    }
    show(&pipeline.sources.used_pins());
    Ok(ExitStatus::Passed)
}

/// Returns whether everything that the event needs was loaded.
///
/// The first pass loads what the event needs. The second pass loads all includes, regardless of their rules.
fn load_all(text: &[u8], context: &Context, sources: &SnapshotSources) -> bool {
    let event = LoadPass { context, sources, is_required: true };
    let all = Context { ignores_include_rules: true, ..context.clone() };
    let all = LoadPass { context: &all, sources, is_required: false };
    [event, all].iter().all(|pass| pass.follow(load::load(text, pass.context, sources), 0))
}

struct LoadPass<'a> {
    context: &'a Context,
    sources: &'a SnapshotSources,
    /// Whether a missing include is an error.
    is_required: bool,
}

impl LoadPass<'_> {
    /// Reports failed includes, and follows child pipelines. Returns whether all required includes were loaded.
    fn follow(&self, loaded: Loaded, depth: usize) -> bool {
        let failed = loaded.includes.iter().any(|include| include.outcome == IncludeOutcome::Failed);
        if failed {
            ui::errln(render(&loaded.diagnostics, &loaded.sources, ui::stderr_has_color()).trim_end());
        }
        if failed && self.is_required {
            return false;
        }
        if failed {
            ui::warning("the includes above are only used under rules that do not match now; they are not pinned");
        }
        if depth == MAX_CHILD_DEPTH {
            return true;
        }
        let children: Vec<Vec<ChildSource>> = load::children(&loaded.root);
        children.iter().all(|child| self.follow(load::load_child(child, self.context, self.sources), depth + 1))
    }
}

fn show(pins: &[Pin]) {
    if pins.is_empty() {
        ui::note("the configuration has no includes to download");
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

/// Returns the path of `directory` relative to the top of the repository.
fn path_in_repository(worktree: &Path, directory: &Path) -> Result<PathBuf, CiError> {
    let absolute = std::path::absolute(directory)
        .map_err(CiError::system(format!("resolve the path `{}`", directory.display())))?;
    let top = std::fs::canonicalize(worktree).unwrap_or_else(|_| worktree.to_owned());
    let relative = crate::paths::relative_to(&top, &absolute).filter(|relative| !relative.as_os_str().is_empty());
    relative.ok_or_else(|| {
        CiError::Usage(format!("`--into {}` is not a directory inside the repository", directory.display()))
    })
}
