//! Deploys an agent to a machine that a session reaches, and connects to it.
//!
//! ```text
//! Dial --session (SSH, WinRM, through another machine)--> sh: muster agent connect --(Unix socket)--> muster agent serve
//! ```
//!
//! The agent's executable ([`Agents`]), identified by its hash, is sent to the machine if it is missing there, and
//! cached. The agent runs independently of sessions, so neither a broken connection nor the death of the manager ends a
//! job. The stream to the agent is the standard input and output of a relay command, so an SSH server needs no
//! forwarding.
//!
//! An executor implements [`Dial`] for each machine and has one [`RemoteMachine`] per machine, whose jobs share one
//! session and one agent.

mod agents;
mod command;
mod connect;
mod error;
mod excerpt;
mod executable;
mod machine;
mod shell;
#[cfg(test)]
mod tests;

pub use agents::Agents;
pub use command::run_command;
pub use error::{DeployError, NoAgentError};
pub use executable::Executable;
pub use machine::{Dial, Dialed, RemoteMachine, directories};
pub use shell::{ANSWER_PREFIX, CONNECTED, FAILED, OUTDATED};
