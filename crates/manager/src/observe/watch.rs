//! Turns what a job's actor records into metrics, log lines and spans.

use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::result::{JobResult, ResourceUsage};
use muster_config::settings::RunnerSettings;
use muster_job::{FailureReason, Variable, without_user_info_and_query};
use muster_runner_api::payload::JobPayload;
use muster_telemetry::Telemetry;
use muster_telemetry::metrics::{ExecutionMode, ExecutorStage, JobFacts, JobMetricState, JobRecord, ProcessingFailure};
use muster_telemetry::spans::{Attribute, JobSpan, SpanOutcome, StepSpan, TraceContext};
use parking_lot::Mutex;

use super::stages::{SectionMarkers, manager_stage, stage_name};
use super::trace::{self, JobTrace};
use super::{Observer, labels};
use crate::clock::unix_now_ms;
use crate::lower::{LowerError, LoweredJob};
use crate::store::StoredJob;

const EXPORT_STAGES_FLAG: &str = "FF_EXPORT_HIGH_CARDINALITY_METRICS";
const TRACEPARENT: &str = "TRACEPARENT";
/// State of a job that was cleaned up without a result.
const JOB_GONE: &str = "gone";

pub(crate) struct JobWatch {
    telemetry: Arc<Telemetry>,
    runner: Arc<RunnerSettings>,
    record: JobRecord,
    recovered: bool,
    /// Whether stage durations are also exported in series of this runner.
    exports_stages: bool,
    trace: JobTrace,
    attributes: Vec<(&'static str, Attribute)>,
    progress: Mutex<Progress>,
}

struct Progress {
    started_ms: u64,
    markers: SectionMarkers,
    /// Current stage of the manager: its name, and its start in milliseconds since 1970 and as an instant.
    stage: (&'static str, u64, Instant),
    manager_stages: Vec<StepSpan>,
    /// Acknowledged and pending bytes of the log.
    uploaded: (u64, u64),
    ended: Option<Ended>,
    used: Option<ResourceUsage>,
    cleaned: bool,
}

struct Ended {
    state: JobMetricState,
    failure: Option<(String, Option<i64>)>,
    stages: Vec<StepSpan>,
}

impl JobWatch {
    pub(super) fn new(
        observer: &Arc<Observer>,
        runner: &Arc<RunnerSettings>,
        job: &StoredJob,
        recovered: bool,
    ) -> Arc<Self> {
        let payload = &job.payload;
        let telemetry = Arc::clone(observer.telemetry());
        let entry = observer.entry(runner);
        let mode = if payload.run.is_some() { ExecutionMode::Steps } else { ExecutionMode::Traditional };
        let now = unix_now_ms();
        // An earlier manager process may have received the job.
        let started_ms = u64::try_from(job.received_ms).map_or(now, |received_ms| received_ms.min(now));
        let age = Duration::from_millis(now - started_ms);
        let record = telemetry.metrics.job(&entry, job_facts(payload, mode, age));
        if recovered {
            entry.job_recovered();
        } else {
            telemetry.metrics.job_started(mode, &runner.executor);
        }
        log_added(runner, payload);
        let mut progress = Progress {
            started_ms,
            markers: SectionMarkers::default(),
            stage: (manager_stage::PRE_CHECKS, now, Instant::now()),
            manager_stages: Vec::new(),
            uploaded: (0, 0),
            ended: None,
            used: None,
            cleaned: false,
        };
        let exports_stages = exports_stages(runner);
        if !recovered {
            // The retrieval of the job has ended: the job is already stored.
            if exports_stages {
                record.record_stage(manager_stage::RETRIEVAL, age.as_secs_f64());
            }
            telemetry.metrics.record_stage(manager_stage::RETRIEVAL, age.as_secs_f64());
            progress.manager_stages.push(manager_span(manager_stage::RETRIEVAL, started_ms, now));
        }
        Arc::new(Self {
            runner: Arc::clone(runner),
            record,
            recovered,
            exports_stages,
            trace: JobTrace::new(observer, runner, payload),
            attributes: trace::span_attributes(runner, payload),
            progress: Mutex::new(progress),
            telemetry,
        })
    }

    /// Returns a variable with which tools join the job's trace. `None` means that the job is not traced.
    pub(crate) fn traceparent(&self) -> Option<Variable> {
        let context = self.trace.context?;
        Some(Variable::public(TRACEPARENT, context.traceparent()))
    }

    /// Counts the interpolated job inputs, or an error in an input.
    pub(crate) fn lowered(&self, lowered: &Result<LoweredJob, LowerError>) {
        match lowered {
            Ok(job) => self.telemetry.metrics.inputs_interpolated(job.interpolated_inputs),
            Err(LowerError { inputs: Some(kind), .. }) => self.telemetry.metrics.inputs_failed(*kind),
            Err(_) => {}
        }
    }

    pub(crate) fn accepted(&self) {
        let mut progress = self.progress.lock();
        if progress.stage.0 == manager_stage::PRE_CHECKS {
            self.enter_stage(&mut progress, manager_stage::ENVIRONMENT);
        }
    }

