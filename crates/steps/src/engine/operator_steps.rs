//! Effects of an operator's step on its job: exported variables, masked values, and files for the artifacts.

use std::collections::BTreeMap;

use muster_agent_api::plan::{Policy, UploadRole};
use muster_job::ExportKind;
use serde_json::{Map, Value};

use super::Job;
use super::user_steps::UserSteps;
use crate::failure::Failure;
use crate::log::Stream;
use crate::style;

/// Minimum size of a value that can be masked, as in GitLab. A shorter value could be part of any line.
const MIN_MASKED_BYTES: usize = 8;

const FILES: &str = "files";

/// Variable that an operator's step has exported for the rest of the job.
#[derive(Clone, PartialEq, Eq)]
pub struct ExportedVariable {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable, or content of the file.
    pub value: String,
    /// How the variable reaches the job.
    pub kind: ExportKind,
}

impl std::fmt::Debug for ExportedVariable {
    /// Omits the value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportedVariable").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

pub(super) fn mask_sensitive_values(job: &impl Job, steps: &UserSteps<'_>) {
    let values: Vec<_> = steps.log.values().into_iter().filter(|value| is_long_enough(value)).collect();
    if !values.is_empty() {
        job.mask_values(&values);
    }
}

/// Passes the declared exports of an operator's step to its job. If the step checks or signs artifacts, also passes its
/// output `files`.
///
/// # Errors
/// A declared export is missing or cannot be masked, the job does not support exports, or the output `files` is
/// invalid.
pub(super) fn publish(
    job: &impl Job,
    policy: &Policy,
    steps: &UserSteps<'_>,
    outputs: &Map<String, Value>,
) -> Result<(), Failure> {
    if !policy.exports.is_empty() {
        let exports = steps.exports.lock().clone();
        let variables = declared(&policy.exports, |name| exports.get(name).cloned()).map_err(Failure::Step)?;
        let others: Vec<_> =
            exports.keys().filter(|name| !policy.exports.contains_key(*name)).map(String::as_str).collect();
        if !others.is_empty() {
            let names = others.join(", ");
            let line = format!(
                "the job does not get the exported variables {names}, because `exports` of the runner's step does not list them"
            );
            job.log().write(Stream::Runner, style::warning(&line).as_bytes());
        }
        job.add_variables(variables)?;
    }
    if policy.upload_role == UploadRole::Check
        && let Some(files) = outputs.get(FILES)
    {
        let files = serde_json::from_value(files.clone())
            .map_err(|_| Failure::Step(format!("the output `{FILES}` is not an array of strings")))?;
        job.add_artifact_files(files);
    }
    Ok(())
}

/// Returns the variables in `kinds` with their exported values, which `exported` looks up by name. Fails if a value is
/// missing or cannot be masked.
fn declared(
    kinds: &BTreeMap<String, ExportKind>,
    exported: impl Fn(&str) -> Option<String>,
) -> Result<Vec<ExportedVariable>, String> {
    let variable = |(name, kind): (&String, &ExportKind)| {
        let value = exported(name).ok_or_else(|| {
            format!(
                "it did not export {name}, which its `exports` lists; write it to the export file, or remove it from `exports`"
            )
        })?;
        if kind.is_masked() && !is_long_enough(&value) {
            return Err(format!(
                "the value that it exported as {name} has less than {MIN_MASKED_BYTES} bytes, so it cannot be masked; export a longer value, \
                 or set its kind to `plain`"
            ));
        }
        Ok(ExportedVariable { name: name.clone(), value, kind: *kind })
    };
    kinds.iter().map(variable).collect()
}

fn is_long_enough(value: &str) -> bool {
    value.trim().len() >= MIN_MASKED_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_exports_must_exist_and_be_maskable() {
        let exported = |name: &str| match name {
            "LONG" => Some("12345678".to_owned()),
            "SHORT" => Some(" 1234567\n".to_owned()),
            _ => None,
        };
        let result = |name: &str, kind| declared(&BTreeMap::from([(name.to_owned(), kind)]), exported);
        let variable =
            |name: &str, value: &str, kind| ExportedVariable { name: name.to_owned(), value: value.to_owned(), kind };
        assert_eq!(result("LONG", ExportKind::Masked), Ok(vec![variable("LONG", "12345678", ExportKind::Masked)]));
        assert_eq!(result("SHORT", ExportKind::Plain), Ok(vec![variable("SHORT", " 1234567\n", ExportKind::Plain)]));
        for kind in [ExportKind::Masked, ExportKind::File] {
            assert!(result("SHORT", kind).unwrap_err().contains("SHORT has less than 8 bytes"));
        }
        assert!(result("NONE", ExportKind::Plain).unwrap_err().contains("it did not export NONE"));
    }
}
