//! Cases about connections to instances: connect info, heartbeats, commands, suspension.

use std::time::SystemTime;

use futures::StreamExt;
use futures::future::try_join_all;
use prost::Message;
use tokio::time::timeout;
use tonic::Status;

use super::lifecycle::{LifecycleRun, UNKNOWN_ID};
use super::plan::{Connect, Plan};
use super::plugin_process::CallFailure;
use super::verdict::{Outcome, Run};
use crate::connector;
use crate::model::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState};
use crate::protocol::RichStatus;
use crate::protocol::group::{
    ConnectInfoRequest, ConnectInfoResponse, Empty, HeartbeatRequest, ResumeRequest, SuspendRequest, SuspendResponse,
};
use muster_remote::{self as remote, DialError, Exit, KnownHosts, Session};

impl LifecycleRun<'_> {
    /// Runs the cases about connections. Returns an error if the list of instances cannot be read.
    pub(super) async fn run_connection_cases(&mut self, run: &mut Run<'_>, ids: &[String]) -> Result<(), String> {
        let Some(first) = ids.first() else { return Ok(()) };
        let info = self.connect_info(first).await;
        match info {
            Err(error) => {
                run.record("H15", Outcome::Fail(error));
                run.skip(&["L7", "C1", "C4", "C6"], "ConnectInfo failed");
            }
            Ok(info) => {
                run.record("H15", Outcome::Pass);
                run.record_result("L7", check_user_settings(&self.plan.connector, &info.connector));
                let address = connector::address(&info, self.plan.dial.use_external_addr);
                if run.record_result("C1", address.map(drop).map_err(|error| error.to_string())) {
                    run_login_cases(run, self.plan, first, info).await;
                } else {
                    run.skip(&["C4", "C6"], "no usable address");
                }
            }
        }
        let outcome = self.heartbeat(first).await;
        run.record_result("H12", outcome);
        let outcome = self.concurrent_calls(ids).await;
        run.record_result("L8", outcome);
        self.run_suspend_cases(run, first).await
    }

    async fn connect_info(&mut self, id: &str) -> Result<ConnectInfo, String> {
        let mut group = self.plugin.connection.group();
        let request = ConnectInfoRequest { instance: id.to_owned() };
        let answer = self.plugin.call(async move { group.connect_info(request).await }).await;
        parse_connect_info(answer.map_err(|failure| failure.text("ConnectInfo"))?.into_inner())
    }

    async fn heartbeat(&mut self, id: &str) -> Result<(), String> {
        let mut group = self.plugin.connection.group();
        let request = HeartbeatRequest { instance: id.to_owned() };
        match self.plugin.call(async move { group.heartbeat(request).await }).await {
            Err(failure) if !failure.is_unimplemented() => Err(failure.text("Heartbeat of a running instance")),
            _ => Ok(()),
        }
    }

    /// Calls `Update`, `ConnectInfo` and `Heartbeat` at the same time, as hosts do.
    async fn concurrent_calls(&mut self, ids: &[String]) -> Result<(), String> {
        let group = self.plugin.connection.group();
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
        self.plugin
            .call(calls)
            .await
            .map(drop)
            .map_err(|failure| failure.text("concurrent Update, ConnectInfo and Heartbeat"))
    }

    async fn run_suspend_cases(&mut self, run: &mut Run<'_>, id: &str) -> Result<(), String> {
        if !self.can_suspend {
            let outcome = match self.suspend(&[id]).await {
                Err(failure @ (CallFailure::Timeout(_) | CallFailure::Disconnected(_))) => {
                    Outcome::Fail(failure.text("Suspend, although it is not announced,"))
                }
                Err(CallFailure::Error(_)) => Outcome::Pass,
                Ok(_) => {
                    Outcome::Warn("Suspend succeeds, but the capability suspend_resume is not announced".to_owned())
                }
            };
            run.record("H13", outcome);
            run.skip(&["P11"], "suspend_resume is not announced");
            return Ok(());
        }
        let result = self.suspend_and_resume(id, &[id]).await?;
        if !run.record_result("H13", result.map(drop)) {
            run.skip(&["P11"], "an instance could not be suspended");
            return Ok(());
        }
        let result = self.suspend_and_resume(id, &[id, UNKNOWN_ID]).await?;
        run.record_result("P11", result);
        Ok(())
    }

    /// Requests the suspension of the instances in `requested`, which include `id`, and then resumes `id`.
    /// The inner error is the failure of the case. The outer error means that the list of instances cannot be read.
    async fn suspend_and_resume(&mut self, id: &str, requested: &[&str]) -> Result<Result<(), String>, String> {
        let accepted = match self.suspend(requested).await {
            Ok(accepted) => accepted,
            Err(failure) => match accepted_before_error(&failure) {
                Some(accepted) => accepted,
                None => return Ok(Err(failure.text("Suspend"))),
            },
        };
        if !accepted.iter().any(|accepted| accepted == id) {
            return Ok(Err(format!(
                "Suspend of {} does not return {id} as accepted; hosts assume that it is running",
                requested.join(", ")
            )));
        }
        let (owned_id, timeout) = (id.to_owned(), self.plan.create_timeout);
        if !self.wait_for(timeout, |tracker| tracker.state(&owned_id) == Some(InstanceState::Suspended)).await? {
            return Ok(Err(format!("{id} was not suspended after {:.1} s", timeout.as_secs_f64())));
        }
        let mut group = self.plugin.connection.group();
        let request = ResumeRequest { instances: vec![owned_id.clone()] };
        if let Err(failure) = self.plugin.call(async move { group.resume(request).await }).await {
            return Ok(Err(failure.text("Resume")));
        }
        if !self.wait_for(timeout, |tracker| tracker.state(&owned_id) == Some(InstanceState::Running)).await? {
            return Ok(Err(format!("{id} was not running {:.1} s after Resume", timeout.as_secs_f64())));
        }
        Ok(Ok(()))
    }

    async fn suspend(&mut self, ids: &[&str]) -> Result<Vec<String>, CallFailure> {
        let mut group = self.plugin.connection.group();
        let request = SuspendRequest { instances: ids.iter().map(|id| (*id).to_owned()).collect() };
        let answer = self.plugin.call(async move { group.suspend(request).await }).await;
        Ok(answer?.into_inner().succeeded)
    }
}

