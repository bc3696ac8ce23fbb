//! Fills in the missing keys of an entry from another entry (`--template-config`, `run-single --runner`).

use std::path::{Path, PathBuf};

use muster_config::schema::{Entry, schema};
use muster_config::{self as config, HostFacts, Severity};
use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("failed to read the configuration file {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("invalid configuration file {}:\n{problems}", path.display())]
    Invalid { path: PathBuf, problems: String },
    #[error(
            "configuration template {} must contain exactly one [[runners]] entry, but has {count}", path.display()
    )]
    Entries { path: PathBuf, count: usize },
}

/// Reads a template, and returns its only entry, but without the token. Ignores global keys.
pub(crate) fn read_template(path: &Path) -> Result<Table, TemplateError> {
    let mut entries = read_entries(path)?;
    let count = entries.len();
    let (Some(mut entry), 1) = (entries.pop(), count) else {
        return Err(TemplateError::Entries { path: path.to_owned(), count });
    };
    entry.remove("token");
    Ok(entry)
}

/// Reads all entries of a file, with the keys spelled as in the documentation.
pub(crate) fn read_entries(path: &Path) -> Result<Vec<Table>, TemplateError> {
    let text = std::fs::read_to_string(path).map_err(|source| TemplateError::Read { path: path.to_owned(), source })?;
    let loaded = config::parse(&text, &HostFacts::of(path));
    let fatal: String = loaded
        .problems
        .iter()
        .filter(|problem| problem.severity == Severity::Fatal)
        .map(|problem| problem.render(path))
        .collect();
    let (Ok(document), true) = (text.parse::<DocumentMut>(), fatal.is_empty()) else {
        return Err(TemplateError::Invalid { path: path.to_owned(), problems: fatal });
    };
    let named = document.iter().find(|(name, _)| name.eq_ignore_ascii_case("runners"));
    let entries: Vec<Table> = match named.map(|(_, item)| item) {
        Some(Item::ArrayOfTables(tables)) => tables.iter().cloned().collect(),
        Some(Item::Value(Value::Array(list))) => {
            list.iter().filter_map(Value::as_inline_table).map(|table| table.clone().into_table()).collect()
        }
        Some(Item::Table(table)) => vec![table.clone()],
        _ => Vec::new(),
    };
    let normalized = |entry: &Table| {
        let mut normalized = Table::new();
        merge(&mut normalized, entry, "runners");
        normalized
    };
    Ok(entries.iter().map(normalized).collect())
}

/// Copies the keys of `source` that are missing, zero, false or empty in `target`.
///
/// Copies lists as a whole, but tables and maps by key. `path` is the path of both tables in the schema.
pub(crate) fn merge(target: &mut Table, source: &dyn TableLike, path: &str) {
    for (name, item) in source.iter() {
        let (name, nested_path) = match schema().find(path, name) {
            Some(Entry::Table(table)) => (Entry::Table(table).name(), table.path.as_str()),
            Some(Entry::Key(key)) => (key.name, ""),
            None => (name, ""),
        };
        if let Some(table) = item.as_table_like() {
            let existing = target.entry(name).or_insert_with(|| Item::Table(Table::new()));
            if let Some(existing) = existing.as_table_mut() {
                merge(existing, table, nested_path);
            }
        } else if target.get(name).is_none_or(is_zero) {
            target.insert(name, item.clone());
        }
    }
}

/// Returns whether a value counts as missing. As in gitlab-runner, false always counts as missing.
fn is_zero(item: &Item) -> bool {
    match item {
        Item::None => true,
        Item::Value(Value::String(text)) => text.value().is_empty(),
        Item::Value(Value::Integer(number)) => *number.value() == 0,
        Item::Value(Value::Float(number)) => *number.value() == 0.0,
        Item::Value(Value::Boolean(truth)) => !truth.value(),
        Item::Value(Value::Array(list)) => list.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(target: &str, template: &str) -> String {
        let mut target = target.parse::<DocumentMut>().unwrap().as_table().clone();
        let template = template.parse::<DocumentMut>().unwrap();
        merge(&mut target, template.as_table(), "runners");
        DocumentMut::from(target).to_string()
    }

    #[test]
    fn merge_fills_in_only_zero_values() {
        for (target, template, result) in [
            ("limit = 2\n", "LIMIT = 4\nshell = \"sh\"\n", "limit = 2\nshell = \"sh\"\n"),
            ("limit = 0\n", "limit = 4\n", "limit = 4\n"),
            ("clean_git_config = false\n", "clean_git_config = true\n", "clean_git_config = true\n"),
            ("environment = [\"A=1\"]\n", "environment = [\"B=2\"]\n", "environment = [\"A=1\"]\n"),
            (
                "[docker]\nimage = \"a\"\n",
                "docker = { Image = \"b\", memory = \"1g\" }\n",
                "[docker]\nimage = \"a\"\nmemory = \"1g\"\n",
            ),
            (
                "[feature_flags]\nFF_A = true\n",
                "[feature_flags]\nFF_A = true\nFF_B = true\n",
                "[feature_flags]\nFF_A = true\nFF_B = true\n",
            ),
        ] {
            // A value from an inline table keeps the spaces around it.
            assert_eq!(merged(target, template).replace("  ", " ").replace(" \n", "\n"), result);
        }
    }
}
