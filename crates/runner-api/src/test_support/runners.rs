//! Runners of the in-memory coordinator.

use std::collections::{BTreeMap, BTreeSet};

use super::{MemoryCoordinator, RUNNER_TOKEN};
use crate::service::ServiceError;
use crate::wire::{RegisterRequest, RunnerCredentials, TokenRequest};

/// Accepted registration token.
pub const REGISTRATION_TOKEN: &str = "GR1348941memory";
/// Accepted personal access token.
pub const PERSONAL_TOKEN: &str = "glpat-memory";

/// Runner of the coordinator.
#[derive(Debug, Clone, Default)]
pub struct Runner {
    /// ID of the runner.
    pub id: i64,
    /// System IDs of managers that were verified and not deleted.
    pub managers: BTreeSet<String>,
    /// Registration request. `None` means that the runner was created at the coordinator.
    pub registered: Option<RegisterRequest>,
    /// Expiry of its tokens in RFC 3339.
    pub expires: Option<String>,
}

#[derive(Debug)]
pub(super) struct Runners {
    by_token: BTreeMap<String, Runner>,
    count: i64,
}

impl Default for Runners {
    fn default() -> Self {
        let mut runners = Self { by_token: BTreeMap::new(), count: 0 };
        runners.add(RUNNER_TOKEN, Runner::default());
        runners
    }
}

fn forbidden() -> ServiceError {
    ServiceError::Forbidden { status: None }
}

impl Runners {
    fn add(&mut self, token: &str, runner: Runner) -> RunnerCredentials {
        self.count += 1;
        let credentials =
            RunnerCredentials { id: self.count, token: token.to_owned(), token_expires_at: runner.expires.clone() };
        self.by_token.insert(token.to_owned(), Runner { id: self.count, ..runner });
        credentials
    }

    pub(super) fn check(&self, token: &str) -> Result<&Runner, ServiceError> {
        self.by_token.get(token).ok_or_else(forbidden)
    }

    pub(super) fn register(&mut self, request: RegisterRequest) -> Result<RunnerCredentials, ServiceError> {
        if request.token != REGISTRATION_TOKEN {
            return Err(forbidden());
        }
        let token = format!("memory-{}", self.count + 1);
        Ok(self.add(&token, Runner { registered: Some(request), ..Runner::default() }))
    }

    pub(super) fn verify(&mut self, request: TokenRequest) -> Result<RunnerCredentials, ServiceError> {
        let runner = self.by_token.get_mut(&request.token).ok_or_else(forbidden)?;
        runner.managers.insert(request.system_id);
        Ok(RunnerCredentials { id: runner.id, token: request.token, token_expires_at: runner.expires.clone() })
    }

    pub(super) fn reset(&mut self, token: &str) -> Result<RunnerCredentials, ServiceError> {
        let runner = self.by_token.remove(token).ok_or_else(forbidden)?;
        let (stem, count) = token.split_once("-reset-").unwrap_or((token, "0"));
        let token = format!("{stem}-reset-{}", count.parse::<u32>().unwrap_or(0) + 1);
        let credentials =
            RunnerCredentials { id: runner.id, token: token.clone(), token_expires_at: runner.expires.clone() };
        self.by_token.insert(token, runner);
        Ok(credentials)
    }

    pub(super) fn reset_with_pat(&mut self, id: i64, pat: &str) -> Result<RunnerCredentials, ServiceError> {
        let token = self.by_token.iter().find(|(_, runner)| runner.id == id).map(|(token, _)| token.clone());
        match token {
            Some(token) if pat == PERSONAL_TOKEN => self.reset(&token),
            _ => Err(forbidden()),
        }
    }

    pub(super) fn unregister(&mut self, token: &str) -> Result<(), ServiceError> {
        self.by_token.remove(token).map(drop).ok_or_else(forbidden)
    }

    pub(super) fn unregister_manager(&mut self, request: &TokenRequest) -> Result<(), ServiceError> {
        let runner = self.by_token.get_mut(&request.token).ok_or_else(forbidden)?;
        let removed = runner.managers.remove(&request.system_id);
        if removed { Ok(()) } else { Err(ServiceError::NotFound("no such manager".to_owned())) }
    }
}

impl MemoryCoordinator {
    /// Creates a runner with this token, as an administrator does. Its tokens expire at `expires` (RFC 3339).
    pub fn add_runner(&self, token: &str, expires: Option<&str>) {
        let runner = Runner { expires: expires.map(str::to_owned), ..Runner::default() };
        self.change(|state| drop(state.runners.add(token, runner)));
    }

    /// Deletes a runner, as an administrator does.
    pub fn delete_runner(&self, token: &str) {
        self.change(|state| drop(state.runners.unregister(token)));
    }

    /// Returns the runner with this token.
    #[must_use]
    pub fn runner(&self, token: &str) -> Option<Runner> {
        self.state.lock().runners.by_token.get(token).cloned()
    }

    /// Returns the tokens of all runners.
    #[must_use]
    pub fn runner_tokens(&self) -> Vec<String> {
        self.state.lock().runners.by_token.keys().cloned().collect()
    }
}
