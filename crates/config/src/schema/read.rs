//! Reads the schema's files, whose format the module `schema` describes.

use super::{Key, KeySupport, Kind, Reload, Schema, TableSchema, parent};

impl Schema {
    pub(super) fn read(mut self, text: &&'static str) -> Self {
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if line.starts_with('[') {
                self.read_header(line);
            } else if let (Some(table), Some(key)) = (self.tables.last(), key(line, self.tables.last())) {
                let path = table.path.clone();
                self.push_key(&path, key);
            }
        }
        self
    }

    fn push_key(&mut self, path: &str, key: Key) {
        if let Some(table) = self.index.get(path).and_then(|index| self.tables.get_mut(*index)) {
            table.keys.push(key);
        }
    }

    fn read_header(&mut self, line: &'static str) {
        let (name, rest) = line.rsplit_once(']').unwrap_or((line, ""));
        let array = name.starts_with("[[");
        let path = name.trim_matches(['[', ']']).to_owned();
        if let Some(other) = rest.trim().strip_prefix("like ") {
            let (other, rejected) = other.split_once(" without ").unwrap_or((other, ""));
            let status = self.enclosing_status(&path);
            let prefix = format!("{other}.");
            let is_copied = |table: &&TableSchema| table.path == other || table.path.starts_with(&prefix);
            for mut copy in self.tables.iter().filter(is_copied).cloned().collect::<Vec<_>>() {
                let top = copy.path == other;
                copy.path = format!("{path}{}", copy.path.strip_prefix(other).unwrap_or_default());
                (copy.array, copy.status) = (if top { array } else { copy.array }, status);
                for key in &mut copy.keys {
                    key.status = status;
                    key.rejected |= top && key.name == rejected;
                }
                self.push(copy);
            }
            return;
        }
        let mut table =
            TableSchema { path, array, reload: Reload::Live, status: KeySupport::Supported, keys: Vec::new() };
        for word in rest.split('|').map(str::trim) {
            apply_word(word, &mut table.reload, &mut table.status);
        }
        self.push(table);
    }

    fn push(&mut self, table: TableSchema) {
        if !self.index.contains_key(&table.path) {
            self.index.insert(table.path.clone(), self.tables.len());
            self.tables.push(table);
        }
    }

    fn enclosing_status(&self, path: &str) -> KeySupport {
        let mut path = parent(path);
        loop {
            match self.table(path) {
                Some(table) => return table.status,
                None if path.is_empty() => return KeySupport::Supported,
                None => path = parent(path),
            }
        }
    }
}

/// Applies a word of a schema line to `reload` or `status`. Returns false if the word is unknown.
pub(super) fn apply_word(word: &'static str, reload: &mut Reload, status: &mut KeySupport) -> bool {
    match word {
        "live" => *reload = Reload::Live,
        "jobs" => *reload = Reload::Jobs,
        "restart" => *reload = Reload::Restart,
        "supported" => *status = KeySupport::Supported,
        _ => match word.strip_prefix("unsupported: ") {
            Some(reason) => *status = KeySupport::Unsupported(reason),
            None => return false,
        },
    }
    true
}

fn key(line: &'static str, table: Option<&TableSchema>) -> Option<Key> {
    let table = table?;
    let mut columns = line.split(" |").map(str::trim);
    let name = columns.next()?;
    let (kind, unit) = columns.next().map(|kind| kind.split_once(' ').unwrap_or((kind, "")))?;
    let (default, meaning) = (columns.next()?, columns.next()?);
    let mut key = Key {
        name,
        kind: Kind::parse(kind)?,
        unit,
        default,
        meaning,
        reload: table.reload,
        status: table.status,
        secret: false,
        rejected: false,
    };
    // A reason may contain commas, so it comes last.
    let mut rest = columns.next().unwrap_or_default();
    while !rest.is_empty() {
        let (word, tail) = match rest.split_once(", ") {
            Some((word, tail)) if !word.starts_with("unsupported: ") => (word, tail),
            _ => (rest, ""),
        };
        if word == "secret" {
            key.secret = true;
        } else {
            apply_word(word, &mut key.reload, &mut key.status);
        }
        rest = tail;
    }
    Some(key)
}
