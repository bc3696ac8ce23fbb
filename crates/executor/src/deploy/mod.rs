//! Deploys an agent to a machine that a session reaches, and connects to it.
//!
//! ```text
//! Dial --session (SSH, WinRM, through another machine)--> sh: muster agent connect --(Unix socket)--> muster agent serve
//! ```
//!
//! The agent is `muster-agent` or the manager's own executable, or the executable for the machine's platform ([`Agents`]). If the machine
//! does not have that executable, identified by its hash, it is sent there and cached. The agent runs independently of the session that
//! started it, so neither a broken connection nor the death of the manager ends a job. The stream to the agent is the standard input and
//! output of a relay command, so an SSH server needs no forwarding.
//!
//! An executor that reaches machines by sessions implements [`Dial`] for each machine and has one [`RemoteMachine`] per machine. The jobs
//! of a machine share one session and one agent, and a broken connection is replaced. The executors `instance` and `ssh` use this.

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
