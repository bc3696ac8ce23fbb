//! Job inputs: replaces `${{ job.inputs.name }}` in the fields of the payload in which a runner would replace it.
//!
//! See docs/spec/runner-api.md, section 2.5.10.
//!
//! The coordinator inserts the default values, so that every runner can run the job.

use std::sync::LazyLock;

use muster_runner_api::payload::{Image, JobPayload};
use regex::{Captures, Regex};
use serde_json::Value;

#[expect(clippy::expect_used, reason = "the pattern is fixed, and a test compiles it")]
static REFERENCE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\$\{\{\s*job\.inputs\.([A-Za-z0-9_-]+)\s*\}\}").expect("the pattern is invalid"));

/// Replaces the references to known inputs. A reference to an unknown input is kept and fails on the runner.
pub(super) fn interpolate(payload: &mut JobPayload, inputs: &[(String, Value)]) {
    if inputs.is_empty() {
        return;
    }
    let replace = |text: &mut String| {
        if let std::borrow::Cow::Owned(replaced) = REFERENCE.replace_all(text, |found: &Captures<'_>| {
            let input = inputs.iter().find(|(name, _)| *name == found[1]);
            input.map_or_else(|| found[0].to_owned(), |(_, input)| as_text(input))
        }) {
            *text = replaced;
        }
    };
    for step in &mut payload.steps {
        step.script.iter_mut().for_each(replace);
    }
    for image in payload.image.iter_mut().chain(&mut payload.services) {
        image_texts(image).for_each(replace);
    }
    for artifact in &mut payload.artifacts {
        [&mut artifact.name, &mut artifact.when, &mut artifact.expire_in].into_iter().for_each(replace);
        artifact.paths.iter_mut().chain(&mut artifact.exclude).for_each(replace);
    }
    for cache in &mut payload.cache {
        [&mut cache.key, &mut cache.policy, &mut cache.when].into_iter().for_each(replace);
        cache.paths.iter_mut().chain(&mut cache.fallback_keys).for_each(replace);
    }
}

fn image_texts(image: &mut Image) -> impl Iterator<Item = &mut String> {
    let lists = image.command.iter_mut().chain(&mut image.entrypoint).flatten();
    std::iter::once(&mut image.name).chain(lists).chain(&mut image.pull_policy)
}

fn as_text(input: &Value) -> String {
    match input.get("default") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}
