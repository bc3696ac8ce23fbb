//! The runners and their managers: creation, registration, contact and deletion (docs/spec/runner-api.md, section 1).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_job::RunnerId;
use muster_runner_api::service::ServiceError;
use muster_runner_api::wire::{RegisterRequest, RunnerCredentials, TokenRequest, VersionInfo};

use time::format_description::well_known::Rfc3339;

use crate::clock::Timestamp;
use crate::facts::RunnerSpec;
use crate::keys;
use crate::options::Options;
use crate::queue::Requirement;
use crate::store::{Changes, ManagerRow, RunnerRow};

/// Maximum age of a stored contact before it is written again. GitLab writes it after 40 to 55 minutes.
const MAX_CONTACT_AGE: Duration = Duration::from_secs(40 * 60);
/// System ID for managers that send none.
const LEGACY_SYSTEM: &str = "<legacy>";
/// Maximum length of a maintenance note in characters (docs/spec/runner-api.md, section 1.4).
const MAX_NOTE_CHARS: usize = 1024;

type ManagerKey = (RunnerId, String);

fn manager_key(runner: RunnerId, system_id: &str) -> ManagerKey {
    (runner, if system_id.is_empty() { LEGACY_SYSTEM } else { system_id }.to_owned())
}

#[derive(Default)]
pub(crate) struct RunnerRegistry {
    runners: BTreeMap<RunnerId, RunnerRow>,
    /// Runners, by the hash of their token.
    by_token: HashMap<String, RunnerId>,
    managers: BTreeMap<ManagerKey, ManagerRow>,
    next_id: i64,
    unwritten: UnwrittenRows,
}

#[derive(Default)]
struct UnwrittenRows {
    runners: BTreeSet<RunnerId>,
    managers: BTreeSet<ManagerKey>,
    removed_runners: BTreeSet<RunnerId>,
    removed_managers: BTreeSet<ManagerKey>,
}

impl RunnerRegistry {
    /// Creates a registry from stored rows. `last` is the highest ID ever assigned.
    pub(crate) fn new(runners: Vec<RunnerRow>, managers: Vec<ManagerRow>, last: Option<RunnerId>) -> Self {
        Self {
            by_token: runners.iter().map(|row| (row.token_hash.clone(), row.id)).collect(),
            runners: runners.into_iter().map(|row| (row.id, row)).collect(),
            managers: managers.into_iter().map(|row| ((row.runner, row.system_id.clone()), row)).collect(),
            next_id: last.map_or(1, |id| id.0 + 1),
            unwritten: UnwrittenRows::default(),
        }
    }

    pub(crate) fn get(&self, runner: RunnerId) -> Option<&RunnerRow> {
        self.runners.get(&runner)
    }

    pub(crate) fn has_manager(&self, runner: RunnerId, system_id: &str) -> bool {
        self.managers.contains_key(&manager_key(runner, system_id))
    }

