//! Steps with Muster's own keys.

use async_trait::async_trait;
use tokio::sync::Notify;

use super::*;
use crate::failure::PortError;
use crate::remote::{FetchRequest, FetchedSource};

fn entry(name: &str, script: &str, keys: Value) -> Value {
    json!({"name": name, "script": script, "muster": keys})
}

fn states(outcome: &ListResult) -> Vec<(&str, StepStatus)> {
    outcome.nodes.iter().map(|node| (node.name.as_str(), node.status)).collect()
}

#[tokio::test]
async fn step_whose_condition_is_not_met_is_skipped_with_the_reason() {
    let list = json!([
        entry("met", "echo met", json!({"if": "${{ vars.CI_NAME == 'from the job' }}"})),
        entry("unmet", "echo unmet", json!({"if": "${{ vars.CI_NAME == 'other' }}"})),
        entry("off", "echo off", json!({"if": false})),
        {"name": "last", "script": "echo ${{ steps.unmet.outputs.text || 'nothing' }}"},
    ]);
    let outcome = run(&[], list).await;
    assert_eq!((outcome.result.clone(), outcome.log.as_str()), (Ok(()), "met\nnothing\n"));
    let expected = [StepStatus::Success, StepStatus::Skipped, StepStatus::Skipped, StepStatus::Success];
    assert_eq!(states(&outcome).iter().map(|(_, status)| *status).collect::<Vec<_>>(), expected);
    assert_eq!(outcome.nodes[1].message, "its condition is not met: ${{ vars.CI_NAME == 'other' }}");
    assert_eq!(outcome.nodes[2].message, "its condition is not met: false");
    let outcome = run(&[], json!([entry("a", "echo never", json!({"if": "${{ vars.NONE }}"}))])).await;
    assert!(
        outcome.result.unwrap_err().contains("if: evaluating expression failed at \".NONE\""),
        "{:?}",
        outcome.nodes
    );
    assert_eq!(outcome.log, "");
}

#[tokio::test]
async fn failed_step_is_repeated_and_the_result_has_the_number_of_attempts() {
    let script = "echo try >>tries; test $(wc -l <tries) = 3";
    let list = json!([entry("flaky", script, json!({"retry": 5})), {"name": "last", "script": "wc -l <tries"}]);
    let outcome = run(&[], list).await;
    assert_eq!(outcome.result, Ok(()));
    let warning = style::warning("Retrying... flaky error=exec: exit status 1");
    assert_eq!(outcome.log, format!("{warning}{warning}3\n"));
    assert_eq!((outcome.nodes[0].attempts, outcome.nodes[1].attempts), (Some(3), None));
    let outcome = run(&[], json!([entry("bad", "exit 4", json!({"retry": {"max": 1, "delay": "1ms"}}))])).await;
    assert_eq!((outcome.nodes[0].attempts, outcome.nodes[0].exit_code), (Some(2), Some(4)));
    assert!(outcome.result.unwrap_err().ends_with("exec: exit status 4"));
}

#[tokio::test]
async fn step_that_exceeds_its_timeout_fails_and_is_not_repeated() {
    let list = json!([
        entry("slow", "echo begun; sleep 600", json!({"timeout": "200ms", "retry": 2})),
        {"name": "never", "script": "echo never"},
        entry("after", "echo after", json!({"when": "always"})),
    ]);
    let outcome = run(&[], list).await;
    assert_eq!(outcome.log, "begun\nafter\n");
    assert!(outcome.result.clone().unwrap_err().ends_with("exceeded timeout of 200ms"), "{:?}", outcome.result);
    assert_eq!(states(&outcome), [("slow", StepStatus::Failure), ("after", StepStatus::Success)]);
    assert_eq!(outcome.nodes[0].cause, Some(TerminationCause::TimedOut));
    assert_eq!(outcome.nodes[0].attempts, None);
}

