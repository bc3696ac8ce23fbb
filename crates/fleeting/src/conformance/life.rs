//! Cases about the life cycle of instances: creation, snapshots, connections, deletion.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;

use super::book::{Book, told};
use super::plan::Plan;
use super::subject::{Missing, Subject};
use super::verdict::{Outcome, Run};
use crate::model::InstanceState;
use crate::protocol::SUSPEND_RESUME;
use crate::protocol::group::{ConnectInfoRequest, Empty, IncreaseRequest, InitResponse};

/// Id of an instance that does not exist.
pub(super) const NOBODY: &str = "muster-no-such-instance";
/// Longest interval between two snapshots.
const POLL_MAX: Duration = Duration::from_secs(2);

/// A process of the plugin, and what is known of its instances.
pub(super) struct Life<'a> {
    pub(super) plan: &'a Plan,
    pub(super) subject: Subject,
    pub(super) book: Book,
    pub(super) can_suspend: bool,
    max_size: u32,
}

pub(super) async fn run(run: &mut Run<'_>) {
    if run.has_failed("H1") {
        return;
    }
    let Some(mut life) = begin(run).await else { return };
    if let Some(Err(error)) = run.plan.stop.run_until_cancelled(life.live(run)).await {
        run.say("L2", Outcome::Fail(error));
    }
    life.remove_the_rest(run).await;
    if run.plan.stop.is_cancelled() {
        life.subject.end().await;
        return;
    }
    run.judge("L2", told(&life.book.odd));
    run.judge("L4", told(&life.book.moves));
    run.judge("L5", told(&life.book.lost));
    run.log.extend(life.subject.end().await);
    if !run.has_failed("L3") && !run.has_failed("L6") && !run.has_failed("L10") {
        let outcome = restart(run.plan).await;
        run.say("L11", outcome);
    }
}

async fn begin<'a>(run: &mut Run<'a>) -> Option<Life<'a>> {
    let plan = run.plan;
    match Life::start(plan).await {
        Ok((life, init)) => {
            let result = match (init.id.is_empty(), init.max_size) {
                (true, _) => Err("the group has no id; it is what logs call the group".to_owned()),
                (_, 0) => Err("max_size is 0; a Go host makes no instance then".to_owned()),
                _ => Ok(()),
            };
            run.judge("L1", result);
            Some(life)
        }
        Err(error) => {
            run.say("L1", Outcome::Fail(error));
            None
        }
    }
}

impl<'a> Life<'a> {
    async fn start(plan: &'a Plan) -> Result<(Self, InitResponse), String> {
        let mut subject = Subject::start(plan, &[], |_| {}).await?;
        match subject.init_as_planned(plan).await {
            Ok(init) => {
                let can_suspend = init.capabilities.iter().any(|capability| capability == SUSPEND_RESUME);
                let (max_size, book) = (init.max_size, Book::default());
                Ok((Self { plan, subject, book, can_suspend, max_size }, init))
            }
            Err(missing) => {
                subject.end().await;
                Err(missing.text("Init"))
            }
        }
    }

    /// Runs the cases of one process. An error means that snapshots cannot be read.
    async fn live(&mut self, run: &mut Run<'_>) -> Result<(), String> {
        self.look().await?;
        if let Some(others) = self.book.others() {
            run.say("L3", Outcome::Fail(format!(
                "the group has instances already ({others}), and the kit could not tell those that it makes from somebody \
                 else's, which it would remove: test with a group of its own"
            )));
            return Ok(());
        }
        let outcome = self.words().await;
        run.say("P10", outcome);
        let accepted = match self.increase(self.plan.instances.min(self.max_size)).await {
            Ok(accepted) => accepted,
            Err(error) => {
                run.say("L3", Outcome::Fail(error));
                return Ok(());
            }
        };
        let are_up = self.wait_until_up(accepted).await?;
        let made = self.book.made_ever();
        let as_many = if made == accepted {
            Ok(())
        } else {
            Err(format!("Increase accepted {accepted}, and {made} instances appeared"))
        };
        run.judge("L3", as_many);
        let is_up = |id: &String| self.book.state(id) == Some(InstanceState::Running);
        let ids: Vec<String> = self.book.made().into_iter().filter(is_up).collect();
        run.judge(
            "L6",
            if are_up {
                Ok(())
            } else {
                Err(format!(
                    "{} of {accepted} instances were running after {:.1} s",
                    ids.len(),
                    self.plan.create_limit.as_secs_f64()
                ))
            },
        );
        if ids.is_empty() {
            return Ok(());
        }
        self.reach(run, &ids).await?;
        self.remove(run, &ids).await
    }

    /// Reads a complete snapshot and records it.
    pub(super) async fn look(&mut self) -> Result<(), String> {
        let mut group = self.subject.connection.group();
        let read = async move {
            let mut stream = group.update(Empty {}).await?.into_inner();
            let mut snapshot = Vec::new();
            while let Some(message) = stream.next().await {
                let message = message?;
                snapshot.push((message.instance, message.state));
            }
            Ok(snapshot)
        };
        let snapshot = self.subject.call(read).await.map_err(|missing| missing.text("Update"))?;
        self.book.enter(&snapshot);
        Ok(())
    }

