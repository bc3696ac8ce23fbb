//! Commands on a machine.

use muster_remote as remote;

use super::machine::Dial;

/// Runs a command on a machine in a new session, and waits until it ends.
///
/// # Errors
/// Exit status and the end of the command's standard error output, as a message.
pub async fn run_command(dial: &dyn Dial, command: &str) -> Result<(), String> {
    let session = dial.dial().await?.session;
    let outcome = session.run(remote::RemoteCommand::new(command)).await;
    session.close().await;
    match outcome {
        Ok(outcome) if outcome.exit == remote::Exit::Code(0) => Ok(()),
        Ok(outcome) => {
            let how = match outcome.exit {
                remote::Exit::Code(code) => format!("status {code}"),
                remote::Exit::Signal(signal) => format!("SIG{signal}"),
            };
            // The output may have several lines, the message has one.
            let said = outcome.stderr.to_string().trim().lines().map(str::trim).collect::<Vec<_>>().join(" | ");
            Err(if said.is_empty() { format!("it ended with {how}") } else { format!("it ended with {how}: {said}") })
        }
        Err(error) => Err(error.to_string()),
    }
}
