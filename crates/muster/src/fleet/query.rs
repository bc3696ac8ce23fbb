//! Queries the running manager, or reads its state on disk, for `muster fleet status` and `explain`.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_config::{self as config, SettingsContext};
use muster_executor::instance::read_fleets;
use muster_manager::store::Store;
use muster_taskscaler::driver::LedgerError;
use muster_taskscaler::fleet::{ExplanationSet, ReportSource, Reports, Subject, VERSION, explain};
use muster_taskscaler::history;
use serde::de::DeserializeOwned;

use crate::ci::ui;
use crate::config_file::{ConfigArg, ConfigError};
use crate::flags;
use crate::runner::{EXPLAIN_PATH, STATUS_PATH};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Arguments that select the manager.
#[derive(Debug, clap::Args)]
pub(super) struct ManagerTarget {
    #[command(flatten)]
    config: ConfigArg,
    /// Address of the manager to query: its `listen_address`. The manager may run on another machine.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Read the manager's state from its state directory instead of querying the manager.
    #[arg(long, value_name = "DIR", conflicts_with = "address", value_parser = flags::path())]
    state_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    #[error(transparent)]
    Address(#[from] muster_config::InvalidListenAddress),
    #[error(
        "no answer from the manager at {address}; check that it is running and that this is its `listen_address`, or read its state on disk with --state-dir"
    )]
    NoAnswer { address: String, source: reqwest::Error },
    #[error("failed to create an HTTP client")]
    Client(#[source] reqwest::Error),
    #[error(
        "unexpected answer from {address}; check that it is the `listen_address` of a manager with instances: {message}"
    )]
    Answer { address: String, message: String },
    #[error(transparent)]
    Store(#[from] LedgerError),
    #[error("failed to read the history of {}", ledger.display())]
    History { ledger: PathBuf, source: std::io::Error },
    #[error("{}: no such directory; set --state-dir to a manager's state directory", .0.display())]
    NoSuchState(PathBuf),
    #[error("failed to read {}; run the command as root or as the manager's user", directory.display())]
    State { directory: PathBuf, source: std::io::Error },
    #[error("{}: not a manager's state directory; set --state-dir to the state directory of a manager", .0.display())]
    NoState(PathBuf),
    #[error("{}: no such file; set --config to the manager's configuration, or --state-dir to its state directory", .0.display())]
    NoSuchConfiguration(PathBuf),
    #[error("unknown state directory; set --state-dir")]
    NoStateDir,
}

enum AnswerSource {
    Manager(String),
    /// Directory with the ledgers of the manager's scalers.
    Disk(PathBuf),
}

impl ManagerTarget {
    pub(super) async fn status(&self) -> Result<Reports, QueryError> {
        let from_disk = |directory: &Path| {
            let fleets = read_fleets(directory, now())?.into_iter().map(|fleet| fleet.report).collect();
            Ok(Reports { version: VERSION, unix: now(), source: ReportSource::Disk, fleets })
        };
        self.query(STATUS_PATH, &[], from_disk).await
    }

    pub(super) async fn explain(&self, subject: &Subject) -> Result<ExplanationSet, QueryError> {
        let parameter = match subject {
            Subject::Fleet => None,
            Subject::Job(job) => Some(("job", job.as_str())),
            Subject::Instance(id) => Some(("instance", id.as_str())),
            Subject::Group(name) => Some(("group", name.as_str())),
        };
        let query: Vec<(&str, &str)> = parameter.into_iter().collect();
        self.query(EXPLAIN_PATH, &query, |directory| explain_from_disk(directory, subject)).await
    }

    async fn query<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        from_disk: impl Fn(&Path) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        if let Some(address) = &self.address {
            return get(&client()?, address, path, query).await;
        }
        if let Some(directory) = flags::non_empty(&self.state_dir) {
            match Store::exists(&directory) {
                Ok(true) => {}
                Ok(false) if ledger_directory(&directory).is_dir() => {}
                Ok(false) if directory.is_dir() => return Err(QueryError::NoState(directory)),
                Ok(false) => return Err(QueryError::NoSuchState(directory)),
                Err(source) => return Err(QueryError::State { directory, source }),
            }
            return from_disk(&ledger_directory(&directory));
        }
        for source in self.answer_sources()? {
            match source {
                AnswerSource::Manager(address) => match get(&client()?, &address, path, query).await {
                    Err(QueryError::NoAnswer { address, .. }) => {
                        ui::note(&format!("no answer from the manager at {address}; showing its state on disk"));
                    }
                    answered => return answered,
                },
                AnswerSource::Disk(directory) => return from_disk(&directory),
            }
        }
        Err(QueryError::NoStateDir)
    }

    /// Returns the sources in the order of preference.
    fn answer_sources(&self) -> Result<Vec<AnswerSource>, QueryError> {
        let path = self.config.path();
        // Other errors are reported when the file is loaded.
        if matches!(path.try_exists(), Ok(false)) {
            return Err(QueryError::NoSuchConfiguration(path));
        }
        let config = config::settings(&self.config.load()?, &SettingsContext::default());
        let address = config.listen_address.filter(|address| !address.trim().is_empty());
        if address.is_none() {
            ui::note("`listen_address` is not set, so the manager cannot be queried; showing its state on disk");
        }
        let path = std::path::absolute(&path).unwrap_or(path);
        let disk = crate::runner::state_dir(&path).map(|directory| AnswerSource::Disk(ledger_directory(&directory)));
        Ok(address.map(AnswerSource::Manager).into_iter().chain(disk).collect())
    }
}

pub(super) fn ledger_directory(state: &Path) -> PathBuf {
    state.join(crate::runner::INSTANCES)
}

pub(crate) fn client() -> Result<reqwest::Client, QueryError> {
    reqwest::Client::builder().timeout(ANSWER_TIMEOUT).no_proxy().build().map_err(QueryError::Client)
}

pub(crate) async fn get<T: DeserializeOwned>(
    client: &reqwest::Client,
    address: &str,
    path: &str,
    query: &[(&str, &str)],
) -> Result<T, QueryError> {
    let url = format!("{}{path}", address.parse::<muster_config::ListenAddress>()?.url());
    let no_answer = |source| QueryError::NoAnswer { address: address.to_owned(), source };
    let answer = client.get(url).query(query).send().await.map_err(no_answer)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(no_answer)?;
    serde_json::from_slice(&body).map_err(|_| {
        let body = String::from_utf8_lossy(&body);
        let message = format!("{status}: {}", ui::fit(&ui::plain(body.trim()), 200));
        QueryError::Answer { address: address.to_owned(), message }
    })
}

fn explain_from_disk(directory: &Path, subject: &Subject) -> Result<ExplanationSet, QueryError> {
    let unix = now();
    let mut fleets = Vec::new();
    for fleet in read_fleets(directory, unix)? {
        let read_history = |since, limit, predicate: &dyn Fn(&history::HistoryEntry) -> bool| {
            history::read(&fleet.ledger, since, limit, predicate)
        };
        let explanation = explain(subject, &fleet.report, ReportSource::Disk, unix, &read_history);
        fleets.push(explanation.map_err(|source| QueryError::History { ledger: fleet.ledger.clone(), source })?);
    }
    if fleets.iter().any(|fleet| fleet.found) {
        fleets.retain(|fleet| fleet.found);
    }
    Ok(ExplanationSet { version: VERSION, unix, source: ReportSource::Disk, fleets })
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