#[tokio::test]
async fn key_when_selects_the_steps_after_a_failure_and_the_list_fails_with_the_first_failure() {
    let list = json!([
        entry("early", "echo early", json!({"when": "on_failure"})),
        entry("allowed", "exit 2", json!({"allow_failure": true})),
        {"name": "bad", "script": "exit 3"},
        {"name": "never", "script": "echo never"},
        entry("report", "echo report; exit 4", json!({"when": "on_failure"})),
        entry("clean", "echo clean", json!({"when": "always"})),
    ]);
    let outcome = run(&[], list).await;
    let allowed = style::warning("allowed failed, but the job continues: exec: exit status 2");
    let report = style::warning("report failed, too: exec: exit status 4");
    assert_eq!(outcome.log, format!("{allowed}report\n{report}clean\n"));
    assert!(outcome.result.clone().unwrap_err().ends_with("exec: exit status 3"), "{:?}", outcome.result);
    use StepStatus::{Failure, Skipped, Success};
    let expected =
        [("early", Skipped), ("allowed", Failure), ("bad", Failure), ("report", Failure), ("clean", Success)];
    assert_eq!(states(&outcome), expected);
    assert_eq!(outcome.nodes[0].message, "no earlier step has failed");
}

#[tokio::test]
async fn matrix_runs_the_step_for_all_combinations_and_outputs_become_lists() {
    let matrix = json!({"matrix": [{"os": ["linux", "mac"], "level": [1, 2]}, {"os": ["plan9"], "level": [3]}]});
    let list = json!([
        {"name": "greet", "step": "./greet", "inputs": {"who": "${{ matrix.os + str(matrix.level) }}"}, "muster": matrix},
        {"name": "show", "script": "echo '${{ steps.greet.outputs.text }} ${{ steps.greet.outputs.text[4] }}'"},
        entry("each", "echo '${{ matrix.text }}'", json!({"matrix": {"text": "${{ steps.greet.outputs.text }}"}})),
    ]);
    let outcome = run(&[("greet", GREET)], list).await;
    assert_eq!(outcome.result, Ok(()), "{}", outcome.log);
    let texts = ["hi linux1", "hi linux2", "hi mac1", "hi mac2", "hi plan93"];
    assert_eq!(outcome.log, format!("{} hi plan93\n{}\n", json!(texts), texts.join("\n")));
    let names: Vec<_> = outcome.nodes.iter().take(5).map(|node| node.name.as_str()).collect();
    let expected =
        ["greet: [linux, 1]", "greet: [linux, 2]", "greet: [mac, 1]", "greet: [mac, 2]", "greet: [plan9, 3]"];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn invalid_matrix_fails_its_step() {
    let many: Vec<u32> = (0..15).collect();
    for (matrix, message) in [
        (json!({"a": "${{ vars.CI_NAME }}"}), "matrix: \"a\" must be a list of texts, numbers or booleans"),
        (json!({"a": [[1]]}), "matrix: \"a\" must be a list"),
        (json!({"a": "${{ nothing }}"}), "matrix: expand \"a\": evaluating expression failed"),
        (json!({"a": many, "b": many}), "matrix: more than 200 combinations"),
    ] {
        let outcome = run(&[], json!([entry("m", "echo never", json!({"matrix": matrix}))])).await;
        let error = outcome.result.clone().unwrap_err();
        assert!(error.contains(message), "{error}");
        assert_eq!((outcome.log.as_str(), states(&outcome)), ("", vec![("m", StepStatus::Failure)]));
    }
    let empty = json!({"matrix": {"a": "${{ [] }}"}});
    let outcome = run(&[], json!([entry("m", "echo never", empty), {"name": "last", "script": "echo last"}])).await;
    assert_eq!((outcome.result, outcome.log.as_str()), (Ok(()), "last\n"));
    assert_eq!(outcome.nodes[0].message, "its matrix has no values");
}

#[tokio::test]
async fn parallel_steps_run_at_the_same_time_and_the_log_has_their_output_in_order() {
    // Each step waits for the other, so they end only if they run at the same time.
    let fifos = json!({"name": "fifos", "script": "mkfifo first second"});
    let list = json!([
        fifos,
        entry("a", "echo a begins; echo >first; read x <second; echo a ends", json!({"parallel": true})),
        entry("b", "echo b begins; read x <first; echo >second; echo b ends", json!({"parallel": 2})),
        {"name": "last", "script": "echo last"},
    ]);
    let outcome = run(&[], list).await;
    assert_eq!(outcome.result, Ok(()));
    let expected = format!("{}a begins\na ends\n{}b begins\nb ends\nlast\n", style::title("a"), style::title("b"));
    assert_eq!(outcome.log, expected);
}

#[tokio::test]
async fn exports_of_parallel_steps_are_merged_in_the_order_of_the_list() {
    let export = "{}\n---\nexec: {command: [sh, -c, '$0; printf \"%s\\n\" \"$1\" >\"$2\"', '${{env.WAIT}}', \
                  '{\"name\": \"X\", \"value\": \"${{env.VALUE}}\"}', '${{export_file}}']}\n";
    let step = |name: &str, wait: &str| json!({"name": name, "step": "./export", "env": {"WAIT": wait, "VALUE": name}, "muster": {"parallel": true}});
    let list = json!([
        {"name": "fifo", "script": "mkfifo fifo; printf '#!/bin/sh\\necho >fifo\\n' >go; printf '#!/bin/sh\\nread x <fifo\\n' >wait; chmod +x go wait"},
        step("first", "./wait"),
        step("second", "./go"),
        {"name": "last", "script": "echo $X"},
    ]);
    let outcome = run(&[("export", export)], list).await;
    assert_eq!(outcome.result, Ok(()), "{}", outcome.log);
    assert!(outcome.log.ends_with("\nsecond\n"), "{}", outcome.log);
}

#[tokio::test]
async fn export_of_a_parallel_step_counts_even_if_it_repeats_the_value_before_the_group() {
    let export = "{}\n---\nexec: {command: [sh, -c, 'printf \"%s\\n\" \"$0\" >\"$1\"', \
                  '{\"name\": \"X\", \"value\": \"${{env.VALUE}}\"}', '${{export_file}}']}\n";
    let step = |name: &str, value: &str, keys: Value| json!({"name": name, "step": "./export", "env": {"VALUE": value}, "muster": keys});
    let list = json!([
        step("before", "old", json!({"if": true})),
        step("first", "new", json!({"parallel": true})),
        step("second", "old", json!({"parallel": true})),
        {"name": "last", "script": "echo $X"},
    ]);
    let outcome = run(&[("export", export)], list).await;
    assert_eq!(outcome.result, Ok(()), "{}", outcome.log);
    assert!(outcome.log.ends_with("\nold\n"), "the last step in the list must take effect: {}", outcome.log);
}

#[tokio::test]
async fn parallel_steps_that_wait_for_a_slot_are_skipped_after_a_failure() {
    let keys = json!({"parallel": 1, "matrix": {"code": [0, 5, 0]}});
    let outcome = run(&[], json!([entry("m", "exit ${{ matrix.code }}", keys)])).await;
    use StepStatus::{Failure, Skipped, Success};
    assert_eq!(outcome.nodes.iter().map(|node| node.status).collect::<Vec<_>>(), [Success, Failure, Skipped]);
    assert_eq!(outcome.nodes[2].message, "another of the parallel steps has failed");
    assert!(outcome.result.unwrap_err().starts_with("step \"m: [5]\": "));
}

#[tokio::test]
async fn steps_of_a_step_file_can_have_musters_keys_and_a_section() {
    let file = "spec: {inputs: {names: {type: array}}, outputs: {all: {type: array}}}\n---\nrun:\n  \
                - {name: greet, step: ../greet, inputs: {who: '${{ matrix.name }}'}, \
                   muster: {section: Greet, matrix: {name: '${{ inputs.names }}'}}}\noutputs:\n  \
                all: ${{ steps.greet.outputs.text }}\n";
    let list = json!([
        {"name": "o", "step": "./outer", "inputs": {"names": ["a", "b"]}},
        {"name": "show", "script": "echo '${{ steps.o.outputs.all }}'"},
    ]);
    let outcome = run(&[("greet", GREET), ("outer", file)], list).await;
    assert_eq!(outcome.result, Ok(()), "{}", outcome.log);
    let titles = [style::title("Greet: [a]"), style::title("Greet: [b]")].concat();
    assert_eq!(outcome.log, format!("{titles}[\"hi a\",\"hi b\"]\n"));
}

#[tokio::test]
async fn timeout_of_a_parallel_step_does_not_end_the_others() {
    let list = json!([
        {"name": "fifo", "script": "mkfifo fifo"},
        entry("slow", "echo begun; sleep 600", json!({"parallel": true, "timeout": "200ms", "allow_failure": true})),
        // `long` waits for `last`, which starts when the timeout of `slow` has freed a slot.
        entry("long", "read x <fifo; echo long ends", json!({"parallel": 2})),
        entry("last", "echo >fifo; echo last", json!({"parallel": 2})),
    ]);
    let outcome =
        tokio::time::timeout(Duration::from_secs(60), run(&[], list)).await.expect("the steps must end in time");
    assert_eq!(outcome.result, Ok(()), "{}", outcome.log);
    assert!(outcome.log.contains("\nlong ends\n") && outcome.log.ends_with("\nlast\n"), "{}", outcome.log);
    assert_eq!(outcome.nodes[1].cause, Some(TerminationCause::TimedOut));
    use StepStatus::{Failure, Success};
    assert_eq!(states(&outcome)[1..], [("slow", Failure), ("long", Success), ("last", Success)]);
}

/// Source whose version `slow` arrives after its version `fast`.
struct SlowSource {
    dir: TempDir,
    fast_arrived: Notify,
}

#[async_trait]
impl StepSource for SlowSource {
    async fn fetch(&self, request: FetchRequest<'_>, _: &StopToken) -> Result<FetchedSource, PortError> {
        match request.source.version() {
            "slow" => self.fast_arrived.notified().await,
            _ => self.fast_arrived.notify_one(),
        }
        Ok(FetchedSource { dir: self.dir.path().to_owned(), digest: "0".to_owned(), notices: Vec::new() })
    }
}

#[tokio::test]
async fn fetch_of_a_parallel_step_delays_neither_the_timeout_nor_the_fetch_of_another_step() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("steps")).unwrap();
    fs::write(dir.path().join("steps/step.yml"), "{}\n---\nexec: {command: [echo, ran]}\n").unwrap();
    let source = Arc::new(SlowSource { dir, fast_arrived: Notify::new() });
    let step = |name: &str, version: &str, keys: Value| json!({"name": name, "step": format!("example.org/a@{version}"), "muster": keys});
    // `fast` starts after the timeout of `second`, and ends the fetch for `first`.
    let list = json!([
        step("first", "slow", json!({"parallel": 2})),
        step("second", "slow", json!({"parallel": 2, "timeout": "200ms", "allow_failure": true})),
        step("fast", "fast", json!({"parallel": 2})),
    ]);
    let running = run_with_source(&[], list, Some(source));
    let outcome = tokio::time::timeout(Duration::from_secs(60), running).await.expect("the steps must end in time");
    assert_eq!(outcome.result, Ok(()), "{}", outcome.log);
    use StepStatus::{Failure, Success};
    assert_eq!(states(&outcome), [("first", Success), ("second", Failure), ("fast", Success)]);
    assert_eq!(outcome.nodes[1].cause, Some(TerminationCause::TimedOut));
}

