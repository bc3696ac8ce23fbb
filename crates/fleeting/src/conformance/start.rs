//! Cases about the command line and the handshake.

use super::plan::Plan;
use super::plugin_process::{PluginUnderTest, exit_text, run_command_line};
use super::verdict::{Outcome, Run};
use crate::protocol::VERSIONS_KEY;

/// Labels of the lines that `-version` prints, in this order.
const LABELS: [&str; 7] = ["Name:", "Version:", "Git revision:", "Git ref:", "GO version:", "Built:", "OS/Arch:"];

pub(super) async fn run(run: &mut Run<'_>) {
    let plan = run.plan;
    let outcome = check_manual_start(plan).await;
    run.record_result("P1", outcome);
    let handshake = match PluginUnderTest::start(plan, &[], |_| {}).await {
        Ok(plugin) => {
            run.log.extend(plugin.kill().await);
            Ok(())
        }
        Err(error) => Err(error),
    };
    if !run.record_result("H1", handshake) {
        return;
    }
    let outcome = check_protocol_versions(plan).await;
    run.record_result("P2", outcome);
    let outcome = check_version_output(plan).await;
    run.record("P3", outcome);
    let outcome = check_unknown_arguments(plan).await;
    run.record("P4", outcome);
    let outcome = match run_command_line(plan, &["bootstrap"]).await {
        Ok(Some(output)) if output.status.success() => {
            Outcome::Fail("exits with 0, although nothing was copied".to_owned())
        }
        Ok(Some(_)) => Outcome::Pass,
        Ok(None) => Outcome::Skip("bootstrap is not supported: the plugin does not exit".to_owned()),
        Err(error) => Outcome::Fail(error),
    };
    run.record("P5", outcome);
}

async fn check_manual_start(plan: &Plan) -> Result<(), String> {
    let Some(output) = run_command_line(plan, &[]).await? else {
        return Err(
            "does not exit if FLEETING_INSTANCE_GROUP_PLUGIN, which the host sets, is missing; print usage and exit with 1".to_owned()
        );
    };
    if !output.stdout.is_empty() {
        return Err("prints to stdout if FLEETING_INSTANCE_GROUP_PLUGIN, which the host sets, is missing".to_owned());
    }
    if output.stderr.is_empty() {
        return Err(
            "prints nothing to stderr if FLEETING_INSTANCE_GROUP_PLUGIN, which the host sets, is missing; print usage"
                .to_owned(),
        );
    }
    match output.status.code() {
        Some(1) => Ok(()),
        _ => Err(format!(
            "exits with {} if FLEETING_INSTANCE_GROUP_PLUGIN, which the host sets, is missing, expected 1",
            exit_text(output.status)
        )),
    }
}

async fn check_protocol_versions(plan: &Plan) -> Result<(), String> {
    for list in [None, Some("0"), Some("7,9"), Some("x,0")] {
        let started = PluginUnderTest::start(plan, &[], |command| {
            match list {
                Some(list) => command.env(VERSIONS_KEY, list),
                None => command.env_remove(VERSIONS_KEY),
            };
        });
        let plugin =
            started.await.map_err(|error| format!("with {VERSIONS_KEY}={}: {error}", list.unwrap_or("(unset)")))?;
        plugin.kill().await;
    }
    Ok(())
}

async fn check_version_output(plan: &Plan) -> Outcome {
    for argument in ["-version", "--version", "version"] {
        let output = match run_command_line(plan, &[argument]).await {
            Ok(Some(output)) => output,
            Ok(None) => {
                return Outcome::Warn(format!("{argument} does not exit; operators expect the plugin's version"));
            }
            Err(error) => return Outcome::Fail(error),
        };
        if !output.status.success() {
            return Outcome::Warn(format!(
                "{argument} exits with {}; operators expect the plugin's version",
                exit_text(output.status)
            ));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = text.lines().collect();
        let has_labels =
            lines.len() >= LABELS.len() && lines.iter().zip(LABELS).all(|(line, label)| line.starts_with(label));
        if !has_labels {
            return Outcome::Warn(format!("{argument} does not print the lines {}", LABELS.join(" ")));
        }
    }
    Outcome::Pass
}

async fn check_unknown_arguments(plan: &Plan) -> Outcome {
    let flag_problem = match run_command_line(plan, &["-muster-unknown-flag"]).await {
        Ok(Some(output)) if output.status.code() == Some(2) => None,
        Ok(Some(output)) => {
            Some(format!("exits with {} for an unknown flag; plugins usually exit with 2", exit_text(output.status)))
        }
        Ok(None) => Some("does not exit for an unknown flag; plugins usually exit with 2".to_owned()),
        Err(error) => return Outcome::Fail(error),
    };
    match PluginUnderTest::start(plan, &["muster-unknown-word"], |_| {}).await {
        Ok(plugin) => {
            plugin.kill().await;
            flag_problem.map_or(Outcome::Pass, Outcome::Warn)
        }
        Err(error) => {
            Outcome::Warn(format!("does not start with an unknown argument, which plugins usually ignore: {error}"))
        }
    }
}
