//! The images and services of a payload.

use std::collections::BTreeMap;

use muster_pipeline::model;
use muster_runner_api::payload::Image;
use serde_json::Value;

pub(super) fn image(image: &model::Image) -> Image {
    let mut executor_opts = BTreeMap::new();
    let mut group = |name: &str, options: &[(&str, &Option<String>)]| {
        let set: BTreeMap<String, Value> = options
            .iter()
            .filter_map(|(key, value)| Some(((*key).to_owned(), Value::String(value.as_ref()?.clone()))))
            .collect();
        if !set.is_empty() {
            executor_opts.insert(name.to_owned(), set);
        }
    };
    group("docker", &[("platform", &image.docker_platform), ("user", &image.docker_user)]);
    group("kubernetes", &[("user", &image.kubernetes_user)]);
    Image {
        name: image.name.clone(),
        alias: image.alias.clone(),
        command: image.command.clone(),
        entrypoint: image.entrypoint.clone(),
        variables: image.variables.clone(),
        pull_policy: image.pull_policy.clone(),
        executor_opts,
    }
}
