//! Checks of containers and of the cache (checks C050 to C060).

use super::super::codes::Severity;
use super::super::docker::read;
use super::super::problem::{Problem, shown_name};
use super::super::runners::Runner;
use super::super::runtime::pull_policy;
use super::super::tree::{Table, Value};
use super::Check;
use crate::settings::CONTAINER_EXECUTORS;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        let docker = runner.table.table("docker");
        if docker.is_none() && CONTAINER_EXECUTORS.contains(&runner.executor.as_str()) {
            let message = format!("executor `{}` without [runners.docker]; every job fails", runner.executor);
            check.report(runner, "executor", "C057", message, "add the table with at least `image = \"...\"`");
        }
        if let Some(docker) = docker {
            check_invalid_values(check, runner, docker);
            check_root_access(check, runner, docker);
            check_images(check, runner, docker, "docker");
            check_volumes(check, runner, docker);
        }
        if let Some(kubernetes) = runner.table.table("kubernetes") {
            check_images(check, runner, kubernetes, "kubernetes");
        }
        check_storage(check, runner);
    }
}

/// Check C057.
fn check_invalid_values(check: &mut Check<'_>, runner: &Runner, docker: &Table) {
    for problem in read(docker, runner.is_public()).1 {
        let message = format!("{}; every job fails", problem.message);
        check.report(runner, &format!("docker.{}", problem.key), "C057", message, problem.help);
    }
}

/// Check C050.
fn check_root_access(check: &mut Check<'_>, runner: &Runner, docker: &Table) {
    const HELP: &str = "keep this runner for trusted projects, or allow specific images with allowed_privileged_images";
    let limited = docker.node("allowed_privileged_images").is_some();
    if docker.bool("privileged") == Some(true) && !limited {
        check.report(
            runner,
            "docker.privileged",
            "C050",
            "jobs can gain root on this host (privileged containers)",
            HELP,
        );
    }
    let socket = docker.strings("volumes").find(|(volume, _)| volume.contains("docker.sock"));
    if let Some((_, node)) = socket {
        let problem = Problem::new("C050", "jobs can gain root on this host (the engine's socket is in volumes)");
        check.add(
            problem
                .of(runner.index, &runner.name)
                .at(&node.span)
                .help("use docker:dind with TLS, or keep this runner for trusted projects"),
        );
    }
}

/// Checks C052 to C055.
fn check_images(check: &mut Check<'_>, runner: &Runner, table: &Table, section: &str) {
    for (policy, node) in table.strings("pull_policy") {
        if section == "docker" && matches!(policy, "if-not-present" | "never") {
            let message =
                format!("pull_policy {policy}: jobs can use private images that other projects' jobs have pulled");
            let help = "use \"always\" if projects do not trust each other; unchanged layers are not downloaded again";
            check.add(Problem::new("C052", message).of(runner.index, &runner.name).at(&node.span).help(help));
        }
    }
    let policies = |key: &str| table.strings(key).map(|(policy, _)| policy).collect::<Vec<_>>();
    let (allowed, configured) = (policies("allowed_pull_policies"), policies("pull_policy"));
    for (policy, node) in table.strings("pull_policy") {
        if let Some(problem) = pull_policy(policy, &allowed, &configured) {
            check.add(problem.of(runner.index, &runner.name).at(&node.span));
        }
    }
    for key in ["allowed_images", "allowed_services", "allowed_privileged_images", "allowed_privileged_services"] {
        for (pattern, node) in table.strings(key) {
            let name = pattern.split(':').next().unwrap_or_default();
            if !pattern.contains("**") && (name == "*" || name.ends_with("/*")) {
                let message = format!("`*` in pattern {} of {key} does not match \"/\"", shown_name(pattern));
                check.add(
                    Problem::new("C054", message)
                        .of(runner.index, &runner.name)
                        .at(&node.span)
                        .help("use ** for nested paths"),
                );
            }
        }
    }
    if let Some(image) = table.str("helper_image") {
        let version = &check.facts.version;
        if !image.contains('$') && (version.is_empty() || !image.contains(version.as_str())) {
            let message = format!("helper_image is not version {version}: its programs may be incompatible");
            check.report(
                runner,
                &format!("{section}.helper_image"),
                "C055",
                message,
                "Muster needs no helper image; remove the key",
            );
        }
    }
}

