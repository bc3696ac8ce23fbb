//! One renewal: checks that the file is writable, resets the token at the coordinator, and saves the file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use muster_config::HostFacts;
use muster_config::edit::{ConfigFile, EditError, NewToken};
use muster_config::settings::ConnectionAge;
use muster_job::Secret;
use muster_job::short_token;
use time::OffsetDateTime;

use super::plan::renewal_deadline;
use super::{MIN_RESET_INTERVAL, RotationTask, RunnerSettings};

impl RotationTask {
    /// Renews the token of `runner`. Schedules another attempt after a failure.
    pub(super) async fn renew(&mut self, runner: Arc<RunnerSettings>) {
        // Nothing has been requested yet, so a stop may end the wait.
        let stop = self.stop.clone();
        let locked = tokio::select! {
            locked = self.lock_writable_file() => locked,
            () = stop.cancelled() => return,
        };
        let file = match locked {
            Ok(file) => Some(file),
            Err(error) if renewal_deadline(&runner).is_some_and(|end| self.clock.now() >= end) => {
                log_error(
                    &runner,
                    &error,
                    "the token expires soon and is renewed anyway; the new token is lost when this process exits",
                );
                None
            }
            Err(error) => {
                self.schedule_retry(runner.token.expose());
                self.observer.telemetry().metrics.configuration_saved(false);
                return log_error(&runner, &error, "the token is not renewed until the file can be saved; retrying");
            }
        };
        if stop.is_cancelled() {
            return;
        }
        self.resetting.store(true, Ordering::Relaxed);
        self.retain_series(&runner);
        // No connection is kept, because renewals are weeks apart.
        let client = crate::client::new(&runner, ConnectionAge::NoReuse);
        let answer = match client.map(|client| self.observer.counting_client(client, &runner)) {
            Ok(client) => client.reset_token(runner.token.expose()).await,
            Err(error) => Err(error),
        };
        self.not_before = self.clock.now() + MIN_RESET_INTERVAL;
        let credentials = match answer {
            Ok(credentials) => credentials,
            Err(error) => {
                let wait_s = self.schedule_retry(runner.token.expose()).as_secs();
                let (short, name) = (short_token(runner.token.expose()), runner.name.as_str());
                let is_unknown = error.is_unknown_token();
                let remedy =
                    if is_unknown { "; the server does not know the token: register the runner again" } else { "" };
                return tracing::error!(
                    runner = short, runner_name = name, %error, wait_s,
                    "Failed to reset runner authentication token, retrying{remedy}"
                );
            }
        };
        let new = NewToken::after_reset(
            &credentials.token,
            credentials.token_expires_at.as_deref(),
            OffsetDateTime::from(self.clock.now()),
        );
        tracing::info!(
            runner = short_token(runner.token.expose()),
            runner_name = runner.name,
            new = short_token(new.token.expose()),
            "Runner authentication token was reset"
        );
        let origin = self.renewed.origin(&runner.token);
        let saved = match file {
            Some(file) => self.save(file, &runner, &origin, &new).await,
            None => Err(None),
        };
        self.retry_state(runner.token.expose()).done = true;
        match saved {
            Ok(()) => drop(self.renewed.0.lock().remove(origin.expose())),
            Err(error) => {
                self.schedule_retry(origin.expose());
                if let Some(error) = error {
                    log_error(&runner, &error, "the new token is in memory only; saving it is retried");
                }
                self.renewed.0.lock().insert(origin.expose().to_owned(), new.clone());
                self.unsaved.insert(origin.expose().to_owned(), (runner, new));
            }
        }
        self.notify_changed();
    }

    pub(super) async fn retry_save(&mut self, origin: &str) {
        let Some((runner, new)) = self.unsaved.get(origin).cloned() else { return };
        let saved = match self.lock_writable_file().await {
            Ok(file) => self.save(file, &runner, &Secret::new(origin), &new).await,
            Err(error) => Err(Some(error)),
        };
        match saved {
            Err(Some(error)) => {
                self.schedule_retry(origin);
                self.observer.telemetry().metrics.configuration_saved(false);
                log_error(&runner, &error, "the new token is in memory only; saving it is retried");
            }
            // Saved, or the file no longer has an entry for it.
            Ok(()) | Err(None) => {
                self.unsaved.remove(origin);
                self.renewed.0.lock().remove(origin);
                self.notify_changed();
            }
        }
    }

    /// Returns the file after a trial save of its content.
    async fn lock_writable_file(&self) -> Result<ConfigFile, EditError> {
        let path = self.path.clone();
        blocking(&self.path, move || {
            let file = ConfigFile::open(&path)?;
            file.check_writable()?;
            Ok(file)
        })
        .await
    }

    /// Replaces `origin` in every entry of the runner (check C025).
    ///
    /// The error `None` means that the file no longer has such an entry, which was logged.
    async fn save(
        &self,
        mut file: ConfigFile,
        runner: &Arc<RunnerSettings>,
        origin: &Secret,
        new: &NewToken,
    ) -> Result<(), Option<EditError>> {
        let (path, url) = (self.path.clone(), runner.url.clone());
        let (origin, new, name) = (origin.clone(), new.clone(), runner.name.clone());
        let saved = blocking(&self.path, move || {
            let known = file.read(&HostFacts::of(&path)).config.map(|config| config.runners).unwrap_or_default();
            let entries = known.iter().filter(|known| {
                known.token == origin && muster_config::base_url(&known.url).is_some_and(|known| known == url)
            });
            let mut found = false;
            for known in entries {
                found = true;
                if let Some(problem) = file.set_token(known.index, &new)? {
                    tracing::warn!(code = problem.code, help = problem.help, runner_name = name, "{}", problem.message);
                }
            }
            if found {
                file.save()?;
            }
            Ok(found)
        })
        .await;
        if let Ok(true) | Err(_) = &saved {
            self.observer.telemetry().metrics.configuration_saved(saved.is_ok());
        }
        match saved {
            Ok(true) => Ok(()),
            Ok(false) => {
                tracing::error!(
                    runner_name = runner.name,
                    "runner was removed from the file while its token was reset, new token lost; reset the token on the server"
                );
                Err(None)
            }
            Err(error) => Err(Some(error)),
        }
    }
}

/// Runs blocking work on the file outside the async threads.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, EditError> + Send + 'static,
) -> Result<T, EditError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(EditError::Io { doing: "change", path: path.to_owned(), source: std::io::Error::other(error) })
    })
}

fn log_error(runner: &RunnerSettings, error: &EditError, consequence: &str) {
    let expires_on = runner.token_expires_at.map(|end| OffsetDateTime::from(end).date().to_string());
    tracing::error!(
        code = "C028",
        runner = short_token(runner.token.expose()),
        runner_name = runner.name,
        error = error as &dyn std::error::Error,
        "token expires on {}, failed to update the configuration file: {consequence}",
        expires_on.unwrap_or_default()
    );
}
