//! Plugins as processes: our own, broken ones, and a real Go plugin.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where it fails")]

mod boundary;
mod conformance;
mod examples;
mod go;
#[cfg(feature = "install")]
mod install;
#[cfg(feature = "install")]
mod install_faults;
#[cfg(feature = "install")]
mod registry;
mod shared_temp;
mod ssh;
mod ssh_server;
mod start;
mod toy;
#[cfg(feature = "winrm")]
mod winrm;
#[cfg(feature = "winrm")]
mod winrm_private;
#[cfg(feature = "winrm")]
mod winrm_tls;
