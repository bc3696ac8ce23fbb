//! Checks of containers and of the cache (C050 to C060).

use super::super::codes::Severity;
use super::super::problem::{Problem, shown_name};
use super::super::runners::Runner;
use super::super::runtime::pull_policy;
use super::super::tree::{Table, Value};
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        if let Some(docker) = runner.table.table("docker") {
            root(check, runner, docker);
            images(check, runner, docker, "docker");
            volumes(check, runner, docker);
        }
        if let Some(kubernetes) = runner.table.table("kubernetes") {
            images(check, runner, kubernetes, "kubernetes");
        }
        storage(check, runner);
    }
}

/// Checks privileged containers (C050).
fn root(check: &mut Check<'_>, runner: &Runner, docker: &Table) {
    const HELP: &str = "keep this runner for trusted projects, or allow single images by allowed_privileged_images";
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

/// Checks images and pull policies (C052, C053, C054, C055).
fn images(check: &mut Check<'_>, runner: &Runner, table: &Table, section: &str) {
    for (policy, node) in table.strings("pull_policy") {
        if section == "docker" && matches!(policy, "if-not-present" | "never") {
            let message =
                format!("pull_policy {policy}: jobs can use private images that other projects' jobs have pulled");
            let help = "use \"always\" where projects do not trust each other; unchanged layers are not loaded again";
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
                let message = format!("pattern {} of {key} matches no further \"/\"", shown_name(pattern));
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
            let message = format!("helper_image is not of version {version}: its programs may not fit");
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

/// Checks volumes and networks (C056, C058, C059).
fn volumes(check: &mut Check<'_>, runner: &Runner, docker: &Table) {
    if docker.bool("volume_keep") == Some(true) {
        check.report(
            runner,
            "docker.volume_keep",
            "C056",
            "volumes stay after jobs; the use of the disk grows",
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
        let message = "disable_cache concerns local cache volumes only; the cache in object storage stays in use";
        check.report(
            runner,
            "docker.disable_cache",
            "C059",
            message,
            "remove Type of [runners.cache] to switch that off",
        );
    }
}

/// Checks the storage of the cache (C060).
fn storage(check: &mut Check<'_>, runner: &Runner) {
    let Some(cache) = runner.table.table("cache") else { return };
    let Some(kind) = cache.str("Type") else { return };
    let needed: &[&str] = match kind {
        "s3" => &["BucketName"],
        "gcs" => &["BucketName"],
        "azure" => &["ContainerName", "AccountName"],
        other => {
            let message = format!("cache type {} does not exist; jobs run without cache", shown_name(other));
            return check.report(runner, "cache.Type", "C060", message, "use s3, gcs or azure");
        }
    };
    for key in needed {
        if cache.str(&format!("{kind}.{key}")).is_none() {
            let message = format!("cache {kind}: {key} is missing; jobs run without cache");
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
        let short = |key: &str| key.trim_start_matches("s3.").to_owned();
        let message = format!("{} without {}: the role of this instance is used instead", short(&set), short(&missing));
        check.report(runner, &format!("cache.{set}"), "C060", message, "set both, or none");
    }
    let other = ["s3", "gcs", "azure"].into_iter().find(|section| {
        *section != kind && matches!(cache.node(section).map(|node| &node.value), Some(Value::Table(_)))
    });
    if let (Some(other), None) = (other, cache.table(kind)) {
        let problem = Problem::new("C060", format!("Type is {kind}, but the settings are those of {other}"))
            .severity(Severity::Error);
        check.add(problem.of(runner.index, &runner.name).at(&cache.place(other)).help("make both the same"));
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
    fn c050_ways_to_root() {
        assert!(found("C050", &docker("privileged = true")).contains("jobs can gain root"));
        found("C050", &docker("volumes = [\"/cache\", \"/var/run/docker.sock:/var/run/docker.sock\"]"));
        clean("C050", &docker("privileged = true\nallowed_privileged_images = [\"builder:*\"]"));
        clean("C050", &docker("privileged = false\nvolumes = [\"/cache\"]"));
    }

    #[test]
    fn c052_images_of_others() {
        found("C052", &docker("pull_policy = \"if-not-present\""));
        found("C052", &docker("pull_policy = [\"always\", \"never\"]"));
        clean("C052", &docker("pull_policy = \"always\""));
    }

    #[test]
    fn c053_pull_policy_of_runner_is_not_allowed() {
        let output = found("C053", &docker("pull_policy = \"always\"\nallowed_pull_policies = [\"never\"]"));
        assert!(output.contains("allowed_pull_policies does not list it; never may be used"), "{output}");
        clean("C053", &docker("pull_policy = \"always\""));
        clean("C053", &docker("pull_policy = \"always\"\nallowed_pull_policies = [\"never\", \"always\"]"));
    }

    #[test]
    fn c054_one_star_does_not_match_a_slash() {
        assert!(found("C054", &docker("allowed_images = [\"registry.example/*\"]")).contains("use **"));
        found("C054", &docker("allowed_services = [\"*:*\"]"));
        clean("C054", &docker("allowed_images = [\"registry.example/**\", \"ruby:*\", \"**/*\"]"));
    }

    #[test]
    fn c055_a_helper_of_another_version() {
        let text = docker("helper_image = \"registry.example/helper:x86_64-v1.0\"");
        found_with("C055", &text, |facts| facts.version = "19.4.0".to_owned());
        clean_with("C055", &text, |facts| facts.version = "1.0".to_owned());
        clean("C055", &docker("helper_image = \"registry.example/helper:${CI_RUNNER_VERSION}\""));
    }

    #[test]
    fn c056_volumes_that_stay() {
        found("C056", &docker("volume_keep = true"));
        clean("C056", &docker("volume_keep = false"));
    }

    #[test]
    fn c058_a_cache_that_is_lost() {
        let text = |directory: &str, volumes: &str| {
            format!("[[runners]]\ncache_dir = \"{directory}\"\n[runners.docker]\nvolumes = [{volumes}]\n")
        };
        assert!(found("C058", &text("/my/cache", "\"/cache\"")).contains("/my/cache is not on a volume"));
        clean("C058", &text("/my/cache", "\"/srv/cache:/my/cache:rw\""));
        clean("C058", &text("/my/cache", "\"/my\""));
    }

    #[test]
    fn c059_disable_cache_is_about_volumes() {
        let text =
            |more: &str| format!("[[runners]]\n[runners.docker]\ndisable_cache = true\n[runners.cache]\n{more}\n");
        found("C059", &text("Type = \"s3\""));
        clean("C059", &text(""));
    }

    #[test]
    fn c060_storage_without_what_it_needs() {
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
            found("C060", &cache("Type = \"gcs\"\n[runners.cache.s3]\nBucketName = \"b\"")).contains("those of s3")
        );
        clean(
            "C060",
            &cache("Type = \"s3\"\n[runners.cache.s3]\nBucketName = \"b\"\nAccessKey = \"k\"\nSecretKey = \"s\""),
        );
        clean("C060", &cache("Path = \"x\""));
    }
}