/// Returns the IDs that an error of `Suspend` lists as suspended. `None` means that the error has no such list.
fn accepted_before_error(failure: &CallFailure) -> Option<Vec<String>> {
    let CallFailure::Error(status) = failure else { return None };
    let details = RichStatus::decode(status.details()).ok()?.details;
    let detail = details.into_iter().find(|detail| detail.type_url == "type.googleapis.com/proto.SuspendResponse")?;
    Some(SuspendResponse::decode(detail.value.as_slice()).ok()?.succeeded)
}

/// Checks that a host can use the response.
fn parse_connect_info(answer: ConnectInfoResponse) -> Result<ConnectInfo, String> {
    let connector = answer.connector.ok_or("ConnectInfo has no connector; Go hosts crash on it")?;
    let connector = ConnectorConfig::from_wire(connector).map_err(|error| error.to_string())?;
    connector.check().map_err(|error| error.to_string())?;
    if answer.external_addr.is_empty() && answer.internal_addr.is_empty() {
        return Err("ConnectInfo of a running instance has no address".to_owned());
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    if answer.expires > 0 && answer.expires.unsigned_abs() < now {
        return Err(format!("the credentials of ConnectInfo expired at {}, now is {now}", answer.expires));
    }
    Ok(ConnectInfo {
        connector,
        external_addr: answer.external_addr,
        internal_addr: answer.internal_addr,
        expires: Some(answer.expires).filter(|expires| *expires > 0),
    })
}

/// Checks that the response keeps the values that the user set (docs/spec/fleeting.md, section 5.2).
fn check_user_settings(user: &ConnectorConfig, answer: &ConnectorConfig) -> Result<(), String> {
    let changed = |name: &str, is_set: bool, is_same: bool| (is_set && !is_same).then(|| name.to_owned());
    let changed: Vec<String> = [
        changed("os", !user.os.is_empty(), user.os == answer.os),
        changed("arch", !user.arch.is_empty(), user.arch == answer.arch),
        changed("protocol", !user.protocol.is_empty(), user.protocol == answer.protocol),
        changed("protocol_port", user.protocol_port != 0, user.protocol_port == answer.protocol_port),
        changed("username", !user.username.is_empty(), user.username == answer.username),
        changed("password", !user.password.is_empty(), user.password == answer.password),
        changed("key", !user.key.is_empty() && user.use_static_credentials, user.key == answer.key),
        changed("timeout", true, user.timeout == answer.timeout),
        changed("keepalive", true, user.keepalive == answer.keepalive),
    ]
    .into_iter()
    .flatten()
    .collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!("ConnectInfo does not keep the user's connector_config: {}", changed.join(", ")))
}

