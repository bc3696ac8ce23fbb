//! The agent's executable as it is sent to a machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Size of a gzip member before compression.
const MEMBER_BYTES: usize = 1024 * 1024;
/// Capacity of the pipe from the compression to the session. The window of the session can hold further bytes.
const PIPE_BYTES: usize = 512 * 1024;
/// File name of the executable that contains only the agent.
pub(super) const AGENT_ONLY: &str = "muster-agent";
const VERSION_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
const MAX_VERSION_BYTES: u64 = 256;
const BANDWIDTH_SAMPLE_BYTES: u64 = 4 * 1024 * 1024;
/// Below this bandwidth, compression is faster than sending more bytes.
const SLOW_BYTES_PER_SECOND: f64 = 24.0 * 1024.0 * 1024.0;

#[derive(Debug)]
pub(super) struct FileIdentity {
    /// SHA-256 as hexadecimal digits.
    pub(super) hash: String,
    /// Device, inode, size, and times of the last changes of content and inode in seconds. Unique on this machine.
    pub(super) inode: String,
}

/// An executable of the agent.
#[derive(Debug)]
pub struct Executable {
    /// Path from which the content is read.
    content_path: PathBuf,
    /// Path of the file. A machine that has the same file at this path needs no copy.
    path: PathBuf,
    identity: OnceCell<FileIdentity>,
    /// Keeps `content_path` valid if the file at `path` is replaced.
    _open: Option<File>,
}

impl Executable {
    /// Returns the executable at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { content_path: path.clone(), path, identity: OnceCell::new(), _open: None }
    }

    /// Returns the executable that is sent to instances.
    ///
    /// This is the smaller `muster-agent` beside this process's executable, if it has the same version, or else this
    /// process's executable. The content stays the same even if the file is replaced.
    ///
    /// # Errors
    /// An I/O error if the path of this process's executable is unknown.
    pub fn for_instances() -> io::Result<Self> {
        let own = Self::own()?;
        let path = own.path.with_file_name(AGENT_ONLY);
        match Self::open_agent_only(&path) {
            Ok(executable) => Ok(executable),
            Err(reason) => {
                if let Some(reason) = reason {
                    tracing::warn!(path = %path.display(), reason, "sending the larger executable of the manager to instances");
                }
                Ok(own)
            }
        }
    }

    /// Opens the executable at `path` if it contains only the agent and has this program's version.
    ///
    /// The error is the reason why the executable cannot be used, or `None` if it does not exist.
    fn open_agent_only(path: &Path) -> Result<Self, Option<String>> {
        let open = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(None),
            open => open.map_err(|error| Some(error.to_string()))?,
        };
        let expected = format!("{AGENT_ONLY} {}", env!("CARGO_PKG_VERSION"));
        let found = version(path).map_err(|error| Some(error.to_string()))?;
        if found != expected {
            return Err(Some(format!(
                "its version is `{found}`, but `{expected}` is required; install the same version of both programs"
            )));
        }
        Ok(Self::from_file(open, path))
    }

    /// Opens the executable at `path`. The content stays the same even if the file is replaced.
    ///
    /// # Errors
    /// An I/O error if it cannot be opened.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::from_file(File::open(path)?, path))
    }

    fn from_file(open: File, path: &Path) -> Self {
        let content_path = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        Self { content_path, path: path.to_owned(), identity: OnceCell::new(), _open: Some(open) }
    }

    /// Returns this process's own executable, as it was when the process started.
    ///
    /// # Errors
    /// An I/O error if its path is unknown.
    pub fn own() -> io::Result<Self> {
        let path = std::env::current_exe()?;
        Ok(Self { content_path: PathBuf::from("/proc/self/exe"), path, identity: OnceCell::new(), _open: None })
    }

    /// Returns the path of the file on this machine.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity of the file, which is computed only once.
    ///
    /// # Errors
    /// An I/O error if the file cannot be read.
    pub(super) async fn identity(&self) -> io::Result<&FileIdentity> {
        let compute = || async {
            let path = self.content_path.clone();
            let identity = tokio::task::spawn_blocking(move || {
                let mut file = File::open(path)?;
                let meta = file.metadata()?;
                let (device, number, bytes) = (meta.dev(), meta.ino(), meta.size());
                let inode = format!("{device}:{number}:{bytes}:{}:{}", meta.mtime(), meta.ctime());
                let mut hasher = Sha256::new();
                io::copy(&mut file, &mut hasher)?;
                Ok(FileIdentity { hash: format!("{:x}", hasher.finalize()), inode })
            });
            identity.await.unwrap_or_else(|error| Err(io::Error::other(error)))
        };
        self.identity.get_or_try_init(compute).await
    }

    /// Returns the file as gzip members.
    ///
    /// Members are compressed only after the first ones have shown that the connection is slow. If the file cannot be
    /// read, the stream ends early, which the receiver detects by the hash.
    pub(super) fn compressed(&self) -> DuplexStream {
        let (mut write, read) = tokio::io::duplex(PIPE_BYTES);
        let path = self.content_path.clone();
        // The task ends when the reader is dropped, because writing then fails.
        tokio::spawn(async move {
            if let Err(error) = compress(&path, &mut write).await {
                tracing::debug!(%error, path = %path.display(), "failed to send the executable");
            }
        });
        read
    }
}

