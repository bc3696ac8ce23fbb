//! From the words of flags and variables to values of TOML.

use muster_config::schema::Kind;
use toml_edit::{Array, ArrayOfTables, Item, Table, Value};

use super::flags::Reading;
use crate::flags::{go_bool, go_duration};

/// The value that `words` stand for; none where they say nothing.
pub(super) fn item(kind: Kind, reading: &Reading, words: &[String]) -> Result<Option<Item>, String> {
    let Some(last) = words.last() else { return Ok(None) };
    if *reading == Reading::Json {
        return json(last).map(Some);
    }
    if words.iter().all(String::is_empty) {
        return Ok(None);
    }
    let value = match kind {
        Kind::Int => integer(last)?,
        Kind::Bool => go_bool(last)?.into(),
        Kind::Float => float(last)?,
        Kind::Duration => go_duration(last).map(|_| Value::from(last.as_str()))?,
        Kind::List => list(words, |word| Ok(word.into()))?,
        Kind::ListInt => list(words, integer)?,
        Kind::ListFloat => list(words, float)?,
        Kind::StrOrList => {
            let parts: Vec<String> =
                last.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
            list(&parts, |word| Ok(word.into()))?
        }
        Kind::Map => return map(words, |_, word| Ok(word.into())),
        Kind::MapInt => return map(words, |_, word| integer(word)),
        Kind::MapBool => return map(words, |_, word| Ok(go_bool(word)?.into())),
        Kind::MapList => {
            return map(words, |before, word| {
                let mut all = before.and_then(Value::as_array).cloned().unwrap_or_default();
                all.push(word);
                Ok(all.into())
            });
        }
        Kind::Str | Kind::Regex | Kind::Datetime | Kind::Any => last.as_str().into(),
    };
    Ok(Some(Item::Value(value)))
}

/// Puts a value into the tables below the entry.
pub(super) fn insert(entry: &mut Table, tables: &[&str], key: &str, item: Item) {
    let mut table = entry;
    for name in tables {
        let below = table.entry(name).or_insert_with(|| Item::Table(Table::new()));
        let Some(below) = below.as_table_mut() else { return };
        table = below;
    }
    table.insert(key, item);
}

fn integer(word: &str) -> Result<Value, String> {
    word.trim().parse::<i64>().map(Value::from).map_err(|_| format!("`{word}` is no whole number"))
}

fn float(word: &str) -> Result<Value, String> {
    let number = word.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number.map(Value::from).ok_or_else(|| format!("`{word}` is no number"))
}

fn list(words: &[String], read: impl Fn(&str) -> Result<Value, String>) -> Result<Value, String> {
    words.iter().map(|word| read(word)).collect::<Result<Array, _>>().map(Value::from)
}

/// `key:value`, again and again; `read` gets what the key has already.
fn map(words: &[String], read: impl Fn(Option<&Value>, &str) -> Result<Value, String>) -> Result<Option<Item>, String> {
    let mut table = Table::new();
    for word in words {
        let (key, value) = word.split_once(':').ok_or_else(|| format!("`{word}` is not of the form key:value"))?;
        let value = read(table.get(key).and_then(Item::as_value), value)?;
        table.insert(key, Item::Value(value));
    }
    Ok(Some(Item::Table(table)))
}

/// A list of objects with strings and lists of strings.
fn json(word: &str) -> Result<Item, String> {
    let shape = || "this is no JSON like [{\"ip\": \"127.0.0.1\", \"hostnames\": [\"one\"]}]".to_owned();
    let objects: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(word).map_err(|error| format!("{}: {error}", shape()))?;
    let mut tables = ArrayOfTables::new();
    for object in objects {
        let mut table = Table::new();
        for (key, value) in object {
            let value: Value = match value {
                serde_json::Value::String(text) => text.into(),
                serde_json::Value::Array(list) => {
                    let texts = list.iter().map(|element| element.as_str().ok_or_else(shape));
                    texts.collect::<Result<Array, _>>()?.into()
                }
                _ => return Err(shape()),
            };
            table.insert(&key, Item::Value(value));
        }
        tables.push(table);
    }
    Ok(Item::ArrayOfTables(tables))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, words: &[&str]) -> Result<String, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let item = item(kind, &Reading::Plain, &words)?.unwrap();
        let mut document = toml_edit::DocumentMut::new();
        document.insert("k", item);
        Ok(document.to_string().replace('\n', ";"))
    }

    #[test]
    fn words_become_values_of_the_keys_kind() {
        for (kind, words, text) in [
            (Kind::Str, &["a", "b"][..], "k = \"b\";"),
            (Kind::Int, &["-1"], "k = -1;"),
            (Kind::Bool, &["T"], "k = true;"),
            (Kind::Float, &["0.5"], "k = 0.5;"),
            (Kind::Duration, &["1h30m"], "k = \"1h30m\";"),
            (Kind::List, &["a,b", "c"], "k = [\"a,b\", \"c\"];"),
            (Kind::ListInt, &["1", "2"], "k = [1, 2];"),
            (Kind::StrOrList, &["always, never"], "k = [\"always\", \"never\"];"),
            (Kind::Map, &["/a:rw,noexec", "b:c:d"], "[k];\"/a\" = \"rw,noexec\";b = \"c:d\";"),
            (Kind::MapBool, &["FF_X:1"], "[k];FF_X = true;"),
            (Kind::MapList, &["p:/dev/a", "p:/dev/b"], "[k];p = [\"/dev/a\", \"/dev/b\"];"),
        ] {
            assert_eq!(read(kind, words).as_deref(), Ok(text));
        }
        for (kind, word) in [
            (Kind::Int, "many"),
            (Kind::Bool, "yes"),
            (Kind::Duration, "60"),
            (Kind::Map, "alone"),
            (Kind::Float, "inf"),
        ] {
            assert!(read(kind, &[word]).is_err(), "{kind:?} {word}");
        }
    }
}
