//! Tests of whole `run:` lists, with real processes.

use std::fs;

use muster_agent_api::result::StepStatus;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::log::{Log, Stream};
use crate::process::{Containment, ProcessManager};
use crate::style;

mod extension;

#[derive(Default)]
struct MemoryLog(Mutex<String>);

impl Log for MemoryLog {
    fn write(&self, _: Stream, bytes: &[u8]) {
        self.0.lock().push_str(&String::from_utf8_lossy(bytes));
    }
}

struct ListResult {
    log: String,
    nodes: Vec<StepNode>,
    result: Result<(), String>,
}

async fn run(files: &[(&str, &str)], list: Value) -> ListResult {
    run_with_source(files, list, None).await
}

async fn run_with_source(files: &[(&str, &str)], list: Value, step_source: Option<Arc<dyn StepSource>>) -> ListResult {
    let dir = TempDir::new().unwrap();
    let temp = TempDir::new().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path).join("step.yml");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let nonce = dir.path().file_name().unwrap().to_string_lossy().into_owned();
    let processes = manager.new_job("steps", &nonce, Arc::new(|_| Ok(()))).unwrap();
    let memory = Arc::new(MemoryLog::default());
    let stop = StopToken::new();
    let variables = Map::from_iter([("CI_NAME".to_owned(), json!("from the job"))]);
    let grace = Duration::from_millis(200);
    let settings = Settings::read(|_| None).unwrap();
    let steps = UserSteps {
        processes: &processes,
        log: Arc::new(MaskedLog::new(Arc::<MemoryLog>::clone(&memory))),
        stop: &stop,
        grace,
        environment: processes.environment().into(),
        variables: Arc::new(variables),
        settings,
        policy: None,
        obeys_lock_file: true,
        work_dir: dir.path(),
        image: "",
        temp_dir: temp.path(),
        exports: Arc::default(),
        own_exports: Arc::default(),
        offered: Arc::default(),
        is_step_file: false,
        on_results: None,
        recorded_calls: RecordedCalls::None,
        record_bytes_left: Arc::new(MAX_RECORD_BYTES.into()),
        development: None,
        debugger: None,
        step_source,
        bundled: None,
        remote: Arc::default(),
        retry_backoff: (Duration::ZERO, Duration::ZERO),
        has_section_markers: false,
        network: None,
    };
    let mut nodes = Vec::new();
    let result = steps.run("run", &list, false, &mut nodes).await.map(drop).map_err(|error| {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            text = format!("{text} / {inner}");
            source = inner.source();
        }
        text
    });
    processes.finish(grace).await;
    let log = memory.0.lock().clone();
    ListResult { log, nodes, result }
}

const GREET: &str = "spec:\n  inputs:\n    who: {type: string, default: you}\n  outputs:\n    text: {type: string}\n\
                     ---\nexec:\n  command: [sh, -c, 'echo \"{\\\"name\\\":\\\"text\\\",\\\"value\\\":\\\"hi $WHO\\\"}\" > \
                     ${{output_file}}; echo \"{\\\"name\\\":\\\"SEEN\\\",\\\"value\\\":true}\" > ${{export_file}}']\n\
                     env:\n  WHO: ${{ inputs.who }}\n";

#[tokio::test]
async fn later_steps_get_outputs_and_exports_of_earlier_ones() {
    let list = json!([
        {"name": "greet", "step": "./greet", "inputs": {"who": "${{ vars.CI_NAME }}"}},
        {"name": "show", "env": {"TEXT": "${{ steps.greet.outputs.text }}"}, "script": "echo \"$TEXT, seen $SEEN\""},
        {"name": "last", "script": "echo '${{ job.CI_NAME }}'"},
    ]);
    let outcome = run(&[("greet", GREET)], list).await;
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.log, "hi from the job, seen true\nfrom the job\n");
    let names: Vec<_> = outcome.nodes.iter().map(|node| (node.name.as_str(), node.status)).collect();
    assert_eq!(names, ["greet", "show", "last"].map(|name| (name, StepStatus::Success)));
}

#[tokio::test]
async fn sequence_calls_sibling_steps_and_returns_outputs() {
    let outer = "spec: {outputs: {both: {type: string}}}\n---\nrun:\n  - {name: a, step: ../greet}\n  \
                 - {name: b, step: ../greet, inputs: {who: b}}\noutputs:\n  \
                 both: ${{ steps.a.outputs.text + ', ' + steps.b.outputs.text }}\n";
    let all = "spec: {outputs: delegate}\n---\nrun: [{name: in, step: ../outer}]\ndelegate: in\n";
    let list = json!([{"name": "o", "step": "./all"}, {"script": "echo '${{ steps.o.outputs.both }}'"}]);
    let outcome = run(&[("greet", GREET), ("outer", outer), ("all", all)], list).await;
    assert_eq!((outcome.result, outcome.log.as_str()), (Ok(()), "hi you, hi b\n"));
    assert_eq!(outcome.nodes[0].steps[0].steps.len(), 2);
}

#[tokio::test]
async fn first_failure_ends_its_sequence_and_the_list_around_it() {
    let outer = "{}\n---\nrun:\n  - {name: bad, script: exit 7}\n  - {name: never, script: echo never}\n";
    let outcome = run(&[("outer", outer)], json!([{"name": "o", "step": "./outer"}, {"script": "echo never"}])).await;
    assert_eq!(outcome.log, "");
    assert!(outcome.result.unwrap_err().ends_with("exec: exit status 7"));
    assert_eq!((outcome.nodes.len(), outcome.nodes[0].exit_code, outcome.nodes[0].steps.len()), (1, Some(7), 1));
}

#[tokio::test]
async fn env_layers_override_each_other_in_order() {
    let show = "{}\n---\nexec: {command: [sh, -c, 'echo $A $B $C']}\nenv: {C: definition}\n";
    let outer =
        "{}\n---\nrun:\n  - {name: s, step: ../show, env: {B: item, C: item}}\nenv: {A: outer, B: outer, C: outer}\n";
    let outcome = run(&[("show", show), ("outer", outer)], json!([{"name": "o", "step": "./outer"}])).await;
    assert_eq!((outcome.result, outcome.log.as_str()), (Ok(()), "outer item definition\n"));
}

#[tokio::test]
async fn invalid_step_is_rejected_with_reason() {
    let endless = "{}\n---\nrun: [{name: again, step: ../endless}]\n";
    for (item, part) in [
        (json!({"name": "x", "step": "./none"}), "reading file: No such file"),
        (json!({"name": "x", "step": "gitlab.com/a/b@v1"}), "remote steps are not available here"),
        (json!({"name": "x", "step": {"git": {"url": "u", "rev": "v"}}}), "is not a valid URL of a step"),
        (json!({"name": "x", "step": "./greet", "inputs": {"y": 1}}), "does not accept input with name \"y\""),
        (json!({"name": "x", "script": "${{ steps.no }}"}), "attribute not found"),
        (json!({"name": "x", "step": "builtin://none"}), "there is no built-in step \"none\""),
        (json!({"name": "x", "step": "./endless"}), "steps are nested more than 32 levels deep"),
        (json!({"name": "x", "step": "./lost"}), "executable file not found in $PATH"),
        (json!({"name": "x"}), "needs exactly one of"),
    ] {
        let lost = "{}\n---\nexec: {command: [no-such-program-anywhere]}\n";
        let outcome = run(&[("greet", GREET), ("endless", endless), ("lost", lost)], json!([item])).await;
        let error = outcome.result.unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
}
