//! HTTP endpoints for fleets: metrics, and the data of `muster fleet status` and `explain`.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use muster_executor::instance::{FleetList, InstanceExecutors};
use muster_manager::clock::unix_now;
use muster_manager::labels;
use muster_taskscaler::fleet::{self, ExplanationSet, ReportSource, Reports, Subject};
use muster_telemetry::Telemetry;
use muster_telemetry::http::{JsonEndpoint, JsonResponse};
use muster_telemetry::metrics::{self, EntryLabels};
use prometheus::proto::MetricFamily;

pub(crate) const STATUS_PATH: &str = "/debug/fleet/status";
/// `?job=`, `?instance=` or `?group=` selects what to explain; the default is the whole fleet. `&runner=` selects a
/// runner.
pub(crate) const EXPLAIN_PATH: &str = "/debug/fleet/explain";

/// Dropping this value removes the endpoints and metrics of the fleets.
pub(crate) struct FleetEndpoints {
    _status: Arc<dyn JsonEndpoint>,
    _explain: Arc<dyn JsonEndpoint>,
    _metrics: Arc<dyn metrics::Source>,
}

impl FleetEndpoints {
    pub(crate) fn new(telemetry: &Telemetry, executors: &InstanceExecutors) -> Self {
        let status: Arc<dyn JsonEndpoint> = Arc::new(StatusPage(executors.fleets()));
        let explain: Arc<dyn JsonEndpoint> = Arc::new(ExplainPage(executors.fleets()));
        let metrics: Arc<dyn metrics::Source> = Arc::new(FleetMetrics(executors.fleets()));
        telemetry.endpoints.add(STATUS_PATH, Arc::downgrade(&status));
        telemetry.endpoints.add(EXPLAIN_PATH, Arc::downgrade(&explain));
        telemetry.metrics.add_source(Arc::downgrade(&metrics));
        Self { _status: status, _explain: explain, _metrics: metrics }
    }
}

struct FleetMetrics(Arc<FleetList>);

impl metrics::Source for FleetMetrics {
    fn families(&self) -> Vec<(EntryLabels, Vec<MetricFamily>)> {
        let fleets = self.0.current().into_iter().map(|fleet| (labels(&fleet.runner), fleet.executor));
        // Two entries with the same labels would produce duplicate series, for which scrapers reject the whole
        // response.
        let mut seen = HashSet::new();
        let fleets = fleets.filter(|(labels, _)| seen.insert(labels.clone()));
        fleets.map(|(labels, executor)| (labels, executor.families())).collect()
    }
}

struct StatusPage(Arc<FleetList>);

#[async_trait]
impl JsonEndpoint for StatusPage {
    async fn respond(&self, _: &str) -> JsonResponse {
        let listed = self.0.current();
        let fleets = join_all(listed.iter().map(|fleet| fleet.executor.report())).await;
        json(&Reports { version: fleet::VERSION, unix: unix_now(), source: ReportSource::Manager, fleets }, true)
    }
}

struct ExplainPage(Arc<FleetList>);

#[async_trait]
impl JsonEndpoint for ExplainPage {
    async fn respond(&self, query: &str) -> JsonResponse {
        let (subject, runner) = match parse_query(query) {
            Ok(parsed) => parsed,
            Err(error) => return JsonResponse::BadRequest(error.to_string()),
        };
        let unix = unix_now();
        let listed = self.0.current();
        let answers = join_all(listed.iter().map(|fleet| fleet.executor.explain(&subject, unix))).await;
        let mut fleets = match answers.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(fleets) => fleets,
            Err(error) => return JsonResponse::Error(format!("failed to read the history: {error}")),
        };
        fleets.retain(|fleet| runner.as_ref().is_none_or(|runner| fleet.runner == *runner));
        let found = fleets.iter().any(|fleet| fleet.found);
        if found {
            fleets.retain(|fleet| fleet.found);
        }
        json(&ExplanationSet { version: fleet::VERSION, unix, source: ReportSource::Manager, fleets }, found)
    }
}

#[derive(Debug, PartialEq, thiserror::Error)]
enum QueryError {
    #[error("unknown parameter `{0}`; expected job, instance, group or runner")]
    Unknown(String),
    #[error("only one of job, instance and group is allowed")]
    TwoSubjects,
}

fn parse_query(query: &str) -> Result<(Subject, Option<String>), QueryError> {
    let (mut subject, mut runner) = (None, None);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        let parsed = match &*name {
            "runner" => {
                runner = Some(value);
                continue;
            }
            "job" => Subject::Job(value),
            "instance" => Subject::Instance(value),
            "group" => Subject::Group(value),
            other => return Err(QueryError::Unknown(other.to_owned())),
        };
        if subject.replace(parsed).is_some() {
            return Err(QueryError::TwoSubjects);
        }
    }
    Ok((subject.unwrap_or(Subject::Fleet), runner))
}

fn json(answer: &impl serde::Serialize, found: bool) -> JsonResponse {
    match serde_json::to_vec(answer) {
        Ok(body) if found => JsonResponse::Ok(body),
        Ok(body) => JsonResponse::NotFound(body),
        Err(error) => JsonResponse::Error(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use muster_telemetry::names;

    use super::*;

    #[test]
    fn query_has_at_most_one_subject() {
        assert_eq!(parse_query("").unwrap(), (Subject::Fleet, None));
        let (subject, runner) = parse_query("instance=i%2F1&runner=two+words").unwrap();
        assert_eq!((subject, runner.as_deref()), (Subject::Instance("i/1".to_owned()), Some("two words")));
        assert_eq!(parse_query("job=1&group=2").unwrap_err(), QueryError::TwoSubjects);
        assert_eq!(parse_query("jobs=1").unwrap_err(), QueryError::Unknown("jobs".to_owned()));
    }

    #[test]
    fn reference_page_lists_all_metrics() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (listed, _) = page.split_once("## Missing metrics").unwrap();
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| `")?.split('`');
            let (name, rest) = (cells.next()?, cells.next()?);
            Some((name.to_owned(), rest.trim_matches(['|', ' ']).split(' ').next()?.to_owned()))
        };
        let mut rows: Vec<_> = listed.lines().filter_map(row).collect();
        let manager_metrics = names::ALL.iter().map(|metric| (metric.name.to_owned(), metric.kind.label().to_owned()));
        let fleet_metrics = muster_executor::instance::metrics::all()
            .into_iter()
            .map(|family| (family.name().to_owned(), format!("{:?}", family.get_field_type()).to_ascii_lowercase()));
        let mut defined: Vec<_> = manager_metrics.chain(fleet_metrics).collect();
        rows.sort_unstable();
        defined.sort_unstable();
        assert_eq!(rows, defined);
    }
}