    pub(crate) fn add_changes<'a>(&'a self, changes: &mut Changes<'a>) {
        let unwritten = &self.unwritten;
        changes.removed_runners = unwritten.removed_runners.iter().copied().collect();
        changes.removed_managers = unwritten.removed_managers.iter().collect();
        changes.runners = unwritten.runners.iter().filter_map(|id| self.runners.get(id)).collect();
        changes.managers = unwritten.managers.iter().filter_map(|key| self.managers.get(key)).collect();
    }

    pub(crate) fn mark_written(&mut self) {
        self.unwritten = UnwrittenRows::default();
    }

    /// Creates a runner. Returns its token, of which only the hash is stored.
    pub(crate) fn create(
        &mut self,
        settings: RunnerSpec,
        registered_itself: bool,
        options: &Options,
        now: Timestamp,
    ) -> RunnerCredentials {
        let id = RunnerId(self.next_id);
        self.next_id += 1;
        let token = keys::runner_token(registered_itself);
        let token_expires_at = token_expiry(options, now);
        let row = RunnerRow { id, token_hash: keys::hash(&token), token_expires_at, created_at: now, settings };
        self.by_token.insert(row.token_hash.clone(), id);
        self.runners.insert(id, row);
        self.unwritten.runners.insert(id);
        credentials(id, token, token_expires_at)
    }

    /// Handles `POST /runners`.
    pub(crate) fn register(
        &mut self,
        request: RegisterRequest,
        options: &Options,
        now: Timestamp,
    ) -> Result<RunnerCredentials, ServiceError> {
        let Some(expected) = options.registration_token.as_deref() else {
            return Err(ServiceError::Gone("this coordinator does not accept runner registrations".to_owned()));
        };
        if keys::hash(expected) != keys::hash(&request.token) {
            return Err(ServiceError::Forbidden { status: None });
        }
        if request.maintenance_note.as_ref().is_some_and(|note| note.chars().count() > MAX_NOTE_CHARS) {
            let message = format!("maintenance_note is longer than {MAX_NOTE_CHARS} characters");
            return Err(ServiceError::BadRequest(message));
        }
        let list = request.tag_list.unwrap_or_default();
        let tags: Vec<String> =
            list.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(ToOwned::to_owned).collect();
        let settings = RunnerSpec {
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
        Ok(self.create(settings, true, options, now))
    }

    /// Handles `POST /runners/verify`.
    pub(crate) fn verify(&mut self, request: &TokenRequest, now: Timestamp) -> Result<RunnerCredentials, ServiceError> {
        let runner = self.lookup_runner(&request.token, now)?;
        self.record_contact(runner, &request.system_id, request.info.as_ref(), now);
        let expires_at = self.runners.get(&runner).and_then(|row| row.token_expires_at);
        Ok(credentials(runner, request.token.clone(), expires_at))
    }

    /// Handles `POST /runners/reset_authentication_token`.
    pub(crate) fn reset_token(
        &mut self,
        token: &str,
        options: &Options,
        now: Timestamp,
    ) -> Result<RunnerCredentials, ServiceError> {
        let runner = self.lookup_runner(token, now)?;
        self.renew_token(runner, !token.starts_with("glrt-"), options, now)
    }

    /// Handles `POST /runners/:id/reset_authentication_token`.
    pub(crate) fn reset_token_with_pat(
        &mut self,
        runner: RunnerId,
        pat: &str,
        options: &Options,
        now: Timestamp,
    ) -> Result<RunnerCredentials, ServiceError> {
        let expected = options.personal_token.as_deref();
        if expected.is_none_or(|expected| keys::hash(expected) != keys::hash(pat)) {
            return Err(ServiceError::Forbidden { status: None });
        }
        // Only the hash of the old token is known, not its kind. The new token gets the prefix of runners that were created on the
        // server.
        self.renew_token(runner, false, options, now)
    }

    /// Replaces the token of a runner. The old token is rejected from now on.
    fn renew_token(
        &mut self,
        runner: RunnerId,
        registered_itself: bool,
        options: &Options,
        now: Timestamp,
    ) -> Result<RunnerCredentials, ServiceError> {
        let token = keys::runner_token(registered_itself);
        let expires_at = token_expiry(options, now);
        let Some(row) = self.runners.get_mut(&runner) else {
            return Err(ServiceError::NotFound(format!("runner {runner} does not exist")));
        };
        self.by_token.remove(&row.token_hash);
        row.token_hash = keys::hash(&token);
        row.token_expires_at = expires_at;
        self.by_token.insert(row.token_hash.clone(), runner);
        self.unwritten.runners.insert(runner);
        Ok(credentials(runner, token, expires_at))
    }

    /// Handles `DELETE /runners`, and returns the deleted runner. Its running jobs continue, because they have their own tokens.
    pub(crate) fn unregister(&mut self, token: &str, now: Timestamp) -> Result<RunnerId, ServiceError> {
        let runner = self.lookup_runner(token, now)?;
        if let Some(row) = self.runners.remove(&runner) {
            self.by_token.remove(&row.token_hash);
        }
        self.managers.retain(|(owner, _), _| *owner != runner);
        self.unwritten.runners.remove(&runner);
        self.unwritten.removed_runners.insert(runner);
        Ok(runner)
    }

    /// Handles `DELETE /runners/managers`.
    pub(crate) fn unregister_manager(&mut self, request: TokenRequest, now: Timestamp) -> Result<(), ServiceError> {
        let runner = self.lookup_runner(&request.token, now)?;
        if request.system_id.is_empty() {
            return Err(ServiceError::BadRequest("system_id is missing".to_owned()));
        }
        let key = (runner, request.system_id);
        if self.managers.remove(&key).is_none() {
            return Err(ServiceError::NotFound(format!("the runner has no manager `{}`", key.1)));
        }
        self.unwritten.managers.remove(&key);
        self.unwritten.removed_managers.insert(key);
        Ok(())
    }

    /// Returns the runner of a token. `None` if the token is unknown or has expired.
    pub(crate) fn runner_of(&self, token: &str, now: Timestamp) -> Option<RunnerId> {
        let runner = *self.by_token.get(&keys::hash(token))?;
        let expired = self.runners.get(&runner)?.token_expires_at.is_some_and(|at| at <= now);
        (!expired).then_some(runner)
    }

    fn lookup_runner(&self, token: &str, now: Timestamp) -> Result<RunnerId, ServiceError> {
        self.runner_of(token, now).ok_or(ServiceError::Forbidden { status: None })
    }

    /// Records the contact of a manager.
    ///
    /// The row is written only if the manager is new, its data has changed, or the last written contact is older than `MAX_CONTACT_AGE`.
    pub(crate) fn record_contact(
        &mut self,
        runner: RunnerId,
        system_id: &str,
        info: Option<&VersionInfo>,
        now: Timestamp,
    ) {
        let key = manager_key(runner, system_id);
        let known = self.managers.get(&key);
        let is_current = known
            .is_some_and(|row| now - row.contacted_at < MAX_CONTACT_AGE && info.is_none_or(|info| *info == row.info));
        if is_current {
            return;
        }
        let info = info.cloned().or_else(|| known.map(|row| row.info.clone())).unwrap_or_default();
        let row = ManagerRow { runner, system_id: key.1.clone(), contacted_at: now, info };
        self.managers.insert(key.clone(), row);
        self.unwritten.removed_managers.remove(&key);
        self.unwritten.managers.insert(key);
    }

    /// Returns the reason why no runner matches. `None` if a runner matches.
    pub(crate) fn mismatch_reason(&self, requirement: &Requirement) -> Option<String> {
        let mut first = None;
        for runner in self.runners.values() {
            let reason = requirement.mismatch_reason(&runner.settings)?;
            first.get_or_insert_with(|| {
                format!("no runner matches; for example, runner `{}` {reason}", runner.settings.description)
            });
        }
        let has_tag = |tag: &String| {
            self.runners.values().any(|runner| runner.settings.any_tags || runner.settings.tags.contains(tag))
        };
        let missing: Vec<String> =
            requirement.tags.iter().filter(|tag| !has_tag(tag)).map(|tag| format!("`{tag}`")).collect();
        Some(match (missing.as_slice(), first) {
            (_, None) => "no runner exists".to_owned(),
            ([], Some(first)) => first,
            ([tag], _) => format!("no runner has the tag {tag}"),
            (tags, _) => format!("no runner has the tags {}", tags.join(", ")),
        })
    }
}

/// Returns when a new token expires. `None` means never.
fn token_expiry(options: &Options, now: Timestamp) -> Option<Timestamp> {
    options.runner_token_lifetime.map(|lifetime| now + lifetime)
}

fn credentials(id: RunnerId, token: String, expires_at: Option<Timestamp>) -> RunnerCredentials {
    // Formatting cannot fail for valid times.
    let token_expires_at = expires_at.and_then(|at| at.format(&Rfc3339).ok());
    RunnerCredentials { id: id.0, token, token_expires_at }
}