#[tokio::test]
async fn step_that_always_runs_also_runs_after_the_failure_of_a_parallel_step() {
    let list = json!([
        entry("bad", "exit 3", json!({"parallel": 1})),
        entry("waiting", "echo never", json!({"parallel": 1})),
        entry("clean", "echo clean", json!({"parallel": 1, "when": "always"})),
        entry("report", "echo never", json!({"parallel": 1, "when": "on_failure"})),
    ]);
    let outcome = run(&[], list).await;
    assert!(outcome.log.contains("\nclean\n") && !outcome.log.contains("\nnever\n"), "{}", outcome.log);
    use StepStatus::{Failure, Skipped, Success};
    let expected = [("report", Skipped), ("bad", Failure), ("waiting", Skipped), ("clean", Success)];
    assert_eq!(states(&outcome), expected);
    assert_eq!(outcome.nodes[0].message, "no earlier step has failed");
    assert_eq!(outcome.nodes[2].message, "another of the parallel steps has failed");
    let matrix = json!({"when": "always", "matrix": {"code": [5, 0]}});
    let outcome = run(&[], json!([entry("m", "exit ${{ matrix.code }}", matrix)])).await;
    assert_eq!(states(&outcome), [("m: [5]", Failure), ("m: [0]", Success)], "a step without `parallel` must also run");
}

