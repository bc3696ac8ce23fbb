//! Tests of jobs whose expansion would exceed the manager's memory, or would take very long.

use super::*;

const KIB_64: usize = 64 * 1024;

/// Returns a variable of 64 KiB, and a string that expands to 40 MiB.
fn large_variable_and_references() -> (Value, String) {
    (json!({ "key": "LARGE", "value": "x".repeat(KIB_64) }), "$LARGE".repeat(640))
}

fn assert_too_large(extra: Value) {
    let error = lower(&payload(extra), &context()).unwrap_err();
    assert_eq!(error.reason, FailureReason::RunnerConfigurationError);
    assert!(error.message.contains("longer than 32 MiB") && error.message.len() < 1000, "{}", error.message.len());
}

#[test]
fn too_large_variable_expansion_is_refused() {
    let (large, references) = large_variable_and_references();
    assert_too_large(json!({ "variables": [large, { "key": "B", "value": references }] }));
    // Each text is small enough, but all together are not.
    let small = |number: usize| json!({ "key": format!("B{number}"), "value": "$LARGE".repeat(64) });
    let mut many: Vec<Value> = (0..10).map(small).collect();
    many.push(large.clone());
    assert_too_large(json!({ "variables": many }));
    let list = json!([large]);
    assert_too_large(json!({ "variables": list, "cache": [{ "key": references, "paths": ["p"] }] }));
    assert_too_large(
        json!({ "variables": list, "cache": [{ "key": "k", "paths": ["p"], "fallback_keys": [references] }] }),
    );
    assert_too_large(json!({ "variables": list, "steps": [{ "name": "release", "script": [references] }] }));
}

#[test]
fn too_large_input_expansion_is_refused() {
    let input = json!([{ "key": "large", "value": { "type": "string", "content": "x".repeat(KIB_64) } }]);
    let script = "${{ job.inputs.large }}".repeat(640);
    let flag = json!([{ "key": "FF_ENABLE_JOB_INPUTS_INTERPOLATION", "value": "true" }]);
    assert_too_large(
        json!({ "inputs": input, "variables": flag, "steps": [{ "name": "script", "script": [script] }] }),
    );
}

#[test]
fn too_long_clone_path_is_refused() {
    let (large, references) = large_variable_and_references();
    let path = |value: &str| json!({ "variables": [large, { "key": "GIT_CLONE_PATH", "value": value }] });
    for value in [references.as_str(), "$LARGE", &"$NONE".repeat(KIB_64)] {
        let error = lower(&payload(path(value)), &context()).unwrap_err();
        assert_eq!(error.message, "GIT_CLONE_PATH is longer than 4096 bytes");
    }
}

#[test]
fn too_long_vm_image_name_is_refused() {
    let (large, references) = large_variable_and_references();
    let twice = json!({ "key": "TWICE", "value": references });
    for name in [references.as_str(), "$LARGE", "$TWICE", &"$NONE".repeat(KIB_64)] {
        let payload = payload(json!({ "variables": [large, twice], "image": { "name": name } }));
        let error = environment_request(&payload, &runner()).unwrap().image.unwrap_err();
        assert_eq!(error, "the name of the VM image is longer than 4096 bytes");
    }
}

#[test]
fn secrets_are_masked_even_if_the_expansion_is_too_large() {
    let (large, references) = large_variable_and_references();
    let masked = json!({ "key": "B", "value": references, "masked": true });
    let secret = json!({ "key": "C", "value": "secret-$SHORT", "masked": true });
    let short = json!({ "key": "SHORT", "value": "value" });
    let payload = payload(json!({ "variables": [large, masked, secret, short] }));
    let output = crate::failure::masked("it is secret-value", &values_to_mask(&payload, &[]));
    assert_eq!(output, "it is [MASKED]");
}

#[test]
fn many_variables_and_unclosed_braces_take_linear_time() {
    let mut all: Vec<Value> =
        (0..99_999).map(|n| json!({ "key": format!("K{n}"), "value": format!("$K{}", n + 1) })).collect();
    all.push(json!({ "key": "BRACES", "value": "${".repeat(1024 * 1024) }));
    let job = lowered(json!({ "variables": all }));
    // The value of `K7` is `$K8`. Expanded once, it is the unexpanded value of `K8`.
    assert_eq!(value(&job, "K7").as_deref(), Some("$K9"));
    assert_eq!(value(&job, "BRACES").as_deref(), Some(""));
}