    /// `waits` means that `concurrent` or `limit` is reached.
    pub(crate) fn set_waiting_to_run(&self, waits: bool) {
        self.record.set_waiting(waits);
    }

    /// Records that the job runs from now on.
    pub(crate) fn running(&self) {
        self.record.set_state(JobMetricState::Running, ExecutorStage::Prepare);
        self.record.set_stage("prepare_script");
        let mut progress = self.progress.lock();
        if progress.stage.0 == manager_stage::ENVIRONMENT {
            self.enter_stage(&mut progress, manager_stage::HEALTH);
            if !self.recovered {
                self.record.entry().record_dispatch(self.record.age());
            }
        }
    }

    /// Records that an earlier manager process gave the job to an agent.
    pub(crate) fn restored_running(&self) {
        self.record.set_state(JobMetricState::Running, ExecutorStage::Prepare);
        self.progress.lock().stage.0 = manager_stage::HEALTH;
    }

    /// Records the stage that the markers in a piece of the job's log show.
    pub(crate) fn log_received(&self, piece: &[u8]) {
        if let Some(stage) = self.progress.lock().markers.feed(piece) {
            self.record.set_stage(stage);
        }
    }

    pub(crate) fn uploaded(&self, acknowledged: u64, pending: u64) {
        let mut progress = self.progress.lock();
        let (previous, was_pending) = std::mem::replace(&mut progress.uploaded, (acknowledged, pending));
        let entry = self.record.entry();
        entry.set_trace_pending(was_pending, pending);
        entry.trace_acknowledged(acknowledged.saturating_sub(previous));
    }

    /// Records the length of a restored job's trace at the coordinator, and that no bytes are pending.
    pub(crate) fn restored_trace_length(&self, acknowledged: u64) {
        let (_, was_pending) = std::mem::replace(&mut self.progress.lock().uploaded, (acknowledged, 0));
        self.record.entry().set_trace_pending(was_pending, 0);
    }

    pub(crate) fn report_retried(&self) {
        self.record.entry().report_retried();
    }

    /// Records how long a write to the manager's state took.
    pub(crate) fn stored(&self, operation: &str, took: Duration) {
        self.telemetry.metrics.state_written(operation, took);
    }

    /// Counts a failure, because the job got no environment.
    pub(crate) fn no_environment(&self) {
        self.record.entry().failed_to_process(ProcessingFailure::NoFreeExecutor);
    }

    /// `reason` is the reported failure reason.
    pub(crate) fn ended(&self, result: &JobResult, reason: Option<&str>, exit_code: Option<i64>) {
        let stages = result.tree.steps.iter().map(trace::span).collect();
        let mut progress = self.progress.lock();
        progress.started_ms = progress.started_ms.min(result.tree.started_ms);
        if let (Some(used), None) = (&result.used, &progress.ended) {
            self.record.entry().record_job_usage(used.cpu_ms.map(Duration::from_millis), used.memory_bytes);
            progress.used = Some(used.clone());
        }
        self.end(&mut progress, reason, exit_code, stages);
    }

    pub(crate) fn ended_by_manager(&self, reason: FailureReason, exit_code: Option<i32>) {
        self.end(&mut self.progress.lock(), Some(reason.as_str()), exit_code.map(i64::from), Vec::new());
    }

    fn end(&self, progress: &mut Progress, reason: Option<&str>, exit_code: Option<i64>, stages: Vec<StepSpan>) {
        if progress.ended.is_some() {
            return;
        }
        self.enter_stage(progress, manager_stage::REPORT);
        let state = match reason {
            None => JobMetricState::Success,
            Some("job_canceled") => JobMetricState::Canceled,
            Some("job_execution_timeout") => JobMetricState::TimedOut,
            Some("runner_interrupted") => JobMetricState::Terminated,
            Some(_) => JobMetricState::Failed,
        };
        for stage in &stages {
            self.stage_took(stage_name(&stage.name).unwrap_or("other"), Duration::from_millis(stage.duration_ms));
        }
        if let Some(reason) = reason {
            self.record.record_failure(reason);
        }
        self.record.set_state(state, ExecutorStage::Finish);
        progress.ended = Some(Ended { state, failure: reason.map(|reason| (reason.to_owned(), exit_code)), stages });
    }

    /// Records that the clean-up begins. The coordinator has the result, or no longer expects it.
    pub(crate) fn cleaning(&self) {
        let mut progress = self.progress.lock();
        let state = progress.ended.as_ref().map_or(JobMetricState::Canceled, |ended| ended.state);
        self.record.set_state(state, ExecutorStage::Cleanup);
        self.enter_stage(&mut progress, manager_stage::CLEANUP);
    }

    pub(crate) fn cleaned(&self) {
        let mut progress = self.progress.lock();
        self.enter_stage(&mut progress, "");
        progress.cleaned = true;
    }

    fn enter_stage(&self, progress: &mut Progress, next: &'static str) {
        let now = unix_now_ms();
        let (name, started_ms, started) = std::mem::replace(&mut progress.stage, (next, now, Instant::now()));
        self.stage_took(name, started.elapsed());
        progress.manager_stages.push(manager_span(name, started_ms, now));
    }

