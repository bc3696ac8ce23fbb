//! What was started for a job, in the order in which it was: one JSON object per line.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use muster_steps::process::Trail;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Version(u32),
    /// The system's start that the lines after this belong to.
    Boot(String),
    Started(Trail),
    /// From here on the user's own commands may have run.
    UserCode,
}

/// The journal of a running job.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    pub(super) fn open(path: &Path, boot: &str) -> io::Result<Self> {
        let journal = Self(File::options().append(true).create(true).mode(0o600).open(path)?);
        journal.add(&Line::Version(VERSION))?;
        journal.add(&Line::Boot(boot.to_owned()))?;
        Ok(journal)
    }

    pub(crate) fn started(&self, trail: &Trail) -> io::Result<()> {
        self.add(&Line::Started(trail.clone()))
    }

    pub(crate) fn user_code(&self) -> io::Result<()> {
        self.add(&Line::UserCode)
    }

    fn add(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        (&self.0).write_all(&text)
    }
}

/// What a journal says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Past {
    /// The system's start that it is of; none where the journal does not tell.
    pub(crate) boot: Option<String>,
    /// The processes that were started since then.
    pub(crate) trail: Vec<Trail>,
    /// The user's own commands may have run.
    pub(crate) user_code: bool,
}

impl Past {
    pub(super) fn read(path: &Path) -> Self {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            // What cannot be read may have said anything: assume the worst.
            Err(_) => return Self { user_code: true, ..Self::default() },
        };
        let mut past = Self::default();
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(Line::Version(VERSION)) => {}
                Ok(Line::Boot(boot)) => {
                    if past.boot.as_ref().is_some_and(|known| *known != boot) {
                        past.trail.clear();
                    }
                    past.boot = Some(boot);
                }
                Ok(Line::Started(trail)) => past.trail.push(trail),
                Ok(Line::UserCode | Line::Version(_)) | Err(_) => past.user_code = true,
            }
        }
        past
    }
}
