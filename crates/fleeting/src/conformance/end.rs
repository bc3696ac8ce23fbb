//! Cases about the end of a process and about its log.

use rustix::process::Signal;
use serde_json::Value;

use super::book::told;
use super::plan::Plan;
use super::subject::{Missing, Subject};
use super::verdict::{Outcome, Run};
use crate::protocol::group::Empty as GroupEmpty;
use crate::protocol::plugin::Empty;

pub(super) async fn run(run: &mut Run<'_>) {
    if run.has_failed("H1") || run.has_failed("L1") {
        return;
    }
    let plan = run.plan;
    let outcome = told_to_stop(plan).await.unwrap_or_else(Outcome::Fail);
    run.say("H11", outcome);
    let outcome = signals(plan).await.unwrap_or_else(Outcome::Fail);
    run.say("P9", outcome);
    let outcome = host_gone(plan).await.unwrap_or_else(Outcome::Fail);
    run.say("P15", outcome);
    let outcome = log(&run.log);
    run.say("H16", outcome);
}

async fn ready(plan: &Plan) -> Result<Subject, String> {
    let mut subject = Subject::start(plan, &[], |_| {}).await?;
    match subject.init_as_planned(plan).await {
        Ok(_) => Ok(subject),
        Err(missing) => {
            subject.end().await;
            Err(missing.text("Init"))
        }
    }
}

/// Calls `InstanceGroup.Shutdown` and then `GRPCController.Shutdown`.
async fn told_to_stop(plan: &Plan) -> Result<Outcome, String> {
    let mut subject = ready(plan).await?;
    let mut group = subject.connection.group();
    if let Err(missing) = subject.call(async move { group.shutdown(GroupEmpty {}).await }).await
        && !missing.is_unimplemented()
    {
        subject.end().await;
        return Err(missing.text("Shutdown"));
    }
    let mut controller = subject.connection.controller();
    let stopped = subject.call(async move { controller.shutdown(Empty {}).await }).await;
    if stopped.as_ref().is_err_and(Missing::is_unimplemented) {
        subject.end().await;
        return Ok(Outcome::Warn(
            "it has no GRPCController.Shutdown: each stop costs 2 s, and ends with SIGKILL".to_owned(),
        ));
    }
    let ended = subject.process().ended(plan.exit_limit).await;
    subject.end().await;
    Ok(match ended {
        Some(status) if status.success() => Outcome::Pass,
        Some(status) => Outcome::Fail(format!("told to stop, it ended with {status}")),
        None => Outcome::Fail(format!("told to stop, it still ran after {:.1} s", plan.exit_limit.as_secs_f64())),
    })
}

async fn signals(plan: &Plan) -> Result<Outcome, String> {
    let mut subject = ready(plan).await?;
    subject.process().signal(Signal::INT);
    let mut group = subject.connection.group();
    let asked = subject.call(async move { group.update(GroupEmpty {}).await.map(drop) }).await;
    // The signal may take longer than the call.
    let by_int = subject.process().ended(std::time::Duration::from_millis(200)).await;
    if by_int.is_some() || asked.is_err() {
        subject.end().await;
        return Ok(Outcome::Fail(
            "SIGINT ends it: at a terminal the host gets it too, and needs its plugin to clean up".to_owned(),
        ));
    }
    subject.process().signal(Signal::TERM);
    let ended = subject.process().ended(plan.exit_limit).await;
    subject.end().await;
    Ok(match ended {
        Some(_) => Outcome::Pass,
        None => Outcome::Fail(format!("it still ran {:.1} s after SIGTERM", plan.exit_limit.as_secs_f64())),
    })
}

async fn host_gone(plan: &Plan) -> Result<Outcome, String> {
    let mut process = ready(plan).await?.hang_up().await;
    let ended = process.ended(plan.exit_limit).await;
    process.end().await;
    Ok(match ended {
        Some(_) => Outcome::Pass,
        None => Outcome::Warn(
            "it stays behind when its host is gone, as Go plugins do; better end when the host's connection does"
                .to_owned(),
        ),
    })
}

/// Checks the log lines for what the Go host cannot parse (docs/spec/fleeting.md, section 1.8).
fn log(lines: &[String]) -> Outcome {
    let (mut fatal, mut raw) = (Vec::new(), Vec::new());
    for line in lines.iter().filter(|line| line.starts_with('{')) {
        let Ok(Value::Object(record)) = serde_json::from_str(line) else { continue };
        for key in ["@level", "@message", "@timestamp"] {
            if record.get(key).is_some_and(|value| !value.is_string()) {
                fatal.push(format!("{key} is no text in {line}; the Go host dies of it"));
            }
        }
        if let Some(Value::String(time)) = record.get("@timestamp")
            && !has_six_digits(time)
        {
            raw.push(format!("@timestamp {time} has not six digits after the seconds; the Go host forgets the level"));
        }
    }
    if let Err(problems) = told(&fatal) {
        return Outcome::Fail(problems);
    }
    told(&raw).map_or_else(Outcome::Warn, |()| Outcome::Pass)
}

fn has_six_digits(time: &str) -> bool {
    let Some((_, fraction)) = time.rsplit_once('.') else { return false };
    fraction.bytes().take_while(u8::is_ascii_digit).count() == 6
}

#[cfg(test)]
mod tests {
    #[test]
    fn log_lines_that_hosts_stumble_over_are_told() {
        let log = |line: &str| super::log(&[line.to_owned()]).word();
        assert_eq!(log(r#"{"@level":"info","@message":"m","@timestamp":"2026-01-02T03:04:05.123456Z"}"#), "pass");
        assert_eq!(log("plain words"), "pass");
        assert_eq!(log(r#"{"@level":3,"@message":"m"}"#), "fail");
        assert_eq!(log(r#"{"@level":"info","@message":"m","@timestamp":"2026-01-02T03:04:05.123Z"}"#), "warn");
    }
}
