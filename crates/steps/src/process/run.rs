//! Runs one process: starts it, writes its standard input and reads its output.

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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;
use tokio::time::sleep;

use super::cgroup::Cgroup;
use super::child::Child;
use super::output::{OutputProgress, copy_to_log};
use super::spawn::{Program, Restrictions, limit_open_files, spawn_in};
use super::{AWAITED, JOB_TAG, ProcessRecord, ProcessSet, Processes, find_in, procfs};
use crate::log::Log;
use crate::stop::StopToken;

/// If another thread starts a process while a file is being written, the new process keeps the file open until it
/// executes its program. Until then, the file cannot be executed (`ETXTBSY`).
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_BUSY_RETRIES: u32 = 50;

/// Process to start.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// File to execute. A name without a directory is looked up in the `PATH` of `env`.
    pub program: PathBuf,
    /// Arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Complete environment. The last entry of a variable is used.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory. `None` means the agent's directory.
    pub work_dir: Option<PathBuf>,
    /// Bytes for standard input. `None` means `/dev/null`.
    /// A process that must be moved into a cgroup gets the bytes only after the move.
    pub stdin: Option<Vec<u8>>,
    /// File for standard output. `None` means the log, through the same pipe as standard error.
    pub stdout: Option<Arc<File>>,
}

impl Command {
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
pub enum ProcessEnd {
    /// The process exited, or was terminated by a signal that Muster did not send.
    Exited(ExitStatus),
    /// The step was stopped, and the processes of its set were terminated.
    Stopped(TerminationCause),
}

/// Error while a process was started or watched.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The process could not be started.
    #[error("failed to start `{program}`")]
    Start {
        /// Program to start.
        program: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The process was killed, because it could not be watched or recorded.
    #[error("failed to watch a process")]
    Watch(#[source] io::Error),
}

impl Processes {
    /// Runs a process and waits for its end. Writes its output to `log`, even what its children write later.
    ///
    /// When `stop` is stopped, terminates all processes of the job, with `grace` between TERM and KILL. Inside of
    /// [`Processes::in_own_set`], terminates only the processes of that set.
    ///
    /// # Errors
    /// The process could not be started or watched.
    pub async fn run(
        &self,
        command: Command,
        log: &Arc<dyn Log>,
        stop: &StopToken,
        grace: Duration,
    ) -> Result<ProcessEnd, RunError> {
        let set = self.current_set();
        let StartedProcess { mut child, input, output, .. } = self.execute(command, log, &set, stop).await?;
        let feed = async {
            if let Some((mut pipe, bytes)) = input {
                // A process may end without reading its input.
                let _ = pipe.write_all(&bytes).await;
            }
        };
        let ended = match self.enter_cgroup(child.pid()) {
            Err(error) => Err(RunError::Watch(error)),
            Ok(()) => self.watch(&mut child, feed, stop, (&set, grace)).await,
        };
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                discard(child, &set).await;
                return Err(error);
            }
        };
        set.remove_leader(child.pid());
        drop(child);
        // The output is awaited after a stop too, because it must precede the message about the stop.
        output.wait().await;
        Ok(ended)
    }

    /// Starts the process, and waits until its program is executed or `stop` is stopped. Tries again for a second if
    /// another process still has the program's file open for writing.
    ///
    /// Consumes `command`, to free its environment and input while the process runs.
    async fn execute(
        &self,
        mut command: Command,
        log: &Arc<dyn Log>,
        set: &ProcessSet,
        stop: &StopToken,
    ) -> Result<StartedProcess, RunError> {
        let mut retries = 0;
        loop {
            let source = match self.start(&mut command, log, set) {
                Ok(mut started) => match wait_for_exec(started.report.take(), stop).await {
                    Ok(()) => return Ok(started),
                    Err(error) => {
                        discard(started.child, set).await;
                        command.stdin = command.stdin.or(started.input.map(|(_, bytes)| bytes));
                        error
                    }
                },
                Err(error) => error,
            };
            if source.kind() != io::ErrorKind::ExecutableFileBusy || retries == MAX_BUSY_RETRIES {
                return Err(RunError::Start { program: command.program.display().to_string(), source });
            }
            retries += 1;
            sleep(BUSY_RETRY_DELAY).await;
        }
    }

