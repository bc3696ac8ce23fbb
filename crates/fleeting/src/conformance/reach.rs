//! Cases about connections to instances: connect info, heartbeats, commands, suspending.

use std::time::SystemTime;

use futures::StreamExt;
use futures::future::try_join_all;
use prost::Message;
use tokio::time::timeout;
use tonic::Status;

use super::life::{Life, NOBODY};
use super::plan::{Connect, Plan};
use super::subject::Missing;
use super::verdict::{Outcome, Run};
use crate::connector;
use crate::model::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState};
use crate::protocol::RichStatus;
use crate::protocol::group::{
    ConnectInfoRequest, ConnectInfoResponse, Empty, HeartbeatRequest, ResumeRequest, SuspendRequest, SuspendResponse,
};
use muster_remote::{self as remote, DialError, Exit, KnownHosts, Session};

impl Life<'_> {
    /// Runs the cases. An error means that snapshots cannot be read.
    pub(super) async fn reach(&mut self, run: &mut Run<'_>, ids: &[String]) -> Result<(), String> {
        let Some(first) = ids.first() else { return Ok(()) };
        let info = self.connect_info(first).await;
        match info {
            Err(error) => {
                run.say("H15", Outcome::Fail(error));
                run.skip(&["L7", "C1", "C4", "C6"], "there is no connect info");
            }
            Ok(info) => {
                run.say("H15", Outcome::Pass);
                run.judge("L7", user_wins(&self.plan.connector, &info.connector));
                let address = connector::address(&info, self.plan.dial.use_external_addr);
                if run.judge("C1", address.map(drop).map_err(|error| error.to_string())) {
                    log_in(run, self.plan, first, info).await;
                } else {
                    run.skip(&["C4", "C6"], "there is no address");
                }
            }
        }
        let outcome = self.heartbeat(first).await;
        run.judge("H12", outcome);
        let outcome = self.at_once(ids).await;
        run.judge("L8", outcome);
        self.sleep(run, first).await
    }

    async fn connect_info(&mut self, id: &str) -> Result<ConnectInfo, String> {
        let mut group = self.subject.connection.group();
        let request = ConnectInfoRequest { instance: id.to_owned() };
        let answer = self.subject.call(async move { group.connect_info(request).await }).await;
        checked(answer.map_err(|missing| missing.text("ConnectInfo"))?.into_inner())
    }

    async fn heartbeat(&mut self, id: &str) -> Result<(), String> {
        let mut group = self.subject.connection.group();
        let request = HeartbeatRequest { instance: id.to_owned() };
        match self.subject.call(async move { group.heartbeat(request).await }).await {
            Err(missing) if !missing.is_unimplemented() => Err(missing.text("Heartbeat of a running instance")),
            _ => Ok(()),
        }
    }

    /// Calls `Update`, `ConnectInfo` and `Heartbeat` at the same time, as hosts do.
    async fn at_once(&mut self, ids: &[String]) -> Result<(), String> {
        let group = self.subject.connection.group();
        let calls = ids.iter().cycle().take(8).map(|id| {
            let (mut group, id) = (group.clone(), id.clone());
            async move {
                let mut stream = group.update(Empty {}).await?.into_inner();
                group.connect_info(ConnectInfoRequest { instance: id.clone() }).await?;
                while let Some(message) = stream.next().await {
                    message?;
                }
                match group.heartbeat(HeartbeatRequest { instance: id }).await {
                    Err(status) if status.code() != tonic::Code::Unimplemented => Err(status),
                    _ => Ok::<(), Status>(()),
                }
            }
        });
        let calls = try_join_all(calls.collect::<Vec<_>>());
        self.subject
            .call(calls)
            .await
            .map(drop)
            .map_err(|missing| missing.text("one of Update, ConnectInfo and Heartbeat at the same time"))
    }

    async fn sleep(&mut self, run: &mut Run<'_>, id: &str) -> Result<(), String> {
        if !self.can_suspend {
            let outcome = match self.suspend(&[id]).await {
                Err(missing @ (Missing::Late(_) | Missing::Broken(_))) => {
                    Outcome::Fail(missing.text("Suspend, which is not announced,"))
                }
                Err(Missing::Refused(_)) => Outcome::Pass,
                Ok(_) => {
                    Outcome::Warn("Suspend is answered, and the capability suspend_resume not announced".to_owned())
                }
            };
            run.say("H13", outcome);
            run.skip(&["P11"], "it does not announce suspend_resume");
            return Ok(());
        }
        let result = self.sleep_and_wake(id, &[id]).await?;
        if !run.judge("H13", result.map(drop)) {
            run.skip(&["P11"], "it cannot put an instance to sleep");
            return Ok(());
        }
        let result = self.sleep_and_wake(id, &[id, NOBODY]).await?;
        run.judge("P11", result);
        Ok(())
    }

    /// Suspends `id` with a call for `asked`, and resumes it. The outer error means that snapshots cannot be read.
    async fn sleep_and_wake(&mut self, id: &str, asked: &[&str]) -> Result<Result<(), String>, String> {
        let done = match self.suspend(asked).await {
            Ok(done) => done,
            Err(missing) => match accepted(&missing) {
                Some(done) => done,
                None => return Ok(Err(missing.text("Suspend"))),
            },
        };
        if !done.iter().any(|done| done == id) {
            return Ok(Err(format!(
                "Suspend of {} does not say that it accepted {id}: a host takes it for awake",
                asked.join(", ")
            )));
        }
        let (owned, limit) = (id.to_owned(), self.plan.create_limit);
        if !self.wait(limit, |book| book.state(&owned) == Some(InstanceState::Suspended)).await? {
            return Ok(Err(format!("{id} was not suspended after {:.1} s", limit.as_secs_f64())));
        }
        let mut group = self.subject.connection.group();
        let request = ResumeRequest { instances: vec![owned.clone()] };
        if let Err(missing) = self.subject.call(async move { group.resume(request).await }).await {
            return Ok(Err(missing.text("Resume")));
        }
        if !self.wait(limit, |book| book.state(&owned) == Some(InstanceState::Running)).await? {
            return Ok(Err(format!("{id} did not run again {:.1} s after Resume", limit.as_secs_f64())));
        }
        Ok(Ok(()))
    }

    async fn suspend(&mut self, ids: &[&str]) -> Result<Vec<String>, Missing> {
        let mut group = self.subject.connection.group();
        let request = SuspendRequest { instances: ids.iter().map(|id| (*id).to_owned()).collect() };
        let answer = self.subject.call(async move { group.suspend(request).await }).await;
        Ok(answer?.into_inner().succeeded)
    }
}

