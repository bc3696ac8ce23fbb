//! Converts the outcomes of jobs to updates for the coordinator.

use muster_agent_api::result::{JobResult, Outcome};
use muster_job::mask::{Masker, Secrets};
use muster_job::{FailureReason, TerminationCause};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::routes::MAX_UPDATE_BODY_BYTES;
use muster_runner_api::wire::{Output, UpdateRequest};

use crate::lower::wants_result_tree;
use crate::state::ManagerOutcome;

/// Maximum size of a result tree. The rest of the update must fit into `MAX_UPDATE_BODY_BYTES`, too.
const MAX_TREE_BYTES: usize = MAX_UPDATE_BODY_BYTES / 2;

/// Returns the final update of a job that ended at an agent. The agent's log begins at the offset `from` of the trace.
///
/// If the job was canceled, `by_manager` is true if the manager canceled it, and false if the coordinator did.
pub(crate) fn from_result(payload: &JobPayload, result: &JobResult, from: u64, by_manager: bool) -> UpdateRequest {
    let (state, reason, exit_code) = match &result.outcome {
        Outcome::Success => ("success", None, None),
        Outcome::Failed { reason, exit_code, cause } => {
            let canceled = *reason == FailureReason::JobCanceled || *cause == Some(TerminationCause::CanceledByUser);
            let reason = match cause {
                _ if canceled && by_manager => TerminationCause::ManagerShutdown.into(),
                Some(cause) => FailureReason::from(*cause),
                None => *reason,
            };
            ("failed", Some(reason), *exit_code)
        }
    };
    // The agent has not seen earlier attempts, so its checksum does not cover the whole trace.
    let checksum = (from == 0).then(|| format!("crc32:{:08x}", result.log_crc32));
    UpdateRequest {
        output: Output { checksum, bytesize: Some(from.saturating_add(result.log_bytes)) },
        // A result without a tree is better than no result.
        result_tree: wants_result_tree(payload).then(|| result.to_tree_within(MAX_TREE_BYTES)).flatten(),
        ..update(payload, state, reason, exit_code)
    }
}

/// Returns the final update of a job that the manager failed. It has no checksum, because the manager has not seen the
/// whole trace.
pub(crate) fn from_manager_outcome(payload: &JobPayload, outcome: &ManagerOutcome) -> UpdateRequest {
    let output = Output { checksum: None, bytesize: Some(outcome.trace_offset + outcome.trace_message.len() as u64) };
    UpdateRequest { output, ..update(payload, "failed", Some(outcome.reason), outcome.exit_code) }
}

/// Returns an update with the state `running`.
pub(crate) fn running_update(payload: &JobPayload) -> UpdateRequest {
    update(payload, "running", None, None)
}

/// Returns the last line of a trace, in gitlab-runner's format.
pub(crate) fn final_trace_line(reason: FailureReason, message: &str) -> String {
    let kind = if reason == FailureReason::RunnerSystemFailure { " (system failure)" } else { "" };
    format!("\x1b[31;1mERROR: Job failed{kind}: {message}\x1b[0;m\n")
}

/// Returns lines in gitlab-runner's format. The first one is shown as an error.
pub(crate) fn error_lines(lines: &[String]) -> String {
    let Some((first, details)) = lines.split_first() else { return String::new() };
    let details: String = details.iter().map(|line| format!("\x1b[0K{line}\x1b[0;m\n")).collect();
    format!("\x1b[31;1mERROR: {first}\x1b[0;m\n{details}")
}

