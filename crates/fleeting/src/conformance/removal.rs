//! Cases about deleting instances.

use std::time::Duration;

use tokio::time::Instant;

use super::life::{Life, NOBODY};
use super::subject::Missing;
use super::verdict::{Outcome, Run};
use crate::model::InstanceState;
use crate::protocol::group::DecreaseRequest;

/// Delay between two attempts to delete the remaining instances.
const PAUSE: Duration = Duration::from_millis(200);

impl Life<'_> {
    /// Runs the cases. An error means that snapshots cannot be read.
    pub(super) async fn remove(&mut self, run: &mut Run<'_>, ids: &[String]) -> Result<(), String> {
        let Some(first) = ids.first() else { return Ok(()) };
        let result = self.remove_one(first).await?;
        if !run.judge("L9", result) {
            return Ok(());
        }
        let outcome = match self.decrease(std::slice::from_ref(first)).await {
            Ok(done) if done.contains(first) => Outcome::Pass,
            Ok(_) => {
                Outcome::Warn("it is not named among those that were removed; hosts ask again and again".to_owned())
            }
            Err(missing @ Missing::Refused(_)) => Outcome::Warn(format!(
                "{}; hosts ask again and again: say that it is removed",
                missing.text("Decrease")
            )),
            Err(missing) => Outcome::Fail(missing.text("Decrease of an instance that is gone")),
        };
        run.say("P14", outcome);
        match ids.get(1) {
            Some(second) => {
                let outcome = self.remove_with_a_stranger(second).await?;
                run.say("P12", outcome);
            }
            None => run.skip(&["P12"], "it takes two instances"),
        }
        Ok(())
    }

    async fn remove_one(&mut self, id: &String) -> Result<Result<(), String>, String> {
        let others: Vec<String> = self.book.made().into_iter().filter(|other| other != id).collect();
        let done = match self.decrease(std::slice::from_ref(id)).await {
            Ok(done) => done,
            Err(missing) => return Ok(Err(missing.text("Decrease"))),
        };
        if done != [id.clone()] {
            return Ok(Err(format!("Decrease was asked for {id} and says that it accepted {done:?}")));
        }
        let limit = self.plan.delete_limit;
        if !self.wait(limit, |book| !book.is_there(id)).await? {
            return Ok(Err(format!("{id} was still there {:.1} s after Decrease accepted it", limit.as_secs_f64())));
        }
        let stays = |other: &&String| self.book.state(other).is_none_or(|state| state == InstanceState::Deleting);
        let gone: Vec<&str> = others.iter().filter(stays).map(String::as_str).collect();
        Ok(if gone.is_empty() { Ok(()) } else { Err(format!("Decrease of {id} removed {} too", gone.join(", "))) })
    }

    async fn remove_with_a_stranger(&mut self, id: &String) -> Result<Outcome, String> {
        let missing = match self.decrease(&[id.clone(), NOBODY.to_owned()]).await {
            Ok(done) if done.contains(id) => return Ok(Outcome::Pass),
            Ok(_) => {
                return Ok(Outcome::Fail(format!(
                    "Decrease of {id} and an unknown one does not name {id} among those that were removed"
                )));
            }
            Err(missing @ Missing::Refused(_)) => missing,
            Err(missing) => return Ok(Outcome::Fail(missing.text("Decrease with an unknown instance"))),
        };
        self.look().await?;
        let goes = self.book.state(id).is_none_or(|state| state == InstanceState::Deleting);
        Ok(if goes {
            Outcome::Warn(format!(
                "{}; it removed {id} before, which the host does not hear: answer with those that were removed",
                missing.text("Decrease")
            ))
        } else {
            Outcome::Pass
        })
    }

    async fn decrease(&mut self, ids: &[String]) -> Result<Vec<String>, Missing> {
        self.book.ask_to_go(ids);
        let mut group = self.subject.connection.group();
        let request = DecreaseRequest { instances: ids.to_vec() };
        let answer = self.subject.call(async move { group.decrease(request).await }).await;
        Ok(answer?.into_inner().succeeded)
    }

    /// Deletes all instances that the kit created, whatever happened before.
    pub(super) async fn remove_the_rest(&mut self, run: &mut Run<'_>) {
        let result = self.remove_all().await;
        if self.book.made_ever() > 0 || result.is_err() {
            run.judge("L10", result);
        }
    }

    /// Requests deletions until all instances are gone.
    pub(super) async fn remove_all(&mut self) -> Result<(), String> {
        let end = Instant::now() + self.plan.delete_limit;
        let mut last = String::new();
        loop {
            // An instance that no snapshot shows may exist.
            let seen = self.look().await;
            let left = self.book.made();
            if seen.is_ok() && left.is_empty() {
                return Ok(());
            }
            let leaving = |id: &String| self.book.state(id) == Some(InstanceState::Deleting);
            let asked: Vec<String> = left.iter().filter(|id| !leaving(id)).cloned().collect();
            if !asked.is_empty()
                && let Err(missing) = self.decrease(&asked).await
            {
                last = format!(": {}", missing.text("Decrease"));
            }
            // If snapshots cannot be read, one attempt to delete the known instances has to be enough.
            seen?;
            if Instant::now() >= end {
                let names = left.join(", ");
                return Err(format!(
                    "still there after {:.1} s: {names}{last}; remove them by hand",
                    self.plan.delete_limit.as_secs_f64()
                ));
            }
            tokio::time::sleep(PAUSE.min(self.plan.poll * 4)).await;
        }
    }
}
