//! `muster fleet explain`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;
use muster_taskscaler::fleet::{Explanation, ExplanationSet, MAX_DECISIONS, Subject};
use muster_taskscaler::formula::Inputs;
use muster_taskscaler::history::HistoryEntry;
use time::OffsetDateTime;
use time::macros::format_description;

use super::query::ManagerTarget;
use crate::ci::{self, ui};

const DEFAULT_DECISIONS: usize = 40;

/// Arguments of `muster fleet explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// Subject to explain; without it, the whole fleet.
    #[arg(value_enum, requires = "name")]
    subject: Option<ExplainTarget>,
    /// Job ID on the server, or instance ID or group name as shown by `muster fleet status`.
    name: Option<String>,
    #[command(flatten)]
    target: ManagerTarget,
    /// Maximum number of decisions to show, latest last; 0 shows all of the last day, up to 1000.
    #[arg(long, default_value_t = DEFAULT_DECISIONS, value_name = "COUNT")]
    limit: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ExplainTarget {
    /// A job: why it waits, or which instance it got.
    Job,
    /// An instance: why it exists, or why it was deleted.
    Instance,
    /// A group: why it has its number of instances.
    Group,
}

impl ExplainArgs {
    fn subject(&self) -> Subject {
        match (self.subject, self.name.clone()) {
            (Some(ExplainTarget::Job), Some(number)) => Subject::Job(number),
            (Some(ExplainTarget::Instance), Some(name)) => Subject::Instance(name),
            (Some(ExplainTarget::Group), Some(name)) => Subject::Group(name),
            (_, _) => Subject::Fleet,
        }
    }
}

pub(super) async fn run(args: ExplainArgs) -> ExitCode {
    if let (Some(ExplainTarget::Job), Some(name)) = (args.subject, &args.name)
        && !name.starts_with("job-")
        && !name.bytes().all(|byte| byte.is_ascii_digit())
    {
        ui::error(&format!(
            "`{}` is not a valid job ID; use the number that the server shows, such as 4711",
            ui::plain(name)
        ));
        return ExitCode::from(2);
    }
    let mut explanations = match args.target.explain(&args.subject()).await {
        Ok(explanations) => explanations,
        Err(error) => {
            ui::report(&error);
            return ExitCode::from(2);
        }
    };
    for fleet in &mut explanations.fleets {
        truncate(fleet, args.limit);
    }
    let found = explanations.fleets.iter().any(|fleet| fleet.found);
    let ledger_unreadable = explanations.fleets.iter().any(|fleet| fleet.ledger_unreadable);
    let printed =
        if args.target.json { super::print_json(&explanations) } else { ci::print_styled(&text(&explanations)) };
    match (ledger_unreadable, found) {
        (true, _) => ExitCode::from(2),
        (false, true) => printed,
        (false, false) => ExitCode::FAILURE,
    }
}

/// Keeps the latest `limit` decisions. 0 keeps all.
fn truncate(explanation: &mut Explanation, limit: usize) {
    let surplus = if limit == 0 { 0 } else { explanation.decisions.len().saturating_sub(limit) };
    explanation.decisions.drain(..surplus);
    explanation.truncated |= surplus > 0;
}

fn text(explanations: &ExplanationSet) -> String {
    if explanations.fleets.is_empty() {
        return "no runner with instances\n".to_owned();
    }
    let fleets: Vec<String> = explanations.fleets.iter().map(fleet).collect();
    fleets.join("\n")
}

fn fleet(explanation: &Explanation) -> String {
    let mut text = format!("runner {}\n", ui::plain(&explanation.runner));
    for sentence in &explanation.summary {
        let _ = writeln!(text, "  {}", ui::plain(sentence));
    }
    if !explanation.decisions.is_empty() {
        text.push_str("\ndecisions\n");
    }
    if explanation.truncated {
        let higher_limit = if explanation.decisions.len() < MAX_DECISIONS { "set --limit, or " } else { "" };
        let _ = writeln!(text, "  (older decisions omitted; {higher_limit}see the *.history files next to the ledger)");
    }
    for entry in &explanation.decisions {
        let _ = writeln!(text, "  {}  {}", when(entry.unix), ui::plain(&entry.text));
        if let Some(inputs) = entry.inputs.filter(|_| inputs_add_information(entry)) {
            let _ = writeln!(text, "  {:19}  inputs: {}", "", inputs_text(&inputs));
        }
    }
    text
}

/// Returns whether the inputs add information to the text.
fn inputs_add_information(entry: &HistoryEntry) -> bool {
    entry.kind == "scale_up_blocked"
        || entry.kind == "scale_up"
        || (entry.kind == "delete" && entry.text.contains("not needed"))
}

fn inputs_text(inputs: &Inputs) -> String {
    let mut text = format!(
        "slots in use: {}, queued: {}, reserved: {}, idle target: {}, instances: {}, slots of all instances: {}",
        inputs.acquired, inputs.waiting, inputs.reserved, inputs.idle_count, inputs.instances, inputs.capacity
    );
    if inputs.unavailable > 0 {
        let _ = write!(text, ", unavailable slots: {}", inputs.unavailable);
    }
    if inputs.scale_factor > 0.0 {
        let _ = write!(text, ", scale_factor: {}", inputs.scale_factor);
    }
    text
}

/// Formats a time in UTC, so that the output of several machines can be compared.
fn when(unix: i64) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let time = OffsetDateTime::from_unix_timestamp(unix).ok().and_then(|time| time.format(format).ok());
    time.unwrap_or_else(|| unix.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_decisions_are_mentioned() {
        let decision =
            |unix: i64| serde_json::json!({"unix": unix, "kind": "delete", "text": format!("decision {unix}")});
        let explained = |limit: usize| {
            let mut explanation: Explanation = serde_json::from_value(serde_json::json!({
                "runner": "r", "found": true, "summary": [], "decisions": [decision(1), decision(2)]
            }))
            .unwrap();
            truncate(&mut explanation, limit);
            fleet(&explanation)
        };
        assert!(explained(1).contains("older decisions omitted; set --limit") && !explained(1).contains("decision 1"));
        for limit in [0, 2] {
            assert!(!explained(limit).contains("omitted") && explained(limit).contains("decision 1"));
        }
    }

    #[test]
    fn limit_is_not_proposed_if_it_cannot_show_more_decisions() {
        let decision = serde_json::json!({"unix": 1, "kind": "delete", "text": "decision"});
        let mut explanation: Explanation = serde_json::from_value(serde_json::json!({
            "runner": "r", "found": true, "summary": [], "decisions": vec![decision; MAX_DECISIONS], "truncated": true
        }))
        .unwrap();
        truncate(&mut explanation, 0);
        assert!(fleet(&explanation).contains("older decisions omitted; see the *.history files"));
        truncate(&mut explanation, 40);
        assert!(fleet(&explanation).contains("older decisions omitted; set --limit, or see the *.history files"));
    }
}
