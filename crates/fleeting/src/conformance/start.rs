//! Cases about the command line and the handshake.

use super::plan::Plan;
use super::subject::{Subject, command_line};
use super::verdict::{Outcome, Run};
use crate::protocol::VERSIONS_KEY;

/// Labels of the lines that `-version` prints, in this order.
const LABELS: [&str; 7] = ["Name:", "Version:", "Git revision:", "Git ref:", "GO version:", "Built:", "OS/Arch:"];

pub(super) async fn run(run: &mut Run<'_>) {
    let plan = run.plan;
    let outcome = by_hand(plan).await;
    run.judge("P1", outcome);
    let handshake = match Subject::start(plan, &[], |_| {}).await {
        Ok(subject) => {
            run.log.extend(subject.end().await);
            Ok(())
        }
        Err(error) => Err(error),
    };
    if !run.judge("H1", handshake) {
        return;
    }
    let outcome = versions(plan).await;
    run.judge("P2", outcome);
    let outcome = version(plan).await;
    run.say("P3", outcome);
    let outcome = unknown_words(plan).await;
    run.say("P4", outcome);
    let outcome = match command_line(plan, &["bootstrap"]).await {
        Ok(Some(output)) if output.status.success() => {
            Outcome::Fail("it ends with 0, though it copied nothing anywhere".to_owned())
        }
        Ok(Some(_)) => Outcome::Pass,
        Ok(None) => Outcome::Skip("it does not know the word: it does not end".to_owned()),
        Err(error) => Outcome::Fail(error),
    };
    run.say("P5", outcome);
}

async fn by_hand(plan: &Plan) -> Result<(), String> {
    let Some(output) = command_line(plan, &[]).await? else {
        return Err(
            "without the host's variable it does not end: a person who starts it sees nothing happen".to_owned()
        );
    };
    if !output.stdout.is_empty() {
        return Err("without the host's variable it prints to stdout".to_owned());
    }
    if output.stderr.is_empty() {
        return Err(
            "without the host's variable it says nothing on stderr; a person who starts it should read what it is"
                .to_owned(),
        );
    }
    match output.status.code() {
        Some(1) => Ok(()),
        _ => Err(format!("without the host's variable it ends with {}, and 1 is expected", output.status)),
    }
}

async fn versions(plan: &Plan) -> Result<(), String> {
    for list in [None, Some("0"), Some("7,9"), Some("x,0")] {
        let started = Subject::start(plan, &[], |command| {
            match list {
                Some(list) => command.env(VERSIONS_KEY, list),
                None => command.env_remove(VERSIONS_KEY),
            };
        });
        let subject =
            started.await.map_err(|error| format!("with {VERSIONS_KEY}={}: {error}", list.unwrap_or("(unset)")))?;
        subject.end().await;
    }
    Ok(())
}

async fn version(plan: &Plan) -> Outcome {
    for word in ["-version", "--version", "version"] {
        let output = match command_line(plan, &[word]).await {
            Ok(Some(output)) => output,
            Ok(None) => return Outcome::Warn(format!("{word} does not end; people look there for a plugin's version")),
            Err(error) => return Outcome::Fail(error),
        };
        if !output.status.success() {
            return Outcome::Warn(format!(
                "{word} ends with {}; people look there for a plugin's version",
                output.status
            ));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = text.lines().collect();
        let labelled =
            lines.len() >= LABELS.len() && lines.iter().zip(LABELS).all(|(line, label)| line.starts_with(label));
        if !labelled {
            return Outcome::Warn(format!("{word} does not print the lines {}", LABELS.join(" ")));
        }
    }
    Outcome::Pass
}

async fn unknown_words(plan: &Plan) -> Outcome {
    let flag = match command_line(plan, &["-muster-unknown-flag"]).await {
        Ok(Some(output)) if output.status.code() == Some(2) => None,
        Ok(Some(output)) => Some(format!("an unknown flag ends with {}, and 2 is usual", output.status)),
        Ok(None) => Some("with an unknown flag it does not end, and ends with 2 usually".to_owned()),
        Err(error) => return Outcome::Fail(error),
    };
    match Subject::start(plan, &["muster-unknown-word"], |_| {}).await {
        Ok(subject) => {
            subject.end().await;
            flag.map_or(Outcome::Pass, Outcome::Warn)
        }
        Err(error) => Outcome::Warn(format!("with an unknown word it does not serve, as plugins usually do: {error}")),
    }
}
