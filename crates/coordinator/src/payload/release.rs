//! The `release` keyword as a script: it logs in with the job's token and runs `glab`.
//!
//! Values are in double quotes and escaped, so that the job's shell expands only variables in them.

use serde_json::Value;

const CHECK: &str = "command -v glab >/dev/null || { echo \"release: the program glab is not in this job's environment; \
                     install it there (https://gitlab.com/gitlab-org/cli)\" >&2; exit 1; }";

/// Logs in to the coordinator.
///
/// The address does not come from `CI_SERVER_URL`, which can be the server of the project's remote. A job's token must not replace the
/// user's login to that server.
const LOGIN: [&str; 3] = [
    "export GITLAB_HOST=\"${CI_API_V4_URL%/api/v4}\"",
    "coordinator=\"${GITLAB_HOST#*://}\"",
    "glab auth login --job-token \"$CI_JOB_TOKEN\" --hostname \"$coordinator\" --api-protocol \"${GITLAB_HOST%%:*}\"",
];

pub(super) fn script(release: &Value) -> Vec<String> {
    [CHECK].into_iter().chain(LOGIN).map(str::to_owned).chain([command(release)]).collect()
}

/// Returns the command `glab release create ...`. As on GitLab, it fails for an existing release, and milestones stay open.
fn command(release: &Value) -> String {
    let text = |key: &str| release.get(key).and_then(Value::as_str).filter(|value| !value.is_empty());
    let tag = text("tag_name").unwrap_or("$CI_COMMIT_TAG");
    let mut command = format!("glab -R \"$CI_PROJECT_PATH\" release create {}", quoted(tag));
    let mut option = |name: &str, value: &str| {
        command.push_str(&format!(" --{name} {}", quoted(value)));
    };
    option("ref", text("ref").unwrap_or("$CI_COMMIT_SHA"));
    if let Some(description) = text("description") {
        // The value is text, or the path of a file with the text.
        option("experimental-notes-text-or-file", description);
    }
    for (key, name) in [("name", "name"), ("tag_message", "tag-message"), ("released_at", "released-at")] {
        if let Some(value) = text(key) {
            option(name, value);
        }
    }
    let milestones = list(release.get("milestones"));
    if !milestones.is_empty() {
        option("milestone", &milestones.join(","));
    }
    if let Some(links) =
        release.pointer("/assets/links").filter(|links| links.as_array().is_some_and(|l| !l.is_empty()))
    {
        option("assets-links", &links.to_string());
    }
    command + " --no-update --no-close-milestone"
}

fn list(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Returns a value in double quotes. The shell expands variables in it. Quotes, backslashes and command substitutions stay literal.
fn quoted(value: &str) -> String {
    let mut quoted = String::from("\"");
    let mut chars = value.chars().peekable();
    while let Some(char) = chars.next() {
        if matches!(char, '"' | '\\' | '`') || (char == '$' && chars.peek() == Some(&'(')) {
            quoted.push('\\');
        }
        quoted.push(char);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_are_expanded_in_quoted_values() {
        assert_eq!(quoted("v$X \"a\" `b` $(c) \\d"), "\"v$X \\\"a\\\" \\`b\\` \\$(c) \\\\d\"");
    }

    #[test]
    fn release_fields_become_options_of_glab() {
        let release = serde_json::json!({
            "tag_name": "$CI_COMMIT_TAG", "description": "notes.md", "name": "R 1", "ref": "main", "tag_message": "m",
            "milestones": ["a", "b"], "released_at": "2026-11-21T00:00:00Z",
            "assets": {"links": [{"name": "n", "url": "https://x"}]},
        });
        let command = command(&release);
        for part in [
            "release create \"$CI_COMMIT_TAG\"",
            "--ref \"main\"",
            "--experimental-notes-text-or-file \"notes.md\"",
            "--name \"R 1\"",
            "--tag-message \"m\"",
            "--milestone \"a,b\"",
            "--released-at \"2026-11-21T00:00:00Z\"",
            "--assets-links \"[{\\\"name\\\":\\\"n\\\",\\\"url\\\":\\\"https://x\\\"}]\"",
            "--no-update",
        ] {
            assert!(command.contains(part), "{part} in {command}");
        }
    }
}
