//! Compiles the pipeline of a repository.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_coordinator::SharedSources;
use muster_coordinator::includes::{Pin, SnapshotSources};
use muster_pipeline::Compiled;
use muster_pipeline::context::Context;
use muster_pipeline::diagnostic::Severity;
use muster_source::Snapshot;

use super::args::{InspectArgs, PipelineArgs};
use super::config::Config;
use super::context::{RunFacts, context};
use super::error::CiError;
use super::git_facts::ProjectIdentity;
use super::pins::{LOCK_FILE, LockFile};
use super::read::read_start_of_file;
use super::state::{ProjectState, find_worktree};
use super::ui;

const CONFIG_FILE: &str = ".gitlab-ci.yml";
/// Stands for the URL of the coordinator in the predefined variables if no coordinator runs.
const NO_SERVER: &str = "http://127.0.0.1";

pub(super) struct Prepared {
    pub(super) project: ProjectState,
    pub(super) config: Config,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) identity: ProjectIdentity,
    pub(super) context: Context,
    pub(super) compiled: Compiled,
    pub(super) sources: SharedSources,
}

pub(super) struct PrepareOptions<'a> {
    /// Bare repository to create.
    pub(super) store: &'a Path,
    /// URL of the coordinator. `None` if no coordinator runs.
    pub(super) server_url: Option<&'a str>,
    /// Number of the run.
    pub(super) iid: u64,
    pub(super) purpose: Purpose,
    /// Whether to ignore unavailable includes; see [`Context::stubs_includes`].
    pub(super) stubs_includes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Run,
    Inspect,
    /// Also records the values that rules compared.
    Explain,
}

/// Returns the state of the repository that contains a directory.
///
/// # Errors
/// If no usable git repository contains the directory.
pub(super) fn locate(directory: &Path) -> Result<ProjectState, CiError> {
    match find_worktree(directory) {
        Some(worktree) => ProjectState::of(&worktree),
        // Let git report what is wrong.
        None => {
            let store = tempfile::tempdir().map_err(CiError::system("create a temporary directory"))?;
            let snapshot = Snapshot::take(directory, &store.path().join("store.git"))?;
            ProjectState::of(&snapshot.worktree)
        }
    }
}

/// Compiles the pipeline without running it. Dropping the returned directory deletes the snapshot.
pub(super) async fn compile_only(args: &InspectArgs) -> Result<(Prepared, tempfile::TempDir), CiError> {
    compile(args, Purpose::Inspect).await
}

/// Like [`compile_only`], but records the values that rules compared.
pub(super) async fn compile_with_explanations(args: &InspectArgs) -> Result<(Prepared, tempfile::TempDir), CiError> {
    compile(args, Purpose::Explain).await
}

async fn compile(args: &InspectArgs, purpose: Purpose) -> Result<(Prepared, tempfile::TempDir), CiError> {
    let project = locate(&args.pipeline.repository.directory)?;
    let directory = tempfile::Builder::new().prefix("muster-").tempdir();
    let directory = directory.map_err(CiError::system("create a temporary directory"))?;
    let store = directory.path().join("store.git");
    let iid = project.run_numbers().last().map_or(1, |last| last + 1);
    let stubs_includes = args.include_stub;
    let options = PrepareOptions { store: &store, server_url: None, iid, purpose, stubs_includes };
    Ok((prepare(&args.pipeline, project, &options).await?, directory))
}

pub(super) struct PipelineSources {
    pub(super) project: ProjectState,
    pub(super) config: Config,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) identity: ProjectIdentity,
    /// Value of `CI_SERVER_FQDN`.
    pub(super) server: String,
    pub(super) context: Context,
    pub(super) sources: SnapshotSources,
    pub(super) text: Vec<u8>,
}

