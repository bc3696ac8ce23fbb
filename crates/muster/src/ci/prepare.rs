//! The way from a folder to a compiled pipeline, which all commands share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_coordinator::SharedSources;
use muster_coordinator::includes::{Pin, SnapshotSources};
use muster_pipeline::Compiled;
use muster_pipeline::context::Context;
use muster_pipeline::diagnostic::Severity;
use muster_source::Snapshot;

use super::args::{LookArgs, PipelineArgs};
use super::config::Config;
use super::context::{RunFacts, context};
use super::error::CiError;
use super::git_facts::ProjectIdentity;
use super::pins::{LOCK_FILE, Lock};
use super::read::start_of_file;
use super::state::{ProjectState, find_worktree};
use super::ui;

/// The name of the file that a pipeline is written in.
const CONFIG_FILE: &str = ".gitlab-ci.yml";
/// `CI_SERVER_URL` where no coordinator runs.
const NO_SERVER: &str = "http://127.0.0.1";

/// A pipeline, compiled for an event, with what it was made of.
pub(super) struct Prepared {
    pub(super) project: ProjectState,
    pub(super) config: Config,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) identity: ProjectIdentity,
    pub(super) context: Context,
    pub(super) compiled: Compiled,
    pub(super) sources: SharedSources,
}

/// Where the snapshot goes, and who serves it.
pub(super) struct Target<'a> {
    /// The bare repository to make.
    pub(super) store: &'a Path,
    /// The coordinator's address, if one runs.
    pub(super) server_url: Option<&'a str>,
    /// The number of the run.
    pub(super) iid: u64,
    /// What it is compiled for.
    pub(super) purpose: Purpose,
    /// See [`Context::stubs_includes`].
    pub(super) stubs_includes: bool,
}

/// What a pipeline is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To run it.
    Run,
    /// To show it.
    Look,
    /// To say why it is as it is, with the values that rules compared.
    Explain,
}

/// The state of the repository around the directory.
///
/// # Errors
/// The reason why the directory is no repository to run.
pub(super) fn locate(directory: &Path) -> Result<ProjectState, CiError> {
    match find_worktree(directory) {
        Some(worktree) => ProjectState::of(&worktree),
        // git knows best what is wrong here.
        None => {
            let store = tempfile::tempdir().map_err(CiError::system("cannot make a temporary directory"))?;
            let snapshot = Snapshot::take(directory, &store.path().join("store.git"))?;
            ProjectState::of(&snapshot.worktree)
        }
    }
}

/// Compiles the pipeline without running anything: the snapshot is gone afterwards.
pub(super) async fn compile_only(args: &LookArgs) -> Result<(Prepared, tempfile::TempDir), CiError> {
    compiled(args, Purpose::Look).await
}

/// As [`compile_only`], with decisions that name the values which rules compared.
pub(super) async fn explained(args: &LookArgs) -> Result<(Prepared, tempfile::TempDir), CiError> {
    compiled(args, Purpose::Explain).await
}

async fn compiled(args: &LookArgs, purpose: Purpose) -> Result<(Prepared, tempfile::TempDir), CiError> {
    let project = locate(&args.pipeline.place.directory)?;
    let folder = tempfile::Builder::new().prefix("muster-").tempdir();
    let folder = folder.map_err(CiError::system("cannot make a temporary directory"))?;
    let store = folder.path().join("store.git");
    let iid = project.run_numbers().last().map_or(1, |last| last + 1);
    let stubs_includes = args.include_stub;
    let target = Target { store: &store, server_url: None, iid, purpose, stubs_includes };
    Ok((prepare(&args.pipeline, project, &target).await?, folder))
}

/// All that a pipeline is compiled from.
pub(super) struct Gathered {
    pub(super) project: ProjectState,
    pub(super) config: Config,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) identity: ProjectIdentity,
    /// `CI_SERVER_FQDN`
    pub(super) server: String,
    pub(super) context: Context,
    pub(super) sources: SnapshotSources,
    /// The file that the pipeline is written in.
    pub(super) text: Vec<u8>,
}

