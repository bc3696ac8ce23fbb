//! Journal of a job: its request, started processes and result, in this order.
//!
//! ```text
//! muster job 1 <length>            the request's length in bytes
//! <request>                        the `Run` request as received
//! {"boot":".."}                    one JSON object per line; here the boot ID of the following lines
//! {"started":{..}}
//! "user_code"
//! {"result":{..}}
//! ```
//! An incomplete request counts as not written. An incomplete line counts as the start of user code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use muster_agent_api::result::JobResult;
use muster_agent_api::step_runner::RunRequest;
use muster_files::Limit;
use muster_steps::process::ProcessRecord;
use prost::Message;
use serde::{Deserialize, Serialize};

use super::JOURNAL;

/// Prefix of the first line, with the version of the format, before the length of the request.
const HEADER_PREFIX: &str = "muster job 1 ";
const MAX_HEAD_BYTES: u64 = 64;
const LIMIT: Limit = Limit { bytes: 256 * 1024 * 1024, remedy: "remove the job's directory from the spool" };

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JournalRecord {
    Boot(String),
    Started(ProcessRecord),
    /// The user's commands may have run after this record.
    UserCode,
    Result(Box<JobResult>),
}

#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    /// Creates the journal of a request, or fills an empty journal.
    pub(super) fn create(path: &Path, request: &RunRequest) -> io::Result<Self> {
        let journal = Self::open(path)?;
        let body = request.encode_to_vec();
        let mut bytes = format!("{HEADER_PREFIX}{}\n", body.len()).into_bytes();
        bytes.extend(body);
        bytes.push(b'\n');
        (&journal.0).write_all(&bytes)?;
        Ok(journal)
    }

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        Ok(Self(muster_files::open_with(options.append(true).create(true).mode(0o600), path)?))
    }

    pub(crate) fn record_boot(&self, boot: &str) -> io::Result<()> {
        self.append(&JournalRecord::Boot(boot.to_owned()))
    }

    pub(crate) fn record_process(&self, record: &ProcessRecord) -> io::Result<()> {
        self.append(&JournalRecord::Started(record.clone()))
    }

    pub(crate) fn record_user_code(&self) -> io::Result<()> {
        self.append(&JournalRecord::UserCode)
    }

    /// Records the result. May be repeated after an error, such as a full disk.
    pub(crate) fn record_result(&self, result: &JobResult) -> io::Result<()> {
        // Ends an incomplete line.
        (&self.0).write_all(b"\n")?;
        self.append(&JournalRecord::Result(Box::new(result.clone())))
    }

    fn append(&self, record: &JournalRecord) -> io::Result<()> {
        let mut text = serde_json::to_vec(record)?;
        text.push(b'\n');
        (&self.0).write_all(&text)
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct JournalContents {
    /// The `Run` request. `None` means that it was written incompletely, and therefore never answered.
    pub(crate) request: Option<RunRequest>,
    /// Boot ID of the process records. `None` means that nothing started.
    pub(crate) boot: Option<String>,
    /// Processes since that boot.
    pub(crate) process_records: Vec<ProcessRecord>,
    pub(crate) user_code: bool,
    pub(crate) result: Option<JobResult>,
}

impl JournalContents {
    /// Reads the journal of a job's directory. A missing journal is empty.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        read_if_exists(&dir.join(JOURNAL))?.map_or_else(|| Ok(Self::default()), |journal| Self::parse(&journal))
    }

    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let incomplete = Ok(Self::default());
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return incomplete };
        let (head, rest) = (bytes.get(..end).unwrap_or_default(), bytes.get(end + 1..).unwrap_or_default());
        let Some(length) = request_length(head) else {
            let message = format!("`{}` is not a journal of this version", String::from_utf8_lossy(head));
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        };
        let Some((body, lines)) = rest.split_at_checked(length).filter(|(_, lines)| lines.first() == Some(&b'\n'))
        else {
            return incomplete;
        };
        let mut contents =
            Self { request: Some(RunRequest::decode(body).map_err(io::Error::other)?), ..Self::default() };
        contents.parse_lines(lines);
        Ok(contents)
    }

    fn parse_lines(&mut self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(JournalRecord::Boot(boot)) => {
                    if self.boot.as_ref().is_some_and(|known| *known != boot) {
                        self.process_records.clear();
                    }
                    self.boot = Some(boot);
                }
                Ok(JournalRecord::Started(record)) => self.process_records.push(record),
                Ok(JournalRecord::Result(result)) => self.result = Some(*result),
                Ok(JournalRecord::UserCode) | Err(_) => self.user_code = true,
            }
        }
    }
}

fn request_length(head: &[u8]) -> Option<usize> {
    std::str::from_utf8(head).ok()?.strip_prefix(HEADER_PREFIX)?.parse().ok()
}

/// Returns the size of the request in a journal. Without a valid first line, returns the size of the file.
pub(super) fn request_bytes(path: &Path) -> io::Result<u64> {
    let file = muster_files::open(path)?;
    let size = file.metadata()?.len();
    let mut head = Vec::new();
    file.take(MAX_HEAD_BYTES).read_to_end(&mut head)?;
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(request_length(line).map_or(size, |length| size.min(length as u64)))
}

fn read_if_exists(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match muster_files::open(path) {
        Ok(file) => Ok(Some(muster_files::read_open(file, path, LIMIT)?)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