/// Passes the snapshot and the configuration to `work`, on a thread that may block. Deletes the snapshot afterwards.
pub(super) async fn with_sources<T: Send + 'static>(
    args: PipelineArgs,
    work: impl FnOnce(PipelineSources) -> Result<T, CiError> + Send + 'static,
) -> Result<T, CiError> {
    let project = locate(&args.repository.directory)?;
    let temporary = tempfile::Builder::new().prefix("muster-").tempdir();
    let temporary = temporary.map_err(CiError::system("create a temporary directory"))?;
    let store = temporary.path().join("store.git");
    let runtime = tokio::runtime::Handle::current();
    let done = tokio::task::spawn_blocking(move || {
        let options = PrepareOptions {
            store: &store,
            server_url: None,
            iid: 1,
            purpose: Purpose::Inspect,
            stubs_includes: false,
        };
        work(read_sources(&args, project, &options, runtime)?)
    });
    done.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Takes the snapshot, and reads the configuration and the pins. Blocks the thread.
fn read_sources(
    args: &PipelineArgs,
    project: ProjectState,
    options: &PrepareOptions<'_>,
    runtime: tokio::runtime::Handle,
) -> Result<PipelineSources, CiError> {
    let config = Config::load()?;
    let snapshot = Snapshot::take(&args.repository.directory, options.store)?;
    let identity = ProjectIdentity::of(&snapshot);
    let file = PipelineFile::find(args, &snapshot.worktree)?;
    let text = file.read()?;
    let server_url = options.server_url.unwrap_or(NO_SERVER);
    let run = RunFacts { server_url, project_id: project.project_id, iid: options.iid, config_path: &file.name };
    let context = Context {
        explains: options.purpose == Purpose::Explain,
        stubs_includes: options.stubs_includes,
        ..context(args, &config, &snapshot, &identity, &run)?
    };
    let snapshot = Arc::new(snapshot);
    let server = identity.server_or(server_url);
    let server = server.split_once("://").map_or(server, |(_, host)| host).to_owned();
    let cache = project.includes();
    let lock_file = LockFile::read(&snapshot.worktree)?.unwrap_or_default();
    let includes = config.includes(cache.clone(), lock_file.pins(&snapshot.worktree, &cache), args.offline)?;
    let sources = SnapshotSources::new(Arc::clone(&snapshot), includes, &identity.path, &server, runtime);
    Ok(PipelineSources { project, config, snapshot, identity, server, context, sources, text })
}

/// Takes the snapshot, and compiles the pipeline. Errors of the configuration are in [`Prepared::compiled`].
pub(super) async fn prepare(
    args: &PipelineArgs,
    project: ProjectState,
    options: &PrepareOptions<'_>,
) -> Result<Prepared, CiError> {
    let runtime = tokio::runtime::Handle::current();
    let (args, store, server_url) = (args.clone(), options.store.to_owned(), options.server_url.map(str::to_owned));
    let PrepareOptions { iid, purpose, stubs_includes, .. } = *options;
    let work = tokio::task::spawn_blocking(move || {
        let options = PrepareOptions { store: &store, server_url: server_url.as_deref(), iid, purpose, stubs_includes };
        let PipelineSources { project, config, snapshot, identity, context, sources, text, .. } =
            read_sources(&args, project, &options, runtime)?;
        let compiled = muster_pipeline::compile(&text, &context, &sources);
        report_pins(&sources.used_pins());
        Ok(Prepared { project, config, snapshot, identity, context, compiled, sources: Arc::new(sources) })
    });
    work.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

fn report_pins(pins: &[Pin]) {
    if !pins.is_empty() {
        let pins: Vec<String> = pins.iter().map(|pin| ui::plain(&pin.summary())).collect();
        ui::note(&format!("using includes pinned in {LOCK_FILE}: {}", pins.join(", ")));
    }
}

struct PipelineFile {
    path: PathBuf,
    /// Value of `CI_CONFIG_PATH`: the path from the top of the repository, or the given path if the file is outside
    /// the repository.
    name: String,
}

impl PipelineFile {
    fn find(args: &PipelineArgs, worktree: &Path) -> Result<Self, CiError> {
        let Some(file) = &args.file else {
            return Ok(Self { path: worktree.join(CONFIG_FILE), name: CONFIG_FILE.to_owned() });
        };
        // The path is relative to the current directory, or to `--directory`.
        let path = args.repository.directory.join(file);
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
        read_start_of_file(&self.path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => CiError::NoConfiguration { path: self.path.clone() },
            _ => CiError::Read { path: self.path.clone(), source },
        })
    }
}

impl Prepared {
    /// Prints warnings and errors.
    ///
    /// # Errors
    /// [`CiError::Configuration`] if there are errors.
    pub(super) fn show_diagnostics(&self) -> Result<(), CiError> {
        let compiled = &self.compiled;
        if !compiled.diagnostics.is_empty() {
            let text =
                muster_pipeline::render::render(&compiled.diagnostics, &compiled.sources, ui::stderr_has_color());
            ui::errln(text.trim_end());
        }
        let errors = compiled.diagnostics.iter().filter(|found| found.severity == Severity::Error).count();
        if errors == 0 { Ok(()) } else { Err(CiError::Configuration { errors }) }
    }
}
