//! The fleets of a manager as operators see them: metrics, and the pages behind `muster fleet status` and `explain`.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use muster_executor::instance::{FleetList, InstanceExecutors};
use muster_manager::clock::unix_now;
use muster_manager::labels;
use muster_taskscaler::driver::{self as scaler, Kind};
use muster_taskscaler::fleet::{self, ExplanationSet, ReportSource, Reports, Subject};
use muster_telemetry::Telemetry;
use muster_telemetry::http::{JsonAnswer, Page};
use muster_telemetry::metrics::{self, EntryLabels, FamilyKind};

/// Page with the status of all fleets.
pub(crate) const STATUS_PATH: &str = "/debug/fleet/status";
/// Page with the reasons of something: with `?job=`, `?instance=` or `?group=`, else of the whole fleet; `&runner=` picks one.
pub(crate) const EXPLAIN_PATH: &str = "/debug/fleet/explain";

/// The pages and metrics of the fleets, as long as it exists.
pub(crate) struct FleetEndpoints {
    _status: Arc<dyn Page>,
    _explain: Arc<dyn Page>,
    _metrics: Arc<dyn metrics::Source>,
}

impl FleetEndpoints {
    /// Adds them to `telemetry`.
    pub(crate) fn new(telemetry: &Telemetry, executors: &InstanceExecutors) -> Self {
        let status: Arc<dyn Page> = Arc::new(StatusPage(executors.fleets()));
        let explain: Arc<dyn Page> = Arc::new(ExplainPage(executors.fleets()));
        let numbers: Arc<dyn metrics::Source> = Arc::new(FleetMetrics(executors.fleets()));
        telemetry.pages.add(STATUS_PATH, Arc::downgrade(&status));
        telemetry.pages.add(EXPLAIN_PATH, Arc::downgrade(&explain));
        telemetry.metrics.add_source(Arc::downgrade(&numbers));
        Self { _status: status, _explain: explain, _metrics: numbers }
    }
}

struct FleetMetrics(Arc<FleetList>);

impl metrics::Source for FleetMetrics {
    fn numbers(&self) -> Vec<(EntryLabels, Vec<metrics::Family>)> {
        let fleets = self.0.current().into_iter().map(|fleet| (labels(&fleet.runner), fleet.executor));
        // Two entries with the same labels would give one series two values, which a scraper refuses as a whole.
        let mut seen = HashSet::new();
        let fleets = fleets.filter(|(labels, _)| seen.insert(labels.clone()));
        fleets.map(|(labels, executor)| (labels, executor.families().into_iter().map(family).collect())).collect()
    }
}

fn family(family: scaler::Family) -> metrics::Family {
    let sample = |sample: scaler::Sample| metrics::Sample {
        labels: sample.labels,
        value: sample.value,
        buckets: sample.buckets,
    };
    metrics::Family {
        name: family.name,
        help: family.help,
        kind: match family.kind {
            Kind::Gauge => FamilyKind::Gauge,
            Kind::Counter => FamilyKind::Counter,
            Kind::Histogram => FamilyKind::Histogram,
        },
        samples: family.samples.into_iter().map(sample).collect(),
    }
}

struct StatusPage(Arc<FleetList>);

#[async_trait]
impl Page for StatusPage {
    async fn answer(&self, _: &str) -> JsonAnswer {
        let listed = self.0.current();
        let fleets = join_all(listed.iter().map(|fleet| fleet.executor.report())).await;
        json(&Reports { version: fleet::VERSION, unix: unix_now(), source: ReportSource::Manager, fleets }, true)
    }
}

struct ExplainPage(Arc<FleetList>);

#[async_trait]
impl Page for ExplainPage {
    async fn answer(&self, query: &str) -> JsonAnswer {
        let (subject, runner) = match parse_query(query) {
            Ok(parsed) => parsed,
            Err(why) => return JsonAnswer::Wrong(why),
        };
        let unix = unix_now();
        let listed = self.0.current();
        let answers = join_all(listed.iter().map(|fleet| fleet.executor.explain(&subject, unix))).await;
        let mut fleets = match answers.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(fleets) => fleets,
            Err(error) => return JsonAnswer::Failed(format!("the decisions cannot be read: {error}")),
        };
        fleets.retain(|fleet| runner.as_ref().is_none_or(|runner| fleet.runner == *runner));
        let known = fleets.iter().any(|fleet| fleet.found);
        if known {
            fleets.retain(|fleet| fleet.found);
        }
        json(&ExplanationSet { version: fleet::VERSION, unix, source: ReportSource::Manager, fleets }, known)
    }
}

/// What a query asks about, and of which runner.
fn parse_query(query: &str) -> Result<(Subject, Option<String>), String> {
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
        assert_eq!(parse_query("").unwrap(), (Subject::Fleet, None));
        let (subject, runner) = parse_query("instance=i%2F1&runner=two+words").unwrap();
        assert_eq!((subject, runner.as_deref()), (Subject::Instance("i/1".to_owned()), Some("two words")));
        assert!(parse_query("job=1&group=2").unwrap_err().starts_with("only one"));
        assert!(parse_query("jobs=1").unwrap_err().starts_with("`jobs` is none of"));
    }

    /// A metric of the scaler that is not in the list is not in the reference page either.
    #[test]
    fn the_scalers_numbers_are_those_of_the_list() {
        let listed = |kind| match kind {
            names::Kind::Gauge => Kind::Gauge,
            names::Kind::Counter => Kind::Counter,
            names::Kind::Histogram(_) => Kind::Histogram,
        };
        let mut defined: Vec<_> = names::FLEET.iter().map(|one| (one.name, listed(one.kind), one.help)).collect();
        let mut counted: Vec<_> =
            muster_executor::instance::metrics::all().into_iter().map(|one| (one.name, one.kind, one.help)).collect();
        defined.sort_unstable_by_key(|one| one.0);
        counted.sort_unstable_by_key(|one| one.0);
        assert_eq!(defined, counted);
    }
}
