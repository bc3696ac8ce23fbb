//! `register`: registers a runner with the server, and adds it to the configuration file.

mod args;
mod executor;
mod prompt;
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

pub(crate) use args::RegisterArgs;
use prompt::{Prompt, PromptError, Prompter};
use server::{RegisteredRunner, Server};

use super::entry::{TemplateError, merge, read_template};
use crate::config_file::{ConfigError, client, client_of, is_created_at_server, log_system_or_user_mode, version_info};

#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Save(#[from] EditError),
    #[error("{} is not writable; fix the permissions of its directory, or set --config to another file", path.display())]
    ReadOnly { path: PathBuf },
    #[error("failed to install a signal handler")]
    Signals(#[source] std::io::Error),
    #[error("failed to create a client for the server")]
    Server(#[source] ClientError),
    /// The reason has been logged.
    #[error("failed to verify the runner")]
    Verify,
    #[error(
        "failed to verify the runner: the server accepted the token but returned no ID; check that the URL is that of a GitLab instance"
    )]
    NoId,
    /// The reason has been logged.
    #[error("failed to register the runner")]
    Register,
    #[error("{0}; {help}", help = .0.help.as_deref().unwrap_or_default())]
    ReservedFlags(Box<Problem>),
    #[error("invalid executor `{name}`; expected one of: {names}")]
    Executor { name: String, names: String },
}

pub(super) fn run(args: &RegisterArgs) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::exit_code(register(args).await) })
}

async fn register(args: &RegisterArgs) -> Result<(), RegisterError> {
    log_system_or_user_mode();
    let mut registration = Registration::begin(args)?;
    let result = registration.complete(args).await;
    if let (Err(_), Some(registered), false) = (&result, registration.registered_runner.take(), args.leave_runner) {
        registered.undo().await;
    }
    result
}

struct Registration {
    prompter: Prompter,
    path: PathBuf,
    concurrent: i64,
    tokens: Vec<Secret>,
    entry: Table,
    /// Runner, or manager of a runner, that is unregistered on the server if the registration fails later.
    registered_runner: Option<RegisteredRunner>,
}

impl Registration {
    /// Reads and checks all files first, so that a registered runner can be saved.
    fn begin(args: &RegisterArgs) -> Result<Self, RegisterError> {
        let prompter = Prompter::new(!args.non_interactive).map_err(RegisterError::Signals)?;
        let path = args.config.path();
        let config = args.config.load_or_new()?;
        if path.parent().is_some_and(std::path::Path::exists) && !HostFacts::of(&path).writable {
            return Err(RegisterError::ReadOnly { path });
        }
        let mut entry = args.entry.table.clone();
        if let Some(file) = args.template_config.as_ref().filter(|file| !file.as_os_str().is_empty()) {
            tracing::info!(template = %file.display(), "Merging configuration from template file");
            merge(&mut entry, &read_template(file)?, "runners");
        }
        let concurrent = config.tree.int("concurrent").unwrap_or(1);
        let tokens = config.runners.into_iter().map(|runner| runner.token).collect();
        Ok(Self { prompter, path, concurrent, tokens, entry, registered_runner: None })
    }

    async fn complete(&mut self, args: &RegisterArgs) -> Result<(), RegisterError> {
        let text = "Enter the GitLab instance URL (for example, https://gitlab.com/):";
        self.prompt_into("url", text, "", false).await?;
        let new_token = self.register_token(args).await?;
        self.prompter.fail_if_signaled().await?;
        for (key, name) in [("limit", "runner job"), ("request_concurrency", "runner request")] {
            let value = self.entry.get(key).and_then(Item::as_integer).unwrap_or(0);
            if value > self.concurrent {
                tracing::warn!(
                    "The specified {name} concurrency limit ({value}) is larger than current global concurrency limit \
                     ({}). The global concurrent limit will not be increased and takes precedence.",
                    self.concurrent
                );
            }
        }
        let default = self.text("executor");
        let executor = executor::prompt_executor(&mut self.prompter, &default).await?;
        self.entry.insert("executor", toml_edit::value(executor.as_str()));
        executor::complete(&mut self.prompter, &mut self.entry, &executor).await?;
        self.save(new_token.as_ref())
    }

    fn save(&mut self, new_token: Option<&NewToken>) -> Result<(), RegisterError> {
        let mut file = ConfigFile::open(&self.path)?;
        let executor = self.text("executor");
        let index = file.add_runner(sort_keys(std::mem::take(&mut self.entry)));
        if let Some(new) = new_token {
            file.set_token(index, new)?;
        }
        file.save()?;
        tracing::info!(
            "Runner registered successfully. Feel free to start it, but if it's running already the config should be \
             automatically reloaded!"
        );
        if !EXECUTORS.iter().any(|(name, is_supported)| *is_supported && *name == executor) {
            let supported: Vec<&str> =
                EXECUTORS.iter().filter(|(_, is_supported)| *is_supported).map(|(name, _)| *name).collect();
            let supported = supported.join(", ");
            tracing::warn!(
                "executor `{executor}` is not supported yet, so this runner will request no jobs; supported executors: {supported}"
            );
        }
        let path = file.path().display().to_string();
        tracing::info!("Configuration (with the authentication token) was saved in {path:?}");
        Ok(())
    }

