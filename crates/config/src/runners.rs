//! The `[[runners]]` entries.

use std::cell::RefCell;
use std::fmt;

use muster_job::Secret;
use muster_job::expand;
use time::OffsetDateTime;
use url::Url;

use super::facts::HostFacts;
use super::problem::shown_name;
use super::tree::{Table, Value};

/// One `[[runners]]` entry. Required values may be missing, which problems report.
#[derive(Clone)]
pub struct Runner {
    /// Index of the entry in the file, from 0.
    pub index: usize,
    /// Value of `name`.
    pub name: String,
    /// Value of `url`, in which environment variables are expanded.
    pub url: String,
    /// Value of `token`, in which environment variables are expanded.
    pub token: Secret,
    /// Unset environment variables: the key that refers to the variable (`url` or `token`), and the variable's name.
    pub unset: Vec<(&'static str, String)>,
    /// Environment variables that `token` names.
    pub token_env_names: Vec<String>,
    /// Whether `token` refers to the environment.
    pub token_is_reference: bool,
    /// Value of `id`. 0 if it is not set.
    pub id: i64,
    /// Value of `executor`.
    pub executor: String,
    /// Value of `token_obtained_at`.
    pub token_obtained_at: Option<OffsetDateTime>,
    /// Value of `token_expires_at`.
    pub token_expires_at: Option<OffsetDateTime>,
    /// All values that are set in the entry.
    pub table: Table,
}

impl Runner {
    /// Returns whether people who do not trust each other use the runner (key `public`).
    pub(super) fn is_public(&self) -> bool {
        self.table.bool("public") == Some(true)
    }
}

/// Omits the URL, which may contain credentials, and names of unset variables, which may contain a part of the token.
impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Runner");
        shown.field("index", &self.index).field("name", &shown_name(&self.name)).field("id", &self.id);
        shown.field("executor", &shown_name(&self.executor)).field("table", &self.table).finish_non_exhaustive()
    }
}

pub(super) fn runners(tree: &Table, facts: &HostFacts) -> Vec<Runner> {
    tree.tables("runners").iter().enumerate().map(|(index, table)| runner(index, table, facts)).collect()
}

fn runner(index: usize, table: &Table, facts: &HostFacts) -> Runner {
    let text = |name: &str| table.str(name).unwrap_or_default();
    let unset = RefCell::new(Vec::new());
    let expanded = |key: &'static str| {
        expand(text(key), |name| match facts.env.get(name) {
            Some(value) => value.clone(),
            None => {
                unset.borrow_mut().push((key, name.to_owned()));
                String::new()
            }
        })
    };
    let (url, token) = (expanded("url"), Secret::new(expanded("token")));
    let token_env_names = RefCell::new(Vec::new());
    let _only_names = expand(text("token"), |name| {
        token_env_names.borrow_mut().push(name.to_owned());
        String::new()
    });
    // Go writes its zero time for a date that is not set.
    let date = |name: &str| table.datetime(name).filter(|date| date.year() > 1);
    Runner {
        index,
        name: text("name").to_owned(),
        url,
        token_is_reference: token.expose() != text("token"),
        token,
        unset: unset.into_inner(),
        token_env_names: token_env_names.into_inner(),
        id: table.int("id").unwrap_or_default(),
        executor: text("executor").to_owned(),
        token_obtained_at: date("token_obtained_at"),
        token_expires_at: date("token_expires_at"),
        table: table.clone(),
    }
}

/// Returns whether the text is exactly one reference, such as `$TOKEN`.
///
/// In any other text, what looks like the name of a variable may be a part of a secret.
pub(super) fn is_reference(text: &str) -> bool {
    let Some(name) = text.strip_prefix('$') else { return false };
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the base URL of the API, without a slash or the old `/ci` at its end. `None` if it is not an `http` or `https` URL.
#[must_use]
pub fn base_url(text: &str) -> Option<Url> {
    let text = text.trim().trim_end_matches('/');
    let url: Url = text.strip_suffix("/ci").unwrap_or(text).parse().ok()?;
    (matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty())).then_some(url)
}

pub(super) fn labels(table: &Table) -> impl Iterator<Item = (String, String)> {
    let labels = table.table("labels").map(Table::entries).into_iter().flatten();
    labels.filter_map(|(name, node)| match &node.value {
        Value::Str(value) => Some((name.to_owned(), value.clone())),
        _ => None,
    })
}

pub(super) fn feature_flags(table: &Table) -> impl Iterator<Item = (String, bool)> {
    let flags = table.table("feature_flags").map(Table::entries).into_iter().flatten();
    flags.filter_map(|(name, node)| match node.value {
        Value::Bool(value) => Some((name.to_owned(), value)),
        _ => None,
    })
}
