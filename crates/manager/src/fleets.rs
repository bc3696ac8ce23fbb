//! The fleets of a manager as operators see them: metrics, and the pages behind `muster fleet status` and `explain`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use muster_executor::instance::InstanceExecutor;
use muster_executor::instance::fleet::{self, Explanations, Reports, Source, Subject};
use muster_executor::instance::numbers;
use muster_telemetry::Telemetry;
use muster_telemetry::http::{JsonAnswer, Page};
use muster_telemetry::metrics::{self, EntryLabels, FamilyKind};
use parking_lot::Mutex;

use crate::clock::unix_now;
use crate::operators::Desk;

/// How all fleets are.
pub const STATUS_PATH: &str = "/debug/fleet/status";
/// Why something is as it is: with `?job=`, `?instance=` or `?group=`, else the whole fleet; `&runner=` picks one.
pub const EXPLAIN_PATH: &str = "/debug/fleet/explain";

type Fleet = (EntryLabels, Arc<InstanceExecutor>);

/// See the module.
#[derive(Default)]
pub(crate) struct Fleets(Mutex<Vec<Fleet>>);

/// What holds the pages, the numbers and the socket for operators in their places.
pub(crate) struct Shown {
    fleets: Arc<Fleets>,
    books: PathBuf,
    /// Open from the first fleet on.
    desk: Mutex<Option<Desk>>,
    _status: Arc<dyn Page>,
    _explain: Arc<dyn Page>,
    _numbers: Arc<dyn metrics::Source>,
}

impl Shown {
    /// Shows fleets, none at first, whose books are in this directory.
    pub(crate) fn new(telemetry: &Telemetry, books: PathBuf) -> Self {
        let fleets = Arc::new(Fleets::default());
        let status: Arc<dyn Page> = Arc::new(StatusPage(Arc::clone(&fleets)));
        let explain: Arc<dyn Page> = Arc::new(ExplainPage(Arc::clone(&fleets)));
        let numbers: Arc<dyn metrics::Source> = Arc::<Fleets>::clone(&fleets);
        telemetry.pages.add(STATUS_PATH, Arc::downgrade(&status));
        telemetry.pages.add(EXPLAIN_PATH, Arc::downgrade(&explain));
        telemetry.metrics.add_source(Arc::downgrade(&numbers));
        Self { fleets, books, desk: Mutex::default(), _status: status, _explain: explain, _numbers: numbers }
    }

    /// These are the fleets.
    pub(crate) fn set(&self, fleets: Vec<Fleet>) {
        let any = !fleets.is_empty();
        *self.fleets.0.lock() = fleets;
        let mut desk = self.desk.lock();
        if any && desk.is_none() {
            match Desk::open(&self.books, Arc::clone(&self.fleets)) {
                Ok(open) => *desk = Some(open),
                Err(error) => {
                    let books = self.books.display();
                    tracing::warn!(%error, %books, "`muster fleet drain`, `resume` and `remove` cannot reach this manager");
                }
            }
        }
    }
}

impl Fleets {
    pub(crate) fn providers(&self) -> Vec<Arc<InstanceExecutor>> {
        self.0.lock().iter().map(|(_, provider)| Arc::clone(provider)).collect()
    }
}

impl metrics::Source for Fleets {
    fn numbers(&self) -> Vec<(EntryLabels, Vec<metrics::Family>)> {
        let fleets = self.0.lock();
        // Two entries with the same labels would give one series two values, which a scraper refuses as a whole.
        let mut told = HashSet::new();
        let fleets = fleets.iter().filter(|(labels, _)| told.insert(labels.clone()));
        fleets
            .map(|(labels, provider)| (labels.clone(), provider.families().into_iter().map(family).collect()))
            .collect()
    }
}