    fn stage_took(&self, stage: &str, took: Duration) {
        self.telemetry.metrics.record_stage(stage, took.as_secs_f64());
        if self.exports_stages {
            self.record.record_stage(stage, took.as_secs_f64());
        }
    }
}

fn manager_span(name: &str, started_ms: u64, ended_ms: u64) -> StepSpan {
    StepSpan {
        name: name.to_owned(),
        outcome: SpanOutcome::Success,
        started_ms,
        duration_ms: ended_ms.saturating_sub(started_ms),
        exit_code: None,
        attributes: Vec::new(),
        steps: Vec::new(),
    }
}

fn job_span(context: TraceContext, mut attributes: Vec<(&'static str, Attribute)>, progress: &mut Progress) -> JobSpan {
    let ended = progress.ended.take();
    let state = ended.as_ref().map(|ended| ended.state);
    attributes.push(("ci.job.status", Attribute::Text(state.map_or(JOB_GONE, JobMetricState::label).to_owned())));
    attributes.extend(progress.used.iter().flat_map(trace::job_usage_attributes));
    let outcome = match state {
        Some(JobMetricState::Success) => SpanOutcome::Success,
        None | Some(JobMetricState::Canceled | JobMetricState::Terminated) => SpanOutcome::Canceled,
        Some(_) => SpanOutcome::Failure,
    };
    let (failure, agent_stages) = ended.map(|ended| (ended.failure, ended.stages)).unwrap_or_default();
    // The sort is stable, so of stages that started at the same time, the manager's stages come first.
    let mut stages = std::mem::take(&mut progress.manager_stages);
    stages.extend(agent_stages);
    stages.sort_by_key(|stage| stage.started_ms);
    JobSpan {
        context,
        started_ms: progress.started_ms,
        ended_ms: unix_now_ms(),
        outcome,
        failure_reason: failure.map(|(reason, _)| reason),
        attributes,
        stages,
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        let progress = self.progress.get_mut();
        self.record.entry().set_trace_pending(progress.uploaded.1, 0);
        if !progress.cleaned {
            // The next start of the manager continues the job.
            return;
        }
        let ended = progress.ended.as_ref();
        let failure = ended.and_then(|ended| ended.failure.as_ref());
        let (labels, used) = (labels(&self.runner), progress.used.as_ref());
        tracing::info!(
            runner = labels.runner,
            runner_name = labels.runner_name,
            duration_s = self.record.age().as_secs_f64(),
            "job-status" = ended.map_or(JOB_GONE, |ended| ended.state.label()),
            failure_reason = failure.map(|(reason, _)| reason.as_str()),
            exit_code = failure.and_then(|(_, code)| *code),
            cpu_s = used.and_then(|used| used.cpu_ms).map(|ms| Duration::from_millis(ms).as_secs_f64()),
            memory_bytes = used.and_then(|used| used.memory_bytes),
            "Removed job from processing list"
        );
        if let Some(context) = self.trace.context {
            let span = job_span(context, std::mem::take(&mut self.attributes), progress);
            self.telemetry.tracer.send(span, self.trace.requested.as_ref());
        }
    }
}

fn job_facts(payload: &JobPayload, mode: ExecutionMode, age: Duration) -> JobFacts {
    let info = &payload.job_info;
    JobFacts {
        url: job_url(payload),
        mode,
        age,
        queued: Duration::try_from_secs_f64(info.time_in_queue_seconds).unwrap_or_default(),
        project_jobs_running: info.project_jobs_running_on_instance_runners_count.clone(),
        queue: (info.queue_size > 0 || info.queue_depth > 0).then_some((info.queue_size, info.queue_depth)),
    }
}

/// Uses gitlab-runner's field names.
fn log_added(runner: &RunnerSettings, payload: &JobPayload) {
    let (info, labels) = (&payload.job_info, labels(runner));
    let user = payload.variables.iter().rfind(|variable| variable.key == "GITLAB_USER_ID" && !variable.masked);
    tracing::info!(
        runner = labels.runner,
        runner_name = labels.runner_name,
        pipeline_id = info.pipeline_id,
        project = info.project_id,
        project_full_path = info.project_full_path,
        namespace_id = info.namespace_id,
        root_namespace_id = info.root_namespace_id,
        gitlab_user_id = user.map(|variable| variable.value.as_str()),
        repo_url = without_user_info_and_query(&payload.git_info.repo_url),
        time_in_queue_seconds = info.time_in_queue_seconds,
        queue_size = info.queue_size,
        queue_depth = info.queue_depth,
        "Added job to processing list"
    );
}

/// Derives the URL from the repository's, as gitlab-runner does.
fn job_url(payload: &JobPayload) -> String {
    let repository = without_user_info_and_query(&payload.git_info.repo_url);
    format!("{}/-/jobs/{}", repository.trim_end_matches(".git"), payload.id)
}

/// Returns whether the runner's feature flag enables the export of stage durations in series of this runner.
/// The flag is off by default, because these series use memory.
fn exports_stages(runner: &RunnerSettings) -> bool {
    runner.feature_flags.get(EXPORT_STAGES_FLAG).copied().unwrap_or(false)
}
