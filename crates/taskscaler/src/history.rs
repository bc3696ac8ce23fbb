//! What was decided, kept for the questions of a day: a line for each decision, readable without the configuration that it was
//! made under, in two files of bounded size. The newer one becomes the older one when it is full.
//!
//! Nothing depends on it: a line that cannot be written is lost, and the scaler goes on.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::decision::{Decision, What};
use crate::formula::Inputs;
use crate::words::GroupId;

/// Questions go back so far, in seconds.
pub const DAY_S: i64 = 24 * 3600;
/// Bytes of each of the two files: some 50,000 decisions.
const FILE_MAX: u64 = 16 << 20;
/// Bytes of a line; a longer one is none of ours.
const LINE_MAX: u64 = 1 << 20;
/// The version of the lines.
const VERSION: u32 = 1;

/// One decision, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Seconds since 1970.
    pub unix: i64,
    /// What kind it is: `ask`, `hold`, `creation_failed`, `leased`, `remove` and so on.
    pub kind: String,
    /// The group that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The instance that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The leases and requests that it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The whole of it, in words.
    pub text: String,
    /// How long that took, or had lasted, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// What it was decided by, where it was by numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Inputs>,
}

impl Told {
    /// A decision, with the names of the groups.
    #[must_use]
    pub fn of(decision: &Decision, name: impl Fn(GroupId) -> String) -> Self {
        let (kind, group, instance) = subject(&decision.what);
        let (mut keys, mut inputs, mut text) = (Vec::new(), None, decision.what.to_string());
        match &decision.what {
            What::Leased { key, .. } | What::Released { key } | What::Used { key, .. } | What::Kept { key, .. } => {
                keys.push(key.to_string());
            }
            What::Environment { name, step, .. } => {
                keys.extend([Some(name), step.key()].into_iter().flatten().map(ToString::to_string));
            }
            What::Lost { jobs, .. } => keys.extend(jobs.iter().map(ToString::to_string)),
            What::Ask { inputs: by, passed, .. } => {
                inputs = Some(*by);
                let passed = passed.iter().map(|(group, hold)| format!("; not of group {}: {hold}", name(*group)));
                text.extend(passed);
            }
            What::Remove { inputs: by, .. } => inputs = Some(*by),
            What::Hold { missing, reasons, inputs: by } => {
                inputs = Some(*by);
                text = format!("{missing} instances are missing and cannot be asked for");
                let reasons = reasons.iter().map(|(group, hold)| format!("; group {}: {hold}", name(*group)));
                text.extend(reasons);
            }
            _ => {}
        }
        let after = match &decision.what {
            What::Appeared { after, .. } | What::Running { after, .. } | What::Ready { after, .. } => Some(after),
            What::Leased { waited, .. } => Some(waited),
            What::Used { used, .. } => Some(&used.wall),
            What::Gone { life, .. } => Some(life),
            _ => None,
        };
        Self {
            unix: decision.unix,
            kind: kind.to_owned(),
            group: group.map(name),
            instance: instance.map(ToString::to_string),
            keys,
            text,
            after_ms: after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            inputs,
        }
    }
}

/// The kind of a decision, its group and its instance.
fn subject(what: &What) -> (&'static str, Option<GroupId>, Option<&muster_fleeting::model::InstanceId>) {
    match what {
        What::Policy { .. } => ("policy", None, None),
        What::Hold { .. } => ("hold", None, None),
        What::Released { .. } => ("released", None, None),
        What::Used { .. } => ("used", None, None),
        What::Kept { group, id, .. } => ("kept", Some(*group), Some(id)),
        What::Ask { group, .. } => ("ask", Some(*group), None),
        What::Granted { group, .. } => ("granted", Some(*group), None),
        What::CreationFailed { group, .. } => ("creation_failed", Some(*group), None),
        What::UpdateFailed { group, .. } => ("update_failed", Some(*group), None),
        What::Appeared { group, id, .. } => ("appeared", Some(*group), Some(id)),
        What::Running { group, id, .. } => ("running", Some(*group), Some(id)),
        What::Foreign { group, id, .. } => ("foreign", Some(*group), Some(id)),
        What::Ready { group, id, .. } => ("ready", Some(*group), Some(id)),
        What::Leased { group, id, .. } => ("leased", Some(*group), Some(id)),
        What::Environment { group, id, step, .. } => (step.kind(), Some(*group), Some(id)),
        What::Drain { group, id, .. } => ("drain", Some(*group), Some(id)),
        What::Remove { group, id, .. } => ("remove", Some(*group), Some(id)),
        What::Stuck { group, id, .. } => ("stuck", Some(*group), Some(id)),
        What::Gone { group, id, .. } => ("gone", Some(*group), Some(id)),
        What::Lost { group, id, .. } => ("lost", Some(*group), Some(id)),
        What::Operator { group, id, .. } => ("operator", Some(*group), id.as_ref()),
        What::Missed { group, id } => ("missed", Some(*group), Some(id)),
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    taskscaler_history: u32,
}

/// The writer.
#[derive(Debug)]
pub(crate) struct History {
    path: PathBuf,
    file: Option<(File, u64)>,
    file_max: u64,
    /// It was told that lines cannot be written.
    told: bool,
}

/// The files of a history that belongs to these books, the older one first.
pub(crate) fn files(books: &Path) -> [PathBuf; 2] {
    [books.with_extension("history.1"), books.with_extension("history")]
}

impl History {
    /// Beside these books.
    pub(crate) fn beside(books: &Path) -> Self {
        let [_, path] = files(books);
        Self { path, file: None, file_max: FILE_MAX, told: false }
    }

    /// Adds decisions.
    pub(crate) fn add(&mut self, decisions: &[Told]) {
        if decisions.is_empty() {
            return;
        }
        let added = self.write(decisions);
        if let Err(error) = &added {
            // Half a line must not stand before a whole one.
            self.file = None;
            if !self.told {
                let path = self.path.display();
                tracing::warn!(%path, %error, "decisions cannot be kept; `muster fleet explain` will not know of them");
            }
        }
        self.told = added.is_err();
    }

    fn write(&mut self, decisions: &[Told]) -> std::io::Result<()> {
        let mut text = Vec::new();
        for decision in decisions {
            serde_json::to_writer(&mut text, decision)?;
            text.push(b'\n');
        }
        if self.file.as_ref().is_some_and(|(_, length)| *length >= self.file_max) {
            self.file = None;
            std::fs::rename(&self.path, self.path.with_extension("history.1"))?;
        }
        let (file, length) = match &mut self.file {
            Some(open) => open,
            None => self.file.insert(open(&self.path)?),
        };
        file.write_all(&text)?;
        *length += text.len() as u64;
        Ok(())
    }
}

/// The file, at the end of a whole line, and its length.
fn open(path: &Path) -> std::io::Result<(File, u64)> {
    let mut file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)?;
    let length = file.metadata()?.len();
    let mut begin = Vec::new();
    if length == 0 {
        begin = serde_json::to_vec(&Header { taskscaler_history: VERSION })?;
        begin.push(b'\n');
    } else {
        use std::io::Seek;
        let mut last = [0];
        file.seek(std::io::SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            begin.push(b'\n');
        }
    }
    file.write_all(&begin)?;
    Ok((file, length + begin.len() as u64))
}

