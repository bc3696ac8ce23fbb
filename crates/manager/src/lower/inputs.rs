//! Interpolates job inputs (`${{ job.inputs.name }}`) in the same parts of a payload as gitlab-runner.

use std::borrow::Cow;
use std::collections::HashMap;

use muster_runner_api::payload::{Image, JobInput, JobPayload};
use muster_telemetry::metrics::InputFailure;
use serde_json::Value;

use super::{LowerError, MAX_EXPANDED_BYTES};

const NAMESPACE: &str = "job.inputs.";

/// Returns the payload with interpolated inputs, and the number of strings that changed.
///
/// Expressions other than `${{ job.inputs.NAME }}` are not changed.
pub(super) fn interpolate_inputs(
    payload: &JobPayload,
    is_enabled: bool,
) -> Result<(Cow<'_, JobPayload>, u64), LowerError> {
    if payload.inputs.is_empty() || !is_enabled {
        return Ok((Cow::Borrowed(payload), 0));
    }
    let inputs = read(&payload.inputs)?;
    let mut payload = payload.clone();
    let mut changed = 0;
    let mut remaining = MAX_EXPANDED_BYTES;
    for text in interpolated_strings(&mut payload) {
        if text.contains("${{") {
            let with_inputs = interpolate(text, &inputs, remaining)?;
            remaining -= with_inputs.len();
            changed += u64::from(with_inputs != *text);
            *text = with_inputs;
        }
    }
    Ok((Cow::Owned(payload), changed))
}

fn read(inputs: &[JobInput]) -> Result<HashMap<&str, String>, LowerError> {
    let to_text = |input: &'_ JobInput| {
        let fail = |kind, message: &str| {
            LowerError::invalid_inputs(kind, format!("the job's input `{}` {message}", input.key))
        };
        let (kind, content) = (input.value.kind.as_str(), &input.value.content);
        let has_declared_type = match content {
            Value::String(_) => kind == "string",
            Value::Number(_) => kind == "number",
            Value::Bool(_) => kind == "boolean",
            Value::Array(_) => kind == "array",
            Value::Object(_) => kind == "struct",
            Value::Null => return Err(fail(InputFailure::Parse, "has no value")),
        };
        if !has_declared_type {
            return Err(fail(InputFailure::Parse, &format!("has a value that is not a {kind}")));
        }
        if input.value.sensitive {
            let message = "is sensitive and cannot be interpolated";
            return Err(fail(InputFailure::SensitiveUnsupported, message));
        }
        Ok(content.as_str().map_or_else(|| content.to_string(), str::to_owned))
    };
    inputs.iter().map(|input| Ok((input.key.as_str(), to_text(input)?))).collect()
}

/// Fails if the result is longer than `limit`.
fn interpolate(text: &str, inputs: &HashMap<&str, String>, limit: usize) -> Result<String, LowerError> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${{") {
        out.push_str(before);
        let Some(reference) = after.trim_start().strip_prefix(NAMESPACE) else {
            out.push_str("${{");
            rest = after;
            continue;
        };
        let Some((name, tail)) = reference.split_once("}}") else {
            // Without another `}}`, no later expression ends either.
            out.push_str("${{");
            rest = after;
            break;
        };
        let name = name.trim_end();
        let value = inputs.get(name.trim()).ok_or_else(|| {
            let message = format!("`${{{{ {NAMESPACE}{name} }}}}` names an input that the job does not have");
            LowerError::invalid_inputs(InputFailure::Evaluation, message)
        })?;
        out.push_str(value);
        if out.len() > limit {
            return Err(LowerError::too_long("inputs"));
        }
        rest = tail;
    }
    out.push_str(rest);
    if out.len() > limit { Err(LowerError::too_long("inputs")) } else { Ok(out) }
}

fn interpolated_strings(payload: &mut JobPayload) -> Vec<&mut String> {
    let steps = payload.steps.iter_mut().flat_map(|step| &mut step.script);
    let images = payload.image.iter_mut().chain(&mut payload.services).flat_map(image_strings);
    let artifacts = payload.artifacts.iter_mut().flat_map(|artifact| {
        let lists = artifact.paths.iter_mut().chain(&mut artifact.exclude);
        [&mut artifact.name, &mut artifact.when, &mut artifact.expire_in].into_iter().chain(lists)
    });
    let caches = payload.cache.iter_mut().flat_map(|cache| {
        let lists = cache.paths.iter_mut().chain(&mut cache.fallback_keys);
        [&mut cache.key, &mut cache.policy, &mut cache.when].into_iter().chain(lists)
    });
    steps.chain(images).chain(artifacts).chain(caches).collect()
}

fn image_strings(image: &mut Image) -> impl Iterator<Item = &mut String> {
    let lists = image.command.iter_mut().chain(&mut image.entrypoint).flatten();
    std::iter::once(&mut image.name).chain(lists).chain(&mut image.pull_policy)
}