    /// Starts the process. Takes the bytes for its input from `command` if they must be written to a pipe.
    fn start(&self, command: &mut Command, log: &Arc<dyn Log>, set: &ProcessSet) -> io::Result<StartedProcess> {
        // A single pipe keeps the order of standard output and standard error.
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let output = match &command.stdout {
            Some(file) => file.try_clone().map(OwnedFd::from),
            None => write_end.try_clone(),
        };
        // A process that must be moved into a cgroup waits for its input until it was moved.
        let must_move = self.slot.as_ref().is_some_and(|slot| slot.must_move(self.cgroup.as_ref()));
        let (stdin, feed) = input(command.stdin.as_deref(), must_move)?;
        // Dropping this list closes our write ends, so that the pipe can reach its end.
        let stdio = [stdin, output?, write_end];
        let (pid, report) = {
            let mut awaited = AWAITED.lock();
            let (pid, report) = self.spawn(command, stdio, set)?;
            awaited.insert(pid);
            set.add_leader(pid);
            (pid, report)
        };
        let (read, progress) = watch::channel(());
        self.readers.lock().spawn(copy_to_log(read_end, Arc::clone(log), read));
        Ok(StartedProcess {
            child: Child::new(pid),
            input: feed.and_then(|pipe| Some((pipe, command.stdin.take()?))),
            output: OutputProgress(progress),
            report,
        })
    }

    /// Starts the process, in a cgroup if there is one for the job or its limits. Returns the process ID and, if
    /// [`spawn_in`] was used, its pipe that reports an error.
    fn spawn(&self, command: &Command, stdio: [OwnedFd; 3], set: &ProcessSet) -> io::Result<(i32, Option<OwnedFd>)> {
        let file = command.file()?;
        // `argv[0]` is the file name, as in a shell, because programs print it in messages.
        let name = command.program.file_name().unwrap_or(command.program.as_os_str());
        let env = command.env.iter().filter(|(key, _)| key != JOB_TAG);
        let env = env.map(|(key, value)| (key.as_os_str(), value.as_os_str()));
        let env = env.chain([(OsStr::new(JOB_TAG), OsStr::new(&set.tag))]);
        let (limited_cgroup, restrictions) = self.limits_now()?;
        let restrictions = Restrictions { open_files: self.manager.open_files, ..restrictions };
        let cgroup = limited_cgroup.as_ref().or(self.cgroup.as_ref());
        if cgroup.is_some() || !restrictions.is_simple() {
            let program = Program {
                file: &file,
                args: [name].into_iter().chain(command.args.iter().map(OsString::as_os_str)).collect(),
                env: deduplicated(env),
                work_dir: command.work_dir.as_deref(),
                stdio: stdio.each_ref().map(AsFd::as_fd),
            };
            let open = |cgroup: &Cgroup| set.open_cgroup(cgroup, self.terminations.load(Ordering::Relaxed));
            let directory = cgroup.map(open).transpose()?;
            let (pid, report) = spawn_in(directory.as_ref(), &program, &restrictions)?;
            return Ok((pid, Some(report)));
        }
        let [stdin, stdout, stderr] = stdio.map(Stdio::from);
        let mut process = std::process::Command::new(&file);
        process.arg0(name).args(&command.args).env_clear().envs(env).process_group(0);
        process.stdin(stdin).stdout(stdout).stderr(stderr);
        if let Some(dir) = &command.work_dir {
            process.current_dir(dir);
        }
        if let Some(limit) = restrictions.open_files {
            limit_open_files(&mut process, limit);
        }
        let pid = i32::try_from(process.spawn()?.id()).map_err(io::Error::other)?;
        Ok((pid, None))
    }