fn family(family: numbers::Family) -> metrics::Family {
    let sample = |sample: numbers::Sample| metrics::Sample {
        labels: sample.labels,
        value: sample.value,
        buckets: sample.buckets,
    };
    metrics::Family {
        name: family.name,
        help: family.help,
        kind: match family.kind {
            numbers::Kind::Gauge => FamilyKind::Gauge,
            numbers::Kind::Counter => FamilyKind::Counter,
            numbers::Kind::Histogram => FamilyKind::Histogram,
        },
        samples: family.samples.into_iter().map(sample).collect(),
    }
}

struct StatusPage(Arc<Fleets>);

#[async_trait]
impl Page for StatusPage {
    async fn answer(&self, _: &str) -> JsonAnswer {
        let providers = self.0.providers();
        let fleets = join_all(providers.iter().map(|provider| provider.report())).await;
        json(&Reports { version: fleet::VERSION, unix: unix_now(), source: Source::Manager, fleets }, true)
    }
}

struct ExplainPage(Arc<Fleets>);

#[async_trait]
impl Page for ExplainPage {
    async fn answer(&self, query: &str) -> JsonAnswer {
        let (subject, runner) = match question(query) {
            Ok(question) => question,
            Err(why) => return JsonAnswer::Wrong(why),
        };
        let unix = unix_now();
        let providers = self.0.providers();
        let answers = join_all(providers.iter().map(|provider| provider.explain(&subject, unix))).await;
        let mut fleets = match answers.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(fleets) => fleets,
            Err(error) => return JsonAnswer::Failed(format!("the decisions cannot be read: {error}")),
        };
        fleets.retain(|fleet| runner.as_ref().is_none_or(|runner| fleet.runner == *runner));
        let known = fleets.iter().any(|fleet| fleet.known);
        if known {
            fleets.retain(|fleet| fleet.known);
        }
        json(&Explanations { version: fleet::VERSION, unix, source: Source::Manager, fleets }, known)
    }
}

/// What a query asks about, and of which runner.
fn question(query: &str) -> Result<(Subject, Option<String>), String> {
    let (mut subject, mut runner) = (None, None);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        let asked = match &*name {
            "runner" => {
                runner = Some(value);
                continue;
            }
            "job" => Subject::Job(value),
            "instance" => Subject::Instance(value),
            "group" => Subject::Group(value),
            other => return Err(format!("`{other}` is none of job, instance, group and runner")),
        };
        if subject.replace(asked).is_some() {
            return Err("only one of job, instance and group can be asked about".to_owned());
        }
    }
    Ok((subject.unwrap_or(Subject::Fleet), runner))
}

fn json(answer: &impl serde::Serialize, found: bool) -> JsonAnswer {
    match serde_json::to_vec(answer) {
        Ok(body) if found => JsonAnswer::Found(body),
        Ok(body) => JsonAnswer::Missing(body),
        Err(error) => JsonAnswer::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use muster_telemetry::names;

    use super::*;

    #[test]
    fn a_query_names_one_subject() {
        assert_eq!(question("").unwrap(), (Subject::Fleet, None));
        let (subject, runner) = question("instance=i%2F1&runner=two+words").unwrap();
        assert_eq!((subject, runner.as_deref()), (Subject::Instance("i/1".to_owned()), Some("two words")));
        assert!(question("job=1&group=2").unwrap_err().starts_with("only one"));
        assert!(question("jobs=1").unwrap_err().starts_with("`jobs` is none of"));
    }

    /// Whoever adds a number to the scaler adds it to the list, and with that to the reference page.
    #[test]
    fn the_scalers_numbers_are_those_of_the_list() {
        let listed = |kind| match kind {
            names::Kind::Gauge => numbers::Kind::Gauge,
            names::Kind::Counter => numbers::Kind::Counter,
            names::Kind::Histogram(_) => numbers::Kind::Histogram,
        };
        let mut defined: Vec<_> = names::FLEET.iter().map(|one| (one.name, listed(one.kind), one.help)).collect();
        let mut counted: Vec<_> = numbers::all().into_iter().map(|one| (one.name, one.kind, one.help)).collect();
        defined.sort_unstable_by_key(|one| one.0);
        counted.sort_unstable_by_key(|one| one.0);
        assert_eq!(defined, counted);
    }
}
