//! Faulty plugin for tests. The seed at the end of its name selects the fault (`fleeting-plugin-hostile-17`).
//!
//! Each process appends its ID to `<name>.pids` beside the link through which it was started.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use muster_fleeting::faulty_plugin::{FaultyPlugin, Script, VALID_HANDSHAKE};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::net::UnixListener;

fn main() -> ExitCode {
    let name = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    let seed = name.to_string_lossy().rsplit('-').next().and_then(|seed| seed.parse().ok());
    let Some(seed) = seed else { return fail("the name of this executable does not end with a seed") };
    let script = Script::draw(&mut StdRng::seed_from_u64(seed));
    let record_pid = || {
        let mut pids = std::fs::File::options().create(true).append(true).open(name.with_extension("pids"))?;
        writeln!(pids, "{}", std::process::id())
    };
    match record_pid()
        .and_then(|()| if script.start == VALID_HANDSHAKE { serve(&script) } else { Err(become_shell(&script)) })
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(reason: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{reason}");
    ExitCode::FAILURE
}

/// Replaces this process with a shell that does not serve the plugin protocol. Returns only if that fails.
fn become_shell(script: &Script) -> std::io::Error {
    shell(&format!("{}\n{}", script.start, script.body)).exec()
}

/// Returns a command with low priority, because some scripts never end.
fn shell(text: &str) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", "sh", "-c", text]);
    command
}

#[tokio::main]
async fn serve(script: &Script) -> std::io::Result<()> {
    let directory = PathBuf::from(std::env::var_os("PLUGIN_UNIX_SOCKET_DIR").unwrap_or_default());
    let socket = directory.join("hostile");
    let listener = UnixListener::bind(&socket)?;
    let mut out = std::io::stdout();
    writeln!(out, "1|0|unix|{}|grpc|", socket.display())?;
    out.flush()?;
    // The shell is in the process group of this process, and outlives it.
    shell(script.body).spawn()?;
    #[expect(clippy::exit, reason = "one of the faults is that the process exits")]
    let service = FaultyPlugin::new(script.behaviors, || std::process::exit(7));
    service.serve(listener).await.map_err(std::io::Error::other)
}