/// The first line of `<path> --version`. Empty if the program does not exit in time.
fn version(path: &Path) -> io::Result<String> {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut output_text = String::new();
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let ended = pidfd.and_then(|pidfd| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&VERSION_TIMEOUT)));
    if ended != Ok(1) {
        child.kill()?;
    }
    child.wait()?;
    if let Some(output) = child.stdout.take().filter(|_| ended == Ok(1)) {
        output.take(MAX_VERSION_BYTES).read_to_string(&mut output_text)?;
    }
    Ok(output_text.lines().next().unwrap_or_default().to_owned())
}

async fn compress(path: &Path, to: &mut DuplexStream) -> io::Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    let began = Instant::now();
    let mut sent: u64 = 0;
    loop {
        let mut chunk = Vec::with_capacity(MEMBER_BYTES);
        let mut part = (&mut file).take(MEMBER_BYTES as u64);
        if part.read_to_end(&mut chunk).await? == 0 {
            return Ok(());
        }
        let level = compression_level(sent, began.elapsed());
        let member =
            tokio::task::spawn_blocking(move || gzip_member(&chunk, level)).await.map_err(io::Error::other)??;
        to.write_all(&member).await?;
        sent += member.len() as u64;
    }
}

fn gzip_member(chunk: &[u8], level: Compression) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(chunk.len() + 1024), level);
    encoder.write_all(chunk)?;
    encoder.finish()
}

fn compression_level(sent: u64, took: Duration) -> Compression {
    #[expect(clippy::cast_precision_loss, reason = "an executable is far smaller than 2^52 bytes")]
    let slow = sent >= BANDWIDTH_SAMPLE_BYTES && (sent as f64) < SLOW_BYTES_PER_SECOND * took.as_secs_f64();
    if slow { Compression::new(6) } else { Compression::none() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn compressed_stream_contains_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        std::fs::write(&path, &content).unwrap();
        let executable = Executable::new(&path);
        let mut packed = Vec::new();
        executable.compressed().read_to_end(&mut packed).await.unwrap();
        let mut unpacked = Vec::new();
        flate2::read::MultiGzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == content);
        std::fs::write(&path, "abc").unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(executable.identity().await.unwrap().hash, known);
    }

    fn write_agent_only(dir: &Path, version: &str) -> PathBuf {
        let path = dir.join(AGENT_ONLY);
        let part = dir.join("part");
        muster_test_prerequisites::create_program(&part, format!("#!/bin/sh\necho '{version}'\n"));
        std::fs::rename(&part, &path).unwrap();
        path
    }

    #[tokio::test]
    async fn agent_only_executable_of_this_version_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let expected = format!("muster-agent {}", env!("CARGO_PKG_VERSION"));
        let path = write_agent_only(dir.path(), &expected);
        let executable = Executable::open_agent_only(&path).unwrap();
        assert_eq!(executable.path(), path);
        let before = std::fs::read(&path).unwrap();
        write_agent_only(dir.path(), "muster-agent 99.0.0");
        let mut packed = Vec::new();
        executable.compressed().read_to_end(&mut packed).await.unwrap();
        let mut unpacked = Vec::new();
        flate2::read::MultiGzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, before);
        let reason = Executable::open_agent_only(&path).unwrap_err().unwrap();
        assert!(reason.contains("99.0.0") && reason.contains(&expected), "{reason}");
        assert_eq!(Executable::open_agent_only(&dir.path().join("nothing")).unwrap_err(), None);
    }

    #[test]
    fn only_slow_connections_are_compressed() {
        let second = Duration::from_secs(1);
        assert_eq!(compression_level(0, second), Compression::none(), "the bandwidth is not known yet");
        assert_eq!(compression_level(5 * 1024 * 1024, second), Compression::new(6));
        assert_eq!(compression_level(100 * 1024 * 1024, second), Compression::none());
    }
}
