//! `muster step-runner run`: runs one step.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use muster_steps::definition::{StepEntry, StepFile, StepFileError, parse_list, parse_run_list, parse_value};
use serde_json::{Map, Value, json};

use super::execute::{Execution, execute};
use super::pairs::Pairs;
use super::results::{ResultsArgs, ResultsFile, ResultsFormat};
use super::text_proto::{self, TextProtoError};

/// Prefixes of the environment variables that the process of the step does not inherit, because they belong to a job.
const JOB_PREFIXES: [&str; 4] = ["CI_", "GITLAB_", "FF_", "DOCKER_ENV_"];

/// Arguments of `muster step-runner run`.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// Reference of the step, for example `./dir`. A text with the prefix `step:` is read as YAML.
    #[arg(value_name = "STEP")]
    step: Option<String>,
    /// Inputs of the step, read as YAML. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE,...")]
    inputs: Vec<Pairs>,
    /// Environment variables of the step. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE,...")]
    env: Vec<Pairs>,
    /// Variables of the job. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE,...")]
    job: Vec<Pairs>,
    /// URL of a Git repository that contains the step.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    git_url: String,
    /// Revision of the Git repository.
    #[arg(long, value_name = "REVISION", default_value = "", hide_default_value = true)]
    git_rev: String,
    /// Directory in the Git repository.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    git_dir: String,
    /// Host, and port if it is not 443, of an OCI registry that contains the step.
    #[arg(long, value_name = "HOST", default_value = "", hide_default_value = true)]
    oci_registry: String,
    /// Repository in the OCI registry.
    #[arg(long, value_name = "REPOSITORY", default_value = "", hide_default_value = true)]
    oci_repository: String,
    /// Tag in the OCI repository.
    #[arg(long, value_name = "TAG", default_value = "", hide_default_value = true)]
    oci_tag: String,
    /// Directory in the OCI image.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    oci_dir: String,
    /// Name of the step file in the OCI image.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    oci_filename: String,
    /// File with a definition in the text format of protocol buffers, which is run instead of a step.
    #[arg(long, value_name = "FILE")]
    text_proto_step_file: Option<PathBuf>,
    #[command(flatten)]
    results: ResultsArgs,
    /// File for the results. Without this flag, they are written only with `--write-steps-results`, to `step-results.json` or `step-results.txtpb`.
    #[arg(long, value_name = "FILE")]
    step_results_file: Option<PathBuf>,
    /// Format of the results.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    step_results_format: ResultsFormat,
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("no step specified; name a reference such as `./dir`, or use --git-url or --oci-registry")]
    NoStep,
    #[error("the arguments describe an invalid step: {0}")]
    Step(#[from] StepFileError),
    #[error("failed to read the path of the working directory: {0}; change to a directory that exists")]
    WorkDir(#[from] std::io::Error),
    #[error(transparent)]
    TextProto(#[from] TextProtoError),
}

pub(super) fn run(args: &RunArgs) -> ExitCode {
    super::print_version();
    let file = || ResultsFile { path: args.step_results_file.clone(), format: args.step_results_format };
    let results = (args.results.is_requested() || args.step_results_file.is_some()).then(file);
    match execution(args) {
        Ok(execution) => execute(execution, results.as_ref()),
        Err(error) => super::fail(error),
    }
}

fn execution(args: &RunArgs) -> Result<Execution, RunError> {
    let file = match &args.text_proto_step_file {
        Some(path) => text_proto::read_definition(path)?,
        None => StepFile::of_list(called_step(args)?),
    };
    Ok(Execution {
        file,
        work_dir: std::env::current_dir()?,
        variables: flatten(&args.job).collect(),
        is_inherited: |key: &OsStr| {
            !JOB_PREFIXES.iter().any(|prefix| key.as_encoded_bytes().starts_with(prefix.as_bytes()))
        },
    })
}

/// Returns the list with the step to run, its inputs and its environment.
fn called_step(args: &RunArgs) -> Result<Vec<StepEntry>, RunError> {
    let mut entries = referenced_step(args)?;
    for entry in &mut entries {
        for (name, text) in flatten(&args.inputs) {
            let value = parse_value(&format!("inputs.{name}"), &text)?;
            entry.inputs.insert(name, value);
        }
        for (name, text) in flatten(&args.env) {
            let value = match parse_value(&format!("env.{name}"), &text)? {
                Value::String(text) => text,
                _ => text,
            };
            entry.env.insert(name, value);
        }
    }
    Ok(entries)
}

fn flatten(pairs: &[Pairs]) -> impl Iterator<Item = (String, String)> {
    pairs.iter().flat_map(|pairs| pairs.0.clone())
}

/// Returns the list with the step to run, without inputs and environment.
fn referenced_step(args: &RunArgs) -> Result<Vec<StepEntry>, RunError> {
    let non_empty = |fields: &[(&str, &String)]| {
        let set = fields.iter().filter(|(_, value)| !value.is_empty());
        Value::Object(set.map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<Map<_, _>>())
    };
    let reference = match args.step.as_deref().filter(|step| !step.is_empty()) {
        Some(step) if step.starts_with("step:") => return Ok(parse_list(&format!("- {step}"))?),
        Some(step) => json!(step),
        None if !args.git_url.is_empty() => {
            json!({"git": non_empty(&[("url", &args.git_url), ("rev", &args.git_rev), ("dir", &args.git_dir)])})
        }
        None if !args.oci_registry.is_empty() => json!({"oci": non_empty(&[
            ("registry", &args.oci_registry),
            ("repository", &args.oci_repository),
            ("tag", &args.oci_tag),
            ("dir", &args.oci_dir),
            ("file", &args.oci_filename),
        ])}),
        None => return Err(RunError::NoStep),
    };
    Ok(parse_run_list(&json!([{"step": reference}]))?)
}