pub(crate) fn masked(text: &str, secrets: &Secrets) -> String {
    let (mut masker, mut out) = (Masker::new(secrets), Vec::new());
    masker.push(text.as_bytes(), &mut out);
    masker.finish(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn update(payload: &JobPayload, state: &str, reason: Option<FailureReason>, exit_code: Option<i32>) -> UpdateRequest {
    let known = &payload.features.failure_reasons;
    UpdateRequest {
        token: payload.token.clone(),
        state: state.to_owned(),
        failure_reason: reason.map(|reason| for_server(reason, known).as_str().to_owned()),
        exit_code: exit_code.filter(|code| *code != 0).map(i64::from),
        ..UpdateRequest::default()
    }
}

/// Returns the failure reason for a coordinator that knows the reasons in `known`.
fn for_server(reason: FailureReason, known: &[String]) -> FailureReason {
    use FailureReason as R;
    let always = matches!(reason, R::ScriptFailure | R::RunnerSystemFailure | R::JobExecutionTimeout);
    if always || known.iter().any(|name| name == reason.as_str()) {
        return reason;
    }
    match reason {
        R::ImagePullFailure | R::RunnerExternalDependencyFailure => R::RunnerSystemFailure,
        R::RunnerConfigurationError => R::ScriptFailure,
        _ => R::UnknownFailure,
    }
}

#[cfg(test)]
mod tests {
    use muster_agent_api::result::{StepNode, StepStatus};

    use super::*;

    fn result(outcome: Outcome) -> JobResult {
        let tree = StepNode {
            name: "job".to_owned(),
            status: StepStatus::Failure,
            started_ms: 0,
            duration_ms: 0,
            exit_code: None,
            message: String::new(),
            cause: None,
            attempts: None,
            used: None,
            steps: Vec::new(),
            call: None,
        };
        JobResult { outcome, message: String::new(), log_bytes: 5, log_crc32: 0xab, tree, used: None }
    }

    fn payload(known: &[&str]) -> JobPayload {
        let features = serde_json::json!({ "failure_reasons": known });
        serde_json::from_value(serde_json::json!({ "id": 1, "token": "t", "features": features })).unwrap()
    }

    fn reported_reason(
        reason: FailureReason,
        cause: Option<TerminationCause>,
        known: &[&str],
        by_manager: bool,
    ) -> String {
        let outcome = Outcome::Failed { reason, exit_code: Some(0), cause };
        from_result(&payload(known), &result(outcome), 0, by_manager).failure_reason.unwrap()
    }

    #[test]
    fn tree_that_the_coordinator_would_reject_is_left_out() {
        let mut payload = payload(&[]);
        let extension = serde_json::json!({ "result_tree": true });
        payload.muster = Some(serde_json::from_value(extension).unwrap());
        for (length, is_sent) in [(MAX_TREE_BYTES / 2, true), (MAX_TREE_BYTES, false)] {
            let mut result = result(Outcome::Success);
            result.tree.message = "x".repeat(length);
            let update = from_result(&payload, &result, 0, false);
            assert_eq!((update.result_tree.is_some(), update.state.as_str()), (is_sent, "success"), "{length}");
        }
    }

    /// User code runs on an agent's machine, so an agent's answer may be arbitrary bytes.
    #[test]
    fn fuzz_agent_answers() {
        use muster_agent_api::{agent, step_runner};
        use prost::Message;
        let outcome = Outcome::Failed {
            reason: FailureReason::ScriptFailure,
            exit_code: Some(-1),
            cause: Some(TerminationCause::TimedOut),
        };
        let result = serde_json::to_string(&result(outcome)).unwrap();
        let entry = agent::list_jobs_response::Entry { id: "1".to_owned(), ended: true, log_bytes: -1 };
        let samples = [
            result.clone().into_bytes(),
            agent::WaitForResultResponse { result }.encode_to_vec(),
            agent::ListJobsResponse { jobs: vec![entry] }.encode_to_vec(),
            agent::GetInfoResponse { version: "0.1.0".to_owned(), pid: i64::MIN, supports_start_approval: true }
                .encode_to_vec(),
            step_runner::FollowLogsResponse { data: b"log".as_slice().into() }.encode_to_vec(),
        ];
        let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
        let words = [
            "{",
            "[",
            "\"steps\":[",
            "\"tree\":{",
            "\"log_bytes\":",
            "\"state\":\"success\"",
            "null",
            "18446744073709551615",
            "\\ud800",
        ];
        let payload = payload(&[]);
        muster_fuzz::fuzz("agent answers", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
            let _ = agent::GetInfoResponse::decode(input);
            let _ = agent::ListJobsResponse::decode(input);
            let _ = agent::WaitForStartApprovalResponse::decode(input);
            let _ = step_runner::FollowLogsResponse::decode(input);
            let _ = step_runner::StatusResponse::decode(input);
            let waited = agent::WaitForResultResponse::decode(input).map(|answer| answer.result).unwrap_or_default();
            for text in [waited, String::from_utf8_lossy(input).into_owned()] {
                let Ok(result) = serde_json::from_str::<JobResult>(&text) else { continue };
                for from in [0, 1 << 40] {
                    serde_json::to_string(&from_result(&payload, &result, from, true)).unwrap();
                }
                let _ = result.to_tree().map(|tree| muster_agent_api::result::ResourceUsage::from_tree(&tree));
            }
        });
    }

    #[test]
    fn failure_reasons_are_mapped_to_those_the_server_knows() {
        use FailureReason as R;
        assert_eq!(reported_reason(R::ScriptFailure, None, &[], false), "script_failure");
        assert_eq!(
            reported_reason(R::ScriptFailure, Some(TerminationCause::TimedOut), &[], false),
            "job_execution_timeout"
        );
        assert_eq!(
            reported_reason(R::ScriptFailure, Some(TerminationCause::EnvironmentLost), &[], false),
            "runner_system_failure"
        );
        assert_eq!(
            reported_reason(R::JobCanceled, Some(TerminationCause::CanceledByUser), &[], false),
            "unknown_failure"
        );
        let known = ["job_canceled", "runner_interrupted", "image_pull_failure"];
        assert_eq!(reported_reason(R::JobCanceled, None, &known, false), "job_canceled");
        assert_eq!(reported_reason(R::JobCanceled, None, &known, true), "runner_interrupted");
        assert_eq!(reported_reason(R::ImagePullFailure, None, &known, false), "image_pull_failure");
        assert_eq!(reported_reason(R::ImagePullFailure, None, &[], false), "runner_system_failure");
        assert_eq!(reported_reason(R::RunnerConfigurationError, None, &[], false), "script_failure");
    }

    #[test]
    fn result_tree_of_an_update_has_a_maximum_size() {
        use muster_agent_api::result::CallRecord;
        let tree_with = |name_bytes: usize, record_bytes: usize| {
            let mut result = result(Outcome::Success);
            result.tree.name = "n".repeat(name_bytes);
            let call = CallRecord { step: "s".repeat(record_bytes), ..CallRecord::default() };
            result.tree.steps = vec![StepNode { call: Some(Box::new(call)), ..result.tree.clone() }];
            let muster = serde_json::json!({ "id": 1, "token": "t", "muster": { "result_tree": true } });
            let payload = serde_json::from_value(muster).unwrap();
            from_result(&payload, &result, 0, false).result_tree
        };
        let has_record = |name_bytes, record_bytes| {
            let tree = tree_with(name_bytes, record_bytes)?;
            Some(tree["steps"][0].get("call").is_some())
        };
        assert_eq!(has_record(10, 1000), Some(true));
        assert_eq!(has_record(10, MAX_TREE_BYTES), Some(false), "the tree must be sent without its record");
        assert_eq!(has_record(MAX_TREE_BYTES, 10), None);
    }

    #[test]
    fn update_has_size_checksum_and_nonzero_exit_code() {
        let outcome = Outcome::Failed { reason: FailureReason::ScriptFailure, exit_code: Some(3), cause: None };
        let update = from_result(&payload(&[]), &result(outcome), 0, false);
        let output = Output { checksum: Some("crc32:000000ab".to_owned()), bytesize: Some(5) };
        assert_eq!((update.exit_code, update.output, update.result_tree), (Some(3), output, None));
        let success = from_result(&payload(&[]), &result(Outcome::Success), 0, false);
        assert_eq!((success.state.as_str(), success.failure_reason, success.exit_code), ("success", None, None));
        // Bytes of an earlier attempt count, but have no checksum.
        let rescheduled = from_result(&payload(&[]), &result(Outcome::Success), 100, false).output;
        assert_eq!(rescheduled, Output { checksum: None, bytesize: Some(105) });
    }
}
