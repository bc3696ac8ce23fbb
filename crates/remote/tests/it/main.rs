//! Tests sessions with controllable servers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test panics")]

#[cfg(feature = "winrm")]
mod behind_proxies;
mod ssh;
mod ssh_server;
#[cfg(feature = "winrm")]
mod winrm;
#[cfg(feature = "winrm")]
mod winrm_private;
#[cfg(feature = "winrm")]
mod winrm_tls;
