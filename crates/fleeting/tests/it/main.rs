//! Tests plugins as processes: our own, faulty ones, and a real Go plugin.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a failed test panics")]

#[path = "../../../remote/tests/it/behind_proxies.rs"]
mod behind_proxies;
mod boundary;
mod conformance;
mod examples;
mod go;
#[cfg(feature = "install")]
mod install;
#[cfg(feature = "install")]
mod install_faults;
mod proxies;
#[cfg(feature = "install")]
mod registry;
mod shared_temp;
#[expect(dead_code, reason = "some items are only used by the tests of muster-remote")]
#[path = "../../../remote/tests/it/ssh_server.rs"]
mod ssh_server;
mod start;
mod toy;
