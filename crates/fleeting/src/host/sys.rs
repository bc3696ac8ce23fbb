//! Prepares a plugin's process before its program starts.
#![expect(unsafe_code, reason = "the caller of pre_exec must ensure that only async-signal-safe functions are called")]

use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::process::Command;

/// Puts the process into a separate group, and lets the kernel kill it when the thread that started it ends.
/// Otherwise, Go plugins would outlive a killed host (docs/spec/fleeting.md, section 1.9).
///
/// Also restores the default actions of SIGINT and SIGTERM, because a shell's background processes ignore SIGINT.
///
/// The command must be spawned on a thread that lives as long as the host: a worker of the runtime, not a blocking
/// task.
pub(super) fn bind_to_this_process(command: &mut Command) {
    command.process_group(0).kill_on_drop(true);
    // SAFETY: prctl and signal are async-signal-safe, and nothing else is called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into)
        });
    }
}
