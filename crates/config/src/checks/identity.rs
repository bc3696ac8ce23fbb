//! Checks of the runner's identity and of its server (checks C020 to C022, C024, C025, C028, C108, C109).

use std::collections::{BTreeMap, BTreeSet};

use muster_job::without_user_info;

use super::super::problem::{Problem, shown_name};
use super::super::runners::{Runner, base_url, is_reference};
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        check_references(check, runner);
        check_token(check, runner);
        check_url(check, runner);
        check_token_expiry(check, runner);
        check_clone_url(check, runner);
        if runner.table.str("tls-ca-file").is_some() {
            let help =
                "install it in the container engine and in job images too; Git and artifacts get it from the runner";
            check.report(
                runner,
                "tls-ca-file",
                "C108",
                "private certificate authority: image pulls, cache storage and scripts do not trust it",
                help,
            );
        }
    }
    check_shared_tokens(check);
}

/// Check C022. Does not show the text after a dollar sign if it may be part of the token.
fn check_references(check: &mut Check<'_>, runner: &Runner) {
    let may_be_token = !runner.table.str("token").is_some_and(is_reference);
    let mut reported = BTreeSet::new();
    for (key, variable) in &runner.unset {
        let name = if *key == "token" && may_be_token { "[masked]".to_owned() } else { shown_name(variable) };
        let message = format!("{key} refers to the environment variable {name}, which is not set");
        let help = "set it for the service, for example with EnvironmentFile= in its unit; write $$ for a dollar sign";
        if reported.insert(message.clone()) {
            check.report(runner, key, "C022", message, help);
        }
    }
}

fn is_unset(runner: &Runner, key: &str) -> bool {
    runner.unset.iter().any(|(unset, _)| *unset == key)
}

fn check_token(check: &mut Check<'_>, runner: &Runner) {
    let token = runner.token.expose();
    if token.trim().is_empty() {
        if !is_unset(runner, "token") {
            check.report(
                runner,
                "token",
                "C020",
                "no token: this runner requests no jobs",
                "register the runner, or write its token",
            );
        }
    } else if token.trim() != token || token.contains(['\n', '\r']) {
        check.report(
            runner,
            "token",
            "C021",
            "token has whitespace around it",
            "remove the whitespace; a secret file often ends with a line break",
        );
    }
}

fn check_url(check: &mut Check<'_>, runner: &Runner) {
    let url = &runner.url;
    if url.trim().is_empty() {
        if !is_unset(runner, "url") {
            check.report(
                runner,
                "url",
                "C021",
                "no url: this runner requests no jobs",
                "write the base URL of the GitLab instance",
            );
        }
        return;
    }
    if url.trim() != url {
        check.report(runner, "url", "C021", "url has whitespace around it", "remove the whitespace");
    } else if base_url(url).is_none() {
        check.report(
            runner,
            "url",
            "C021",
            "url is not a valid http or https URL: this runner requests no jobs",
            "write it as https://gitlab.example.com/",
        );
    }
    if url.trim_end_matches('/').ends_with("/ci") {
        check.report(runner, "url", "C024", "url ends with /ci", "remove /ci; GitLab no longer serves its API there");
    }
}

fn check_shared_tokens(check: &mut Check<'_>) {
    let mut seen: BTreeMap<(&str, String), &Runner> = BTreeMap::new();
    for runner in check.runners {
        let token = runner.token.expose();
        if token.trim().is_empty() {
            continue;
        }
        let key = (token, without_user_info(runner.url.trim_end_matches('/')));
        match seen.get(&key) {
            Some(first) => {
                let name = |runner: &Runner| {
                    if runner.name.is_empty() { format!("{}", runner.index + 1) } else { shown_name(&runner.name) }
                };
                let message = format!(
                    "runners {} and {} share a token: GitLab treats them as one runner",
                    name(first),
                    name(runner)
                );
                check.report(
                    runner,
                    "token",
                    "C025",
                    message,
                    "register a separate runner for the second entry, or remove the entry",
                );
            }
            None => drop(seen.insert(key, runner)),
        }
    }
}

/// Check C028.
fn check_token_expiry(check: &mut Check<'_>, runner: &Runner) {
    let Some(expires) = runner.token_expires_at else { return };
    let rotation_disabled = runner.table.bool("feature_flags.FF_DISABLE_AUTOMATIC_TOKEN_ROTATION") == Some(true);
    let reason = match (rotation_disabled, check.facts.writable) {
        (true, _) => "token rotation is disabled: the server will refuse the runner from then on",
        (false, false) => "the file cannot be replaced: a restart after that date would fail",
        (false, true) => return,
    };
    let message = format!("token expires on {}, and {reason}", expires.date());
    let problem = Problem::new("C028", message).of(runner.index, &runner.name);
    let problem = problem.at(&runner.table.span_of("token_expires_at"));
    check.add(problem.help("renew it before that date with reset-token"));
}

