//! GitLab's step-runner 0.11.0: GitLab's client with Muster's servers, and Muster's client with GitLab's server.
//!
//! `MUSTER_TEST_STEP_RUNNER` is the path of GitLab's program. `MUSTER_TEST_STEP_RUNNER_SOURCE` is the directory of its
//! source. GitLab's client is a package of this source, so `tests/go-step-runner` is built as a part of it, through an
//! overlay.

mod our_client;
mod same_lists;
mod their_client;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use super::serve::Server;
use super::*;
use crate::process::until;

const PROGRAM: &str = "MUSTER_TEST_STEP_RUNNER";
const SOURCE: &str = "MUSTER_TEST_STEP_RUNNER_SOURCE";

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name);
    if value.is_none() {
        println!("skipped: {name} is not set; see scripts/test");
    }
    value.map(PathBuf::from)
}

fn definition(list: &str) -> String {
    format!("{{}}\n---\nrun:\n{list}\n")
}

impl Server {
    async fn start_theirs(project: &Project, program: &Path) -> Self {
        let mut command = project.program(program, &["serve"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let server = Self { child, stderr, socket: project.tmp().join("step-runner.sock") };
        until(async || {
            std::os::unix::net::UnixStream::connect(&server.socket).map(drop).map_err(|error| error.to_string())
        })
        .await;
        server
    }

    fn start_agent(project: &Project) -> Self {
        let (socket, spool) = (project.tmp().join("agent.sock"), project.tmp().join("spool"));
        let arguments = [
            "agent",
            "serve",
            "--socket",
            socket.to_str().unwrap(),
            "--spool",
            spool.to_str().unwrap(),
            "--no-cgroups",
        ];
        Self::start(&mut project.program(Path::new(env!("CARGO_BIN_EXE_muster")), &arguments))
    }
}

struct TheirClient {
    child: Child,
    calls: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Fields that all calls have: the connection, and the directory of the job.
    fields: Map<String, Value>,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Answer {
    log: String,
    /// Offset after the received log.
    offset: usize,
    states: std::collections::BTreeMap<String, JobState>,
    /// Error of the call. Empty if the call succeeded.
    error: String,
    /// gRPC code of the error. Empty if the call succeeded.
    code: String,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct JobState {
    state: String,
    message: String,
    /// Whether the job has an end time.
    ended: bool,
}

impl TheirClient {
    /// Starts GitLab's client. Returns `None` if the directory of GitLab's source is not set.
    ///
    /// `connection` is the location of the server: either `{"socket": PATH}` or `{"program": [WORD, ...]}`. The
    /// standard input and output of this program are the connection.
    fn new(project: &Project, connection: Value) -> Option<Self> {
        let mut command = project.program(client_program()?, &[]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (calls, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut fields = connection.as_object().unwrap().clone();
        fields.insert("dir".to_owned(), json!(project.work()));
        Some(Self { child, calls, answers, fields })
    }

    fn call(&mut self, call: &str, id: &str, fields: Value) -> Answer {
        let mut all = self.fields.clone();
        all.extend([("call".to_owned(), json!(call)), ("id".to_owned(), json!(id))]);
        all.extend(fields.as_object().unwrap().clone());
        writeln!(self.calls, "{}", Value::Object(all)).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }

    #[track_caller]
    fn ok(&mut self, call: &str, id: &str, fields: Value) -> Answer {
        let answer = self.call(call, id, fields);
        assert_eq!((answer.error.as_str(), answer.code.as_str()), ("", ""), "{answer:?}");
        answer
    }
}

impl Drop for TheirClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    /// Returns the state and the message of an ended job.
    #[track_caller]
    fn final_state(&self, id: &str) -> (&str, &str) {
        let state = self.states.get(id).unwrap_or_else(|| panic!("{self:?}"));
        assert!(state.ended, "{self:?}");
        (&state.state, &state.message)
    }
}

/// Returns the program with GitLab's client, which is built at the first call.
fn client_program() -> Option<&'static Path> {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let source = variable(SOURCE)?;
    Some(PATH.get_or_init(|| build_client(&source)))
}

fn build_client(source: &Path) -> PathBuf {
    let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/go-step-runner/main.go");
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Go may add lines to these files, so it gets copies.
    for name in ["go.mod", "go.sum"] {
        std::fs::copy(source.join(name), files.path().join(name)).unwrap_or_else(|error| {
            panic!(
                "{SOURCE} must be the source of GitLab's step-runner 0.11.0: {name} in {}: {error}",
                source.display()
            )
        });
    }
    let package = source.join("cmd/muster_test_client/main.go");
    let overlay = json!({ "Replace": { package.to_str().unwrap(): main } });
    std::fs::write(files.path().join("overlay.json"), overlay.to_string()).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-mod=mod", "-overlay"]).arg(files.path().join("overlay.json"));
    build.arg("-modfile").arg(files.path().join("go.mod")).arg("-o").arg(files.path().join("client"));
    build.arg("./cmd/muster_test_client").current_dir(source).env("GOWORK", "off").env("GOFLAGS", "");
    let output = build.output().unwrap_or_else(|error| panic!("failed to run go (Debian: golang-go): {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("step-runner-client");
    // Another test process may be running the old program, so the file is replaced and not overwritten.
    std::fs::rename(files.path().join("client"), &program).unwrap();
    program
}
