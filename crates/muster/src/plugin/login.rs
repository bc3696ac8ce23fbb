//! `login`: stores a registry's credentials in docker's configuration.

use std::io::Read as _;

use muster_fleeting::install::DEFAULTS;
use muster_oci::{Credentials, DockerConfig, Registry, Repository};

use super::error::PluginError;
use crate::ci::ui;

/// Access tokens are much shorter.
const MAX_PASSWORD_BYTES: u64 = 64 * 1024;

/// Arguments of `muster plugin login`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginLoginArgs {
    /// Host of the registry, optionally with its port.
    #[arg(value_name = "SERVER", default_value = DEFAULTS.registry)]
    server: String,
    /// User name.
    #[arg(short, long, env = "MUSTER_PLUGIN_USERNAME")]
    username: Option<String>,
    /// Password or access token. Other users of this machine can see it; use --password-stdin to avoid that.
    #[arg(short, long, conflicts_with = "password_stdin")]
    password: Option<String>,
    /// Read the password from standard input.
    #[arg(long)]
    password_stdin: bool,
}

/// Checks the credentials at the registry before storing them.
pub(super) async fn run(args: &PluginLoginArgs) -> Result<bool, PluginError> {
    let username = args.username.as_deref().filter(|name| !name.is_empty());
    let username = username.ok_or(PluginError::Usage("no user name; set --username"))?;
    let password = match &args.password {
        Some(password) => password.clone(),
        None if args.password_stdin => from_stdin().map_err(PluginError::Password)?,
        None => return Err(PluginError::Usage("no password; pipe it to --password-stdin, or set --password")),
    };
    if password.is_empty() {
        return Err(PluginError::Usage("the password is empty"));
    }
    // The parser requires a path, but only the host matters here.
    let Repository { registry, .. } = Repository::parse(&format!("{}/login", args.server), &DEFAULTS)?;
    let credentials = Credentials::new(username, password);
    let repository = Repository { registry: args.server.clone(), path: "login".to_owned() };
    if registry != args.server {
        return Err(PluginError::Usage("invalid server; use a host name with a dot or a port, such as r.example:5000"));
    }
    Registry::new(repository, Some(credentials.clone()))?.check_login().await?;
    let docker = DockerConfig::from_environment()?;
    docker.put(&args.server, &credentials).await?;
    ui::outln(&format!(
        "logged in to {} as {username}; credentials are stored in {}",
        args.server,
        docker.path().display()
    ));
    Ok(true)
}

fn from_stdin() -> std::io::Result<String> {
    let mut password = String::new();
    let length = std::io::stdin().lock().take(MAX_PASSWORD_BYTES + 1).read_to_string(&mut password)?;
    if length as u64 > MAX_PASSWORD_BYTES {
        return Err(std::io::Error::other(format!("the password is longer than {MAX_PASSWORD_BYTES} bytes")));
    }
    Ok(password.trim_end_matches(['\r', '\n']).to_owned())
}
