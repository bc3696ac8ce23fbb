//! Selects the inputs of built-in steps that the result of the job shows. Inputs that are not listed here are omitted,
//! such as signed URLs, tokens, credentials, and texts of the operator.

use muster_job::without_user_info_and_query;
use serde_json::{Map, Value, json};

use super::{
    ArtifactsDownload, ArtifactsUploadList, CacheEntry, Checkout, Cleanup, ContainerSpec, DockerContainer,
    DockerNetwork, HostService, Script, ServiceContainer,
};

const LIMITS: [&str; 6] = ["Memory", "MemorySwap", "NanoCpus", "CpuQuota", "CpusetCpus", "PidsLimit"];

pub(super) fn checkout(step: &Checkout) -> Map<String, Value> {
    let Checkout { strategy, repo_url, ref_name, sha, refspecs, depth, checkout, submodules, skip_lfs, .. } = step;
    map([
        ("strategy", json!(strategy)),
        ("url", json!(without_user_info_and_query(repo_url))),
        ("ref", json!(ref_name)),
        ("sha", json!(sha)),
        ("refspecs", json!(refspecs)),
        ("depth", json!(depth)),
        ("checkout", json!(checkout)),
        ("submodules", json!(submodules)),
        ("lfs", json!(!skip_lfs)),
    ])
}

pub(super) fn script(step: &Script) -> Map<String, Value> {
    // The author of the job must not see these scripts and variables.
    if step.by_operator {
        return Map::new();
    }
    map([
        ("shell", json!(step.shell)),
        ("commands", json!(step.commands)),
        ("after_script", json!(step.after_script)),
        ("debug", json!(step.debug)),
        ("check_exit_codes", json!(step.check_exit_codes)),
    ])
}

pub(super) fn caches(caches: &[CacheEntry]) -> Map<String, Value> {
    let cache = |entry: &CacheEntry| {
        let name = |index: usize, key: &String| entry.names.get(index).unwrap_or(key).clone();
        let fallback_keys = entry.fallback_keys.iter().enumerate().map(|(index, key)| name(index + 1, key));
        json!({
            "key": name(0, &entry.key),
            "fallback_keys": fallback_keys.collect::<Vec<_>>(),
            "paths": entry.paths,
            "untracked": entry.untracked,
            "policy": entry.policy,
        })
    };
    map([("caches", caches.iter().map(cache).collect())])
}

pub(super) fn artifacts_download(step: &ArtifactsDownload) -> Map<String, Value> {
    let sources = step.from.iter().map(|source| json!({ "job_id": source.job_id, "name": source.name }));
    map([("from", sources.collect())])
}

pub(super) fn artifacts_upload(step: &ArtifactsUploadList) -> Map<String, Value> {
    let artifacts = step.artifacts.iter().map(|artifact| {
        json!({
            "name": artifact.name,
            "paths": artifact.paths,
            "exclude": artifact.exclude,
            "untracked": artifact.untracked,
            "type": artifact.artifact_type,
            "format": artifact.artifact_format,
            "expire_in": artifact.expire_in,
        })
    });
    map([("artifacts", artifacts.collect())])
}

pub(super) fn docker_container(step: &DockerContainer) -> Map<String, Value> {
    let DockerContainer { build, network, .. } = step;
    let network = match network {
        DockerNetwork::Bridge => "bridge",
        DockerNetwork::Mode(mode) => mode,
        DockerNetwork::PerJob { .. } => "per job",
    };
    let mut record = container(build);
    record.insert("network".to_owned(), json!(network));
    record
}

pub(super) fn service_container(step: &ServiceContainer) -> Map<String, Value> {
    let mut record = container(&step.container);
    record.insert("aliases".to_owned(), json!(step.aliases));
    record
}

fn container(spec: &ContainerSpec) -> Map<String, Value> {
    let limits = spec.host_config.iter().filter(|(key, _)| LIMITS.contains(&key.as_str()));
    map([
        ("image", json!(spec.image.name)),
        ("pull_policies", json!(spec.image.pull_policies)),
        ("platform", json!(spec.image.platform)),
        ("user", json!(spec.user)),
        ("limits", limits.map(|(key, value)| (key.clone(), value.clone())).collect()),
    ])
}