/// Takes the snapshot, and reads what belongs to it. It blocks.
pub(super) fn gather(
    args: &PipelineArgs,
    project: ProjectState,
    target: &Target<'_>,
    runtime: tokio::runtime::Handle,
) -> Result<Gathered, CiError> {
    let config = Config::load()?;
    let snapshot = Snapshot::take(&args.place.directory, target.store)?;
    let identity = ProjectIdentity::of(&snapshot);
    let file = ConfigFile::find(args, &snapshot.worktree)?;
    let text = file.read()?;
    let server_url = target.server_url.unwrap_or(NO_SERVER);
    let run = RunFacts { server_url, project_id: project.project_id, iid: target.iid, config_path: &file.name };
    let context = Context {
        explains: target.purpose == Purpose::Explain,
        stubs_includes: target.stubs_includes,
        ..context(args, &config, &snapshot, &identity, &run)?
    };
    let snapshot = Arc::new(snapshot);
    let server = identity.server_or(server_url);
    let server = server.split_once("://").map_or(server, |(_, host)| host).to_owned();
    let cache = project.includes();
    let lock = Lock::read(&snapshot.worktree)?.unwrap_or_default();
    let includes = config.includes(cache.clone(), lock.pins(&snapshot.worktree, &cache), args.offline)?;
    let sources = SnapshotSources::new(Arc::clone(&snapshot), includes, &identity.path, &server, runtime);
    Ok(Gathered { project, config, snapshot, identity, server, context, sources, text })
}

/// Takes the snapshot, and compiles the pipeline. Configuration errors are in [`Prepared::compiled`].
pub(super) async fn prepare(
    args: &PipelineArgs,
    project: ProjectState,
    target: &Target<'_>,
) -> Result<Prepared, CiError> {
    let runtime = tokio::runtime::Handle::current();
    let (args, store, server_url) = (args.clone(), target.store.to_owned(), target.server_url.map(str::to_owned));
    let Target { iid, purpose, stubs_includes, .. } = *target;
    let work = tokio::task::spawn_blocking(move || {
        let target = Target { store: &store, server_url: server_url.as_deref(), iid, purpose, stubs_includes };
        let Gathered { project, config, snapshot, identity, context, sources, text, .. } =
            gather(&args, project, &target, runtime)?;
        let compiled = muster_pipeline::compile(&text, &context, &sources);
        tell_pins(&sources.used_pins());
        Ok(Prepared { project, config, snapshot, identity, context, compiled, sources: Arc::new(sources) })
    });
    work.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Says which pins stand for includes.
fn tell_pins(pins: &[Pin]) {
    if !pins.is_empty() {
        let pins: Vec<String> = pins.iter().map(|pin| ui::plain(&pin.summary())).collect();
        ui::note(&format!("pinned by {LOCK_FILE}: {}", pins.join(", ")));
    }
}

/// The file that the pipeline is written in.
struct ConfigFile {
    path: PathBuf,
    /// Its path from the top of the repository, where it lies inside: `CI_CONFIG_PATH`.
    name: String,
}

impl ConfigFile {
    fn find(args: &PipelineArgs, worktree: &Path) -> Result<Self, CiError> {
        let Some(file) = &args.file else {
            return Ok(Self { path: worktree.join(CONFIG_FILE), name: CONFIG_FILE.to_owned() });
        };
        // As the user stands where they typed, the path is from there; with `--directory`, from that directory.
        let path = args.place.directory.join(file);
        let found = std::fs::canonicalize(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => CiError::NoConfiguration { path: path.clone() },
            _ => CiError::Read { path: path.clone(), source },
        })?;
        let inside =
            std::fs::canonicalize(worktree).ok().and_then(|top| found.strip_prefix(top).ok().map(Path::to_owned));
        let name = inside.unwrap_or_else(|| file.clone()).to_string_lossy().into_owned();
        Ok(Self { path: found, name })
    }

    fn read(&self) -> Result<Vec<u8>, CiError> {
        start_of_file(&self.path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => CiError::NoConfiguration { path: self.path.clone() },
            _ => CiError::Read { path: self.path.clone(), source },
        })
    }
}

impl Prepared {
    /// Shows warnings and errors.
    ///
    /// # Errors
    /// [`CiError::Configuration`] if there is an error among them.
    pub(super) fn show_diagnostics(&self) -> Result<(), CiError> {
        let compiled = &self.compiled;
        if !compiled.diagnostics.is_empty() {
            let text =
                muster_pipeline::render::render(&compiled.diagnostics, &compiled.sources, ui::stderr_has_colour());
            ui::errln(text.trim_end());
        }
        let errors = compiled.diagnostics.iter().filter(|found| found.severity == Severity::Error).count();
        if errors == 0 { Ok(()) } else { Err(CiError::Configuration { errors }) }
    }
}
