//! The agent's executable, as it is brought to an instance: known by its hash, and packed as far as the way is slow.

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

/// What is packed at once, as one member of a gzip file.
const MEMBER_BYTES: usize = 1024 * 1024;
/// What is on its way at most, beside the connector's own window.
const PIPE_BYTES: usize = 512 * 1024;
/// The executable that is nothing but the agent.
pub(super) const SMALL: &str = "muster-agent";
/// How long it may take to say its version, and how much it may say.
const ANSWER_LIMIT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
const ANSWER_BYTES_MAX: u64 = 256;
/// So much is sent before the way is judged.
const JUDGED_BYTES: u64 = 4 * 1024 * 1024;
/// A way with fewer bytes per second is slow: packing is then faster than sending what it saves.
const SLOW_BYTES_PER_SECOND: f64 = 24.0 * 1024.0 * 1024.0;

/// By what a file is known.
#[derive(Debug)]
pub(super) struct Known {
    /// SHA-256 in hexadecimal digits.
    pub(super) hash: String,
    /// Device, inode, bytes, and the seconds of the last changes of content and inode: on this machine, no other file's.
    pub(super) inode: String,
}

/// The executable.
#[derive(Debug)]
pub struct Executable {
    /// Where it is read.
    content: PathBuf,
    /// Where it is by name: an instance that has the same file there needs no other.
    name: PathBuf,
    known: OnceCell<Known>,
    /// What `content` is read through, so that it stays the same file whatever becomes of its name.
    _open: Option<File>,
}

impl Executable {
    /// The file at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { content: path.clone(), name: path, known: OnceCell::new(), _open: None }
    }

    /// What instances get: `muster-agent`, a third of the size, where it lies beside this process's own file and is of the same
    /// version; else this process's own, which is an agent, too. Like that, it is the same file as long as this process lives.
    ///
    /// # Errors
    /// The system does not tell where this process's own is.
    pub fn for_instances() -> io::Result<Self> {
        let own = Self::own()?;
        let small = own.name.with_file_name(SMALL);
        match Self::small(&small) {
            Ok(small) => Ok(small),
            Err(why) => {
                if let Some(why) = why {
                    tracing::warn!(path = %small.display(), why, "instances get the large executable");
                }
                Ok(own)
            }
        }
    }

    /// The small executable at `name`. Why it is not good to use, if there is one.
    fn small(name: &Path) -> Result<Self, Option<String>> {
        let open = match File::open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(None),
            open => open.map_err(|error| Some(error.to_string()))?,
        };
        let wanted = format!("{SMALL} {}", env!("CARGO_PKG_VERSION"));
        let found = version(name).map_err(|error| Some(error.to_string()))?;
        if found != wanted {
            return Err(Some(format!("it says `{found}`, and not `{wanted}`: install both of one version")));
        }
        Ok(Self::opened(open, name))
    }

    /// The file at `name`, which stays the same file as long as this process lives.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn open(name: &Path) -> io::Result<Self> {
        Ok(Self::opened(File::open(name)?, name))
    }

    fn opened(open: File, name: &Path) -> Self {
        let content = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        Self { content, name: name.to_owned(), known: OnceCell::new(), _open: Some(open) }
    }

    /// This process's own. It is read through the process, so that an upgrade of the file does not change what is sent.
    ///
    /// # Errors
    /// The system does not tell where it is.
    pub fn own() -> io::Result<Self> {
        let name = std::env::current_exe()?;
        Ok(Self { content: PathBuf::from("/proc/self/exe"), name, known: OnceCell::new(), _open: None })
    }

    /// Where it is on this machine, by name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.name
    }

    /// By what the file is known; computed once.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) async fn known(&self) -> io::Result<&Known> {
        let compute = || async {
            let path = self.content.clone();
            let known = tokio::task::spawn_blocking(move || {
                let mut file = File::open(path)?;
                let meta = file.metadata()?;
                let (device, number, bytes) = (meta.dev(), meta.ino(), meta.size());
                let inode = format!("{device}:{number}:{bytes}:{}:{}", meta.mtime(), meta.ctime());
                let mut hasher = Sha256::new();
                io::copy(&mut file, &mut hasher)?;
                Ok(Known { hash: format!("{:x}", hasher.finalize()), inode })
            });
            known.await.unwrap_or_else(|error| Err(io::Error::other(error)))
        };
        self.known.get_or_try_init(compute).await
    }

    /// The file as gzip members, the first ones without compression. A file that cannot be read ends early, which the
    /// other side's look at the hash finds.
    pub(super) fn packed(&self) -> DuplexStream {
        let (mut write, read) = tokio::io::duplex(PIPE_BYTES);
        let path = self.content.clone();
        // Ends with the reader, whose end of the pipe it then misses.
        tokio::spawn(async move {
            if let Err(error) = pack(&path, &mut write).await {
                tracing::debug!(%error, path = %path.display(), "the executable was not sent to its end");
            }
        });
        read
    }
}

