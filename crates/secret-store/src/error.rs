use std::path::PathBuf;
use std::time::Duration;

/// Reason why a secret was not fetched. No message contains a token or a value.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The address of the server is not valid.
    #[error(
        "`{0}` is not a valid address of a Vault server; set VAULT_SERVER_URL to a URL with the scheme https or http"
    )]
    Url(String),
    /// The namespace cannot be sent to the server.
    #[error(
        "{0:?} is not a valid namespace of a Vault server; use a name of visible ASCII characters in VAULT_NAMESPACE or in the secret's \
         configuration"
    )]
    Namespace(String),
    /// The engine is unknown.
    #[error("`{0}` is not a supported secrets engine; use kv-v2, kv-v1 or generic")]
    Engine(String),
    /// A variable of the manager's environment is not valid.
    #[error("`{value}` is not a valid value of {name}; correct it in the environment of the runner manager")]
    Option {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
    },
    /// Only one of two variables of the manager's environment is set.
    #[error("{name} is set in the environment of the runner manager, but {missing} is not; set both or none of them")]
    Incomplete {
        /// Name of the variable that is set.
        name: &'static str,
        /// Name of the variable that is not set.
        missing: &'static str,
    },
    /// A file that the manager's environment names cannot be used.
    #[error("failed to read {}, which {name} names in the environment of the runner manager", path.display())]
    File {
        /// Name of the variable.
        name: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A certificate that the manager's environment names is not valid.
    #[error("failed to use the certificates that {name} names in the environment of the runner manager")]
    Certificate {
        /// Name of the variable.
        name: &'static str,
        /// Cause.
        source: reqwest::Error,
    },
    /// The HTTP client cannot be created.
    #[error("failed to create the HTTP client")]
    Client(#[source] reqwest::Error),
    /// The server cannot be reached.
    #[error(
        "failed to reach the Vault server {url}: {reason}; check that it is reachable from the runner manager, and VAULT_CACERT if its \
         certificate has a private authority"
    )]
    Unreachable {
        /// URL of the server.
        url: String,
        /// Cause.
        reason: String,
    },
    /// The server did not answer in time.
    #[error(
        "the Vault server {url} did not answer within {} s; check the server, or set VAULT_CLIENT_TIMEOUT in the environment of the \
         runner manager", timeout.as_secs_f64()
    )]
    Timeout {
        /// URL of the server.
        url: String,
        /// Time limit of one request.
        timeout: Duration,
    },
    /// The server is sealed, overloaded, or has an internal error.
    #[error("the Vault server {url} is not available: {answer}; unseal or repair it, then retry the job")]
    Unavailable {
        /// URL of the server.
        url: String,
        /// Answer of the server.
        answer: String,
    },
    /// The login was refused.
    #[error(
        "the Vault server {url} refused the login at {path} with {role}{namespace}: {answer}; check that the role exists there, and that \
         its bound claims and audience match the job's ID token"
    )]
    Login {
        /// URL of the server.
        url: String,
        /// Path of the login.
        path: String,
        /// Description of the role.
        role: String,
        /// Description of the namespace.
        namespace: String,
        /// Answer of the server.
        answer: String,
    },
    /// The server refused to read the secret, usually because no policy allows it.
    #[error(
        "the Vault server {url} refused to read {path}{namespace}: {answer}; a policy of {role} must allow `read` on this path"
    )]
    Read {
        /// URL of the server.
        url: String,
        /// Path of the secret.
        path: String,
        /// Description of the role.
        role: String,
        /// Description of the namespace.
        namespace: String,
        /// Answer of the server.
        answer: String,
    },
    /// The server has no such secret or field.
    #[error(
        "secret not found: the Vault server {url} has {missing}{namespace}; check the path and the engine of the secret"
    )]
    NotFound {
        /// URL of the server.
        url: String,
        /// Description of what is missing.
        missing: String,
        /// Description of the namespace.
        namespace: String,
    },
    /// The answer is not from a Vault server.
    #[error("the answer of {url} is not from a Vault server: {reason}; check the address of the server")]
    Answer {
        /// URL of the server.
        url: String,
        /// Description of the problem.
        reason: String,
    },
    /// The server redirects to an address that is not used.
    #[error(
        "the Vault server {url} redirects to {target}, {reason}; set VAULT_SERVER_URL to the address of the active server"
    )]
    Redirect {
        /// URL of the server.
        url: String,
        /// Target of the redirect.
        target: String,
        /// Reason why it is not followed.
        reason: &'static str,
    },
}

impl VaultError {
    /// Returns whether the server or the network is the cause, so that the same job may succeed later.
    #[must_use]
    pub fn is_external(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. } | Self::Unavailable { .. })
    }

    /// Returns whether the server has no such secret or field.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}
