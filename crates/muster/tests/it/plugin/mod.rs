//! `muster plugin`, under all its names.

mod guides;
mod new;
// Shared with the tests of `crates/fleeting`.
#[path = "../../../../fleeting/tests/it/registry.rs"]
#[expect(dead_code, reason = "crates/fleeting uses the rest")]
pub(crate) mod registry;
mod serve;
mod store;
pub(crate) mod support;
mod test;