pub(super) fn host_service(step: &HostService) -> Map<String, Value> {
    map([("service", json!(step.title)), ("port", json!(step.port))])
}

pub(super) fn cleanup(step: &Cleanup) -> Map<String, Value> {
    map([
        ("checkout", json!(step.checkout)),
        ("clean_flags", json!(step.clean_flags)),
        ("submodules", json!(step.submodules)),
    ])
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_job::Secret;

    use super::*;
    use crate::builtin::{ArtifactSource, CacheObject, CacheRestore, CacheSave, Inputs, RegistryCredentials, Rewrite};

    const HIDDEN: &str = "hidden0815";

    fn hidden() -> String {
        format!("https://user:{HIDDEN}@example.com/{HIDDEN}")
    }

    #[test]
    fn record_has_the_parameters_and_no_secrets() {
        let checkout = Checkout {
            strategy: "fetch".to_owned(),
            repo_url: format!("https://gitlab-ci-token:{HIDDEN}@example.com/g/p.git?token={HIDDEN}#{HIDDEN}"),
            sha: "abc".to_owned(),
            depth: 20,
            rewrites: vec![Rewrite { from: "git@example.com:".to_owned(), to: hidden() }],
            pre_script: vec![HIDDEN.to_owned()],
            fetch_flags: vec![hidden()],
            ..Checkout::default()
        };
        let object =
            CacheObject { download: Secret::new(hidden()), upload: Secret::new(hidden()), ..Default::default() };
        let cache = CacheEntry {
            key: "9f86d081".to_owned(),
            names: vec!["main".to_owned()],
            paths: vec!["target/".to_owned()],
            objects: BTreeMap::from([(hidden(), object)]),
            ..CacheEntry::default()
        };
        let download = ArtifactSource { job_id: 7, name: "build".to_owned(), token: HIDDEN.to_owned() };
        let container = ContainerSpec {
            env: vec![hidden()],
            command: Some(vec![hidden()]),
            host_config: Map::from_iter([("Memory".to_owned(), json!(5)), ("Binds".to_owned(), json!([hidden()]))]),
            ..ContainerSpec::default()
        };
        let docker_service =
            ServiceContainer { container: container.clone(), aliases: vec!["db".to_owned()], ..Default::default() };
        let docker = DockerContainer {
            build: container,
            credentials: vec![RegistryCredentials { password: hidden(), ..RegistryCredentials::default() }],
            ..DockerContainer::default()
        };
        let script = |by_operator| Script {
            commands: vec![if by_operator { hidden() } else { "make".to_owned() }],
            before: vec![hidden()],
            env: BTreeMap::from([("A".to_owned(), hidden())]),
            by_operator,
            ..Script::default()
        };
        let service = HostService { title: "db".to_owned(), command: vec![hidden()], ..HostService::default() };
        let records = [
            checkout.record(),
            CacheRestore { caches: vec![cache.clone()] }.record(),
            CacheSave { caches: vec![cache] }.record(),
            ArtifactsDownload { from: vec![download] }.record(),
            docker.record(),
            script(false).record(),
            script(true).record(),
            service.record(),
            docker_service.record(),
        ];
        let text = serde_json::to_string(&records).unwrap();
        assert!(!text.contains(HIDDEN), "{text}");
        assert_eq!(records[0]["url"], "https://example.com/g/p.git");
        assert_eq!((&records[0]["sha"], &records[0]["depth"]), (&json!("abc"), &json!(20)));
        assert_eq!(
            (&records[1]["caches"][0]["key"], &records[1]["caches"][0]["paths"][0]),
            (&json!("main"), &json!("target/"))
        );
        assert_eq!(records[3]["from"], json!([{ "job_id": 7, "name": "build" }]));
        assert_eq!(records[4]["limits"], json!({ "Memory": 5 }));
        assert_eq!(records[5]["commands"], json!(["make"]));
        assert_eq!((&records[8]["limits"], &records[8]["aliases"]), (&json!({ "Memory": 5 }), &json!(["db"])));
    }
}
