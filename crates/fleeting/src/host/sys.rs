//! What a plugin's process is given before its program starts. The one unsafe block of this room.
#![expect(unsafe_code, reason = "pre_exec leaves it to the caller that only async-signal-safe functions are called")]

use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::process::Command;

/// The process gets a group of its own, and is killed when the thread that started it ends, so that it does not outlive
/// a host that was killed: plugins do not watch their host (fleeting.md 1.9). SIGINT and SIGTERM do what they usually do: an
/// ignored signal is inherited, so that a plugin under `nohup` or in a shell's background job would not get the host's.
///
/// The command must be spawned on a thread that lives as long as the host: a worker of the runtime, not a blocking task.
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
