//! `register`: makes a runner known to the server, and adds it to the configuration file (runner-config 2.3, runner-api 1).

mod args;
mod ask;
mod executor;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use muster_config::edit::{ConfigFile, EditError, NewToken};
use muster_config::runtime::registration_flags;
use muster_config::schema::schema;
use muster_config::settings::host_name;
use muster_config::{self as config, EXECUTORS, HostFacts, Problem};
use muster_job::Secret;
use muster_runner_api::client::ClientError;
use muster_runner_api::wire::VersionInfo;
use time::OffsetDateTime;
use toml_edit::{Item, Table};

pub(crate) use args::Args;
use ask::{AskError, Asker, Question};
use server::{Known, Server};

use super::entry::{TemplateError, merge, template};
use crate::config_file::{ConfigError, client, client_of, info, is_made_at_server, tell_mode};

/// Why nothing was registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    Save(#[from] EditError),
    #[error("{} cannot be written; mend the permissions of its folder, or name another file with --config", path.display())]
    ReadOnly { path: PathBuf },
    #[error("cannot watch for signals")]
    Signals(#[source] std::io::Error),
    #[error("the server cannot be asked")]
    Server(#[source] ClientError),
    /// Why has been told.
    #[error("failed to verify the runner")]
    Verify,
    #[error(
        "failed to verify the runner: the server knows the token and tells no id; is its URL that of a GitLab instance?"
    )]
    NoId,
    /// Why has been told.
    #[error("failed to register the runner")]
    Register,
    #[error("{0}; {help}", help = .0.help.as_deref().unwrap_or_default())]
    Reserved(Box<Problem>),
    #[error("invalid executor `{name}`; there are: {names}")]
    Executor { name: String, names: String },
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::ended(register(args).await) })
}

async fn register(args: &Args) -> Result<(), RegisterError> {
    tell_mode();
    let mut registration = Registration::begin(args)?;
    let result = registration.go_on(args).await;
    if let (Err(_), Some(known), false) = (&result, registration.known.take(), args.leave_runner) {
        known.undo().await;
    }
    result
}

struct Registration {
    asker: Asker,
    path: PathBuf,
    concurrent: i64,
    tokens: Vec<Secret>,
    entry: Table,
    /// What has to be taken back on failure.
    known: Option<Known>,
}

impl Registration {
    /// Reads everything first: what cannot be saved later is not registered.
    fn begin(args: &Args) -> Result<Self, RegisterError> {
        let asker = Asker::new(!args.non_interactive).map_err(RegisterError::Signals)?;
        let path = args.config.path();
        let config = args.config.load_or_new()?;
        if path.parent().is_some_and(std::path::Path::exists) && !HostFacts::of(&path).writable {
            return Err(RegisterError::ReadOnly { path });
        }
        let mut entry = args.entry.table.clone();
        if let Some(file) = args.template_config.as_ref().filter(|file| !file.as_os_str().is_empty()) {
            tracing::info!(template = %file.display(), "Merging configuration from template file");
            merge(&mut entry, &template(file)?, "runners");
        }
        let concurrent = config.tree.int("concurrent").unwrap_or(1);
        let tokens = config.runners.into_iter().map(|runner| runner.token).collect();
        Ok(Self { asker, path, concurrent, tokens, entry, known: None })
    }

    async fn go_on(&mut self, args: &Args) -> Result<(), RegisterError> {
        let text = "Enter the GitLab instance URL (for example, https://gitlab.com/):";
        self.ask_into("url", text, "", false).await?;
        let new_token = self.ask_server(args).await?;
        self.asker.check().await?;
        for (key, what) in [("limit", "runner job"), ("request_concurrency", "runner request")] {
            let value = self.entry.get(key).and_then(Item::as_integer).unwrap_or(0);
            if value > self.concurrent {
                tracing::warn!(
                    "The specified {what} concurrency limit ({value}) is larger than current global concurrency limit \
                     ({}). The global concurrent limit will not be increased and takes precedence.",
                    self.concurrent
                );
            }
        }
        let default = self.text("executor");
        let executor = executor::ask(&mut self.asker, &default).await?;
        self.entry.insert("executor", toml_edit::value(executor.as_str()));
        executor::complete(&mut self.asker, &mut self.entry, &executor).await?;
        self.save(new_token.as_ref())
    }

    fn save(&mut self, new_token: Option<&NewToken>) -> Result<(), RegisterError> {
        let mut file = ConfigFile::open(&self.path)?;
        let executor = self.text("executor");
        let index = file.add_runner(in_order(std::mem::take(&mut self.entry)));
        if let Some(new) = new_token {
            file.set_token(index, new)?;
        }
        file.save()?;
        tracing::info!(
            "Runner registered successfully. Feel free to start it, but if it's running already the config should be \
             automatically reloaded!"
        );
        if !EXECUTORS.iter().any(|(name, built)| *built && *name == executor) {
            let has: Vec<&str> = EXECUTORS.iter().filter(|(_, built)| *built).map(|(name, _)| *name).collect();
            let has = has.join(", ");
            tracing::warn!("executor `{executor}` is not built yet: this runner requests no jobs. Muster has: {has}");
        }
        let path = file.path().display().to_string();
        tracing::info!("Configuration (with the authentication token) was saved in {path:?}");
        Ok(())
    }