    /// Reads snapshots until the condition holds. Returns `false` if it does not hold in time.
    pub(super) async fn wait(&mut self, limit: Duration, until: impl Fn(&Book) -> bool) -> Result<bool, String> {
        let (end, mut pause) = (Instant::now() + limit, self.plan.poll);
        loop {
            self.look().await?;
            if until(&self.book) {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// Requests instances until `wanted` have been accepted.
    async fn increase(&mut self, wanted: u32) -> Result<usize, String> {
        let (end, mut pause, mut accepted) = (Instant::now() + self.plan.create_limit, self.plan.poll, 0);
        while accepted < wanted {
            let n = wanted - accepted;
            let mut group = self.subject.connection.group();
            let answer = self.subject.call(async move { group.increase(IncreaseRequest { n }).await }).await;
            let succeeded = answer.map_err(|missing| missing.text("Increase"))?.into_inner().succeeded;
            if succeeded > n {
                return Err(format!("Increase was asked for {n} and says that it accepted {succeeded} (P13)"));
            }
            accepted += succeeded;
            if accepted < wanted {
                if Instant::now() >= end {
                    return Err(format!(
                        "Increase accepted {accepted} of {wanted} within {:.1} s",
                        self.plan.create_limit.as_secs_f64()
                    ));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(POLL_MAX);
            }
        }
        Ok(accepted as usize)
    }

    /// Waits until all accepted instances are running, and a little longer in case there are too many.
    async fn wait_until_up(&mut self, accepted: usize) -> Result<bool, String> {
        let runs = |book: &Book, id: &String| book.state(id) == Some(InstanceState::Running);
        let are_up = |book: &Book| {
            let made = book.made();
            made.len() >= accepted && made.iter().all(|id| runs(book, id))
        };
        let up = self.wait(self.plan.create_limit, are_up).await?;
        for _ in 0..3 {
            tokio::time::sleep(self.plan.poll).await;
            self.look().await?;
        }
        Ok(up)
    }

    /// Checks that an error has a readable message.
    async fn words(&mut self) -> Outcome {
        let mut group = self.subject.connection.group();
        let request = ConnectInfoRequest { instance: NOBODY.to_owned() };
        match self.subject.call(async move { group.connect_info(request).await }).await {
            Ok(_) => Outcome::Warn("ConnectInfo of an instance that does not exist is no error".to_owned()),
            Err(missing @ (Missing::Late(_) | Missing::Broken(_))) => {
                Outcome::Fail(missing.text("ConnectInfo of an unknown instance"))
            }
            Err(missing) if missing.is_unimplemented() => Outcome::Fail("ConnectInfo is not implemented".to_owned()),
            Err(Missing::Refused(status)) if status.message().trim().is_empty() => Outcome::Fail(
                "ConnectInfo of an unknown instance is an error without words: nobody can tell what is wrong"
                    .to_owned(),
            ),
            Err(Missing::Refused(status)) if status.code() != tonic::Code::Unknown => Outcome::Warn(format!(
                "an error has the code {:?}; Go plugins use Unknown, and hosts read the words only",
                status.code()
            )),
            Err(Missing::Refused(_)) => Outcome::Pass,
        }
    }
}

/// Creates an instance, kills the process, and checks the snapshot of a new process.
async fn restart(plan: &Plan) -> Outcome {
    let failed = |error: String| Outcome::Fail(error);
    let (mut life, _) = match Life::start(plan).await {
        Ok(started) => started,
        Err(error) => return failed(error),
    };
    let made = async {
        life.look().await?;
        let accepted = life.increase(1).await?;
        if !life.wait_until_up(accepted).await? {
            return Err("the instance for it did not come up".to_owned());
        }
        Ok(life.book.made())
    };
    let made = plan.stop.run_until_cancelled(made).await.unwrap_or_else(|| Err("the run was stopped".to_owned()));
    let Life { subject, mut book, .. } = life;
    subject.end().await;
    let (started, refused) = match Life::start(plan).await {
        Ok(started) => (Ok(started), None),
        // The created instance must be deleted.
        Err(error) => (Life::start(plan).await, Some(format!("after it was killed: {error}"))),
    };
    let (mut life, _) = match (started, &refused) {
        (Ok(started), _) => started,
        (Err(error), first) => {
            let first = first.as_ref().unwrap_or(&error);
            let left = book.made().join(", ");
            return failed(if left.is_empty() {
                first.clone()
            } else {
                format!("{first}; what was made for this case is left, remove it by hand: {left}")
            });
        }
    };
    book.excuse();
    life.book = book;
    let outcome = match (made, life.look().await) {
        (Ok(_), Ok(())) if refused.is_some() => failed(refused.unwrap_or_default()),
        (Err(error), _) | (_, Err(error)) => failed(error),
        (Ok(made), Ok(())) if made.iter().all(|id| life.book.is_there(id)) => Outcome::Pass,
        (Ok(_), Ok(())) => Outcome::Skip("its instances ended with it, or it does not know them any more".to_owned()),
    };
    let left = life.remove_all().await;
    life.subject.end().await;
    match left {
        Err(error) if !matches!(outcome, Outcome::Fail(_)) => failed(error),
        _ => outcome,
    }
}
