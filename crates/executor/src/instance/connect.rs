//! Sessions with instances, opened with the connection details of their plugin.

use std::time::Duration;

use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::model::{ConnectInfo, ConnectorConfig, InstanceId, Platform};
use muster_job::is_loopback;
use muster_remote::{self as remote, DialError, KnownHosts, Session};

use crate::deploy::{Agents, DeployError};

const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    /// Address in the instance's own network.
    pub(super) internal: String,
    /// Address for other networks.
    pub(super) external: String,
}

impl Addresses {
    pub(super) fn from_info(info: &ConnectInfo) -> Self {
        Self { internal: info.internal_addr.clone(), external: info.external_addr.clone() }
    }

    /// Returns whether an address is a loopback address, with or without a port.
    pub(super) fn are_of_this_host(&self) -> bool {
        [&self.internal, &self.external].into_iter().any(|address| is_loopback(address))
    }
}

/// Addresses that the trace shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TraceAddresses {
    /// `log_internal_ip`.
    pub(super) internal: bool,
    /// `log_external_ip`.
    pub(super) external: bool,
}

/// Time for which a new machine may reject the credentials, because it may get the user's key only after it starts to
/// answer.
pub(super) const NEW_MACHINE_AUTH_GRACE: Duration = Duration::from_secs(120);

/// Opens a session with an instance, using the connection details of its plugin.
///
/// `is_new` is true before the first job. Details that expire before the machine answers are requested again, until
/// their connection timeout has passed.
///
/// # Errors
/// [`DeployError`] if there is no session.
pub(super) async fn dial<D: Future<Output = Result<ConnectInfo, DeployError>>>(
    id: &str,
    details: impl Fn() -> D,
    options: DialOptions,
    hosts: &KnownHosts,
    is_new: bool,
) -> Result<(Box<dyn Session>, Addresses), DeployError> {
    let began = tokio::time::Instant::now();
    loop {
        let info = details().await?;
        let (addresses, limit) = (Addresses::from_info(&info), info.connector.timeout);
        let target =
            connector::target(&InstanceId::new(id), info, options).map_err(|error| DeployError::dial(id, error))?;
        let dialed = match is_new {
            true => remote::dial_new(&target, hosts, NEW_MACHINE_AUTH_GRACE).await,
            false => remote::dial(&target, hosts).await,
        };
        match dialed {
            Ok(session) => return Ok((session, addresses)),
            Err(DialError::Expired) if began.elapsed() < limit => {
                tracing::debug!(instance = id, "connection details expired, requesting new ones");
                tokio::time::sleep(RETRY_DELAY).await;
            }
            Err(error) => return Err(DeployError::dial(id, error)),
        }
    }
}

pub(super) fn trace_lines(id: &str, addresses: &Addresses, shown: TraceAddresses) -> Vec<String> {
    let shown = [(shown.internal, &addresses.internal), (shown.external, &addresses.external)];
    let shown: String = shown
        .into_iter()
        .filter(|(is_shown, address)| *is_shown && !address.is_empty())
        .map(|(_, address)| format!(", {address}"))
        .collect();
    vec![
        "Preparing instance...".to_owned(),
        format!("Dialing instance {id}{shown}..."),
        format!("Instance {id} connected"),
    ]
}

/// Checks that there is an agent for the instance's platform.
///
/// The configuration or the plugin states the platform. An empty `os` or `arch` means that of the manager.
///
/// # Errors
/// [`DeployError::UnsupportedInstance`] if the platform has no agent.
pub(super) fn ensure_supported(agents: &Agents, id: &str, connector: &ConnectorConfig) -> Result<(), DeployError> {
    let own = Platform::this();
    let stated_or = |stated: &str, own: String| if stated.is_empty() { own } else { stated.to_owned() };
    let platform = Platform { os: stated_or(&connector.os, own.os), arch: stated_or(&connector.arch, own.arch) };
    match agents.executable_for(&platform) {
        Ok(_) => Ok(()),
        Err(source) => Err(DeployError::UnsupportedInstance { machine: id.to_owned(), platform, source }),
    }
}

#[cfg(test)]
mod tests {
    use muster_job::error_chain;

    use super::*;

    #[test]
    fn trace_shows_addresses_only_if_configured() {
        let addresses = Addresses { internal: "10.0.0.5".to_owned(), external: "192.0.2.1".to_owned() };
        let dialing =
            |internal, external| trace_lines("i-1", &addresses, TraceAddresses { internal, external }).remove(1);
        assert_eq!(dialing(false, false), "Dialing instance i-1...");
        assert_eq!(dialing(true, false), "Dialing instance i-1, 10.0.0.5...");
        assert_eq!(dialing(true, true), "Dialing instance i-1, 10.0.0.5, 192.0.2.1...");
    }

    #[test]
    fn instance_with_a_loopback_address_is_on_this_host() {
        let of_this_host = |internal: &str, external: &str| {
            Addresses { internal: internal.to_owned(), external: external.to_owned() }.are_of_this_host()
        };
        // The addresses of the plugin `local` have ports.
        assert!(of_this_host("127.0.0.1:2222", "") && of_this_host("", "::1"));
        assert!(!of_this_host("10.0.0.5", "192.0.2.1:22") && !of_this_host("", ""));
    }

    #[test]
    fn unsupported_platform_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let agents = Agents::new(std::sync::Arc::new(crate::deploy::Executable::new(dir.path().join("muster"))));
        let stated = |os: &str, arch: &str| {
            let connector = ConnectorConfig { os: os.to_owned(), arch: arch.to_owned(), ..ConnectorConfig::default() };
            ensure_supported(&agents, "i-1", &connector)
        };
        stated("", "").unwrap();
        stated("linux", "").unwrap();
        let error = stated("windows", "").unwrap_err().to_string();
        let expected = "no agent for instance i-1, whose platform is windows/";
        assert!(error.contains(expected) && error.contains("connector_config"), "{error}");
        let error = error_chain(&stated("linux", "s390x").unwrap_err());
        assert!(
            error.contains("platform is linux/s390x;") && error.contains("failed to read the agent's executable"),
            "{error}"
        );
    }

    /// AWS issues keys that are valid for one minute.
    #[tokio::test]
    async fn expired_connection_details_are_requested_again() {
        let closed_address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let requests = std::cell::Cell::new(0);
        let details = || {
            requests.set(requests.get() + 1);
            // The first two sets of details have expired. The third set leads to another error.
            let (expires, protocol) = if requests.get() < 3 { (Some(1), "ssh") } else { (None, "telnet") };
            let connector = ConnectorConfig { protocol: protocol.to_owned(), ..ConnectorConfig::default() };
            let internal_addr = closed_address.clone();
            std::future::ready(Ok(ConnectInfo { connector, external_addr: String::new(), internal_addr, expires }))
        };
        let error = dial("i-1", details, DialOptions::default(), &KnownHosts::default(), true).await.err().unwrap();
        let error = error_chain(&error);
        assert!(error.contains("telnet") && requests.get() == 3, "{} {error}", requests.get());
    }
}
