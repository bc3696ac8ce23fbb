//! The plugin protocol of instance groups: a plugin is a process that makes, lists and removes machines of one kind.
//!
//! - [`host`] runs plugins, in any language, unmodified: handshake, supervision, calls with deadlines.
//! - [`sdk`] is the other side: one trait, one `main`, and the executable is a plugin that any host of the protocol runs.
//! - [`conformance`] tests any plugin, in any language.
//! - [`connector`] makes the target of a session from what a plugin returns for an instance.
//! - `install` (feature of that name) brings plugins from registries and finds them.
//! - [`extension`] has what a plugin may offer beside the protocol: prices, notices, resource use, hooks.
//! - `hostile` (feature `test-support`) is a plugin that means ill, for tests of what runs plugins.
//! - [`nesting`] makes virtual machines on an instance, by the hypervisor daemon there.
//! - [`model`] has the words that both share.
//! - `sys` has what differs between systems: the SDK is for Windows too, the rest is for Unix.
//!
//! The protocol is GitLab's *fleeting*, application version 0, over HashiCorp's go-plugin handshake; its facts are those
//! of the specification `fleeting.md`, whose sections the code cites.

mod causes;
#[cfg(unix)]
pub mod conformance;
pub mod connector;
pub mod extension;
#[cfg(unix)]
pub mod host;
#[cfg(all(unix, any(test, feature = "test-support")))]
pub mod hostile;
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