    /// Settles the token: what is new of it comes back, for the file.
    async fn ask_server(&mut self, args: &Args) -> Result<Option<NewToken>, RegisterError> {
        // References to the environment count for the calls; the file keeps them.
        let mut document = toml_edit::DocumentMut::new();
        let mut entries = toml_edit::ArrayOfTables::new();
        entries.push(self.entry.clone());
        document.insert("runners", Item::ArrayOfTables(entries));
        let read = config::parse(&document.to_string(), &HostFacts::of(&self.path)).config;
        let read = read.and_then(|config| Some((config.runners.first().cloned()?, config)));
        let (client, info) = match &read {
            Some((runner, config)) => (client_of(runner), info(config, runner)),
            None => (client(&self.text("url"), &config::tree::Table::default()), VersionInfo::default()),
        };
        let client = client.map_err(RegisterError::Server)?;
        let server = Server { client, system_id: args.config.system_id(), info };
        let token = self.text("token");
        if !token.is_empty() && !is_made_at_server(&token) {
            tracing::info!("Token specified trying to verify runner...");
            tracing::warn!("If you want to register use the '-r' instead of '-t'.");
            self.name_by_default();
            return match server.verify(&token).await {
                Err(error) if error.is_unknown_token() || matches!(error, ClientError::Setup(_)) => {
                    Err(RegisterError::Verify)
                }
                // What else goes wrong says nothing of the token: the runner is there, and is found alive later.
                _ => Ok(None),
            };
        }
        let given = if token.is_empty() {
            let default = args.server.registration_token.clone().unwrap_or_default();
            let question = Question {
                flag: "registration-token",
                text: "Enter the registration token:",
                default: &default,
                optional: false,
            };
            self.asker.ask(question).await?
        } else {
            token.clone()
        };
        let credentials = if is_made_at_server(&given) {
            if self.tokens.iter().any(|known| known.expose() == given) {
                tracing::warn!("A runner with this system ID and token has already been registered.");
            }
            if let Some(problem) = registration_flags(&given, &args.server.set()) {
                if !token.is_empty() {
                    return Err(RegisterError::Reserved(Box::new(problem)));
                }
                tracing::warn!(
                    code = problem.code,
                    "An authentication token was given as --registration-token: {}; these flags are ignored",
                    problem.message
                );
            }
            let credentials = server.verify(&given).await.map_err(|_| RegisterError::Verify)?;
            self.known = Some(Known { server, token: Secret::new(given.as_str()) });
            if credentials.id == 0 {
                return Err(RegisterError::NoId);
            }
            let text = "Enter a name for the runner. This is stored only in the local config.toml file:";
            self.ask_into("name", text, &host_name(), false).await?;
            muster_runner_api::wire::RunnerCredentials { token: given, ..credentials }
        } else {
            self.register_by_token(args, server, &given).await?
        };
        let id = Some(credentials.id);
        Ok(Some(NewToken {
            id,
            ..NewToken::after_reset(
                &credentials.token,
                credentials.token_expires_at.as_deref(),
                OffsetDateTime::now_utc(),
            )
        }))
    }

    async fn register_by_token(
        &mut self,
        args: &Args,
        server: Server,
        token: &str,
    ) -> Result<muster_runner_api::wire::RunnerCredentials, RegisterError> {
        self.ask_into("name", "Enter a description for the runner:", &host_name(), false).await?;
        let mut answers = args.server.clone();
        let text = "Enter tags for the runner (comma-separated):";
        let question = Question { flag: "tag-list", text, default: &args.server.tag_list, optional: true };
        answers.tag_list = self.asker.ask(question).await?;
        let text = "Enter optional maintenance note for the runner:";
        let question =
            Question { flag: "maintenance-note", text, default: &args.server.maintenance_note, optional: true };
        answers.maintenance_note = self.asker.ask(question).await?;
        tracing::warn!(
            "Registration tokens are deprecated since GitLab 15.6, and support for them is to be removed: make the runner at \
             the server, and pass its authentication token with --token."
        );
        let name = self.text("name");
        let credentials = server.register(token, &name, &answers).await.map_err(|_| RegisterError::Register)?;
        self.known = Some(Known { server, token: Secret::new(credentials.token.as_str()) });
        Ok(credentials)
    }

    fn name_by_default(&mut self) {
        if self.text("name").is_empty() {
            self.entry.insert("name", toml_edit::value(host_name()));
        }
    }

    fn text(&self, key: &str) -> String {
        self.entry.get(key).and_then(Item::as_str).unwrap_or_default().to_owned()
    }

    async fn ask_into(
        &mut self,
        key: &'static str,
        text: &str,
        otherwise: &str,
        optional: bool,
    ) -> Result<(), AskError> {
        let there = self.text(key);
        let default = if there.is_empty() { otherwise } else { &there };
        let answer = self.asker.ask(Question { flag: key, text, default, optional }).await?;
        self.entry.insert(key, toml_edit::value(answer));
        Ok(())
    }
}

/// The entry's keys in the order of the documentation; what the schema does not know comes last.
fn in_order(mut entry: Table) -> Table {
    let mut ordered = Table::new();
    // The token's place is beside the url, also where it is known only later.
    entry.entry("token").or_insert(toml_edit::value(""));
    for known in schema().entries("runners") {
        if let Some(item) = entry.remove(known.name()) {
            ordered.insert(known.name(), item);
        }
    }
    for (name, item) in entry {
        ordered.insert(&name, item);
    }
    ordered
}