/// Checks C056, C058 and C059.
fn check_volumes(check: &mut Check<'_>, runner: &Runner, docker: &Table) {
    if docker.bool("volume_keep") == Some(true) {
        check.report(
            runner,
            "docker.volume_keep",
            "C056",
            "volumes are kept after jobs; disk usage grows",
            "remove old volumes regularly",
        );
    }
    let on_volume = |directory: &str| {
        docker.strings("volumes").any(|(volume, _)| {
            volume
                .split(':')
                .any(|part| part == directory || (part.len() > 1 && directory.starts_with(&format!("{part}/"))))
        })
    };
    if let Some(directory) =
        runner.table.str("cache_dir").filter(|directory| *directory != "/cache" && !on_volume(directory))
    {
        let message = format!("{} is not on a volume; its content is lost after each job", shown_name(directory));
        check.report(runner, "cache_dir", "C058", message, "add it to volumes of [runners.docker]");
    }
    if docker.bool("disable_cache") == Some(true) && runner.table.str("cache.Type").is_some() {
        let message = "disable_cache affects only local cache volumes; the cache in object storage is still used";
        check.report(
            runner,
            "docker.disable_cache",
            "C059",
            message,
            "to disable that cache, remove Type from [runners.cache]",
        );
    }
}

/// Check C060.
fn check_storage(check: &mut Check<'_>, runner: &Runner) {
    let Some(cache) = runner.table.table("cache") else { return };
    let Some(kind) = cache.str("Type") else { return };
    let needed: &[&str] = match kind {
        "s3" => &["BucketName"],
        "gcs" => &["BucketName"],
        "azure" => &["ContainerName", "AccountName"],
        other => {
            let message = format!("cache type {} does not exist; jobs use only local caches", shown_name(other));
            return check.report(runner, "cache.Type", "C060", message, "use s3, gcs or azure");
        }
    };
    for key in needed {
        if cache.str(&format!("{kind}.{key}")).is_none() {
            let message = format!("cache {kind}: {key} is missing; jobs use only local caches");
            check.report(runner, "cache.Type", "C060", message, &format!("set it in [runners.cache.{kind}]"));
        }
    }
    let pair = |one: &str, other: &str| match (cache.str(one).is_some(), cache.str(other).is_some()) {
        (true, false) => Some((one.to_owned(), other.to_owned())),
        (false, true) => Some((other.to_owned(), one.to_owned())),
        _ => None,
    };
    if kind == "s3"
        && let Some((set, missing)) = pair("s3.AccessKey", "s3.SecretKey")
    {
        let name = |key: &str| key.trim_start_matches("s3.").to_owned();
        let message = format!("{} without {}: the role of this machine is used instead", name(&set), name(&missing));
        check.report(runner, &format!("cache.{set}"), "C060", message, "set both or neither");
    }
    if let (Some(s3), "s3") = (cache.table("s3"), kind) {
        check_s3_storage(check, runner, s3);
    }
    let other = ["s3", "gcs", "azure"].into_iter().find(|section| {
        *section != kind && matches!(cache.node(section).map(|node| &node.value), Some(Value::Table(_)))
    });
    if let (Some(other), None) = (other, cache.table(kind)) {
        let problem =
            Problem::new("C060", format!("Type is {kind}, but the settings are for {other}")).severity(Severity::Error);
        check.add(
            problem
                .of(runner.index, &runner.name)
                .at(&cache.span_of(other))
                .help("set Type to the storage that the settings are for"),
        );
    }
}

