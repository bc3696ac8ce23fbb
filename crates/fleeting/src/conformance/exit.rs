//! Conformance cases about how a plugin's process exits, and about its log.

use rustix::process::Signal;
use serde_json::Value;

use super::plan::Plan;
use super::plugin_process::{CallFailure, PluginUnderTest, exit_text};
use super::tracker::problems_to_result;
use super::verdict::{Outcome, Run};
use crate::protocol::group::Empty as GroupEmpty;
use crate::protocol::plugin::Empty;

pub(super) async fn run(run: &mut Run<'_>) {
    if run.has_failed("H1") || run.has_failed("L1") {
        return;
    }
    let plan = run.plan;
    let outcome = check_shutdown(plan).await.unwrap_or_else(Outcome::Fail);
    run.record("H11", outcome);
    let outcome = check_signals(plan).await.unwrap_or_else(Outcome::Fail);
    run.record("P9", outcome);
    let outcome = check_host_exit(plan).await.unwrap_or_else(Outcome::Fail);
    run.record("P15", outcome);
    let outcome = check_log(&run.log);
    run.record("H16", outcome);
}

async fn start_and_init(plan: &Plan) -> Result<PluginUnderTest, String> {
    let mut plugin = PluginUnderTest::start(plan, &[], |_| {}).await?;
    match plugin.init_as_planned(plan).await {
        Ok(_) => Ok(plugin),
        Err(failure) => {
            plugin.kill().await;
            Err(failure.text("Init"))
        }
    }
}

/// Calls `InstanceGroup.Shutdown` and then `GRPCController.Shutdown`.
async fn check_shutdown(plan: &Plan) -> Result<Outcome, String> {
    let mut plugin = start_and_init(plan).await?;
    let mut group = plugin.connection.group();
    if let Err(failure) = plugin.call(async move { group.shutdown(GroupEmpty {}).await }).await
        && !failure.is_unimplemented()
    {
        plugin.kill().await;
        return Err(failure.text("Shutdown"));
    }
    let mut controller = plugin.connection.controller();
    let answer = plugin.call(async move { controller.shutdown(Empty {}).await }).await;
    if answer.as_ref().is_err_and(CallFailure::is_unimplemented) {
        plugin.kill().await;
        return Ok(Outcome::Warn(
            "GRPCController.Shutdown is not implemented: hosts wait 2 s for the exit and then use SIGKILL".to_owned(),
        ));
    }
    let status = plugin.process().wait_exit(plan.exit_timeout).await;
    plugin.kill().await;
    Ok(match status {
        Some(status) if status.success() => Outcome::Pass,
        Some(status) => Outcome::Fail(format!("exited with {} after Shutdown", exit_text(status))),
        None => Outcome::Fail(format!("still running {:.1} s after Shutdown", plan.exit_timeout.as_secs_f64())),
    })
}

async fn check_signals(plan: &Plan) -> Result<Outcome, String> {
    let mut plugin = start_and_init(plan).await?;
    plugin.process().signal(Signal::INT);
    let mut group = plugin.connection.group();
    let update = plugin.call(async move { group.update(GroupEmpty {}).await.map(drop) }).await;
    // The process may exit on the signal shortly after it has answered the call.
    let exit_on_sigint = plugin.process().wait_exit(std::time::Duration::from_millis(200)).await;
    if exit_on_sigint.is_some() || update.is_err() {
        plugin.kill().await;
        return Ok(Outcome::Fail(
            "exits on SIGINT; at a terminal the host receives the signal as well, and then needs the plugin for the cleanup"
                .to_owned(),
        ));
    }
    plugin.process().signal(Signal::TERM);
    let status = plugin.process().wait_exit(plan.exit_timeout).await;
    plugin.kill().await;
    Ok(match status {
        Some(_) => Outcome::Pass,
        None => Outcome::Fail(format!("still running {:.1} s after SIGTERM", plan.exit_timeout.as_secs_f64())),
    })
}

async fn check_host_exit(plan: &Plan) -> Result<Outcome, String> {
    let mut process = start_and_init(plan).await?.disconnect().await;
    let status = process.wait_exit(plan.exit_timeout).await;
    process.kill().await;
    Ok(match status {
        Some(_) => Outcome::Pass,
        None => Outcome::Warn(
            "keeps running after its host exited, as Go plugins do; exit when the host's connection closes".to_owned(),
        ),
    })
}

/// Checks the log lines for values that the Go host cannot parse (docs/spec/fleeting.md, section 1.8).
fn check_log(lines: &[String]) -> Outcome {
    let (mut fatal, mut degraded) = (Vec::new(), Vec::new());
    for line in lines.iter().filter(|line| line.starts_with('{')) {
        let Ok(Value::Object(record)) = serde_json::from_str(line) else { continue };
        for key in ["@level", "@message", "@timestamp"] {
            if record.get(key).is_some_and(|value| !value.is_string()) {
                fatal.push(format!("{key} is not a string in {line}; Go hosts crash on it"));
            }
        }
        if let Some(Value::String(time)) = record.get("@timestamp")
            && !has_six_fractional_digits(time)
        {
            degraded.push(format!("@timestamp {time} does not have six fractional digits; Go hosts ignore the level"));
        }
    }
    if let Err(problems) = problems_to_result(&fatal) {
        return Outcome::Fail(problems);
    }
    problems_to_result(&degraded).map_or_else(Outcome::Warn, |()| Outcome::Pass)
}

fn has_six_fractional_digits(time: &str) -> bool {
    let Some((_, fraction)) = time.rsplit_once('.') else { return false };
    fraction.bytes().take_while(u8::is_ascii_digit).count() == 6
}

#[cfg(test)]
mod tests {
    #[test]
    fn unparsable_log_lines_fail_or_warn() {
        let log = |line: &str| super::check_log(&[line.to_owned()]).label();
        assert_eq!(log(r#"{"@level":"info","@message":"m","@timestamp":"2026-01-02T03:04:05.123456Z"}"#), "pass");
        assert_eq!(log("plain text"), "pass");
        assert_eq!(log(r#"{"@level":3,"@message":"m"}"#), "fail");
        assert_eq!(log(r#"{"@level":"info","@message":"m","@timestamp":"2026-01-02T03:04:05.123Z"}"#), "warn");
    }
}
