//! A home directory with a configuration, and a coordinator in memory.

use std::sync::Arc;
use std::time::Duration;

use muster_runner_api::test_support::{MemoryCoordinator, Served, serve};

use super::support::Home;
use crate::process::CommandResult;

pub(crate) struct Harness {
    pub(crate) coordinator: Arc<MemoryCoordinator>,
    pub(crate) home: Home,
    served: Served,
}

impl Harness {
    pub(crate) async fn start() -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_millis(50)));
        let served = serve(coordinator.clone()).await.unwrap();
        Self { coordinator, served, home: Home::new() }
    }

    pub(crate) fn url(&self) -> String {
        self.served.url.as_str().trim_end_matches('/').to_owned()
    }

    /// Writes `config.toml`, with `URL` replaced by the coordinator's URL.
    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.home.path("config.toml"), text.replace("URL", &self.url())).unwrap();
    }

    pub(crate) fn config(&self) -> String {
        std::fs::read_to_string(self.home.path("config.toml")).unwrap().replace(&self.url(), "URL")
    }

    /// Runs a command of Muster under the program name `gitlab-runner`. `URL` in the arguments is replaced by the
    /// coordinator's URL.
    pub(crate) fn run(&self, command: &str, arguments: &[&str]) -> CommandResult {
        self.home.run(&self.arguments(command, arguments))
    }

    pub(crate) fn arguments(&self, command: &str, arguments: &[&str]) -> Vec<String> {
        let config = self.home.path("config.toml").display().to_string();
        let common = [command.to_owned(), "--config".to_owned(), config];
        common.into_iter().chain(arguments.iter().map(|argument| argument.replace("URL", &self.url()))).collect()
    }

    pub(crate) fn system_id(&self) -> String {
        std::fs::read_to_string(self.home.path(".runner_system_id")).unwrap()
    }
}

pub(crate) fn without_dates(text: &str) -> String {
    let without_dates = |line: &str| match line.split_once("_at = ") {
        Some((key, _)) => format!("{key}_at = DATE"),
        None => line.to_owned(),
    };
    text.lines().map(|line| without_dates(line) + "\n").collect()
}
