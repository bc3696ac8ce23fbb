//! Starting one process, feeding it, and reading what it prints.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use muster_job::EndCause;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{AWAITED, MARK, Processes, Trail, table, usage};
use crate::log::{Log, Stream};
use crate::stop::Stop;

/// How long a process that has ended may keep others waiting, because a child of it still prints (steps 1.4: the drain
/// is bounded, the status counts).
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// A child that only holds the output, as a server in the background does, is not waited for longer than this. What it
/// prints later still goes to the log.
const DRAIN_QUIET: Duration = Duration::from_millis(250);
/// Bytes of output read at once. The C library tidies up its whole heap whenever 64 KiB and more are given back.
const CHUNK: usize = 32 * 1024;

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// The file to execute; a bare name is looked up in the agent's PATH.
    pub program: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts; none means the agent's own directory.
    pub work_dir: Option<PathBuf>,
    /// Given on standard input; to a process that gets a cgroup, only once it is there. None means `/dev/null`.
    pub stdin: Option<Vec<u8>>,
    /// Takes standard output, for a program whose answer is read and not shown. None means the log, by the same pipe as
    /// standard error.
    pub stdout: Option<Arc<File>>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// Because it was asked to, and with it everything the job had started.
    Stopped(EndCause),
}

/// Why there was no process to wait for.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started.
    #[error("cannot start `{program}`")]
    Start {
        /// The program.
        program: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// It could not be watched, or not be recorded in the spool, and so was ended at once.
    #[error("cannot watch over a process that was started")]
    Watch(#[source] io::Error),
}

impl Processes {
    /// Runs a process to its end. What it prints goes to `log`, also what its children print after it ended.
    ///
    /// When `stop` fires, everything that the job has started is ended, with `grace` between TERM and KILL.
    pub async fn run(
        &self,
        command: Command,
        log: &Arc<dyn Log>,
        stop: &Stop,
        grace: Duration,
    ) -> Result<Ended, RunError> {
        let (mut child, drained) = self.start(&command, log)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let placed = self.place(pid);
        let ended = match placed {
            Err(error) => Err(RunError::Watch(error)),
            Ok(()) => self.watch(&mut child, pid, command.stdin, stop, grace).await,
        };
        if ended.is_err() {
            let _ = child.kill().await;
        }
        self.leaders.lock().remove(&pid);
        AWAITED.lock().remove(&pid);
        let ended = ended?;
        // Also of what was stopped: its last words stand before what is said about it.
        drained.wait().await;
        Ok(ended)
    }

    fn start(&self, command: &Command, log: &Arc<dyn Log>) -> Result<(Child, Drained), RunError> {
        let failed = |source: io::Error| RunError::Start { program: command.program.display().to_string(), source };
        // One pipe for output and errors, also where lines carry their stream: gitlab-runner has two, whose lines overtake
        // each other. What is read here is in the order in which it was written.
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let output = match &command.stdout {
            Some(file) => file.try_clone().map(OwnedFd::from),
            None => write_end.try_clone(),
        };
        let mut process = tokio::process::Command::new(&command.program);
        process.args(&command.args).env_clear().envs(command.env.iter().map(|(key, value)| (key, value)));
        if let Some(name) = command.program.file_name() {
            // As a shell would start it: it is the name that stands before its messages.
            process.arg0(name);
        }
        process.env(MARK, &self.mark).process_group(0).kill_on_drop(true);
        process.stdin(match &command.stdin {
            None => Stdio::null(),
            // The pipe holds the process back: it has nothing to do until it was put in its place.
            Some(_) if self.cgroup.is_some() || self.slot.is_some() => Stdio::piped(),
            Some(bytes) => input(bytes).map_or_else(|_| Stdio::piped(), Stdio::from),
        });
        process.stdout(output.map_err(failed)?).stderr(write_end);
        if let Some(dir) = &command.work_dir {
            process.current_dir(dir);
        }
        let child = {
            let mut awaited = AWAITED.lock();
            let child = process.spawn().map_err(failed)?;
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                awaited.insert(pid);
                self.leaders.lock().insert(pid);
                self.limit(pid);
            }
            child
        };
        // Our copies of the writing ends go away here, so that the end of the last writer is seen.
        drop(process);
        let (read, drained) = watch::channel(());
        self.pumps.lock().spawn(pump(read_end, Arc::clone(log), read));
        Ok((child, Drained(drained)))
    }

    /// Gives a process its limit of open files. It runs already, but has hardly done more than to load its program: to hold it
    /// back would mean to start it in the slower one of two ways.
    fn limit(&self, pid: i32) {
        let Some((limit, pid)) = self.host.open_files.zip(Pid::from_raw(pid)) else { return };
        if let Err(error) = prlimit(Some(pid), Resource::Nofile, limit) {
            tracing::debug!(%error, "a process of a job has this process's limit of open files");
        }
    }

    /// Puts a process into the job's cgroup and on record.
    fn place(&self, pid: i32) -> io::Result<()> {
        if let Some(cgroup) = &self.cgroup
            && let Err(error) = cgroup.add(pid)
            && error.raw_os_error() != Some(libc::ESRCH)
        {
            return Err(error);
        }
        if let Some(slot) = &self.slot {
            slot.add(pid, self.cgroup.is_some());
        }
        let start_ticks = table::Process::read(pid).map_or(0, |process| process.start_ticks);
        (self.recorder)(&Trail::Leader { pid, start_ticks })
    }

    /// Takes the status of a child that has ended, and its account before that.
    async fn wait(&self, child: &mut Child, pid: i32) -> io::Result<ExitStatus> {
        if let Some(usage) = usage::at_the_end(pid).await {
            self.usage.lock().add(usage);
        }
        child.wait().await
    }

    async fn watch(
        &self,
        child: &mut Child,
        pid: i32,
        stdin: Option<Vec<u8>>,
        stop: &Stop,
        grace: Duration,
    ) -> Result<Ended, RunError> {
        let pipe = child.stdin.take();
        let feed = async {
            if let (Some(mut pipe), Some(bytes)) = (pipe, stdin) {
                // A process that ends without reading its input is no error of ours.
                let _ = pipe.write_all(&bytes).await;
            }
        };
        let run = async {
            let ((), status) = tokio::join!(feed, self.wait(child, pid));
            status
        };
        tokio::select! {
            biased;
            status = run => status.map(Ended::Exited).map_err(RunError::Watch),
            cause = stop.stopped() => {
                self.end(grace).await;
                // Everything was killed, and counted before that; what is left of the child is its status.
                let _ = tokio::time::timeout(grace, child.wait()).await;
                Ok(Ended::Stopped(cause))
            }
        }
    }
}

