//! The mistakes that are found in a configuration, by theme. Each check is pure: it reads [`Check`] and adds problems.

mod file;
mod known;
mod limits;
#[cfg(test)]
pub(super) mod testing;

use super::facts::Facts;
use super::problem::{Problem, Problems};
use super::runners::Runner;
use super::tree::Table;

/// What a check may look at, and where it tells.
pub(super) struct Check<'a> {
    pub(super) tree: &'a Table,
    pub(super) runners: &'a [Runner],
    pub(super) facts: &'a Facts,
    pub(super) problems: &'a mut Problems,
}

impl Check<'_> {
    fn add(&mut self, problem: Problem) {
        self.problems.add(problem);
    }
}

/// All checks.
pub(super) fn all(check: &mut Check<'_>) {
    known::check(check);
    file::check(check);
    limits::check(check);
}