#[tokio::test]
async fn parallel_steps_do_not_start_if_one_of_them_is_invalid_unless_they_always_run() {
    let list = json!([
        entry("other", "echo never", json!({"parallel": true})),
        entry("bad", "echo never", json!({"parallel": true, "matrix": {"a": "${{ vars.NONE }}"}})),
        entry("report", "echo never", json!({"parallel": true, "when": "on_failure"})),
        entry("clean", "echo clean", json!({"parallel": true, "when": "always"})),
    ]);
    let outcome = run(&[], list).await;
    assert!(outcome.result.clone().unwrap_err().contains("matrix: expand \"a\""), "{:?}", outcome.result);
    assert!(outcome.log.contains("clean\n") && !outcome.log.contains("\nnever\n"), "{}", outcome.log);
    use StepStatus::{Failure, Skipped, Success};
    let expected = [("bad", Failure), ("report", Skipped), ("other", Skipped), ("clean", Success)];
    assert_eq!(states(&outcome), expected);
    assert_eq!(outcome.nodes[1].message, "no earlier step has failed");
    assert_eq!(outcome.nodes[2].message, "another of the parallel steps has failed");
}

#[tokio::test]
async fn waiting_parallel_steps_that_are_stopped_have_the_reason_of_the_stop() {
    let inner = "{}\n---\nrun:\n  - {name: first, script: 'exec sleep 600', muster: {parallel: 1, timeout: 1h}}\n  \
                 - {name: second, script: echo never, muster: {parallel: 1}}\n";
    let list = json!([{"name": "outer", "step": "./inner", "muster": {"timeout": "200ms"}}]);
    let outcome = run(&[("inner", inner)], list).await;
    assert!(outcome.result.unwrap_err().ends_with("exceeded timeout of 200ms"));
    assert!(!outcome.log.contains("failed, too"), "a stop must not count as another failure: {}", outcome.log);
    let [first, second] = &outcome.nodes[0].steps[..] else { panic!("{:?}", outcome.nodes) };
    assert_eq!((first.status, second.status), (StepStatus::Cancelled, StepStatus::Skipped));
    assert_eq!(second.message, "a timeout expired before the step started");
}

