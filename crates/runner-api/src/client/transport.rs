//! Connections of a client. They are replaced when they are too old, or when a certificate file changes.
//!
//! Calls in progress keep their connection. If the new files are invalid, a warning is logged and the old certificates
//! stay in use, because the files may be in the middle of an update.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_job::error_chain;
use parking_lot::Mutex;
use reqwest::redirect::Policy;
use url::Url;

use super::{CONNECT_TIMEOUT, ClientError, POOL_IDLE_TIMEOUT, TlsFiles, redirect, user_agent};

/// Time between two pings while a gRPC call waits.
///
/// gRPC servers close connections on which pings arrive too often.
const GRPC_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Time without an answer to a ping after which a gRPC call fails. A server or proxy without HTTP/2 may not answer anything.
const GRPC_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum age of a connection for reuse (`connection_max_age`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionAge {
    /// Connections of any age are reused.
    #[default]
    Any,
    /// Connections are reused up to this age.
    UpTo(Duration),
    /// Connections are never reused.
    NoReuse,
}

/// Metadata of a file. A change of the content changes the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<Metadata> for Stamp {
    fn from(file: Metadata) -> Self {
        Self {
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

type Stamps = [Option<Stamp>; 3];

#[derive(Debug)]
struct Current {
    http: reqwest::Client,
    /// Client for gRPC with the same settings. Created when it is first needed.
    grpc: Option<reqwest::Client>,
    created: Instant,
    stamps: Stamps,
}

/// HTTP client of a coordinator, with the settings to recreate it.
#[derive(Debug)]
pub(super) struct Transport {
    base: Url,
    tls: TlsFiles,
    age: ConnectionAge,
    current: Mutex<Current>,
}

impl Transport {
    /// Creates a transport. For HTTPS, invalid certificate files are errors.
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`] if the client cannot be created.
    pub(super) fn new(base: Url, tls: TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let stamps = stamps(&tls);
        let current =
            Current { http: build(&base, &tls, age, Protocol::Http)?, grpc: None, created: Instant::now(), stamps };
        Ok(Self { base, tls, age, current: Mutex::new(current) })
    }

    /// Creates a transport even if a certificate file is invalid. The files are read again when they change.
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`] if no client can be created without the files either.
    pub(super) fn with_deferred_tls(base: Url, tls: TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let stamps = stamps(&tls);
        let http = build(&base, &tls, age, Protocol::Http).or_else(|error| {
            tracing::error!(%error, "failed to read the runner's certificates; they are read again when they change");
            build(&base, &TlsFiles::default(), age, Protocol::Http)
        })?;
        let current = Mutex::new(Current { http, grpc: None, created: Instant::now(), stamps });
        Ok(Self { base, tls, age, current })
    }

    /// Returns the client for the next call.
    pub(super) fn http(&self) -> reqwest::Client {
        let mut current = self.current.lock();
        self.refresh(&mut current);
        current.http.clone()
    }

    /// Returns the client for the next call over gRPC.
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`] if the client cannot be created.
    pub(super) fn grpc(&self) -> Result<reqwest::Client, ClientError> {
        let mut current = self.current.lock();
        self.refresh(&mut current);
        if let Some(grpc) = &current.grpc {
            return Ok(grpc.clone());
        }
        let grpc = build(&self.base, &self.tls, self.age, Protocol::Grpc)?;
        Ok(current.grpc.insert(grpc).clone())
    }

    /// Replaces the clients if they are too old, or if a certificate file has changed.
    fn refresh(&self, current: &mut Current) {
        let stamps = stamps(&self.tls);
        let expired = matches!(self.age, ConnectionAge::UpTo(age) if current.created.elapsed() >= age);
        if expired || stamps != current.stamps {
            current.stamps = stamps;
            current.created = Instant::now();
            match build(&self.base, &self.tls, self.age, Protocol::Http) {
                Ok(http) => (current.http, current.grpc) = (http, None),
                Err(error) => {
                    tracing::warn!(%error, "failed to reload the runner's certificates, keeping the previous ones")
                }
            }
        }
    }
}

fn stamps(tls: &TlsFiles) -> Stamps {
    let stamp = |path: &Option<PathBuf>| std::fs::metadata(path.as_ref()?).ok().map(Stamp::from);
    [stamp(&tls.ca), stamp(&tls.certificate), stamp(&tls.key)]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 without negotiation, as gRPC requires.
    Grpc,
}

fn build(base: &Url, tls: &TlsFiles, age: ConnectionAge, protocol: Protocol) -> Result<reqwest::Client, ClientError> {
    let mut http = reqwest::Client::builder()
        .user_agent(user_agent())
        .connect_timeout(CONNECT_TIMEOUT)
        // `read_timeout` would also count while a large body is sent. Each call has its own timeout.
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .tcp_nodelay(true)
        .tcp_keepalive(CONNECT_TIMEOUT)
        // The header would reveal paths of one server to another.
        .referer(false);
    http = match protocol {
        Protocol::Http => http.http1_only().redirect(redirect::policy()),
        Protocol::Grpc => http
            .http2_prior_knowledge()
            .http2_keep_alive_interval(GRPC_KEEPALIVE_INTERVAL)
            .http2_keep_alive_timeout(GRPC_KEEPALIVE_TIMEOUT)
            .redirect(Policy::none()),
    };
    if age == ConnectionAge::NoReuse {
        http = http.pool_max_idle_per_host(0);
    }
    let is_local = base.host_str().is_some_and(muster_job::is_loopback);
    if is_local {
        // `muster ci` calls its own process, which needs no proxy.
        http = http.no_proxy();
    }
    if is_local && base.scheme() == "http" && tls.is_empty() {
        // Reading the certificates of the system would take longer than a job of `muster ci`.
        http = http.tls_built_in_root_certs(false);
        return http.build().map_err(|error| ClientError::Setup(error_chain(&error)));
    }
    match tls.config() {
        Ok(Some(mut config)) => {
            if protocol == Protocol::Grpc {
                config.alpn_protocols = vec![b"h2".to_vec()];
            }
            http = http.use_preconfigured_tls(config);
        }
        Err(error) if base.scheme() == "https" => return Err(error),
        // For HTTP, certificates are needed only after a redirect to HTTPS. That call then reports what is missing.
        Ok(None) | Err(_) => {}
    }
    http.build().map_err(|error| ClientError::Setup(error_chain(&error)))
}

#[cfg(test)]
mod tests;
