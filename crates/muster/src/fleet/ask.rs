//! Whom `muster fleet status` and `explain` ask: the manager at work, over its address, or what it has on disk.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_config::{self as config, Surroundings};
use muster_manager::store::Store;
use muster_taskscaler::driver::StoreError;
use muster_taskscaler::fleet::{Explanations, Reports, Source, Subject, VERSION, explain, offline};
use muster_taskscaler::history;
use serde::de::DeserializeOwned;

use crate::ci::ui;
use crate::config_file::{ConfigArg, ConfigError};
use crate::flags;
use crate::runner::{EXPLAIN_PATH, STATUS_PATH};

/// For an answer of a manager.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Which manager.
#[derive(Debug, clap::Args)]
pub(super) struct Whom {
    #[command(flatten)]
    config: ConfigArg,
    /// Ask the manager that has this `listen_address`, on this machine or another.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Read this state directory of a manager, without asking it.
    #[arg(long, value_name = "DIR", conflicts_with = "address", value_parser = flags::path())]
    state_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    #[error(transparent)]
    Address(#[from] muster_config::NotAnAddress),
    #[error(
        "the manager at {address} does not answer; is it running, and is this its `listen_address`? What it has on disk can be read with --state-dir"
    )]
    Silent { address: String, source: reqwest::Error },
    #[error("cannot make a client for HTTP")]
    Client(#[source] reqwest::Error),
    #[error("{address} answers, but not as a manager with instances does: {message}")]
    Answer { address: String, message: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot read the decisions beside {}", books.display())]
    History { books: PathBuf, source: std::io::Error },
    #[error("{}: there is no such directory; name the `--state-dir` of a manager", .0.display())]
    NoSuchState(PathBuf),
    #[error("cannot read {}; a manager's state is for its own user and root", directory.display())]
    State { directory: PathBuf, source: std::io::Error },
    #[error("{}: no manager has had its state there; name the `--state-dir` of one", .0.display())]
    NoState(PathBuf),
    #[error("{}: there is no such file; name the manager's configuration with --config, or its state with --state-dir", .0.display())]
    NoSuchConfiguration(PathBuf),
    #[error("no directory is known that has the manager's state; name it with --state-dir")]
    NoStateDir,
}

/// Who is asked.
enum Place {
    Manager(String),
    Store(PathBuf),
}

impl Whom {
    /// How all fleets are.
    pub(super) async fn status(&self) -> Result<Reports, AskError> {
        let store = |directory: &Path| {
            let fleets = offline(directory, now())?.into_iter().map(|fleet| fleet.report).collect();
            Ok(Reports { version: VERSION, unix: now(), source: Source::Store, fleets })
        };
        self.ask(STATUS_PATH, &[], store).await
    }

    /// Why something is as it is.
    pub(super) async fn explain(&self, subject: &Subject) -> Result<Explanations, AskError> {
        let asked = match subject {
            Subject::Fleet => None,
            Subject::Job(job) => Some(("job", job.as_str())),
            Subject::Instance(id) => Some(("instance", id.as_str())),
            Subject::Group(name) => Some(("group", name.as_str())),
        };
        let query: Vec<(&str, &str)> = asked.into_iter().collect();
        self.ask(EXPLAIN_PATH, &query, |directory| explain_offline(directory, subject)).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        store: impl Fn(&Path) -> Result<T, AskError>,
    ) -> Result<T, AskError> {
        if let Some(address) = &self.address {
            return get(&client()?, address, path, query).await;
        }
        if let Some(directory) = flags::filled(&self.state_dir) {
            match Store::is_there(&directory) {
                Ok(true) => {}
                Ok(false) if instances(&directory).is_dir() => {}
                Ok(false) if directory.is_dir() => return Err(AskError::NoState(directory)),
                Ok(false) => return Err(AskError::NoSuchState(directory)),
                Err(source) => return Err(AskError::State { directory, source }),
            }
            return store(&instances(&directory));
        }
        for place in self.places()? {
            match place {
                Place::Manager(address) => match get(&client()?, &address, path, query).await {
                    Err(AskError::Silent { address, .. }) => {
                        ui::note(&format!("the manager does not answer at {address}: this is what it has on disk"));
                    }
                    answered => return answered,
                },
                Place::Store(directory) => return store(&directory),
            }
        }
        Err(AskError::NoStateDir)
    }

    /// The manager of the configuration, then its state.
    fn places(&self) -> Result<Vec<Place>, AskError> {
        let path = self.config.path();
        // What else is wrong with it is told when it is read.
        if matches!(path.try_exists(), Ok(false)) {
            return Err(AskError::NoSuchConfiguration(path));
        }
        let config = config::settings(&self.config.load()?, &Surroundings::default());
        let address = config.listen_address.filter(|address| !address.trim().is_empty());
        if address.is_none() {
            ui::note("`listen_address` is not set, so the manager cannot be asked: this is what it has on disk");
        }
        let path = std::path::absolute(&path).unwrap_or(path);
        let store = crate::runner::state_dir(&path).map(|directory| Place::Store(instances(&directory)));
        Ok(address.map(Place::Manager).into_iter().chain(store).collect())
    }
}

/// Where a manager has the books of its scalers.
pub(super) fn instances(state: &Path) -> PathBuf {
    state.join(crate::runner::INSTANCES)
}

/// To ask managers with.
pub(crate) fn client() -> Result<reqwest::Client, AskError> {
    reqwest::Client::builder().timeout(ANSWER_LIMIT).no_proxy().build().map_err(AskError::Client)
}

/// Asks the manager at an address.
pub(crate) async fn get<T: DeserializeOwned>(
    client: &reqwest::Client,
    address: &str,
    path: &str,
    query: &[(&str, &str)],
) -> Result<T, AskError> {
    let url = format!("{}{path}", address.parse::<muster_config::ListenAddress>()?.url());
    let silent = |source| AskError::Silent { address: address.to_owned(), source };
    let answer = client.get(url).query(query).send().await.map_err(silent)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(silent)?;
    serde_json::from_slice(&body).map_err(|_| {
        let body = String::from_utf8_lossy(&body);
        let message = format!("{status}: {}", ui::fit(&ui::plain(body.trim()), 200));
        AskError::Answer { address: address.to_owned(), message }
    })
}

fn explain_offline(directory: &Path, subject: &Subject) -> Result<Explanations, AskError> {
    let unix = now();
    let mut fleets = Vec::new();
    for fleet in offline(directory, unix)? {
        let recall =
            |since, most, wanted: &dyn Fn(&history::Told) -> bool| history::read(&fleet.books, since, most, wanted);
        let explained = explain(subject, &fleet.report, Source::Store, unix, &recall);
        fleets.push(explained.map_err(|source| AskError::History { books: fleet.books.clone(), source })?);
    }
    if fleets.iter().any(|fleet| fleet.known) {
        fleets.retain(|fleet| fleet.known);
    }
    Ok(Explanations { version: VERSION, unix, source: Source::Store, fleets })
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
