//! Address of an engine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use muster_agent_api::builtin::DockerEngine;
use url::{Host, Url};

use super::EngineError;
use super::tls::{self, TlsEndpoint};

/// Socket of a Docker engine that runs as root.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";
/// Socket of a Podman engine that runs as root.
const PODMAN_SOCKET: &str = "/run/podman/podman.sock";
const PORT: u16 = 2375;
const TLS_PORT: u16 = 2376;

#[derive(Debug, Clone)]
pub(super) enum Endpoint {
    /// Unix socket on this machine.
    Unix(PathBuf),
    /// Host and port, without TLS.
    Tcp(String, u16),
    /// Host and port, with TLS.
    Tls(TlsEndpoint),
    /// Command whose stdin and stdout are a connection.
    Command(Vec<OsString>),
}

/// Environment variables for the connection to an engine.
#[derive(Debug, Clone, Default)]
pub(super) struct Variables {
    /// `DOCKER_HOST`.
    pub(super) host: String,
    /// `DOCKER_CERT_PATH`.
    pub(super) cert_path: String,
    /// Whether `DOCKER_TLS_VERIFY` has a value.
    pub(super) tls_verify: bool,
    /// `XDG_RUNTIME_DIR`, with the sockets of the user's engines.
    pub(super) runtime_dir: String,
    /// `HOME`, with the certificates of Docker's command line.
    pub(super) home: String,
}

impl Variables {
    pub(super) fn of_process() -> Self {
        let value = |key: &str| std::env::var(key).unwrap_or_default();
        Self {
            host: value("DOCKER_HOST"),
            cert_path: value("DOCKER_CERT_PATH"),
            tls_verify: !value("DOCKER_TLS_VERIFY").is_empty(),
            runtime_dir: value("XDG_RUNTIME_DIR"),
            home: value("HOME"),
        }
    }
}

impl Endpoint {
    /// Returns the endpoint, and its URL for messages.
    pub(super) fn new(settings: &DockerEngine, variables: &Variables) -> Result<(Self, String), EngineError> {
        let is_configured = !settings.host.is_empty();
        let mut settings = settings.clone();
        if !is_configured && !variables.host.is_empty() {
            settings.host.clone_from(&variables.host);
            settings.tls_verify |= variables.tls_verify;
        }
        if settings.host.is_empty() {
            let path = local_socket(variables);
            let url = format!("unix://{}", path.display());
            return Ok((Self::Unix(path), url));
        }
        if settings.cert_path.is_empty() && settings.tls_verify {
            settings.cert_path = if variables.cert_path.is_empty() {
                format!("{}/.docker", variables.home)
            } else {
                variables.cert_path.clone()
            };
        }
        Ok((Self::parse(&settings)?, settings.host))
    }

    fn parse(settings: &DockerEngine) -> Result<Self, EngineError> {
        let invalid = || EngineError::Address(settings.host.clone());
        if let Some(path) = settings.host.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(invalid()) };
        }
        let url = Url::parse(&settings.host).map_err(|_| invalid())?;
        if url.scheme() == "ssh" {
            return ssh(&url).map(Self::Command).ok_or_else(invalid);
        }
        let host = match url.host().ok_or_else(invalid)? {
            Host::Ipv6(address) => address.to_string(),
            Host::Ipv4(address) => address.to_string(),
            Host::Domain(name) => name.to_owned(),
        };
        let has_tls = match url.scheme() {
            "https" => true,
            "http" => false,
            "tcp" => settings.tls_verify || !settings.cert_path.is_empty(),
            _ => return Err(invalid()),
        };
        let port = url.port().unwrap_or(if has_tls { TLS_PORT } else { PORT });
        if !has_tls {
            return Ok(Self::Tcp(host, port));
        }
        tls::endpoint(host, port, &settings.cert_path, settings.tls_verify).map(Self::Tls)
    }
}

/// Returns the command that connects to a remote engine. `None` means that the URL is invalid.
fn ssh(url: &Url) -> Option<Vec<OsString>> {
    let host = url.host_str().map(|host| host.trim_start_matches('[').trim_end_matches(']'))?;
    let is_plain = |text: &str| !text.is_empty() && !text.starts_with('-') && !text.contains(char::is_whitespace);
    if !is_plain(host) || url.password().is_some() || !matches!(url.path(), "" | "/") {
        return None;
    }
    // Without this option, `ssh` may prompt for a password or a host key.
    let mut command = vec!["ssh".to_owned(), "-T".to_owned(), "-o".to_owned(), "BatchMode=yes".to_owned()];
    // Firewalls drop silent connections, and a stream to a container can be silent for hours.
    command.extend(["-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=30"].map(str::to_owned));
    if !url.username().is_empty() {
        command.extend(["-l".to_owned(), Some(url.username()).filter(|user| is_plain(user))?.to_owned()]);
    }
    if let Some(port) = url.port() {
        command.extend(["-p".to_owned(), port.to_string()]);
    }
    command.extend(["--", host, "docker", "system", "dial-stdio"].map(str::to_owned));
    Some(command.into_iter().map(OsString::from).collect())
}