/// A file in memory to be read from its start. A shell reads commands from a file in blocks, but from a pipe byte by
/// byte, since it must not take what a command of its own may want to read.
fn input(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// The output of a process, as far as it was read: changes with each piece, and closes with the pump.
struct Drained(watch::Receiver<()>);

impl Drained {
    /// Waits until the last writer is gone, or until nothing more comes.
    async fn wait(mut self) {
        let quiet = async { while let Ok(Ok(())) = timeout(DRAIN_QUIET, self.0.changed()).await {} };
        // Whoever prints on and on has had its time.
        let _ = timeout(DRAIN_LIMIT, quiet).await;
    }
}

/// Copies a pipe to the log until its last writer is gone; `read` is told of each piece. Writing to the log is work, most of
/// it masking: between two full buffers everything else on the thread has its turn.
async fn pump(pipe: OwnedFd, log: Arc<dyn Log>, read: watch::Sender<()>) {
    let mut pipe = match Receiver::from_owned_fd(pipe) {
        Ok(pipe) => pipe,
        Err(error) => {
            tracing::error!(%error, "the output of a process cannot be read");
            return;
        }
    };
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        log.write(Stream::Output, buffer.get(..length).unwrap_or_default());
        read.send_replace(());
        if length == buffer.len() {
            tokio::task::yield_now().await;
        }
    }
}
