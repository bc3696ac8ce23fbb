//! Reads the values of one table and checks their ranges.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::ScalingProblem;
use crate::tree::Table;

pub(super) struct Reader<'a> {
    pub(super) table: &'a Table,
    /// Prefix of keys, such as `policy[1].`. Empty for the top-level table.
    prefix: String,
    pub(super) problems: Vec<ScalingProblem>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        Self { table, prefix: String::new(), problems: Vec::new() }
    }

    /// Reads the table `name` with `read`. Returns `None` if the table is not set.
    pub(super) fn nested<T>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let table = self.table.table(name)?;
        Some(self.inner(table, name, read))
    }

    /// Reads each table of the list `name` with `read`.
    pub(super) fn each<T>(&mut self, name: &str, mut read: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let tables = self.table.tables(name).iter().enumerate();
        tables.map(|(index, table)| self.inner(table, &format!("{name}[{}]", index + 1), &mut read)).collect()
    }

    fn inner<T>(&mut self, table: &'a Table, name: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let mut inner = Self { table, prefix: format!("{}{name}.", self.prefix), problems: Vec::new() };
        let value = read(&mut inner);
        self.problems.append(&mut inner.problems);
        value
    }

    pub(super) fn add_problem(&mut self, key: &str, message: impl Into<String>) {
        let span = self.table.span_of(key);
        self.problems.push(ScalingProblem { key: format!("{}{key}", self.prefix), message: message.into(), span });
    }

    /// Returns a count of at least 0. The default is 0.
    pub(super) fn count(&mut self, key: &str) -> u32 {
        let value = self.table.int(key).unwrap_or_default();
        u32::try_from(value).unwrap_or_else(|_| {
            self.add_problem(key, format!("{value} is not between 0 and {}", u32::MAX));
            0
        })
    }

    /// Returns a finite number of at least 0. `None` means not set or invalid.
    pub(super) fn amount(&mut self, key: &str) -> Option<f64> {
        let value = self.table.float(key)?;
        if value.is_finite() && value >= 0.0 {
            return Some(value);
        }
        self.add_problem(key, format!("{value} is not a valid number; use 0 or more"));
        None
    }

    /// Returns a number within the range, or the default.
    pub(super) fn within(&mut self, key: &str, range: RangeInclusive<f64>, default: f64) -> f64 {
        let Some(value) = self.table.float(key) else { return default };
        if range.contains(&value) {
            return value;
        }
        self.add_problem(key, format!("{value} is not between {} and {}", range.start(), range.end()));
        default
    }

    /// Returns a duration. Zero means the default, as in gitlab-runner. Check C088 reports a negative duration.
    pub(super) fn duration(&self, key: &str, default: Duration) -> Duration {
        self.table.time(key).unwrap_or(default)
    }

    /// Returns the value that `words` has for the text of the key. `None` means that the key is not set, or its text is
    /// not among the words.
    pub(super) fn one_of<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.table.str(key)?;
        let found = words.iter().find(|(word, _)| *word == value);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.add_problem(key, format!("`{value}` is not a valid value; use {}", known.join(" or ")));
        }
        found.map(|(_, value)| *value)
    }
}