/// Logs in to an instance and runs two commands on it, as a runner does.
async fn run_login_cases(run: &mut Run<'_>, plan: &Plan, id: &str, info: ConnectInfo) {
    let connector = &info.connector;
    let has_credentials =
        !connector.username.is_empty() && (!connector.password.is_empty() || !connector.key.is_empty());
    match plan.connect {
        Connect::No => return run.skip(&["C4", "C6"], "connect = \"no\""),
        Connect::Auto if !has_credentials => {
            return run.skip(&["C4", "C6"], "ConnectInfo has no credentials; connect = \"yes\" makes this a failure");
        }
        _ => {}
    }
    let target = match connector::target(&InstanceId::new(id), info, plan.dial) {
        Ok(target) => target,
        Err(error) => return run.skip(&["C4", "C6"], &error.to_string()),
    };
    let session = match timeout(plan.create_timeout, remote::dial(&target, &KnownHosts::default())).await {
        Ok(Ok(session)) => session,
        Ok(Err(error @ DialError::Protocol { .. })) => return run.skip(&["C4", "C6"], &error.to_string()),
        Ok(Err(error)) => {
            run.record("C4", Outcome::Fail(error.to_string()));
            return run.skip(&["C6"], "no connection");
        }
        Err(_) => {
            run.record("C4", Outcome::Fail(format!("no connection within {:.1} s", plan.create_timeout.as_secs_f64())));
            return run.skip(&["C6"], "no connection");
        }
    };
    run.record("C4", Outcome::Pass);
    let outcome = match timeout(plan.call_timeout, check_commands(session.as_ref())).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("a command did not exit within {:.1} s", plan.call_timeout.as_secs_f64())),
    };
    run.record_result("C6", outcome);
    session.close().await;
}

async fn check_commands(session: &dyn Session) -> Result<(), String> {
    let mut stdout = Vec::new();
    let mut command = remote::RemoteCommand::new("echo muster");
    command.stdout = Some(&mut stdout);
    let outcome = session.run(command).await.map_err(|error| format!("echo muster: {error}"))?;
    if outcome.exit != Exit::Code(0) || String::from_utf8_lossy(&stdout).trim() != "muster" {
        let text = String::from_utf8_lossy(&stdout).into_owned();
        return Err(format!("`echo muster` printed {text:?} and exited with {:?}", outcome.exit));
    }
    let outcome =
        session.run(remote::RemoteCommand::new("exit 7")).await.map_err(|error| format!("exit 7: {error}"))?;
    if outcome.exit == Exit::Code(7) { Ok(()) } else { Err(format!("`exit 7` exited with {:?}", outcome.exit)) }
}