/// Check C060 of values that gitlab-runner ignores without an error.
fn check_s3_storage(check: &mut Check<'_>, runner: &Runner, s3: &Table) {
    let has = |key: &str| s3.str(key).is_some_and(|value| !value.is_empty());
    let mut warn = |key: &str, message: &str, help: &str| {
        let problem = Problem::new("C060", message).severity(Severity::Warning);
        check.add(problem.of(runner.index, &runner.name).at(&s3.span_of(key)).help(help));
    };
    match s3.str("AuthenticationType").map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | "access-key" | "iam") => {}
        Some(_) => {
            warn("AuthenticationType", "AuthenticationType is not valid and is ignored", "use access-key or iam")
        }
    }
    if has("AccessKey") && has("SecretKey") && !has("ServerAddress") && !has("AuthenticationType") {
        let message =
            "AccessKey and SecretKey have no effect without ServerAddress: the role of this machine is used instead";
        warn("AccessKey", message, "set AuthenticationType = \"access-key\"");
    }
    let encryption = s3.str("ServerSideEncryption").unwrap_or_default().to_ascii_uppercase();
    if !["", "S3", "AES256", "KMS", "AWS:KMS", "DSSE-KMS", "AWS:KMS:DSSE"].contains(&encryption.as_str()) {
        let message = "ServerSideEncryption is not valid; uploads do not request encryption";
        warn("ServerSideEncryption", message, "use S3, KMS or DSSE-KMS");
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, clean_with, found, found_with};

    fn docker(text: &str) -> String {
        format!("[[runners]]\nname = \"a\"\nexecutor = \"docker\"\n[runners.docker]\nimage = \"x\"\n{text}\n")
    }

    fn cache(text: &str) -> String {
        format!("[[runners]]\nname = \"a\"\nexecutor = \"docker\"\n[runners.cache]\n{text}\n")
    }

    #[test]
    fn c050_settings_with_which_jobs_gain_root_are_reported() {
        assert!(found("C050", &docker("privileged = true")).contains("jobs can gain root"));
        found("C050", &docker("volumes = [\"/cache\", \"/var/run/docker.sock:/var/run/docker.sock\"]"));
        clean("C050", &docker("privileged = true\nallowed_privileged_images = [\"builder:*\"]"));
        clean("C050", &docker("privileged = false\nvolumes = [\"/cache\"]"));
    }

    #[test]
    fn c052_policies_that_share_private_images_are_reported() {
        found("C052", &docker("pull_policy = \"if-not-present\""));
        found("C052", &docker("pull_policy = [\"always\", \"never\"]"));
        clean("C052", &docker("pull_policy = \"always\""));
    }

    #[test]
    fn c053_pull_policy_outside_of_the_allowed_ones_is_reported() {
        let output = found("C053", &docker("pull_policy = \"always\"\nallowed_pull_policies = [\"never\"]"));
        assert!(output.contains("allowed_pull_policies does not list it; allowed: `never`"), "{output}");
        clean("C053", &docker("pull_policy = \"always\""));
        clean("C053", &docker("pull_policy = \"always\"\nallowed_pull_policies = [\"never\", \"always\"]"));
    }

    #[test]
    fn c054_star_does_not_match_slash() {
        assert!(found("C054", &docker("allowed_images = [\"registry.example/*\"]")).contains("use **"));
        found("C054", &docker("allowed_services = [\"*:*\"]"));
        clean("C054", &docker("allowed_images = [\"registry.example/**\", \"ruby:*\", \"**/*\"]"));
    }

    #[test]
    fn c055_helper_image_of_other_version_is_reported() {
        let text = docker("helper_image = \"registry.example/helper:x86_64-v1.0\"");
        found_with("C055", &text, |facts| facts.version = "19.4.0".to_owned());
        clean_with("C055", &text, |facts| facts.version = "1.0".to_owned());
        clean("C055", &docker("helper_image = \"registry.example/helper:${CI_RUNNER_VERSION}\""));
    }

    #[test]
    fn c056_keeping_volumes_after_jobs_is_reported() {
        found("C056", &docker("volume_keep = true"));
        clean("C056", &docker("volume_keep = false"));
    }

    #[test]
    fn c057_settings_that_fail_every_job_are_reported() {
        let missing = found("C057", "[[runners]]\nname = \"a\"\nexecutor = \"docker-autoscaler\"\n");
        assert!(missing.contains("executor `docker-autoscaler` without [runners.docker]"), "{missing}");
        let invalid = found("C057", &docker("memory = \"5 apples\"\ndns = [\"192.0.2.1\", \"resolver\"]"));
        assert!(
            invalid.contains("6:10 ") && invalid.contains("memory of [runners.docker]: `5 apples` is not a valid size")
        );
        assert!(
            invalid.contains("`resolver` is not a valid IP address; every job fails; write the address"),
            "{invalid}"
        );
        clean("C057", &docker("memory = \"512m\"\ncpus = \"1/2\"\nlog_options = { env = \"A\" }"));
        clean("C057", "[[runners]]\nname = \"a\"\nexecutor = \"shell\"\n");
    }

    #[test]
    fn c058_cache_dir_must_be_on_a_volume() {
        let text = |directory: &str, volumes: &str| {
            format!("[[runners]]\ncache_dir = \"{directory}\"\n[runners.docker]\nvolumes = [{volumes}]\n")
        };
        assert!(found("C058", &text("/my/cache", "\"/cache\"")).contains("/my/cache is not on a volume"));
        clean("C058", &text("/my/cache", "\"/srv/cache:/my/cache:rw\""));
        clean("C058", &text("/my/cache", "\"/my\""));
    }

    #[test]
    fn c059_disable_cache_affects_only_volumes() {
        let text =
            |more: &str| format!("[[runners]]\n[runners.docker]\ndisable_cache = true\n[runners.cache]\n{more}\n");
        found("C059", &text("Type = \"s3\""));
        clean("C059", &text(""));
    }

    #[test]
    fn c060_incomplete_storage_settings_are_reported() {
        assert!(
            found("C060", &cache("Type = \"s3\"\n[runners.cache.s3]\nServerAddress = \"x\""))
                .contains("BucketName is missing")
        );
        assert!(
            found("C060", &cache("Type = \"s3\"\n[runners.cache.s3]\nBucketName = \"b\"\nAccessKey = \"KEYID\""))
                .contains("AccessKey without SecretKey")
        );
        found("C060", &cache("Type = \"gcs\""));
        found("C060", &cache("Type = \"azure\"\n[runners.cache.azure]\nContainerName = \"x\""));
        assert!(found("C060", &cache("Type = \"s4\"")).contains("does not exist"));
        assert!(
            found("C060", &cache("Type = \"gcs\"\n[runners.cache.s3]\nBucketName = \"b\""))
                .contains("settings are for s3")
        );
        clean(
            "C060",
            &cache(
                "Type = \"s3\"\n[runners.cache.s3]\nServerAddress = \"a\"\nBucketName = \"b\"\nAccessKey = \"k\"\nSecretKey = \"s\"",
            ),
        );
        clean("C060", &cache("Path = \"x\""));
        let s3 = |text: &str| cache(&format!("Type = \"s3\"\n[runners.cache.s3]\nBucketName = \"b\"\n{text}"));
        let keys = "AccessKey = \"k\"\nSecretKey = \"s\"\n";
        assert!(found("C060", &s3(keys)).contains("have no effect without ServerAddress"));
        clean("C060", &s3(&format!("{keys}AuthenticationType = \"access-key\"\nServerSideEncryption = \"aes256\"")));
        assert!(found("C060", &s3("AuthenticationType = \"role\"")).contains("is ignored"));
        assert!(found("C060", &s3("ServerSideEncryption = \"rot13\"")).contains("do not request encryption"));
    }
}