    /// Moves a process into the remaining cgroups of the job's slot, and records the process.
    fn enter_cgroup(&self, pid: i32) -> io::Result<()> {
        if let Some(slot) = &self.slot {
            slot.add(pid, self.cgroup.as_ref());
        }
        let start_ticks = procfs::Process::read(pid).map_or(0, |process| process.start_ticks);
        (self.recorder)(&ProcessRecord::Leader { pid, start_ticks })
    }

    async fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let (status, usage) = child.wait().await?;
        if let Some(usage) = usage {
            self.count(usage);
        }
        Ok(status)
    }

    /// Waits until the process has ended, and polls `feed`, which writes its input. Terminates the processes of `set`
    /// when `stop` is stopped.
    async fn watch(
        &self,
        child: &mut Child,
        feed: impl Future<Output = ()>,
        stop: &StopToken,
        (set, grace): (&ProcessSet, Duration),
    ) -> Result<ProcessEnd, RunError> {
        let run = async {
            let ((), status) = tokio::join!(feed, self.wait(child));
            status
        };
        tokio::select! {
            biased;
            status = run => status.map(ProcessEnd::Exited).map_err(RunError::Watch),
            never = self.reap_exited_orphans() => match never {},
            cause = stop.stopped() => {
                self.terminate_set(set, grace).await;
                // The usage of the child was counted already. Only the exit status remains to be collected.
                let _ = tokio::time::timeout(grace, child.wait()).await;
                Ok(ProcessEnd::Stopped(cause))
            }
        }
    }
}

/// Started process. Possibly, it has not executed its program yet.
struct StartedProcess {
    child: Child,
    /// Pipe to the standard input, and the bytes to write.
    input: Option<(Sender, Vec<u8>)>,
    output: OutputProgress,
    /// Pipe that reports an error of the execution. `None` if the start already reported it.
    report: Option<OwnedFd>,
}

/// Ends a process that cannot be used.
async fn discard(mut child: Child, set: &ProcessSet) {
    child.kill();
    let _ = child.wait().await;
    set.remove_leader(child.pid());
}

/// Waits until the program is executed, or until `stop` is stopped.
///
/// Waiting only for the program could take forever, because a job can freeze its own cgroup.
///
/// # Errors
/// The program cannot be executed.
async fn wait_for_exec(report: Option<OwnedFd>, stop: &StopToken) -> io::Result<()> {
    let Some(report) = report else { return Ok(()) };
    let mut pipe = Receiver::from_owned_fd(report)?;
    let mut number = [0; size_of::<i32>()];
    tokio::select! {
        biased;
        // The pipe also closes if the process was killed before it executed the program. Then, its exit status shows
        // that.
        read = pipe.read_exact(&mut number) => match read {
            Ok(_) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
            Err(_) => Ok(()),
        },
        _ = stop.stopped() => Ok(()),
    }
}

/// Returns a standard input for these bytes. If a pipe is returned, the bytes must be written to it. `must_wait` means
/// that the process must not read the bytes yet.
fn input(bytes: Option<&[u8]>, must_wait: bool) -> io::Result<(OwnedFd, Option<Sender>)> {
    let Some(bytes) = bytes else { return Ok((File::open("/dev/null")?.into(), None)) };
    if !must_wait && let Ok(file) = in_memory(bytes) {
        return Ok((file.into(), None));
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((read, Some(Sender::from_owned_fd(write)?)))
}

/// Returns a file in memory with these bytes. It is faster than a pipe, which a shell reads byte by byte.
fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Returns each variable once, with its last value.
fn deduplicated<'a>(env: impl Iterator<Item = (&'a OsStr, &'a OsStr)>) -> Vec<(&'a OsStr, &'a OsStr)> {
    env.collect::<IndexMap<_, _>>().into_iter().collect()
}