fn check_clone_url(check: &mut Check<'_>, runner: &Runner) {
    let Some(text) = runner.table.str("clone_url") else { return };
    let plain = url::Url::parse(text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https" | "ssh")
            && url.has_host()
            && matches!(url.path(), "" | "/")
            && url.query().is_none()
    });
    let credentials = url::Url::parse(text).is_ok_and(|url| !url.username().is_empty() && url.scheme() != "ssh");
    if !plain || credentials {
        let message =
            "clone_url must be scheme://host[:port]: the project's path and the job's credentials are added to it";
        check.report(runner, "clone_url", "C109", message, "remove credentials and everything after the host");
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{HostFacts, Severity, parse};
    use super::super::testing::{clean, clean_with, found, found_with};

    fn runner(url: &str, token: &str, more: &str) -> String {
        format!("[[runners]]\nname = \"a\"\nurl = \"{url}\"\ntoken = \"{token}\"\nexecutor = \"shell\"\n{more}\n")
    }

    const URL: &str = "https://gitlab.example/";

    #[test]
    fn c020_runner_without_token_requests_no_jobs() {
        assert!(found("C020", &runner(URL, " ", "")).contains("runner a: no token"));
        found("C020", "[[runners]]\nname = \"b\"\n");
        clean("C020", &runner(URL, "t", ""));
        let out = parse(&runner(URL, "", ""), &HostFacts::default());
        assert!(out.has(Severity::Error) && out.config.is_some(), "the file must stay usable for other runners");
    }

    #[test]
    fn c021_whitespace_and_invalid_urls_are_reported() {
        assert!(found("C021", &runner(URL, "t\\n", "")).contains("token has whitespace"));
        assert!(found("C021", &runner(" https://gitlab.example", "t", "")).contains("url has whitespace"));
        assert!(found("C021", &runner("gitlab.example", "t", "")).contains("not a valid http or https URL"));
        assert!(found("C021", &runner("", "t", "")).contains("no url"));
        clean("C021", &runner(URL, "t", ""));
    }

    #[test]
    fn c022_unset_references_are_reported() {
        let text = runner("https://${HOST}/", "$TOKEN", "");
        let output =
            found_with("C022", &text, |facts| drop(facts.env.insert("HOST".to_owned(), "g.example".to_owned())));
        assert!(output.contains("token refers to the environment variable TOKEN, which is not set"), "{output}");
        assert!(!output.contains("HOST"), "{output}");
        clean("C020", &text);
        clean_with("C022", &text, |facts| {
            facts.env =
                [("HOST", "g.example"), ("TOKEN", "t")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        });
    }

    #[test]
    fn c024_url_with_ci_suffix_is_reported() {
        found("C024", &runner("https://gitlab.example/ci", "t", ""));
        clean("C024", &runner(URL, "t", ""));
    }

    #[test]
    fn c025_two_runners_must_not_share_a_token() {
        let output = found(
            "C025",
            &format!(
                "{}{}",
                runner(URL, "glrt-same", ""),
                runner("https://gitlab.example", "glrt-same", "").replace("\"a\"", "\"b\"")
            ),
        );
        assert!(output.contains("runners a and b share a token") && !output.contains("same"), "{output}");
        clean("C025", &format!("{}{}", runner(URL, "one", ""), runner(URL, "two", "")));
    }

    #[test]
    fn c028_expiring_token_in_read_only_file_is_reported() {
        let text = runner(URL, "t", "token_expires_at = 2027-03-01T00:00:00Z");
        let output = found_with("C028", &text, |facts| facts.writable = false);
        assert!(output.contains("error") && output.contains("expires on 2027-03-01"), "{output}");
        let without_rotation = format!("{text}[runners.feature_flags]\nFF_DISABLE_AUTOMATIC_TOKEN_ROTATION = true\n");
        assert!(found("C028", &without_rotation).contains("token rotation is disabled"));
        clean("C028", &text);
        let never = runner(URL, "t", "token_expires_at = 0001-01-01T00:00:00Z");
        clean_with("C028", &never, |facts| facts.writable = false);
    }

    #[test]
    fn c108_private_authority_is_unknown_to_jobs() {
        found("C108", &runner(URL, "t", "tls-ca-file = \"/etc/ca.pem\""));
        clean("C108", &runner(URL, "t", ""));
    }

    #[test]
    fn c109_clone_url_is_scheme_and_host() {
        for url in ["https://g.example/group", "g.example", "https://user:pw@g.example"] {
            let output = found("C109", &runner(URL, "t", &format!("clone_url = \"{url}\"")));
            assert!(!output.contains("pw@"), "{output}");
        }
        clean("C109", &runner(URL, "t", "clone_url = \"https://git.internal:8443\""));
    }
}
