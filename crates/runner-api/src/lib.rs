//! GitLab's runner API: wire types, one client ([`client`]), one set of server routes ([`routes`]).
//!
//! The types decode what GitLab 17-19 sends and encode what gitlab-runner 16-19 accepts (spec: runner-api).
//! Unknown keys are ignored; what Muster adds sits in [`Extension`], which a peer that lacks it never sees.
//!
//! This is the only door between manager and coordinator, in `muster ci` too.

pub mod payload;
pub mod service;
pub mod wire;
