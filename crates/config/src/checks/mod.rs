//! The checks of a configuration, by topic.
//!
//! [`super::runtime`] has the checks that only a running manager can make.

mod autoscaling;
mod blocked;
mod cron;
mod docker;
mod executors;
mod file;
mod flags;
mod identity;
mod kubernetes;
mod limits;
mod machine;
mod public;
mod scaling;
mod steps;
#[cfg(test)]
pub(super) mod testing;
mod text;
mod unsupported;

pub(super) use public::refusal;
pub(super) use scaling::{PLUGIN_EXECUTORS, negative_durations, out_of_range};
pub use unsupported::EXECUTORS;

use super::facts::HostFacts;
use super::problem::{Problem, Problems};
use super::runners::Runner;
use super::tree::Table;

pub(super) struct Check<'a> {
    pub(super) tree: &'a Table,
    pub(super) runners: &'a [Runner],
    pub(super) facts: &'a HostFacts,
    pub(super) problems: &'a mut Problems,
}

impl Check<'_> {
    fn add(&mut self, problem: Problem) {
        self.problems.add(problem);
    }

    /// Reports a problem at a key of the runner, such as `docker.image`. If the key is not set, the problem is at the
    /// key's table.
    fn report(&mut self, runner: &Runner, key: &str, code: &'static str, message: impl Into<String>, help: &str) {
        let problem = Problem::new(code, message).of(runner.index, &runner.name).at(&runner.table.span_of(key));
        self.add(if help.is_empty() { problem } else { problem.help(help) });
    }

    /// Reports a problem at a key that belongs to no runner.
    fn report_global(&mut self, key: &str, code: &'static str, message: impl Into<String>, help: &str) {
        self.add(Problem::new(code, message).at(&self.tree.span_of(key)).help(help));
    }
}

pub(super) fn all(check: &mut Check<'_>) {
    for check_topic in [
        unsupported::check,
        file::check,
        limits::check,
        text::check,
        flags::check,
        identity::check,
        docker::check,
        autoscaling::check,
        scaling::check,
        machine::check,
        kubernetes::check,
        executors::check,
        steps::check,
        public::check,
        blocked::check,
    ] {
        check_topic(check);
    }
}
