//! Runs, tests, installs and implements fleeting plugins.
//! A plugin is a process that creates, lists and deletes machines of one kind.
//!
//! - [`host`] runs plugins in any language, unmodified: handshake, supervision, calls with timeouts.
//! - [`sdk`] is for plugins: implement one trait and call one `main` to get a plugin that every host of the protocol can run.
//! - [`conformance`] tests a plugin in any language.
//! - [`connector`] turns the connection details that a plugin returns for an instance into a target of `muster-remote`.
//! - `install` (feature `install`) downloads plugins from registries and finds installed ones.
//! - [`extension`] has the types of Muster's protocol extension: prices, notices, resource usage, job hooks.
//! - `faulty_plugin` (feature `test-support`) is a plugin with configurable faults, for tests.
//! - [`nesting`] creates virtual machines on an instance through the hypervisor daemon that runs there.
//! - [`model`] has the types that host and SDK share.
//! - `sys` has the code that depends on the operating system. [`sdk`], [`model`], [`extension`] and [`connector`] support Unix and Windows; the other
//!   modules are for Unix only.
//!
//! The protocol is GitLab's *fleeting*, application version 0, on top of HashiCorp's go-plugin handshake. `docs/spec/fleeting.md` describes
//! it.

#[cfg(unix)]
pub mod conformance;
pub mod connector;
pub mod extension;
#[cfg(all(unix, any(test, feature = "test-support")))]
pub mod faulty_plugin;
#[cfg(unix)]
pub mod host;
#[cfg(all(unix, feature = "install"))]
pub mod install;
mod layout;
pub mod model;
#[cfg(unix)]
pub mod nesting;
mod platform;
mod protocol;
pub mod sdk;
mod sys;
mod wire;
