//! Converts the values of flags and environment variables to TOML.

use muster_config::schema::Kind;
use toml_edit::{Array, ArrayOfTables, Item, Table, Value};

use super::flags::ValueParsing;
use crate::flags::{FlagError, go_bool, go_duration};

#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error("`{0}` is not an integer")]
    Int(String),
    #[error("`{0}` is not a number")]
    Float(String),
    #[error("`{0}` does not have the form key:value")]
    Pair(String),
    #[error("not valid JSON; expected an array such as [{{\"ip\": \"127.0.0.1\", \"hostnames\": [\"one\"]}}]")]
    Json(#[source] serde_json::Error),
    #[error("unexpected JSON; expected an array such as [{{\"ip\": \"127.0.0.1\", \"hostnames\": [\"one\"]}}]")]
    JsonShape,
}

/// Converts the values of a flag according to the kind of its key. Returns `None` if all values are empty.
pub(super) fn item(kind: Kind, parsing: ValueParsing, values: &[String]) -> Result<Option<Item>, ValueError> {
    let Some(last) = values.last() else { return Ok(None) };
    if values.iter().all(String::is_empty) {
        return Ok(None);
    }
    if parsing == ValueParsing::Json {
        return json(last).map(Some);
    }
    let value = match kind {
        Kind::Int => integer(last)?,
        Kind::Bool => go_bool(last)?.into(),
        Kind::Float => float(last)?,
        Kind::Duration => go_duration(last).map(|_| Value::from(last.as_str()))?,
        Kind::List => list(values, |word| Ok(word.into()))?,
        Kind::ListInt => list(values, integer)?,
        Kind::ListFloat => list(values, float)?,
        Kind::StrOrList => {
            let parts: Vec<String> =
                last.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
            list(&parts, |word| Ok(word.into()))?
        }
        Kind::Map => return map(values, |_, word| Ok(word.into())),
        Kind::MapInt => return map(values, |_, word| integer(word)),
        Kind::MapBool => return map(values, |_, word| Ok(go_bool(word)?.into())),
        Kind::MapList => {
            return map(values, |previous, word| {
                let mut all = previous.and_then(Value::as_array).cloned().unwrap_or_default();
                all.push(word);
                Ok(all.into())
            });
        }
        Kind::Str | Kind::Regex | Kind::Datetime | Kind::Any => last.as_str().into(),
    };
    Ok(Some(Item::Value(value)))
}

/// Sets a key in a table below the entry. Creates missing tables.
pub(super) fn insert(entry: &mut Table, tables: &[&str], key: &str, item: Item) {
    let mut table = entry;
    for name in tables {
        let nested = table.entry(name).or_insert_with(|| Item::Table(Table::new()));
        let Some(nested) = nested.as_table_mut() else { return };
        table = nested;
    }
    table.insert(key, item);
}

fn integer(word: &str) -> Result<Value, ValueError> {
    word.trim().parse::<i64>().map(Value::from).map_err(|_| ValueError::Int(word.to_owned()))
}

fn float(word: &str) -> Result<Value, ValueError> {
    let number = word.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number.map(Value::from).ok_or_else(|| ValueError::Float(word.to_owned()))
}

fn list(values: &[String], parse: impl Fn(&str) -> Result<Value, ValueError>) -> Result<Value, ValueError> {
    values.iter().map(|word| parse(word)).collect::<Result<Array, _>>().map(Value::from)
}

/// Parses `key:value` pairs. `parse` also gets the previous value of the key.
fn map(
    values: &[String],
    parse: impl Fn(Option<&Value>, &str) -> Result<Value, ValueError>,
) -> Result<Option<Item>, ValueError> {
    let mut table = Table::new();
    for word in values {
        let (key, value) = word.split_once(':').ok_or_else(|| ValueError::Pair(word.clone()))?;
        let value = parse(table.get(key).and_then(Item::as_value), value)?;
        table.insert(key, Item::Value(value));
    }
    Ok(Some(Item::Table(table)))
}

/// Converts a JSON array of objects to an array of tables. The objects may contain only strings and lists of strings.
fn json(word: &str) -> Result<Item, ValueError> {
    let objects: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(word).map_err(ValueError::Json)?;
    let mut tables = ArrayOfTables::new();
    for object in objects {
        let mut table = Table::new();
        for (key, value) in object {
            let value: Value = match value {
                serde_json::Value::String(text) => text.into(),
                serde_json::Value::Array(list) => {
                    let texts = list.iter().map(|element| element.as_str().ok_or(ValueError::JsonShape));
                    texts.collect::<Result<Array, _>>()?.into()
                }
                _ => return Err(ValueError::JsonShape),
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

    fn read(kind: Kind, values: &[&str]) -> Result<String, ValueError> {
        let values: Vec<String> = values.iter().map(|word| (*word).to_owned()).collect();
        let item = item(kind, ValueParsing::Plain, &values)?.unwrap();
        let mut document = toml_edit::DocumentMut::new();
        document.insert("k", item);
        Ok(document.to_string().replace('\n', ";"))
    }

    #[test]
    fn values_are_parsed_by_the_kind_of_the_key() {
        for (kind, values, text) in [
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
            assert_eq!(read(kind, values).unwrap(), text);
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

    #[test]
    fn empty_value_of_any_flag_counts_as_not_set() {
        for (kind, parsing) in
            [(Kind::Any, ValueParsing::Json), (Kind::Int, ValueParsing::Plain), (Kind::Map, ValueParsing::Plain)]
        {
            assert!(item(kind, parsing, &[String::new()]).unwrap().is_none(), "{kind:?}");
        }
    }
}
