//! `login`: keeps a registry's credentials where docker keeps them.

use std::io::Read as _;

use muster_fleeting::install::DEFAULTS;
use muster_oci::{Credentials, DockerConfig, Registry, Repository};

use super::error::PluginError;
use crate::ci::ui;

/// Bytes of a password; an access token has some hundred.
const PASSWORD_MAX_BYTES: u64 = 64 * 1024;

/// Arguments of `login`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Host of the registry, with its port where it has one.
    #[arg(value_name = "SERVER", default_value = DEFAULTS.registry)]
    server: String,
    /// Who logs in.
    #[arg(short, long, env = "MUSTER_PLUGIN_USERNAME")]
    username: Option<String>,
    /// Password or access token. Others on this machine can see it; --password-stdin hides it.
    #[arg(short, long, conflicts_with = "password_stdin")]
    password: Option<String>,
    /// Read the password from standard input.
    #[arg(long)]
    password_stdin: bool,
}

/// Runs the command. What the registry refuses is not kept.
pub(super) async fn run(args: &Args) -> Result<bool, PluginError> {
    let username = args.username.as_deref().filter(|name| !name.is_empty());
    let username = username.ok_or(PluginError::Words("who logs in? Say --username NAME"))?;
    let password = match &args.password {
        Some(password) => password.clone(),
        None if args.password_stdin => from_stdin().map_err(PluginError::Password)?,
        None => return Err(PluginError::Words("no password; pipe it into --password-stdin, or say --password")),
    };
    if password.is_empty() {
        return Err(PluginError::Words("the password is empty"));
    }
    // Any path will do to see that it is a host.
    let Repository { registry, .. } = Repository::parse(&format!("{}/login", args.server), &DEFAULTS)?;
    let credentials = Credentials::new(username, password);
    let repository = Repository { registry: args.server.clone(), path: "login".to_owned() };
    if registry != args.server {
        return Err(PluginError::Words(
            "the server is no host: write a name with a dot or a port, such as r.example:5000",
        ));
    }
    Registry::new(repository, Some(credentials.clone()))?.check_login().await?;
    let docker = DockerConfig::from_environment()?;
    docker.put(&args.server, &credentials).await?;
    ui::outln(&format!("{} lets {username} in; kept by {}", args.server, docker.path().display()));
    Ok(true)
}

fn from_stdin() -> std::io::Result<String> {
    let mut password = String::new();
    std::io::stdin().lock().take(PASSWORD_MAX_BYTES).read_to_string(&mut password)?;
    Ok(password.trim_end_matches(['\r', '\n']).to_owned())
}
