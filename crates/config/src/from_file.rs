//! Converts a configuration to the settings of a manager.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_job::{GoDuration, Variable};
use url::Url;

use super::facts::FindPlugin;
use super::load::Config;
use super::runners::{Runner, base_url, feature_flags, labels};
use super::tree::Table;
use crate::settings::{
    ArtifactTimeouts, ConnectionAge, GitMirrorSettings, MAX_WAIT, RunnerScripts, RunnerSettings, Settings, TlsFiles,
    UnpackSettings,
};

/// Inputs of the settings besides the file.
#[derive(Debug, Clone, Default)]
pub struct SettingsContext {
    /// System ID of the manager.
    pub system_id: String,
    /// Value of `run --user`.
    pub user: Option<String>,
    /// Directory `certs` with TLS files that are named after hosts.
    /// It is always beside the user's default `config.toml`.
    pub certificates: Option<PathBuf>,
    /// Shell of entries that name none.
    pub default_shell: Option<String>,
    /// Function that finds plugins, for the checks.
    pub find_plugin: Option<FindPlugin>,
}

/// Returns the settings of a configuration. An entry without a usable URL is left out, and a problem reports it.
#[must_use]
pub fn settings(config: &Config, context: &SettingsContext) -> Settings {
    let tree = &config.tree;
    let defaults = Settings::new();
    let seconds = |name: &str, default: Duration| {
        tree.int(name)
            .and_then(|value| u64::try_from(value).ok())
            .filter(|value| *value > 0)
            .map_or(default, |value| Duration::from_secs(value).min(MAX_WAIT))
    };
    let owned = |name: &str| tree.str(name).map(str::to_owned);
    Settings {
        concurrent: positive(tree, "concurrent").unwrap_or(defaults.concurrent),
        check_interval: seconds("check_interval", defaults.check_interval),
        connection_max_age: match tree.duration("connection_max_age") {
            None => defaults.connection_max_age,
            Some(GoDuration::NonNegative(age)) if age.is_zero() => ConnectionAge::Any,
            Some(GoDuration::NonNegative(age)) => ConnectionAge::UpTo(age),
            // As in gitlab-runner, unlike in its documentation.
            Some(GoDuration::Negative) => ConnectionAge::NoReuse,
        },
        shutdown_timeout: seconds("shutdown_timeout", defaults.shutdown_timeout),
        listen_address: owned("listen_address"),
        log_level: owned("log_level"),
        log_format: owned("log_format"),
        token_env_names: config.runners.iter().flat_map(|entry| entry.token_env_names.iter().cloned()).collect(),
        runners: config.runners.iter().filter_map(|entry| runner(tree, entry, context)).map(Arc::new).collect(),
        ..defaults
    }
    .with_unique_keys()
}

/// Returns the settings of one entry of a configuration. `None` if it has no usable URL.
#[must_use]
pub fn runner_settings(config: &Config, entry: &Runner, context: &SettingsContext) -> Option<RunnerSettings> {
    runner(&config.tree, entry, context)
}