#[tokio::test]
async fn allow_failure_also_tolerates_an_invalid_condition_or_matrix() {
    let list = json!([
        entry("condition", "echo never", json!({"allow_failure": true, "if": "${{ vars.NONE }}"})),
        entry("values", "echo never", json!({"allow_failure": true, "matrix": {"a": "${{ vars.NONE }}"}})),
        {"name": "last", "script": "echo last"},
    ]);
    let outcome = run(&[], list).await;
    assert_eq!(outcome.result, Ok(()), "{}", outcome.log);
    for start in ["condition failed, but the job continues: if: ", "values failed, but the job continues: matrix: "] {
        assert!(outcome.log.contains(start), "{start}: {}", outcome.log);
    }
    assert!(outcome.log.ends_with("last\n"), "{}", outcome.log);
    use StepStatus::{Failure, Success};
    assert_eq!(states(&outcome), [("condition", Failure), ("values", Failure), ("last", Success)]);
}

#[tokio::test]
async fn failure_that_would_occur_in_every_attempt_is_not_retried() {
    let twice = json!({"retry": 2});
    for (item, message) in [
        (entry("a", "echo ${{ vars.NONE }}", twice.clone()), "evaluating expression failed"),
        (json!({"name": "a", "step": "./greet", "inputs": {"none": 1}, "muster": twice}), "does not accept input"),
        (json!({"name": "a", "step": "${{ 'builtin://none' }}", "muster": twice}), "there is no built-in step"),
        (json!({"name": "a", "step": "./inner", "muster": twice}), "there is no built-in step"),
    ] {
        let inner = "{}\n---\nrun: [{name: b, step: '${{ \"builtin://none\" }}'}]\n";
        let outcome = run(&[("greet", GREET), ("inner", inner)], json!([item])).await;
        let error = outcome.result.unwrap_err();
        assert!(error.contains(message), "{error}");
        assert_eq!((outcome.log.as_str(), outcome.nodes[0].attempts), ("", None), "{error}");
    }
    // An expression inside the step can use outputs of its other steps.
    let inner = "{}\n---\nrun:\n  - {name: flaky, step: ../flaky, muster: {allow_failure: true}}\n  \
                 - {name: use, script: 'echo ${{ steps.flaky.outputs.text }}'}\n";
    let flaky = "spec: {outputs: {text: {type: string}}}\n---\nexec: {command: [sh, -c, 'echo try >>tries; test $(wc -l <tries) = 2 && \
                 echo \"{\\\"name\\\":\\\"text\\\",\\\"value\\\":\\\"done\\\"}\" >${{output_file}}']}\n";
    let list = json!([{"name": "a", "step": "./inner", "muster": {"retry": 2}}]);
    let outcome = run(&[("inner", inner), ("flaky", flaky)], list).await;
    assert_eq!((outcome.result, outcome.nodes[0].attempts), (Ok(()), Some(2)), "{}", outcome.log);
}