/// The first line of what the program at `name` says of its version.
fn version(name: &Path) -> io::Result<String> {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut said = String::new();
    let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let ended = end.and_then(|end| poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&ANSWER_LIMIT)));
    if ended != Ok(1) {
        child.kill()?;
    }
    child.wait()?;
    if let Some(output) = child.stdout.take().filter(|_| ended == Ok(1)) {
        output.take(ANSWER_BYTES_MAX).read_to_string(&mut said)?;
    }
    Ok(said.lines().next().unwrap_or_default().to_owned())
}

async fn pack(path: &Path, to: &mut DuplexStream) -> io::Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    let began = Instant::now();
    let mut sent: u64 = 0;
    loop {
        let mut chunk = Vec::with_capacity(MEMBER_BYTES);
        let mut part = (&mut file).take(MEMBER_BYTES as u64);
        if part.read_to_end(&mut chunk).await? == 0 {
            return Ok(());
        }
        let level = level(sent, began.elapsed());
        let member = tokio::task::spawn_blocking(move || member(&chunk, level)).await.map_err(io::Error::other)??;
        to.write_all(&member).await?;
        sent += member.len() as u64;
    }
}

fn member(chunk: &[u8], level: Compression) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(chunk.len() + 1024), level);
    encoder.write_all(chunk)?;
    encoder.finish()
}

/// By how the way has been so far.
fn level(sent: u64, took: Duration) -> Compression {
    #[expect(clippy::cast_precision_loss, reason = "an executable is far smaller than 2^52 bytes")]
    let slow = sent >= JUDGED_BYTES && (sent as f64) < SLOW_BYTES_PER_SECOND * took.as_secs_f64();
    if slow { Compression::new(6) } else { Compression::none() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_packed_is_the_file_and_its_hash_the_known_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("agent");
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        std::fs::write(&path, &content).unwrap();
        let executable = Executable::new(&path);
        let mut packed = Vec::new();
        executable.packed().read_to_end(&mut packed).await.unwrap();
        let mut unpacked = Vec::new();
        flate2::read::MultiGzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == content);
        std::fs::write(&path, "abc").unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(executable.known().await.unwrap().hash, known);
    }

    /// A `muster-agent` that says which version it is.
    fn small(place: &Path, says: &str) -> PathBuf {
        let path = place.join(SMALL);
        let part = place.join("part");
        std::fs::write(&part, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        std::fs::set_permissions(&part, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(&part, &path).unwrap();
        path
    }

    #[tokio::test]
    async fn the_small_executable_is_used_where_it_is_of_this_version_and_stays_the_file_that_it_was() {
        let place = tempfile::tempdir().unwrap();
        let wanted = format!("muster-agent {}", env!("CARGO_PKG_VERSION"));
        let path = small(place.path(), &wanted);
        let executable = Executable::small(&path).unwrap();
        assert_eq!(executable.path(), path);
        let before = std::fs::read(&path).unwrap();
        small(place.path(), "muster-agent 99.0.0");
        let mut packed = Vec::new();
        executable.packed().read_to_end(&mut packed).await.unwrap();
        let mut unpacked = Vec::new();
        flate2::read::MultiGzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, before);
        let why = Executable::small(&path).unwrap_err().unwrap();
        assert!(why.contains("99.0.0") && why.contains(&wanted), "{why}");
        assert_eq!(Executable::small(&place.path().join("nothing")).unwrap_err(), None);
    }

    #[test]
    fn only_a_slow_way_pays_for_packing() {
        let second = Duration::from_secs(1);
        assert_eq!(level(0, second), Compression::none(), "not known yet");
        assert_eq!(level(5 * 1024 * 1024, second), Compression::new(6));
        assert_eq!(level(100 * 1024 * 1024, second), Compression::none());
    }
}
