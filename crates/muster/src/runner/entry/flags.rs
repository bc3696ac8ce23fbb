//! Names of the flags and environment variables for the keys of an entry.

use std::sync::LazyLock;

use clap::{Arg, ArgAction};
use muster_config::schema::{Key, Kind, TableSchema, schema};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueParsing {
    /// According to the key's kind. A boolean flag without a value means `true`.
    Plain,
    /// A boolean for which `false` differs from a missing key, so its flag needs a value.
    TriState,
    /// JSON that becomes an array of tables.
    Json,
}

#[derive(Debug)]
pub(super) struct Flag {
    pub(super) long: String,
    alias: Option<&'static str>,
    short: Option<char>,
    env: Option<String>,
    /// Path of the table that contains the key, below `[[runners]]`.
    pub(super) tables: Vec<&'static str>,
    /// For [`ValueParsing::Json`], this key represents the array of tables.
    pub(super) key: &'static Key,
    pub(super) parsing: ValueParsing,
}

/// Returns the flags in the order of the schema.
pub(super) fn all() -> &'static [Flag] {
    static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| schema().tables().iter().flat_map(flags_of_table).collect());
    &FLAGS
}

/// Tables without flags. Users set them in a template, or edit the file.
const NO_FLAGS: [&str; 14] = [
    "autoscaler",
    "instance",
    "monitoring",
    "artifact",
    "experimental",
    "referees",
    "labels",
    "kubernetes.affinity",
    "kubernetes.volumes",
    "kubernetes.services",
    "kubernetes.dns_config",
    "kubernetes.container_lifecycle",
    "kubernetes.pod_spec",
    "kubernetes.autoscaler",
];

/// Keys of `[[runners]]` without flags, which the server or a template sets.
const NO_FLAG_KEYS: [&str; 4] = ["id", "token_obtained_at", "token_expires_at", "labels"];

/// Booleans for which `false` differs from a missing key.
const TRI_STATE: [&str; 18] = [
    "strict_check_interval",
    "safe_directory_checkout",
    "clean_git_config",
    "proxy_exec",
    "custom_build_dir.enabled",
    "docker.services_privileged",
    "ssh.disable_strict_host_key_checking",
    "cache.s3.DualStack",
    "cache.s3.PathStyle",
    "kubernetes.privileged",
    "kubernetes.allow_privilege_escalation",
    "kubernetes.automount_service_account_token",
    "kubernetes.print_pod_warning_events",
    "kubernetes.pod_disruption_budget",
    // In every security context:
    "run_as_non_root",
    "privileged",
    "read_only_root_filesystem",
    "allow_privilege_escalation",
];

/// Keys of `[runners.kubernetes]` with underscores in their flags.
const UNDASHED_KEYS: [&str; 14] = [
    "bearer_token",
    "bearer_token_overwrite_allowed",
    "namespace_overwrite_allowed",
    "namespace_per_job",
    "node_selector_overwrite_allowed",
    "node_tolerations_overwrite_allowed",
    "pod_termination_grace_period_seconds",
    "cleanup_grace_period_seconds",
    "cleanup_resources_timeout",
    "pod_labels_overwrite_allowed",
    "service_account_overwrite_allowed",
    "pod_annotations_overwrite_allowed",
    "host_aliases",
    "priority_class_name",
];