/// The decisions since `unix` that `wanted` wants, the latest last, and of too many the `most` latest. Lines that cannot be
/// read, as one that was cut by a kill, are left out.
///
/// # Errors
/// What the system says of a file that is there.
pub fn read(books: &Path, unix: i64, most: usize, wanted: impl Fn(&Told) -> bool) -> std::io::Result<Vec<Told>> {
    let mut found = VecDeque::new();
    for path in files(books) {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            if (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Ok(told) = serde_json::from_slice::<Told>(&line) else { continue };
            if told.unix >= unix && wanted(&told) {
                found.push_back(told);
                if found.len() > most {
                    found.pop_front();
                }
            }
        }
    }
    Ok(found.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Hold;
    use crate::words::Key;

    fn released(unix: i64, key: &str) -> Told {
        Told::of(&Decision { unix, what: What::Released { key: Key::new(key) } }, |_| String::new())
    }

    fn keys(books: &Path, most: usize) -> Vec<String> {
        read(books, 0, most, |_| true).unwrap().into_iter().flat_map(|told| told.keys).collect()
    }

    #[test]
    fn a_line_says_all_without_the_configuration() {
        let reasons = vec![(GroupId(0), Hold::AtMax { max: 3, leaving: 0, stuck: crate::decision::Stuck::default() })];
        let what = What::Hold { missing: 2, reasons, inputs: Inputs { waiting: 2, ..Inputs::default() } };
        let told = Told::of(&Decision { unix: 7, what }, |_| "main".to_owned());
        assert_eq!(told.text, "2 instances are missing and cannot be asked for; group main: it has its 3 instances");
        assert_eq!((told.kind.as_str(), told.inputs.unwrap().waiting), ("hold", 2));
    }

    #[test]
    fn what_was_told_is_found_also_after_a_line_that_was_cut() {
        let place = tempfile::tempdir().unwrap();
        let books = place.path().join("x.books");
        assert!(keys(&books, 9).is_empty(), "nothing was told yet");
        History::beside(&books).add(&[released(1, "one")]);
        let file = books.with_extension("history");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, [&whole[..], b"{\"unix\":2,\"ki"].concat()).unwrap();
        History::beside(&books).add(&[released(3, "three")]);
        assert_eq!(keys(&books, 9), ["one", "three"]);
        assert_eq!(read(&books, 2, 9, |_| true).unwrap().len(), 1, "only since then");
    }

    #[test]
    fn two_files_of_bounded_size_hold_the_latest() {
        let place = tempfile::tempdir().unwrap();
        let books = place.path().join("x.books");
        let mut history = History { file_max: 500, ..History::beside(&books) };
        for n in 0..100 {
            history.add(&[released(n, &n.to_string())]);
        }
        let left = keys(&books, 1000);
        assert!(left.len() < 20 && left.last().unwrap() == "99", "{left:?}");
        assert_eq!(keys(&books, 2), ["98", "99"]);
        assert!(std::fs::read_dir(place.path()).unwrap().count() == 2);
    }

    /// A line of the first version is read for ever.
    #[test]
    fn the_first_version_is_read() {
        let place = tempfile::tempdir().unwrap();
        let books = place.path().join("x.books");
        let kept = "{\"taskscaler_history\":1}\n{\"unix\":5,\"kind\":\"remove\",\"group\":\"g\",\"instance\":\"i\",\"text\":\"t\",\
                    \"inputs\":{\"instances\":1,\"acquired\":0,\"waiting\":0,\"reserved\":0,\"unavailable\":0,\"idle_count\":0,\
                    \"capacity\":1,\"usable\":1,\"scale_factor\":0.0,\"scale_factor_limit\":0}}\n";
        std::fs::write(books.with_extension("history"), kept).unwrap();
        let told = read(&books, 0, 9, |_| true).unwrap();
        assert_eq!((told[0].kind.as_str(), told[0].inputs.unwrap().instances), ("remove", 1));
    }
}
