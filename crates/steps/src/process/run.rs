//! Starting one process, feeding it, and reading what it prints.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indexmap::IndexMap;
use muster_job::TerminationCause;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;
use tokio::time::timeout;

use super::child::Child;
use super::spawn::{Program, spawn_in};
use super::{AWAITED, MARK, Processes, Trail, find_in, table};
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
    /// The file to execute. A bare name is looked up in the `PATH` of the environment.
    pub program: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts; none means the agent's own directory.
    pub work_dir: Option<PathBuf>,
    /// Given on standard input; to a process that is moved into a cgroup, only once it is there. None means `/dev/null`.
    pub stdin: Option<Vec<u8>>,
    /// Takes standard output, for a program whose answer is read and not shown. None means the log, by the same pipe as
    /// standard error.
    pub stdout: Option<Arc<File>>,
}

impl Command {
    /// The file to execute.
    fn file(&self) -> io::Result<PathBuf> {
        let Some(name) = self.program.to_str().filter(|name| !name.contains('/')) else {
            return Ok(self.program.clone());
        };
        let path = self.env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, path)| path.as_os_str());
        find_in(path.unwrap_or_default(), name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// Because it was asked to, and with it everything the job had started.
    Stopped(TerminationCause),
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
        let Started { mut child, stdin, drained, report } = self.start(&command, log)?;
        let feed = async {
            if let (Some(mut pipe), Some(bytes)) = (stdin, &command.stdin) {
                // A process that ends without reading its input is no error of ours.
                let _ = pipe.write_all(bytes).await;
            }
        };
        let ended = match executed(report, stop).await {
            Err(source) => Err(RunError::Start { program: command.program.display().to_string(), source }),
            Ok(()) => match self.place(child.pid()) {
                Err(error) => Err(RunError::Watch(error)),
                Ok(()) => self.watch(&mut child, feed, stop, grace).await,
            },
        };
        if ended.is_err() {
            child.kill();
            let _ = child.wait().await;
        }
        self.leaders.lock().remove(&child.pid());
        drop(child);
        let ended = ended?;
        // Also of what was stopped: its last words stand before what is said about it.
        drained.wait().await;
        Ok(ended)
    }

    fn start(&self, command: &Command, log: &Arc<dyn Log>) -> Result<Started, RunError> {
        let failed = |source: io::Error| RunError::Start { program: command.program.display().to_string(), source };
        // One pipe for output and errors, also where lines carry their stream: gitlab-runner has two, whose lines overtake
        // each other. What is read here is in the order in which it was written.
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let output = match &command.stdout {
            Some(file) => file.try_clone().map(OwnedFd::from),
            None => write_end.try_clone(),
        };
        // The pipe holds the process back: it has nothing to do until it was put in its place.
        let is_moved = self.slot.as_ref().is_some_and(|slot| slot.moves(self.cgroup.as_ref()));
        let (stdin, feed) = input(command.stdin.as_deref(), is_moved).map_err(failed)?;
        // Our copies of the writing ends are closed with this list, so that the end of the last writer is seen.
        let stdio = [stdin, output.map_err(failed)?, write_end];
        let (pid, report) = {
            let mut awaited = AWAITED.lock();
            let (pid, report) = self.spawn(command, stdio).map_err(failed)?;
            awaited.insert(pid);
            self.leaders.lock().insert(pid);
            (pid, report)
        };
        self.limit(pid);
        let (read, drained) = watch::channel(());
        self.pumps.lock().spawn(pump(read_end, Arc::clone(log), read));
        Ok(Started { child: Child::new(pid), stdin: feed, drained: Drained(drained), report })
    }

    /// Starts the process, in the job's cgroup if it has one. Returns the ID of the child to wait for, and the pipe by which a
    /// process in a cgroup reports that it cannot execute its program.
    fn spawn(&self, command: &Command, stdio: [OwnedFd; 3]) -> io::Result<(i32, Option<OwnedFd>)> {
        let file = command.file()?;
        // As a shell would start it: it is the name that stands before its messages.
        let name = command.program.file_name().unwrap_or(command.program.as_os_str());
        let env = command.env.iter().filter(|(key, _)| key != MARK);
        let env = env.map(|(key, value)| (key.as_os_str(), value.as_os_str()));
        let env = env.chain([(OsStr::new(MARK), OsStr::new(&self.mark))]);
        if let Some(cgroup) = &self.cgroup {
            let program = Program {
                file: &file,
                args: [name].into_iter().chain(command.args.iter().map(OsString::as_os_str)).collect(),
                env: last_of_each(env),
                work_dir: command.work_dir.as_deref(),
                stdio: stdio.each_ref().map(AsFd::as_fd),
            };
            let directory = cgroup.open(self.ends.load(Ordering::Relaxed))?;
            let (pid, report) = spawn_in(&directory, &program)?;
            return Ok((pid, Some(report)));
        }
        let [stdin, stdout, stderr] = stdio.map(Stdio::from);
        let mut process = std::process::Command::new(&file);
        process.arg0(name).args(&command.args).env_clear().envs(env).process_group(0);
        process.stdin(stdin).stdout(stdout).stderr(stderr);
        if let Some(dir) = &command.work_dir {
            process.current_dir(dir);
        }
        let pid = i32::try_from(process.spawn()?.id()).map_err(io::Error::other)?;
        Ok((pid, None))
    }

    /// Gives a process its limit of open files. It runs already, but has hardly done more than to load its program: to hold it
    /// back would mean to start it in the slower one of two ways.
    fn limit(&self, pid: i32) {
        let Some((limit, pid)) = self.host.open_files.zip(Pid::from_raw(pid)) else { return };
        if let Err(error) = prlimit(Some(pid), Resource::Nofile, limit) {
            tracing::debug!(%error, "a process of a job has this process's limit of open files");
        }
    }

    /// Puts a process into the cgroups of the job's slot that it did not start in, and on record.
    fn place(&self, pid: i32) -> io::Result<()> {
        if let Some(slot) = &self.slot {
            slot.add(pid, self.cgroup.as_ref());
        }
        let start_ticks = table::Process::read(pid).map_or(0, |process| process.start_ticks);
        (self.recorder)(&Trail::Leader { pid, start_ticks })
    }

    /// Takes the status of a child that has ended, and its account before that.
    async fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let (status, usage) = child.wait().await?;
        if let Some(usage) = usage {
            self.usage.lock().add(usage);
        }
        Ok(status)
    }

    async fn watch(
        &self,
        child: &mut Child,
        feed: impl Future<Output = ()>,
        stop: &Stop,
        grace: Duration,
    ) -> Result<Ended, RunError> {
        let run = async {
            let ((), status) = tokio::join!(feed, self.wait(child));
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

/// A process that was started, perhaps without having executed its program yet.
struct Started {
    child: Child,
    stdin: Option<Sender>,
    drained: Drained,
    /// See [`spawn_in`].
    report: Option<OwnedFd>,
}

/// Waits until the program is executed, or until `stop` fires. A job can freeze its own cgroup, so that its next process never
/// gets to execute anything: only that job waits for it.
///
/// # Errors
/// Reason why the program cannot be executed.
async fn executed(report: Option<OwnedFd>, stop: &Stop) -> io::Result<()> {
    let Some(report) = report else { return Ok(()) };
    let mut pipe = Receiver::from_owned_fd(report)?;
    let mut number = [0; size_of::<i32>()];
    tokio::select! {
        biased;
        // A process that was killed before it executed anything has ended, which its parent sees.
        read = pipe.read_exact(&mut number) => match read {
            Ok(_) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
            Err(_) => Ok(()),
        },
        _ = stop.stopped() => Ok(()),
    }
}

/// Standard input with these bytes, and what they are to be written to if they are not there yet.
fn input(bytes: Option<&[u8]>, is_held_back: bool) -> io::Result<(OwnedFd, Option<Sender>)> {
    let Some(bytes) = bytes else { return Ok((File::open("/dev/null")?.into(), None)) };
    if !is_held_back && let Ok(file) = in_memory(bytes) {
        return Ok((file.into(), None));
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((read, Some(Sender::from_owned_fd(write)?)))
}

/// A file in memory to be read from its start. A shell reads commands from a file in blocks, but from a pipe byte by
/// byte, since it must not take what a command of its own may want to read.
fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// The variables with the value that was set last, as a process is to have each once.
fn last_of_each<'a>(env: impl Iterator<Item = (&'a OsStr, &'a OsStr)>) -> Vec<(&'a OsStr, &'a OsStr)> {
    env.collect::<IndexMap<_, _>>().into_iter().collect()
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
