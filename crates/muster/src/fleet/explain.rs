//! `muster fleet explain`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;
use muster_taskscaler::fleet::{Explained, Explanations, Subject};
use muster_taskscaler::formula::Inputs;
use muster_taskscaler::history::Told;
use time::OffsetDateTime;
use time::macros::format_description;

use super::ask::Whom;
use crate::ci::{self, ui};

/// Decisions that are shown where nothing else is said.
const DECISIONS: usize = 40;

/// What is asked about.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is asked about; without it, the whole fleet.
    #[arg(value_enum, requires = "name")]
    what: Option<What>,
    /// A job's number at the server, an instance's name at the provider, a group's name as `muster fleet status` shows it.
    name: Option<String>,
    #[command(flatten)]
    whom: Whom,
    /// Show so many of the latest decisions; 0: all of the last day, at most the 1000 latest.
    #[arg(long, default_value_t = DECISIONS, value_name = "COUNT")]
    last: usize,
}

/// One thing.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Why a job waits, or what it got.
    Job,
    /// Why an instance is there, or went.
    Instance,
    /// Why a group has no more and no fewer instances.
    Group,
}

impl Args {
    fn subject(&self) -> Subject {
        match (self.what, self.name.clone()) {
            (Some(What::Job), Some(number)) => Subject::Job(number),
            (Some(What::Instance), Some(name)) => Subject::Instance(name),
            (Some(What::Group), Some(name)) => Subject::Group(name),
            (_, _) => Subject::Fleet,
        }
    }
}

pub(super) async fn run(args: Args) -> ExitCode {
    if let (Some(What::Job), Some(name)) = (args.what, &args.name)
        && !name.starts_with("job-")
        && !name.bytes().all(|byte| byte.is_ascii_digit())
    {
        ui::error(&format!(
            "{} is no job's number: write the number that the server shows, such as 4711",
            ui::plain(name)
        ));
        return ExitCode::from(2);
    }
    let mut explanations = match args.whom.explain(&args.subject()).await {
        Ok(explanations) => explanations,
        Err(error) => {
            ui::report(&error);
            return ExitCode::from(2);
        }
    };
    for fleet in &mut explanations.fleets {
        let surplus = if args.last == 0 { 0 } else { fleet.decisions.len().saturating_sub(args.last) };
        fleet.decisions.drain(..surplus);
        // What was asked not to be shown is not missed.
        fleet.is_cut &= args.last == 0;
    }
    let known = explanations.fleets.iter().any(|fleet| fleet.known);
    let is_unread = explanations.fleets.iter().any(|fleet| fleet.is_unread);
    let printed =
        if args.whom.json { super::print_json(&explanations) } else { ci::print_styled(&text(&explanations)) };
    match (is_unread, known) {
        (true, _) => ExitCode::from(2),
        (false, true) => printed,
        (false, false) => ExitCode::FAILURE,
    }
}

fn text(explanations: &Explanations) -> String {
    if explanations.fleets.is_empty() {
        return "no runner has instances here\n".to_owned();
    }
    let fleets: Vec<String> = explanations.fleets.iter().map(fleet).collect();
    fleets.join("\n")
}

fn fleet(explained: &Explained) -> String {
    let mut text = format!("runner {}\n", ui::plain(&explained.runner));
    for sentence in &explained.answer {
        let _ = writeln!(text, "  {}", ui::plain(sentence));
    }
    if !explained.decisions.is_empty() {
        text.push_str("\ndecisions\n");
    }
    if explained.is_cut {
        text.push_str("  (older ones are left out here; the files *.history beside the books have them)\n");
    }
    for told in &explained.decisions {
        let _ = writeln!(text, "  {}  {}", when(told.unix), ui::plain(&told.text));
        if let Some(inputs) = told.inputs.filter(|_| is_by_numbers(told)) {
            let _ = writeln!(text, "  {:19}  by: {}", "", numbers(&inputs));
        }
    }
    text
}

/// Whether the numbers say more than the text.
fn is_by_numbers(told: &Told) -> bool {
    told.kind == "hold" || told.kind == "ask" || (told.kind == "remove" && told.text.contains("not needed"))
}

fn numbers(inputs: &Inputs) -> String {
    let mut text = format!(
        "{} slots in use, {} jobs waiting, {} promises, {} idle slots wanted, {} instances of {} slots",
        inputs.acquired, inputs.waiting, inputs.reserved, inputs.idle_count, inputs.instances, inputs.capacity
    );
    if inputs.unavailable > 0 {
        let _ = write!(text, ", {} slots used up", inputs.unavailable);
    }
    if inputs.scale_factor > 0.0 {
        let _ = write!(text, ", scale_factor {}", inputs.scale_factor);
    }
    text
}

/// As a log has it, in UTC: times of several machines are read together.
fn when(unix: i64) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let time = OffsetDateTime::from_unix_timestamp(unix).ok().and_then(|time| time.format(format).ok());
    time.unwrap_or_else(|| unix.to_string())
}