/// Returns the ids that an error of `Suspend` lists as suspended.
fn accepted(missing: &Missing) -> Option<Vec<String>> {
    let Missing::Refused(status) = missing else { return None };
    let details = RichStatus::decode(status.details()).ok()?.details;
    let detail = details.into_iter().find(|detail| detail.type_url == "type.googleapis.com/proto.SuspendResponse")?;
    Some(SuspendResponse::decode(detail.value.as_slice()).ok()?.succeeded)
}

/// Checks that a host can use the response.
fn checked(answer: ConnectInfoResponse) -> Result<ConnectInfo, String> {
    let connector = answer.connector.ok_or("ConnectInfo has no connector; a Go host dies of it")?;
    let connector = ConnectorConfig::from_wire(connector).map_err(|error| error.to_string())?;
    connector.check().map_err(|error| error.to_string())?;
    if answer.external_addr.is_empty() && answer.internal_addr.is_empty() {
        return Err("ConnectInfo of a running instance has no address".to_owned());
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    if answer.expires > 0 && answer.expires.unsigned_abs() < now {
        return Err(format!("ConnectInfo has expired already: at {}, and it is {now}", answer.expires));
    }
    Ok(ConnectInfo {
        connector,
        external_addr: answer.external_addr,
        internal_addr: answer.internal_addr,
        expires: Some(answer.expires).filter(|expires| *expires > 0),
    })
}

/// Checks that the response keeps the values that the user set (docs/spec/fleeting.md, section 5.2).
fn user_wins(user: &ConnectorConfig, answer: &ConnectorConfig) -> Result<(), String> {
    let lost = |name: &str, set: bool, same: bool| (set && !same).then(|| name.to_owned());
    let lost: Vec<String> = [
        lost("os", !user.os.is_empty(), user.os == answer.os),
        lost("arch", !user.arch.is_empty(), user.arch == answer.arch),
        lost("protocol", !user.protocol.is_empty(), user.protocol == answer.protocol),
        lost("protocol_port", user.protocol_port != 0, user.protocol_port == answer.protocol_port),
        lost("username", !user.username.is_empty(), user.username == answer.username),
        lost("password", !user.password.is_empty(), user.password == answer.password),
        lost("key", !user.key.is_empty() && user.use_static_credentials, user.key == answer.key),
        lost("timeout", true, user.timeout == answer.timeout),
        lost("keepalive", true, user.keepalive == answer.keepalive),
    ]
    .into_iter()
    .flatten()
    .collect();
    if lost.is_empty() {
        return Ok(());
    }
    Err(format!("ConnectInfo has another value than the user's connector_config: {}", lost.join(", ")))
}

/// Connects and runs a command, as a runner does.
async fn log_in(run: &mut Run<'_>, plan: &Plan, id: &str, info: ConnectInfo) {
    let connector = &info.connector;
    let can = !connector.username.is_empty() && (!connector.password.is_empty() || !connector.key.is_empty());
    match plan.connect {
        Connect::No => return run.skip(&["C4", "C6"], "connect = \"no\""),
        Connect::Auto if !can => {
            return run.skip(&["C4", "C6"], "ConnectInfo has no credentials; connect = \"yes\" makes this a failure");
        }
        _ => {}
    }
    let target = match connector::target(&InstanceId::new(id), info, plan.dial) {
        Ok(target) => target,
        Err(error) => return run.skip(&["C4", "C6"], &error.to_string()),
    };
    let session = match timeout(plan.create_limit, remote::dial(&target, &KnownHosts::default())).await {
        Ok(Ok(session)) => session,
        Ok(Err(error @ DialError::Protocol { .. })) => return run.skip(&["C4", "C6"], &error.to_string()),
        Ok(Err(error)) => {
            run.say("C4", Outcome::Fail(error.to_string()));
            return run.skip(&["C6"], "there is no connection");
        }
        Err(_) => {
            run.say("C4", Outcome::Fail(format!("no connection within {:.1} s", plan.create_limit.as_secs_f64())));
            return run.skip(&["C6"], "there is no connection");
        }
    };
    run.say("C4", Outcome::Pass);
    let outcome = match timeout(plan.call_limit, commands(session.as_ref())).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("a command did not end within {:.1} s", plan.call_limit.as_secs_f64())),
    };
    run.judge("C6", outcome);
    session.close().await;
}

async fn commands(session: &dyn Session) -> Result<(), String> {
    let mut stdout = Vec::new();
    let mut command = remote::RemoteCommand::new("echo muster");
    command.stdout = Some(&mut stdout);
    let outcome = session.run(command).await.map_err(|error| format!("echo muster: {error}"))?;
    if outcome.exit != Exit::Code(0) || String::from_utf8_lossy(&stdout).trim() != "muster" {
        let text = String::from_utf8_lossy(&stdout).into_owned();
        return Err(format!("`echo muster` printed {text:?} and ended with {:?}", outcome.exit));
    }
    let outcome =
        session.run(remote::RemoteCommand::new("exit 7")).await.map_err(|error| format!("exit 7: {error}"))?;
    if outcome.exit == Exit::Code(7) { Ok(()) } else { Err(format!("`exit 7` ended with {:?}", outcome.exit)) }
}
