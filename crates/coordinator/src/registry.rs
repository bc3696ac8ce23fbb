//! Runners and their managers: creation, registration, contact and removal (docs/spec/runner-api.md, section 1).

use std::time::Duration;

use muster_job::{JobId, RunnerId};
use muster_runner_api::service::ServiceError;
use muster_runner_api::wire::{RegisterRequest, RunnerCredentials, TokenRequest, VersionInfo};

use time::format_description::well_known::Rfc3339;

use crate::actor::Actor;
use crate::clock::Timestamp;
use crate::facts::NewRunner;
use crate::keys;
use crate::store::{ManagerRow, RunnerRow};
use crate::views::StuckJob;

/// Maximum age of a stored contact before it is written again. GitLab writes it after 40 to 55 minutes.
const MAX_CONTACT_AGE: Duration = Duration::from_secs(40 * 60);
/// System id for managers that send none.
const LEGACY_SYSTEM: &str = "<legacy>";
/// Maximum length of a maintenance note in characters (docs/spec/runner-api.md, section 1.4).
const MAX_NOTE_CHARS: usize = 1024;

impl Actor {
    /// Creates a runner. The token is only in the answer.
    pub(crate) fn create_runner(&mut self, settings: NewRunner, registered_itself: bool) -> RunnerCredentials {
        let id = self.state.new_runner_id();
        let token = keys::runner_token(registered_itself);
        let token_expires_at = self.token_expiry();
        let row = RunnerRow { id, token_hash: keys::hash(&token), token_expires_at, created_at: self.now(), settings };
        self.state.tokens.insert(row.token_hash.clone(), id);
        self.state.runners.insert(id, row);
        self.state.dirty.runners.insert(id);
        self.queue.touch();
        credentials(id, token, token_expires_at)
    }

    /// Returns when a token that is created now expires. `None` means never.
    fn token_expiry(&self) -> Option<Timestamp> {
        self.options.runner_token_lifetime.map(|lifetime| self.now() + lifetime)
    }

    /// Handles `POST /runners`.
    pub(crate) fn register(&mut self, request: RegisterRequest) -> Result<RunnerCredentials, ServiceError> {
        let Some(known) = self.options.registration_token.as_deref() else {
            return Err(ServiceError::Gone("runners cannot register themselves here".to_owned()));
        };
        if keys::hash(known) != keys::hash(&request.token) {
            return Err(ServiceError::Forbidden { status: None });
        }
        if request.maintenance_note.as_ref().is_some_and(|note| note.chars().count() > MAX_NOTE_CHARS) {
            return Err(ServiceError::BadRequest(format!(
                "maintenance_note is longer than {MAX_NOTE_CHARS} characters"
            )));
        }
        let list = request.tag_list.unwrap_or_default();
        let tags: Vec<String> =
            list.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(ToOwned::to_owned).collect();
        let settings = NewRunner {
            description: request.description.unwrap_or_default(),
            any_tags: false,
            run_untagged: request.run_untagged || tags.is_empty(),
            tags,
            ref_protected: request.access_level.as_deref() == Some("ref_protected"),
            paused: request.paused,
            maximum_timeout: request
                .maximum_timeout
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
        };
        Ok(self.create_runner(settings, true))
    }

    /// Handles `POST /runners/verify`.
    pub(crate) fn verify(&mut self, request: &TokenRequest) -> Result<RunnerCredentials, ServiceError> {
        let runner = self.lookup_runner(&request.token)?;
        self.contact(runner, &request.system_id, request.info.as_ref());
        let expires = self.state.runners.get(&runner).and_then(|row| row.token_expires_at);
        Ok(credentials(runner, request.token.clone(), expires))
    }

    /// Handles `POST /runners/reset_authentication_token`.
    pub(crate) fn reset_token(&mut self, token: &str) -> Result<RunnerCredentials, ServiceError> {
        let runner = self.lookup_runner(token)?;
        self.renew_token(runner, !token.starts_with("glrt-"))
    }

    /// Handles `POST /runners/:id/reset_authentication_token`.
    pub(crate) fn reset_token_with_pat(
        &mut self,
        runner: RunnerId,
        pat: &str,
    ) -> Result<RunnerCredentials, ServiceError> {
        let known = self.options.personal_token.as_deref();
        if known.is_none_or(|known| keys::hash(known) != keys::hash(pat)) {
            return Err(ServiceError::Forbidden { status: None });
        }
        // Only the hash of the old token is known, not its kind. The new token gets the prefix of runners that were created on the server.
        self.renew_token(runner, false)
    }

    /// Replaces the token of a runner. The old token is rejected from now on.
    fn renew_token(&mut self, runner: RunnerId, registered_itself: bool) -> Result<RunnerCredentials, ServiceError> {
        let new = keys::runner_token(registered_itself);
        let expires = self.token_expiry();
        let Some(row) = self.state.runners.get_mut(&runner) else {
            return Err(ServiceError::NotFound(format!("there is no runner {runner}")));
        };
        self.state.tokens.remove(&row.token_hash);
        row.token_hash = keys::hash(&new);
        row.token_expires_at = expires;
        self.state.tokens.insert(row.token_hash.clone(), runner);
        self.state.dirty.runners.insert(runner);
        Ok(credentials(runner, new, expires))
    }

