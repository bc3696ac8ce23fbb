//! Runs the processes of `exec` and `script` steps.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use super::inputs::expression_error;
use super::masked_log::MaskedLog;
use super::results::ExecResult;
use super::user_steps::{Frame, StepError, UserSteps};
use crate::definition::StepFile;
use crate::lines;
use crate::log::Log;
use crate::process::{Command, ProcessEnd, RunError, find_program};
use crate::shell::shell_not_found;
use muster_files::Limit;

const VALUES_LIMIT: Limit =
    Limit { bytes: 4 * 1024 * 1024, remedy: "write a large value to a separate file, and return its path" };

pub(super) struct ValueFiles {
    pub(super) output: NamedTempFile,
    pub(super) export: NamedTempFile,
}

impl UserSteps<'_> {
    pub(super) fn create_value_files(&self) -> io::Result<ValueFiles> {
        let file = || tempfile::Builder::new().prefix("step-file-").tempfile_in(self.temp_dir);
        Ok(ValueFiles { output: file()?, export: file()? })
    }

    pub(super) async fn exec(
        &self,
        command: &[String],
        work_dir: Option<&str>,
        frame: &Frame<'_>,
        result: &mut Option<ExecResult>,
    ) -> Result<(), StepError> {
        let scope = self.scope(frame);
        let expanded = |word: &String| {
            scope.expand_text(word).map_err(expression_error(&format!("exec: interpolate command argument {word:?}")))
        };
        let words = command.iter().map(expanded).collect::<Result<Vec<_>, _>>()?;
        let dir = match work_dir {
            Some(dir) => {
                let site = format!("exec: interpolate workdir {dir:?}");
                let dir = PathBuf::from(scope.expand_text(dir).map_err(expression_error(&site))?);
                // In the legacy dialect, the directory is relative to the agent's directory (docs/spec/steps.md,
                // section 1.4).
                if self.is_legacy() { dir } else { self.work_dir.join(dir) }
            }
            None => self.work_dir.to_owned(),
        };
        *result = Some(ExecResult::new(words.clone(), &dir));
        let mut words = words.into_iter();
        let program = words.next().unwrap_or_default();
        // A name without a directory is looked up in the agent's PATH, not the step's (docs/spec/steps.md, section 1.4).
        let program = if program.contains('/') {
            PathBuf::from(program)
        } else {
            find_program(&program).ok_or_else(|| {
                StepError::Step(format!("exec: exec: {program:?}: executable file not found in $PATH"))
            })?
        };
        self.run_process(program, words.map(Into::into).collect(), &frame.env, dir, None, result).await
    }

    /// Runs a script in a shell, which reads the text from standard input, because other users can read arguments
    /// (invariant J6).
    pub(super) async fn script(
        &self,
        text: &str,
        env: &IndexMap<String, String>,
        result: &mut Option<ExecResult>,
    ) -> Result<(), StepError> {
        let shell = find_program("bash").or_else(|| find_program("sh"));
        let shell = shell.ok_or_else(|| StepError::Step(shell_not_found(&["bash", "sh"], self.image)))?;
        *result = Some(ExecResult::new(vec![shell.display().to_string()], self.work_dir));
        let stdin = format!("eval '{}' </dev/null\n", text.replace('\'', r"'\''"));
        self.run_process(shell, Vec::new(), env, self.work_dir.to_owned(), Some(stdin.into_bytes()), result).await
    }

    async fn run_process(
        &self,
        program: PathBuf,
        args: Vec<OsString>,
        env: &IndexMap<String, String>,
        dir: PathBuf,
        stdin: Option<Vec<u8>>,
        result: &mut Option<ExecResult>,
    ) -> Result<(), StepError> {
        let environment = self.process_env(env);
        let command = Command { program, args, env: environment, work_dir: Some(dir.clone()), stdin, stdout: None };
        let log: Arc<dyn Log> = Arc::<MaskedLog>::clone(&self.log);
        let ended = self.processes.run(command, &log, self.stop, self.grace).await;
        self.log.flush();
        match ended {
            Err(RunError::Start { .. }) if !dir.is_dir() => Err(StepError::WorkDir(dir.display().to_string())),
            Err(error) => Err(error.into()),
            Ok(ProcessEnd::Stopped(cause)) => Err(StepError::Stopped(cause)),
            Ok(ProcessEnd::Exited(status)) => {
                if let (Some(result), Some(code)) = (result, status.code()) {
                    result.exit_code = code;
                }
                match (status.code(), status.signal()) {
                    (Some(0), _) => Ok(()),
                    (Some(code), _) => Err(StepError::Exit(code)),
                    (None, signal) => Err(StepError::Signal(signal.unwrap_or_default())),
                }
            }
        }
    }

    /// Returns the environment of a step's process. `env` overrides the exports of earlier steps.
    pub(super) fn process_env(&self, env: &IndexMap<String, String>) -> Vec<(OsString, OsString)> {
        let exports = self.exports.lock();
        let own = exports.iter().chain(env).map(|(key, value)| (key.into(), value.into()));
        self.environment.iter().cloned().chain(own).collect()
    }

    /// Reads the files of a process that succeeded, and stores its exports in `exported`.
    ///
    /// The exports take effect only if the outputs are valid.
    pub(super) async fn collect(
        &self,
        file: &StepFile,
        files: &ValueFiles,
        exported: &mut IndexMap<String, String>,
    ) -> Result<Map<String, Value>, StepError> {
        // If an output is sensitive, errors do not quote the file, because an invalid line could contain that output.
        let quotes_file = self.settings.is_debug && !file.spec.outputs.have_sensitive();
        let invalid = |error: lines::ValueFileError| StepError::Step(error.to_string());
        let output = self.read_value_file("output file", files.output.path()).await?;
        let outputs = lines::outputs(&output, &file.spec.outputs, quotes_file).map_err(invalid)?;
        let export = self.read_value_file("export file", files.export.path()).await?;
        exported.extend(lines::exports(&export, quotes_file).map_err(invalid)?);
        self.export(exported);
        Ok(outputs)
    }

    /// Reads a file by its name, because the process may have replaced the file.
    async fn read_value_file(&self, kind: &str, path: &Path) -> Result<String, StepError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = muster_files::read_in(self.temp_dir.to_owned(), name, VALUES_LIMIT).await;
        text.map_err(|error| StepError::Step(format!("{kind}: {error}")))
    }
}

impl ExecResult {
    fn new(command: Vec<String>, work_dir: &Path) -> Self {
        Self { command, work_dir: work_dir.display().to_string(), exit_code: -1 }
    }
}