    /// Verifies an authentication token, or registers a runner with a registration token. Returns the token to save.
    ///
    /// Returns `None` for an authentication token in `--token` whose runner was not created on the server: the entry
    /// already contains this token.
    async fn register_token(&mut self, args: &RegisterArgs) -> Result<Option<NewToken>, RegisterError> {
        // The requests need the values of the environment variables to which the entry refers. The file keeps the
        // references.
        let mut document = toml_edit::DocumentMut::new();
        let mut entries = toml_edit::ArrayOfTables::new();
        entries.push(self.entry.clone());
        document.insert("runners", Item::ArrayOfTables(entries));
        let parsed = config::parse(&document.to_string(), &HostFacts::of(&self.path)).config;
        let parsed = parsed.and_then(|config| Some((config.runners.first().cloned()?, config)));
        let (client, info) = match &parsed {
            Some((runner, config)) => (client_of(runner), version_info(config, runner)),
            None => (client(&self.text("url"), &config::tree::Table::default()), VersionInfo::default()),
        };
        let client = client.map_err(RegisterError::Server)?;
        let server = Server { client, system_id: args.config.system_id(), info };
        let token = self.text("token");
        if !token.is_empty() && !is_created_at_server(&token) {
            tracing::info!("Token specified trying to verify runner...");
            tracing::warn!("If you want to register use the '-r' instead of '-t'.");
            self.set_default_name();
            return match server.verify(&token).await {
                Err(error) if error.is_unknown_token() || matches!(error, ClientError::Setup(_)) => {
                    Err(RegisterError::Verify)
                }
                // Other errors do not mean that the token is invalid.
                _ => Ok(None),
            };
        }
        let token_to_register = if token.is_empty() {
            let default = args.server.registration_token.clone().unwrap_or_default();
            let prompt = Prompt {
                flag: "registration-token",
                text: "Enter the registration token:",
                default: &default,
                optional: false,
            };
            self.prompter.prompt(prompt).await?
        } else {
            token.clone()
        };
        let credentials = if is_created_at_server(&token_to_register) {
            let is_known = self.tokens.iter().any(|known| known.expose() == token_to_register);
            if is_known {
                tracing::warn!("A runner with this system ID and token has already been registered.");
            }
            if let Some(problem) = registration_flags(&token_to_register, &args.server.changed_flags()) {
                if !token.is_empty() {
                    return Err(RegisterError::ReservedFlags(Box::new(problem)));
                }
                tracing::warn!(
                    code = problem.code,
                    "--registration-token is an authentication token: {}; these flags are ignored",
                    problem.message
                );
            }
            let credentials = server.verify(&token_to_register).await.map_err(|_| RegisterError::Verify)?;
            // The manager of an existing entry must remain on the server.
            self.registered_runner =
                (!is_known).then(|| RegisteredRunner { server, token: Secret::new(token_to_register.as_str()) });
            if credentials.id == 0 {
                return Err(RegisterError::NoId);
            }
            let text = "Enter a name for the runner. This is stored only in the local config.toml file:";
            self.prompt_into("name", text, &host_name(), false).await?;
            muster_runner_api::wire::RunnerCredentials { token: token_to_register, ..credentials }
        } else {
            self.register_with_registration_token(args, server, &token_to_register).await?
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

    async fn register_with_registration_token(
        &mut self,
        args: &RegisterArgs,
        server: Server,
        token: &str,
    ) -> Result<muster_runner_api::wire::RunnerCredentials, RegisterError> {
        self.prompt_into("name", "Enter a description for the runner:", &host_name(), false).await?;
        let mut answers = args.server.clone();
        let text = "Enter tags for the runner (comma-separated):";
        let prompt = Prompt { flag: "tag-list", text, default: &args.server.tag_list, optional: true };
        answers.tag_list = self.prompter.prompt(prompt).await?;
        let text = "Enter optional maintenance note for the runner:";
        let prompt = Prompt { flag: "maintenance-note", text, default: &args.server.maintenance_note, optional: true };
        answers.maintenance_note = self.prompter.prompt(prompt).await?;
        tracing::warn!(
            "Registration tokens are deprecated since GitLab 15.6 and will be removed; create the runner on the server, and set \
                 --token to its authentication token."
        );
        let name = self.text("name");
        let credentials = server.register(token, &name, &answers).await.map_err(|_| RegisterError::Register)?;
        self.registered_runner = Some(RegisteredRunner { server, token: Secret::new(credentials.token.as_str()) });
        Ok(credentials)
    }

    fn set_default_name(&mut self) {
        if self.text("name").is_empty() {
            self.entry.insert("name", toml_edit::value(host_name()));
        }
    }

    fn text(&self, key: &str) -> String {
        self.entry.get(key).and_then(Item::as_str).unwrap_or_default().to_owned()
    }

    /// Prompts for the value of a key of the entry. Offers the current value as the default, or else `fallback`.
    async fn prompt_into(
        &mut self,
        key: &'static str,
        text: &str,
        fallback: &str,
        optional: bool,
    ) -> Result<(), PromptError> {
        let current = self.text(key);
        let default = if current.is_empty() { fallback } else { &current };
        let answer = self.prompter.prompt(Prompt { flag: key, text, default, optional }).await?;
        self.entry.insert(key, toml_edit::value(answer));
        Ok(())
    }
}

/// Sorts the keys in the order of the documentation. Unknown keys come last.
fn sort_keys(mut entry: Table) -> Table {
    let mut ordered = Table::new();
    // Reserves the position of the token next to the URL.
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