    /// Handles `DELETE /runners`. Running jobs of the runner continue, because they have their own tokens.
    pub(crate) fn unregister(&mut self, token: &str) -> Result<(), ServiceError> {
        let runner = self.lookup_runner(token)?;
        if let Some(row) = self.state.runners.remove(&runner) {
            self.state.tokens.remove(&row.token_hash);
        }
        self.state.managers.retain(|(of, _), _| *of != runner);
        self.state.dirty.runners.remove(&runner);
        self.state.dirty.removed_runners.insert(runner);
        for held in self.queue.release(|held| held.runner == runner) {
            self.service_reply(held.reply, Err(ServiceError::Forbidden { status: None }));
        }
        Ok(())
    }

    /// Handles `DELETE /runners/managers`.
    pub(crate) fn unregister_manager(&mut self, request: TokenRequest) -> Result<(), ServiceError> {
        let runner = self.lookup_runner(&request.token)?;
        if request.system_id.is_empty() {
            return Err(ServiceError::BadRequest("system_id is missing".to_owned()));
        }
        let key = (runner, request.system_id);
        if self.state.managers.remove(&key).is_none() {
            return Err(ServiceError::NotFound(format!("the runner has no manager `{}`", key.1)));
        }
        self.state.dirty.managers.remove(&key);
        self.state.dirty.removed_managers.insert(key);
        Ok(())
    }

    /// Returns the runner of a token that has not expired.
    pub(crate) fn runner_of(&self, token: &str) -> Option<RunnerId> {
        let runner = *self.state.tokens.get(&keys::hash(token))?;
        let ended = self.state.runners.get(&runner)?.token_expires_at.is_some_and(|end| end <= self.now());
        (!ended).then_some(runner)
    }

    fn lookup_runner(&self, token: &str) -> Result<RunnerId, ServiceError> {
        self.runner_of(token).ok_or(ServiceError::Forbidden { status: None })
    }

    /// Records the contact of a manager. The row is only written if it is new, old or changed.
    pub(crate) fn contact(&mut self, runner: RunnerId, system_id: &str, info: Option<&VersionInfo>) {
        let system_id = if system_id.is_empty() { LEGACY_SYSTEM } else { system_id };
        let key = (runner, system_id.to_owned());
        let now = self.now();
        let known = self.state.managers.get(&key);
        let fresh = known
            .is_some_and(|row| now - row.contacted_at < MAX_CONTACT_AGE && info.is_none_or(|info| *info == row.info));
        if fresh {
            return;
        }
        let info = info.cloned().or_else(|| known.map(|row| row.info.clone())).unwrap_or_default();
        let row = ManagerRow { runner, system_id: key.1.clone(), contacted_at: now, info };
        self.state.managers.insert(key.clone(), row);
        self.state.dirty.removed_managers.remove(&key);
        self.state.dirty.managers.insert(key);
    }

    /// Returns why no runner may get a waiting job. `None` if one may.
    pub(crate) fn mismatch_reason(&self, job: JobId) -> Option<String> {
        let requirement = self.queue.requirement(job)?;
        let mut first = None;
        for runner in self.state.runners.values() {
            let mismatch_reason = requirement.mismatch_reason(&runner.settings)?;
            first.get_or_insert_with(|| {
                format!("no runner fits: {mismatch_reason} (`{}`)", runner.settings.description)
            });
        }
        let lacking: Vec<String> = requirement
            .tags
            .iter()
            .filter(|tag| {
                self.state
                    .runners
                    .values()
                    .all(|runner| !runner.settings.any_tags && !runner.settings.tags.contains(tag))
            })
            .map(|tag| format!("`{tag}`"))
            .collect();
        Some(match (lacking.as_slice(), first) {
            (_, None) => "there is no runner".to_owned(),
            ([], Some(first)) => first,
            ([tag], _) => format!("no runner has the tag {tag}"),
            (tags, _) => format!("no runner has the tags {}", tags.join(", ")),
        })
    }

    /// Returns the waiting jobs that no runner may get (C198).
    pub(crate) fn stuck_jobs(&self) -> Vec<StuckJob> {
        let stuck = self.queue.jobs().into_iter().filter_map(|job| {
            let name = self.state.jobs.get(&job)?.name.clone();
            self.mismatch_reason(job).map(|why| StuckJob { job, name, why })
        });
        stuck.collect()
    }
}

fn credentials(id: RunnerId, token: String, expires: Option<Timestamp>) -> RunnerCredentials {
    // Every time of this calendar can be formatted.
    let token_expires_at = expires.and_then(|end| end.format(&Rfc3339).ok());
    RunnerCredentials { id: id.0, token, token_expires_at }
}