/// Exceptions to [`long_by_rule`] and [`env_by_rule`]: key, flag, environment variable.
///
/// `=` means that the rule applies. An empty third field means that the flag has no environment variable.
const EXCEPTIONS: [(&str, &str, &str); 50] = [
    ("name", "name", "RUNNER_NAME"),
    ("url", "url", "CI_SERVER_URL"),
    ("token", "token", "CI_SERVER_TOKEN"),
    ("tls-ca-file", "=", "CI_SERVER_TLS_CA_FILE"),
    ("tls-cert-file", "=", "CI_SERVER_TLS_CERT_FILE"),
    ("tls-key-file", "=", "CI_SERVER_TLS_KEY_FILE"),
    ("unhealthy_interval", "=", ""),
    ("job_status_final_update_retry_limit", "=", "RUNNER_job_status_final_update_retry_limit"),
    ("clone_url", "=", "CLONE_URL"),
    ("environment", "env", "RUNNER_ENV"),
    ("feature_flags", "=", "FEATURE_FLAGS"),
    ("step_runner_image", "=", "STEP_RUNNER_IMAGE"),
    ("docker.services_privileged", "docker-services_privileged", "="),
    ("docker.allowed_users", "docker-allowed_users", "="),
    ("docker.services_devices", "docker-services_devices", "="),
    ("docker.service_gpus", "docker-service_gpus", "="),
    ("docker.userns_mode", "docker-userns", "="),
    ("docker.tls_cert_path", "docker-cert-path", "DOCKER_CERT_PATH"),
    ("docker.tls_verify", "docker-tlsverify", "="),
    ("docker.ipcmode", "=", "DOCKER_IPC_MODE"),
    ("docker.container_labels", "=", ""),
    ("docker.enable_ipv6", "=", ""),
    ("docker.network_mtu", "=", ""),
    ("kubernetes.context", "=", "KUBECTL_CONTEXT"),
    ("kubernetes.retry_limit", "=", "KUBERNETES_REQUEST_RETRY_LIMIT"),
    ("kubernetes.retry_backoff_max", "=", "KUBERNETES_REQUEST_RETRY_BACKOFF_MAX"),
    ("kubernetes.pod_labels", "=", ""),
    ("kubernetes.pod_annotations", "=", ""),
    ("kubernetes.host_aliases", "=", ""),
    ("machine.MaxGrowthRate", "=", "MACHINE_MAX_GROWTH_RATE"),
    ("machine.IdleCount", "machine-idle-nodes", "MACHINE_IDLE_COUNT"),
    ("machine.IdleScaleFactor", "=", "MACHINE_IDLE_SCALE_FACTOR"),
    ("machine.IdleCountMin", "=", "MACHINE_IDLE_COUNT_MIN"),
    ("machine.IdleTime", "=", "MACHINE_IDLE_TIME"),
    ("machine.MaxBuilds", "=", "MACHINE_MAX_BUILDS"),
    ("machine.MachineDriver", "=", "MACHINE_DRIVER"),
    ("machine.MachineName", "=", "MACHINE_NAME"),
    ("machine.MachineOptions", "=", "MACHINE_OPTIONS"),
    ("machine.MachineOptionsWithName", "=", "MACHINE_OPTIONS_WITH_NAME"),
    ("machine.MaxRemovalAttempts", "=", "MACHINE_MAX_REMOVAL_ATTEMPTS"),
    ("ssh.disable_strict_host_key_checking", "=", "DISABLE_STRICT_HOST_KEY_CHECKING"),
    ("ssh.known_hosts_file", "=", "KNOWN_HOSTS_FILE"),
    ("custom.config_args", "=", ""),
    ("custom.prepare_args", "=", ""),
    ("custom.run_args", "=", ""),
    ("custom.cleanup_args", "=", ""),
    ("cache.MaxUploadedArchiveSize", "cache-max_uploaded_archive_size", "CACHE_MAXIMUM_UPLOADED_ARCHIVE_SIZE"),
    ("cache.s3.AuthenticationType", "cache-s3-authentication_type", "="),
    ("cache.gcs.CredentialsFile", "=", "GOOGLE_APPLICATION_CREDENTIALS"),
    ("custom_build_dir.enabled", "custom_build_dir-enabled", "CUSTOM_BUILD_DIR_ENABLED"),
];

fn flags_of_table(table: &'static TableSchema) -> Vec<Flag> {
    let Some(path) = table.path.strip_prefix("runners").map(|path| path.trim_start_matches('.')) else {
        return Vec::new();
    };
    let is_in = |name: &&str| *path == **name || path.starts_with(&format!("{name}."));
    if path == "kubernetes.host_aliases" {
        return vec![flag(&["kubernetes"], &HOST_ALIASES)];
    }
    if NO_FLAGS.iter().any(is_in) || (table.array && !path.is_empty()) {
        return Vec::new();
    }
    let tables: Vec<&'static str> = path.split('.').filter(|name| !name.is_empty()).collect();
    // Keys of docker+machine that GitLab has removed have no flags.
    let keys = table.keys.iter().filter(|key| !key.name.starts_with("OffPeak"));
    let keys = keys.filter(|key| !path.is_empty() || !NO_FLAG_KEYS.contains(&key.name));
    keys.map(|key| flag(&tables, key)).collect()
}

