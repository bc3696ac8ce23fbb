//! Runs step files in a temporary project directory.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::plan::{self, JobPlan, Policy};
use muster_agent_api::result::StepNode;
use muster_agent_api::step_runner::RunRequest;
use muster_steps::builtin::{Call, OpenTarget, Step};
use muster_steps::definition::StepFile;
use muster_steps::engine::{Engine, Job, JobCancellation, StartTime};
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::process::{Containment, ProcessManager, Processes};
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_millis(200);

/// Step E: prints its five inputs as `s|n|b|o|a|`.
const ECHO: &str = "spec:
  inputs:
    s: {type: string, default: d}
    n: {type: number, default: 1}
    b: {type: boolean, default: true}
    o: {type: struct, default: {}}
    a: {type: array, default: []}
  outputs:
    x: {type: string, default: dx}
---
exec:
  command: [printf, '%s|%s|%s|%s|%s|\\n', '${{inputs.s}}', '${{inputs.n}}', '${{inputs.b}}', '${{inputs.o}}', '${{inputs.a}}']
";

/// Step W: writes its input `line` to the output file.
const WRITE_OUTPUT: &str = "spec:
  inputs:
    line: {type: string}
  outputs:
    x: {type: string, default: dx}
    n: {type: number, default: 2}
---
exec: {command: [sh, -c, 'printf \"%s\\n\" \"$1\" >\"$2\"', w, '${{inputs.line}}', '${{output_file}}']}
";

/// Step X: writes its input `line` to the export file.
const WRITE_EXPORT: &str = "spec:
  inputs:
    line: {type: string}
---
exec: {command: [sh, -c, 'printf \"%s\\n\" \"$1\" >\"$2\"', x, '${{inputs.line}}', '${{export_file}}']}
";

/// Project with step files, variables and environment. Steps E, W and X exist as `./e`, `./w` and `./x`.
pub(crate) struct Project {
    dir: TempDir,
    variables: Map<String, Value>,
    env: Vec<(OsString, OsString)>,
}

impl Project {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let project = Self { dir, variables: Map::new(), env: Vec::new() };
        project.step("e", ECHO).step("w", WRITE_OUTPUT).step("x", WRITE_EXPORT)
    }

    pub(crate) fn legacy() -> Self {
        Self::new().variable("CI_STEPS_DIALECT", "legacy")
    }

    /// Adds the step file `<path>/step.yml`.
    pub(crate) fn step(self, path: &str, text: &str) -> Self {
        self.file(&format!("{path}/step.yml"), text)
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        assert!(Path::new(path).is_relative(), "{path:?} must be relative to the project");
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), json!(value));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn run(&self, items: &str) -> Outcome {
        self.run_file(&format!("{{}}\n---\nrun:\n{items}")).await
    }

    pub(crate) async fn run_file(&self, text: &str) -> Outcome {
        match StepFile::parse(text) {
            Ok(file) => self.execute(Call::StepFile(Box::new(file))).await,
            Err(error) => Outcome { log: String::new(), failure: Some(error.to_string()), nodes: Vec::new() },
        }
    }

    pub(crate) async fn run_list(&self, list: Value) -> Outcome {
        self.execute(Call::Run(list)).await
    }

    async fn execute(&self, call: Call<TestJob>) -> Outcome {
        let temp = TempDir::new().unwrap();
        let manager = ProcessManager::new(Containment::ProcessTree, None);
        let nonce = temp.path().file_name().unwrap().to_string_lossy().into_owned();
        let mut processes = manager.new_job("steps", &nonce, Arc::new(|_| Ok(()))).unwrap();
        processes.add_environment(self.env.clone());
        let job = Arc::new(TestJob {
            processes,
            log: Arc::default(),
            project_dir: self.path().to_owned(),
            temp_dir: temp.path().to_owned(),
            variables: self.variables.clone(),
        });
        let engine = Engine::new(Arc::clone(&job), &JobPlan::default(), StartTime::now());
        let step = Step { name: "run".to_owned(), policy: Policy::default(), call, record: None };
        let result = engine.run(&[step], &JobCancellation::default()).await;
        job.processes.finish(GRACE).await;
        let nodes = result.nodes.into_iter().flat_map(|node| node.steps).collect();
        let log = job.log.0.lock().clone();
        Outcome { log, failure: result.failure.map(|failure| failure.to_string()), nodes }
    }
}

#[derive(Debug)]
pub(crate) struct Outcome {
    log: String,
    failure: Option<String>,
    pub(crate) nodes: Vec<StepNode>,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn log(&self) -> &str {
        assert_eq!(self.failure, None, "{self:#?}");
        &self.log
    }

    #[track_caller]
    pub(crate) fn error(&self) -> String {
        let failure = self.failure.as_ref().unwrap_or_else(|| panic!("the run must fail: {self:#?}"));
        let messages = self.nodes.iter().map(|node| node.message.as_str());
        [failure.as_str()].into_iter().chain(messages).collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    pub(crate) fn log_before_error(&self) -> &str {
        self.error();
        &self.log
    }

    #[track_caller]
    pub(crate) fn assert_error(&self, part: &str) {
        let error = self.error();
        assert!(error.contains(part), "expected {part:?} in {error:?}");
    }
}

#[derive(Default)]
struct MemoryLog(Mutex<String>);

impl Log for MemoryLog {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        // The tests only check the output of steps.
        if stream == Stream::Runner {
            return;
        }
        self.0.lock().push_str(&String::from_utf8_lossy(bytes));
    }
}

struct TestJob {
    processes: Processes,
    log: Arc<MemoryLog>,
    project_dir: PathBuf,
    temp_dir: PathBuf,
    variables: Map<String, Value>,
}

impl Job for TestJob {
    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn log(&self) -> Arc<dyn Log> {
        Arc::<MemoryLog>::clone(&self.log)
    }

    fn grace(&self) -> Duration {
        GRACE
    }

    fn work_dir(&self) -> &Path {
        &self.project_dir
    }

    fn temp_dir(&self) -> &Path {
        &self.temp_dir
    }

    fn values(&self) -> Map<String, Value> {
        self.variables.clone()
    }

    fn set_status(&self, _: &'static str) {}

    fn delegate_request(&self, _: &dyn OpenTarget, _: &[plan::Step]) -> Result<RunRequest, Failure> {
        Err(Failure::System("this job has one agent".to_owned()))
    }

    fn add_delegated_usage(&self, _: &muster_agent_api::result::ResourceUsage) {}

    async fn begin_step(self: &Arc<Self>, _: &StopToken) -> Result<(), Failure> {
        Ok(())
    }

    async fn wait_until_user_code_may_run(&self, _: &StopToken) -> Result<(), Failure> {
        Ok(())
    }
}