fn runner(tree: &Table, entry: &Runner, context: &SettingsContext) -> Option<RunnerSettings> {
    let table = &entry.table;
    let url = base_url(&entry.url)?;
    let owned = |name: &str| table.str(name).map(str::to_owned);
    let path = |name: &str| table.str(name).map(PathBuf::from);
    let count = |name: &str| table.int(name).and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0);
    let defaults = RunnerSettings::new(url.clone(), entry.token.clone(), entry.id);
    let output_limit_kib = table.int("output_limit").and_then(|value| u64::try_from(value).ok()).unwrap_or_default();
    Some(RunnerSettings {
        name: entry.name.clone(),
        system_id: context.system_id.clone(),
        token_obtained_at: entry.token_obtained_at.map(SystemTime::from),
        token_expires_at: entry.token_expires_at.map(SystemTime::from),
        tls: tls(table, &url, context.certificates.as_deref()),
        limit: positive(table, "limit"),
        request_concurrency: positive(table, "request_concurrency").unwrap_or(defaults.request_concurrency),
        strict_check_interval: table.bool("strict_check_interval").unwrap_or_default(),
        unhealthy_requests_limit: count("unhealthy_requests_limit").unwrap_or(defaults.unhealthy_requests_limit),
        unhealthy_interval: table.time("unhealthy_interval").unwrap_or(defaults.unhealthy_interval),
        final_update_retry_limit: count("job_status_final_update_retry_limit")
            .unwrap_or(defaults.final_update_retry_limit),
        labels: labels(tree).chain(labels(table)).collect(),
        executor: entry.executor.clone(),
        shell: owned("shell").or_else(|| context.default_shell.clone()).unwrap_or(defaults.shell),
        // These executors of gitlab-runner start login shells.
        login: matches!(entry.executor.as_str(), "shell" | "ssh"),
        user: context.user.clone().filter(|user| !user.is_empty()),
        builds_dir: path("builds_dir"),
        cache_dir: path("cache_dir"),
        clone_url: owned("clone_url"),
        environment: environment(table),
        scripts: RunnerScripts {
            pre_get_sources: owned("pre_get_sources_script"),
            post_get_sources: owned("post_get_sources_script"),
            pre_build: owned("pre_build_script"),
            post_build: owned("post_build_script"),
        },
        steps: super::steps::read(table, &entry.executor, true).0,
        prepare_timeout: table.time("prepare_timeout"),
        get_sources_timeout: table.time("get_sources_timeout"),
        output_limit: output_limit_kib.saturating_mul(1024),
        debug_trace_disabled: table.bool("debug_trace_disabled").unwrap_or_default(),
        proxy_exec: table.bool("proxy_exec").unwrap_or_default(),
        safe_directory_checkout: table.bool("safe_directory_checkout"),
        clean_git_config: table.bool("clean_git_config"),
        use_slot_cgroups: table.bool("use_slot_cgroups").unwrap_or_default(),
        slot_cgroup_template: owned("slot_cgroup_template"),
        custom_build_dir: table.bool("custom_build_dir.enabled"),
        feature_flags: feature_flags(table).collect(),
        on_instances: super::autoscaler::on_instances(table, &entry.executor),
        shares_machines_in_public: super::checks::refusal(entry).is_some(),
        docker: table.table("docker").map(|docker| Box::new(super::docker::read(docker, entry.is_public()).0)),
        autoscaler: super::autoscaler::read(table).or_else(|| super::machine::read(entry)).map(Arc::new),
        custom: super::custom::read(table).map(Box::new),
        ssh: super::ssh::read(table).map(Arc::new),
        artifact: ArtifactTimeouts {
            upload: table.time("artifact.upload_timeout").unwrap_or(defaults.artifact.upload),
            response_header: table
                .time("artifact.response_header_timeout")
                .unwrap_or(defaults.artifact.response_header),
        },
        unpack: unpack(table),
        cache: super::cache::read(table),
        git_mirror: git_mirror(table),
        ..defaults
    })
}

/// Reads `[runners.unpack]`. A limit of 0 means the agent's default.
fn unpack(table: &Table) -> UnpackSettings {
    let limit =
        |key: &str| table.int(&format!("unpack.{key}")).and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
    UnpackSettings {
        max_bytes: limit("max_bytes"),
        max_entries: limit("max_entries"),
        max_ratio: limit("max_ratio"),
        max_header_bytes: limit("max_header_bytes"),
        set_in_ci_toml: false,
    }
}

const DEFAULT_MIRROR_MAX_AGE: Duration = Duration::from_secs(14 * 24 * 3600);

fn git_mirror(table: &Table) -> GitMirrorSettings {
    let Some(mirror) = table.table("git_mirror") else { return GitMirrorSettings::default() };
    GitMirrorSettings {
        enabled: mirror.bool("enabled").unwrap_or_default(),
        dir: mirror.str("dir").filter(|dir| !dir.is_empty()).map(PathBuf::from),
        max_age: mirror.time("max_age").unwrap_or(DEFAULT_MIRROR_MAX_AGE),
    }
}

/// Returns the configured files, or else files that are named after the host.
fn tls(table: &Table, url: &Url, certificates: Option<&Path>) -> TlsFiles {
    let file = |key: &str, end: &str| match (table.str(key), certificates, url.host_str()) {
        (Some(path), ..) => Some(PathBuf::from(path)),
        (None, Some(directory), Some(host)) => {
            Some(directory.join(format!("{host}{end}"))).filter(|path| path.is_file())
        }
        _ => None,
    };
    TlsFiles {
        ca: file("tls-ca-file", ".crt"),
        certificate: file("tls-cert-file", ".auth.crt"),
        key: file("tls-key-file", ".auth.key"),
    }
}

fn positive(table: &Table, name: &str) -> Option<usize> {
    table.int(name).and_then(|value| usize::try_from(value).ok()).filter(|value| *value > 0)
}

/// Reads `environment`. As in gitlab-runner, entries without `=` are dropped (check C106).
fn environment(table: &Table) -> Vec<Variable> {
    let entries = table.strings("environment").filter_map(|(entry, _)| entry.split_once('='));
    entries.map(|(name, value)| Variable { public: false, ..Variable::public(name, value) }).collect()
}