/// Key of the one flag that sets all tables of the array `[[runners.kubernetes.host_aliases]]`.
static HOST_ALIASES: Key = Key {
    name: "host_aliases",
    kind: Kind::Any,
    unit: "",
    default: "",
    meaning: "Lines of the hosts file, as JSON: [{\"ip\": \"...\", \"hostnames\": [\"...\"]}]",
    reload: muster_config::schema::Reload::Jobs,
    status: muster_config::schema::KeySupport::Supported,
    secret: false,
    rejected: false,
};

fn flag(tables: &[&'static str], key: &'static Key) -> Flag {
    let full = tables.iter().chain([&key.name]).copied().collect::<Vec<_>>().join(".");
    let (mut long, mut env) = (long_by_rule(tables, key.name), Some(env_by_rule(tables, key.name)));
    if let Some((_, other_long, other_env)) = EXCEPTIONS.iter().find(|(name, ..)| *name == full) {
        if *other_long != "=" {
            long = (*other_long).to_owned();
        }
        match *other_env {
            "=" => {}
            "" => env = None,
            name => env = Some(name.to_owned()),
        }
    }
    let is_security_context = tables.iter().any(|table| table.ends_with("security_context"));
    if is_security_context && matches!(key.name, "supplemental_groups" | "selinux_type") {
        env = None;
    }
    let tri_state = key.kind == Kind::Bool
        && (TRI_STATE.contains(&full.as_str()) || (is_security_context && TRI_STATE.contains(&key.name)));
    let parsing = match key.kind {
        Kind::Any => ValueParsing::Json,
        _ if tri_state => ValueParsing::TriState,
        _ => ValueParsing::Plain,
    };
    let (alias, short) = match (tables, key.name) {
        ([], "name") => (Some("description"), None),
        ([], "url") => (None, Some('u')),
        ([], "token") => (None, Some('t')),
        _ => (None, None),
    };
    Flag { long, alias, short, env, tables: tables.to_vec(), key, parsing }
}

fn long_by_rule(tables: &[&str], key: &str) -> String {
    let key = if tables.first() == Some(&"kubernetes") && UNDASHED_KEYS.contains(&key) {
        key.to_owned()
    } else {
        match key.split_once("_ephemeral_storage_") {
            Some((resource, rest)) if tables == ["kubernetes"] => {
                format!("{resource}-ephemeral_storage-{}", dashed(rest))
            }
            _ => dashed(key),
        }
    };
    // `pod-security-context` is the only table name with dashes in flags.
    let name = |table: &&str| if *table == "pod_security_context" { dashed(table) } else { (*table).to_owned() };
    tables.iter().map(name).chain([key]).collect::<Vec<_>>().join("-")
}

fn env_by_rule(tables: &[&str], key: &str) -> String {
    let words = tables.iter().copied().chain([key]).map(|word| dashed(word).replace('-', "_").to_uppercase());
    let name = words.collect::<Vec<_>>().join("_");
    if tables.is_empty() { format!("RUNNER_{name}") } else { name }
}

/// `ServerSideEncryptionKeyID` becomes `server-side-encryption-key-id`.
fn dashed(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut text = String::new();
    for (index, letter) in letters.iter().enumerate() {
        let previous = index.checked_sub(1).and_then(|previous| letters.get(previous));
        let follows_lowercase = previous.is_some_and(|previous| previous.is_lowercase());
        let ends_capitals = previous.is_some_and(|previous| previous.is_uppercase())
            && letters.get(index + 1).is_some_and(|next| next.is_lowercase());
        if letter.is_uppercase() && (follows_lowercase || ends_capitals) {
            text.push('-');
        }
        text.push(if *letter == '_' { '-' } else { letter.to_ascii_lowercase() });
    }
    text
}

impl Flag {
    /// Returns the environment variable and its value, unless the value is empty.
    pub(super) fn environment(&self) -> Option<(&str, String)> {
        let name = self.env.as_deref()?;
        std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value))
    }

    pub(super) fn argument(&'static self) -> Arg {
        let mut help = self.key.meaning.to_owned();
        if !self.key.unit.is_empty() {
            help.push_str(&format!(" (in {})", self.key.unit));
        }
        if let Some(name) = &self.env {
            help.push_str(&format!(" [env: {name}]"));
        }
        let mut argument = Arg::new(self.long.as_str()).long(self.long.as_str()).help(help);
        if let Some(alias) = self.alias {
            argument = argument.visible_alias(alias);
        }
        if let Some(short) = self.short {
            argument = argument.short(short);
        }
        let (value_name, is_list) = match self.key.kind {
            Kind::List | Kind::ListInt | Kind::ListFloat => ("VALUE", true),
            Kind::Map | Kind::MapBool | Kind::MapInt | Kind::MapList => ("KEY:VALUE", true),
            Kind::Bool => ("BOOL", false),
            Kind::Duration => ("DURATION", false),
            Kind::Int | Kind::Float => ("NUMBER", false),
            Kind::Any => ("JSON", false),
            _ => ("VALUE", false),
        };
        argument = argument.value_name(value_name).action(if is_list { ArgAction::Append } else { ArgAction::Set });
        argument = argument.allow_hyphen_values(true);
        if self.key.kind == Kind::Bool && self.parsing == ValueParsing::Plain {
            argument = argument.num_args(0..=1).require_equals(true).default_missing_value("true");
        }
        match self.tables.first() {
            Some(table) => {
                let heading: &'static str = match *table {
                    "docker" => "Docker executor",
                    "kubernetes" => "Kubernetes executor",
                    "machine" => "Docker Machine",
                    "ssh" => "SSH executor",
                    "custom" => "Custom executor",
                    "cache" => "Cache",
                    "custom_build_dir" => "Runner",
                    _ => "Virtual machine executors",
                };
                argument.help_heading(heading).hide_short_help(true)
            }
            None => argument.help_heading("Runner"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn flag_names_are_unique_and_exceptions_refer_to_keys() {
        let mut names = BTreeMap::new();
        for flag in all() {
            let full = flag.tables.iter().chain([&flag.key.name]).copied().collect::<Vec<_>>().join(".");
            assert_eq!(names.insert(flag.long.clone(), full.clone()), None, "{full}");
        }
        for (full, ..) in EXCEPTIONS {
            assert!(names.values().any(|name| name == full), "unknown key {full}");
        }
        for full in TRI_STATE {
            assert!(names.values().any(|name| name.ends_with(full)), "unknown key {full}");
        }
    }

    #[test]
    fn flags_and_variables_match_gitlab_runner_16_6() {
        /// Output of `register --help` of release 16.6.0: flag, variable or `-`, and `value` if the flag requires a
        /// value, or else `bare`.
        const RECORDED: &str = include_str!("upstream_flags.txt");
        /// Flags that GitLab removed in 17.0, or whose kind has changed since.
        const CHANGED: [&str; 4] = [
            "pre-clone-script",
            "post-clone-script",
            "custom_build_dir-enabled",
            "kubernetes-terminationGracePeriodSeconds",
        ];
        let flags: BTreeMap<&str, &Flag> = all().iter().map(|flag| (flag.long.as_str(), flag)).collect();
        let mut mismatches = Vec::new();
        for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [long, env, form] = words[..] else { panic!("{line}") };
            if CHANGED.contains(&long) {
                continue;
            }
            let found = flags.get(long).map(|flag| {
                let bare = flag.key.kind == Kind::Bool && flag.parsing == ValueParsing::Plain;
                format!("{long} {} {}", flag.env.as_deref().unwrap_or("-"), if bare { "bare" } else { "value" })
            });
            if found.as_deref() != Some(&format!("{long} {env} {form}")) {
                mismatches.push(format!("{line}: {found:?}"));
            }
        }
        assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
    }
}