/// Returns the addresses to try if none is configured: `DOCKER_HOST`, or else the usual sockets.
pub(super) fn candidates(variables: &Variables) -> Vec<String> {
    if !variables.host.is_empty() {
        return vec![variables.host.clone()];
    }
    local_sockets(variables).into_iter().map(|path| format!("unix://{}", path.display())).collect()
}

/// Returns the first socket that accepts connections, or else Docker's.
fn local_socket(variables: &Variables) -> PathBuf {
    let accepts = |path: &PathBuf| std::os::unix::net::UnixStream::connect(path).is_ok();
    local_sockets(variables).into_iter().find(accepts).unwrap_or_else(|| DOCKER_SOCKET.into())
}

/// Returns the usual sockets of engines on this machine, in the order to try them.
fn local_sockets(variables: &Variables) -> Vec<PathBuf> {
    let of_user = |name: &str| Path::new(&variables.runtime_dir).join(name);
    let mut sockets = vec![PathBuf::from(DOCKER_SOCKET)];
    if !variables.runtime_dir.is_empty() {
        sockets.extend([of_user("docker.sock"), of_user("podman/podman.sock")]);
    }
    sockets.push(PODMAN_SOCKET.into());
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(host: &str) -> Result<Endpoint, EngineError> {
        let settings = DockerEngine { host: host.to_owned(), ..DockerEngine::default() };
        Endpoint::new(&settings, &Variables::default()).map(|(endpoint, _)| endpoint)
    }

    #[test]
    fn url_selects_the_kind_of_connection() {
        assert!(matches!(parsed("unix:///run/d.sock"), Ok(Endpoint::Unix(path)) if path == Path::new("/run/d.sock")));
        for (url, host, port) in [
            ("tcp://engine.example", "engine.example", 2375),
            ("tcp://10.0.0.1:4000", "10.0.0.1", 4000),
            ("http://[::1]:4000", "::1", 4000),
        ] {
            assert!(matches!(parsed(url), Ok(Endpoint::Tcp(found, at)) if found == host && at == port), "{url}");
        }
        for url in ["", "engine", "unix://relative", "fd://3", "npipe:////./pipe/docker", "tcp://", "ssh://"] {
            let result = parsed(url);
            assert!(url.is_empty() == result.is_ok(), "{url:?}: {result:?}");
        }
    }

    #[test]
    fn ssh_command_has_user_port_and_host() {
        let command = |url: &str| match parsed(url) {
            Ok(Endpoint::Command(command)) => command.join(" ".as_ref()).into_string().unwrap(),
            other => format!("{other:?}"),
        };
        let options = "ssh -T -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=30";
        assert_eq!(
            command("ssh://ci@engine.example:2222"),
            format!("{options} -l ci -p 2222 -- engine.example docker system dial-stdio")
        );
        assert_eq!(command("ssh://[fe80::1]"), format!("{options} -- fe80::1 docker system dial-stdio"));
        for url in ["ssh://-oProxyCommand=x", "ssh://-x@host", "ssh://user:secret@host", "ssh://host/path"] {
            assert!(command(url).contains("Address"), "{url}");
        }
    }

    #[test]
    fn docker_host_is_used_only_if_no_host_is_configured() {
        let variables = Variables { host: "tcp://from-variable:1".to_owned(), ..Variables::default() };
        let host = |host: &str| {
            let settings = DockerEngine { host: host.to_owned(), ..DockerEngine::default() };
            Endpoint::new(&settings, &variables).unwrap().1
        };
        assert_eq!(host(""), "tcp://from-variable:1");
        assert_eq!(host("tcp://from-settings:1"), "tcp://from-settings:1");
    }

    #[test]
    fn sockets_of_the_user_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let variables = Variables { runtime_dir: dir.path().to_string_lossy().into_owned(), ..Variables::default() };
        let sockets = local_sockets(&variables);
        assert_eq!(sockets.first().unwrap(), Path::new(DOCKER_SOCKET));
        assert!(sockets.contains(&dir.path().join("docker.sock")));
        assert!(sockets.contains(&dir.path().join("podman/podman.sock")));
        assert_eq!(sockets.last().unwrap(), Path::new(PODMAN_SOCKET));
    }
}
