//! Runs the processes of `exec` and `script` steps, with the files in which they return values.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use super::call::expression_error;
use super::user_steps::{Frame, StepError, UserSteps};
use crate::definition::StepFile;
use crate::expression::expand_text;
use crate::lines;
use crate::process::{Command, ProcessEnd, find_program};
use muster_files::Limit;

/// Maximum size of an output or export file.
const VALUES_LIMIT: Limit =
    Limit { bytes: 4 * 1024 * 1024, remedy: "write a large value to a separate file, and return its path" };

/// Output and export file of one step. Dropping it removes both.
pub(super) struct ValueFiles {
    pub(super) output: NamedTempFile,
    pub(super) export: NamedTempFile,
}

impl UserSteps<'_> {
    pub(super) fn value_files(&self) -> io::Result<ValueFiles> {
        let file = || tempfile::Builder::new().prefix("step-file-").tempfile_in(self.temp_dir);
        Ok(ValueFiles { output: file()?, export: file()? })
    }

    /// Runs the process of an exec step.
    pub(super) async fn exec(
        &self,
        command: &[String],
        work_dir: Option<&str>,
        frame: &Frame<'_>,
    ) -> Result<(), StepError> {
        let scope = self.scope(frame);
        let expanded = |word: &String| {
            expand_text(word, &scope).map_err(expression_error(&format!("exec: interpolate command argument {word:?}")))
        };
        let mut words = command.iter().map(expanded).collect::<Result<Vec<_>, _>>()?.into_iter();
        let program = words.next().unwrap_or_default();
        let dir = match work_dir {
            Some(dir) => {
                self.work_dir.join(expand_text(dir, &scope).map_err(expression_error("exec: interpolate workdir"))?)
            }
            None => self.work_dir.to_owned(),
        };
        // A name without a directory is looked up in the agent's PATH, not the step's (docs/spec/steps.md, section 1.4).
        let program = if program.contains('/') {
            PathBuf::from(program)
        } else {
            find_program(&program).ok_or_else(|| {
                StepError::Step(format!("exec: exec: {program:?}: executable file not found in $PATH"))
            })?
        };
        self.process(program, words.map(Into::into).collect(), &frame.env, dir, None).await
    }

    /// Runs a script in a shell. The shell reads the text from standard input, because other users can read arguments (invariant J6).
    pub(super) async fn script(&self, text: &str, env: &IndexMap<String, String>) -> Result<(), StepError> {
        let shell = find_program("bash").or_else(|| find_program("sh"));
        let shell =
            shell.ok_or_else(|| StepError::Step("shell not found: this machine has neither bash nor sh".to_owned()))?;
        let stdin = format!("eval '{}' </dev/null\n", text.replace('\'', r"'\''"));
        self.process(shell, Vec::new(), env, self.work_dir.to_owned(), Some(stdin.into_bytes())).await
    }

    async fn process(
        &self,
        program: PathBuf,
        args: Vec<OsString>,
        env: &IndexMap<String, String>,
        dir: PathBuf,
        stdin: Option<Vec<u8>>,
    ) -> Result<(), StepError> {
        let mut environment = self.environment.clone();
        let exports = self.exports.lock().clone();
        environment.extend(exports.iter().chain(env).map(|(key, value)| (key.into(), value.into())));
        let command = Command { program, args, env: environment, work_dir: Some(dir), stdin, stdout: None };
        match self.processes.run(command, &self.log, self.stop, self.grace).await? {
            ProcessEnd::Stopped(cause) => Err(StepError::Stopped(cause)),
            ProcessEnd::Exited(status) => match (status.code(), status.signal()) {
                (Some(0), _) => Ok(()),
                (Some(code), _) => Err(StepError::Exit(code)),
                (None, signal) => Err(StepError::Signal(signal.unwrap_or_default())),
            },
        }
    }

    /// Reads the files of a process that succeeded. Its exports take effect only if its outputs are valid.
    pub(super) async fn collect(&self, file: &StepFile, files: &ValueFiles) -> Result<Map<String, Value>, StepError> {
        let invalid = |error: lines::ValueFileError| StepError::Step(error.to_string());
        let output = self.read_value_file("output file", files.output.path()).await?;
        let outputs = lines::outputs(&output, &file.spec.outputs).map_err(invalid)?;
        let export = self.read_value_file("export file", files.export.path()).await?;
        self.exports.lock().extend(lines::exports(&export).map_err(invalid)?);
        Ok(outputs)
    }

    /// Reads a file that was created for the process, by its name: the process may have replaced the file.
    async fn read_value_file(&self, kind: &str, path: &Path) -> Result<String, StepError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = muster_files::read_in(self.temp_dir.to_owned(), name, VALUES_LIMIT).await;
        text.map_err(|error| StepError::Step(format!("{kind}: {error}")))
    }
}
