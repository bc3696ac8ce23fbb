use std::time::Duration;

use muster_job::Secret;

use super::checks::testing::{clean, found};
use super::*;
use crate::settings::RunnerKey;

const RUNNER: &str =
    "[[runners]]\nname = \"one\"\nurl = \"https://gitlab.example/\"\ntoken = \"glrt-secret\"\nexecutor = \"shell\"\n";

fn facts() -> HostFacts {
    let env = [("TOKEN", "glrt-from-env"), ("HOST", "gitlab.example")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    HostFacts { env, exists: true, writable: true, ..HostFacts::default() }
}

fn config(text: &str) -> Config {
    let loaded = parse(text, &facts());
    loaded.config.unwrap_or_else(|| panic!("{:#?}", loaded.problems))
}

#[test]
fn settings_have_values_and_defaults() {
    let text = format!(
        "concurrent = 7\nCheck_Interval = 5\nlabels = {{ site = \"north\", tier = \"a\" }}\n{RUNNER}limit = 3\noutput_limit = 8\n\
         unhealthy_interval = \"90s\"\nenvironment = [\"A=1=2\", \"nonsense\"]\n\
         [runners.labels]\ntier = \"b-1\"\n[runners.feature_flags]\nFF_TIMESTAMPS = false\n[runners.custom_build_dir]\nenabled = true\n\
         [runners.unpack]\nmax_bytes = 5000000000\nmax_entries = -1\n"
    );
    let settings = settings(
        &config(&text),
        &SettingsContext { system_id: "s_0123456789ab".to_owned(), ..SettingsContext::default() },
    );
    assert_eq!((settings.concurrent, settings.check_interval), (7, Duration::from_secs(5)));
    assert_eq!(settings.shutdown_timeout, Duration::from_secs(30));
    let runner = &settings.runners[0];
    assert_eq!((runner.limit, runner.output_limit, runner.request_concurrency), (Some(3), 8192, 1));
    assert_eq!(runner.unhealthy_interval, Duration::from_secs(90));
    assert_eq!((runner.unpack.max_bytes, runner.unpack.max_entries, runner.unpack.max_ratio), (5_000_000_000, 0, 0));
    assert_eq!((runner.url.as_str(), runner.token.expose()), ("https://gitlab.example/", "glrt-secret"));
    assert_eq!(runner.environment.len(), 1);
    assert_eq!((runner.environment[0].key.as_str(), runner.environment[0].value.as_str()), ("A", "1=2"));
    assert_eq!(runner.labels, [("site", "north"), ("tier", "b-1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    assert_eq!(runner.custom_build_dir, Some(true));
    assert!(!runner.feature_flags["FF_TIMESTAMPS"]);
    assert!(runner.login, "the shell executor starts login shells");
}

#[test]
fn huge_durations_are_capped_at_ten_years() {
    let huge = i64::MAX;
    let text = format!("shutdown_timeout = {huge}\ncheck_interval = {huge}\n{RUNNER}");
    let settings = settings(&config(&text), &SettingsContext::default());
    let ten_years = Duration::from_secs(3660 * 24 * 60 * 60);
    assert_eq!((settings.shutdown_timeout, settings.check_interval), (ten_years, ten_years));
}

#[test]
fn only_url_and_token_expand_environment_variables() {
    let text =
        "[[runners]]\nname = \"$HOST\"\nurl = \"https://${HOST}/ci\"\ntoken = \"$TOKEN\"\nexecutor = \"shell\"\n";
    let config = config(text);
    let runner = &config.runners[0];
    assert_eq!((runner.name.as_str(), runner.url.as_str()), ("$HOST", "https://gitlab.example/ci"));
    assert_eq!(runner.token.expose(), "glrt-from-env");
    assert!(runner.token_is_reference);
    assert_eq!(settings(&config, &SettingsContext::default()).runners[0].url.as_str(), "https://gitlab.example/");
}

#[test]
fn c032_missing_file_is_empty_configuration() {
    let loaded = load(std::path::Path::new("/nowhere/config.toml"), &HostFacts::default());
    assert_eq!(loaded.problems[0].code, "C032");
    assert_eq!(loaded.problems[0].severity, Severity::Warning);
    assert_eq!(settings(&loaded.config.unwrap(), &SettingsContext::default()).concurrent, 1);
}

#[test]
fn c032_missing_file_is_error_if_required() {
    let path = std::path::Path::new("/nowhere/config.toml");
    let loaded = load(path, &HostFacts { must_exist: true, ..HostFacts::default() });
    assert!(loaded.config.is_none());
    assert_eq!(
        loaded.problems[0].render(path),
        "fatal[C032]: /nowhere/config.toml does not exist; no runner is configured\n  = help: register a runner, or name \
         another file with --config\n"
    );
}

#[test]
fn unreadable_file_is_reported_with_reason_and_fix() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("latin.toml"), b"concurrent = 1\n# f\xfcr alle\n").unwrap();
    std::os::unix::fs::symlink("b.toml", path("a.toml")).unwrap();
    std::os::unix::fs::symlink("a.toml", path("b.toml")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo.toml"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (name, wanted, help) in [
        ("fifo.toml", "fifo.toml: it is a FIFO to which no program writes", "check the file"),
        ("latin.toml", "latin.toml: line 2 is not UTF-8", "a configuration is UTF-8 text"),
        ("", ": it is a directory", "name the file in it"),
        ("a.toml", "a.toml: Too many levels of symbolic links", "form a loop: let the link point to the file"),
    ] {
        let output = read_text(&path(name)).unwrap_err().render(&path(name));
        assert!(
            output.starts_with("fatal[C000]: failed to read ") && output.contains(wanted) && output.contains(help),
            "{output}"
        );
        assert!(load(&path(name), &facts()).config.is_none());
    }
}

#[test]
fn all_problems_are_reported_at_once_with_locations() {
    let text = "concurent = 3\nlog_level = 4\n[[runners]]\n  limit = \"a\"\n  unhealthy_interval = 60\n  [runners.dokcer]\n  image = 3\n";
    let loaded = parse(text, &facts());
    let locations: Vec<_> = loaded
        .problems
        .iter()
        .filter_map(|problem| Some((problem.code, problem.location.as_ref()?.line, problem.location.as_ref()?.column)))
        .filter(|(code, ..)| ["C010", "C013", "C014"].contains(code))
        .collect();
    assert_eq!(locations, [("C010", 1, 1), ("C014", 2, 13), ("C014", 4, 11), ("C013", 5, 24), ("C010", 6, 12)]);
    assert!(loaded.config.is_none());
}

#[test]
fn problem_shows_its_line_with_mark() {
    let loaded = parse("[[runners]]\n\tlimit = \"ten\" # many\n", &facts());
    let wrong = loaded.problems.iter().find(|problem| problem.code == "C014").unwrap();
    assert_eq!(
        wrong.render(std::path::Path::new("/etc/x/config.toml")),
        "fatal[C014]: `runners.limit` needs an integer, found a string\n --> /etc/x/config.toml:2:10\n  |\n\
         2 |  limit = [masked]\n  |          ^^^^^^^^\n  = help: remove the quotes\n"
    );
}

#[test]
fn kinds_are_checked_like_gitlab_runner() {
    for (text, valid) in [
        ("concurrent = \"4\"", false),
        ("concurrent = 4.0", false),
        ("log_level = 3", false),
        ("connection_max_age = \"1h30m\"", true),
        ("connection_max_age = \"1h30min\"", false),
        ("connection_max_age = \"3600 s\"", false),
        ("connection_max_age = \"60\"", false),
        ("connection_max_age = 60", true),
        ("connection_max_age = 1.5", false),
        ("runners = 3", false),
        ("session_server = []", false),
        ("[[runners]]\ndebug_trace_disabled = \"true\"", false),
        ("[[runners]]\nenvironment = \"A=b\"", false),
        ("[[runners]]\nenvironment = [1]", false),
        ("[[runners]]\n[runners.machine]\nIdleScaleFactor = 1", true),
        ("[[runners]]\n[runners.docker]\npull_policy = \"always\"", true),
        ("[[runners]]\n[runners.docker]\npull_policy = [\"always\", \"never\"]", true),
        ("[[runners]]\n[runners.docker]\ntmpfs = { a = 1 }", false),
        ("[[runners]]\n[runners.feature_flags]\nFF_X = \"true\"", false),
        ("[[runners]]\ntoken_expires_at = 2026-01-01T00:00:00Z", true),
        ("[[runners]]\ntoken_expires_at = 0001-01-01T00:00:00Z", true),
        ("[[runners]]\ntoken_expires_at = \"2026-01-01T00:00:00Z\"", true),
        ("[[runners]]\ntoken_expires_at = \"soon\"", false),
    ] {
        if valid { clean("C014", text) } else { drop(found("C014", text)) }
    }
}

#[test]
fn invalid_duration_has_hint() {
    assert!(found("C014", "connection_max_age = \"1h30min\"").contains("did you mean \"1h30m\"?"));
    assert!(found("C014", "connection_max_age = \"3600 s\"").contains("did you mean \"3600s\"?"));
    assert!(found("C014", "connection_max_age = \"60\"").contains("did you mean \"60s\"?"));
}

#[test]
fn invalid_toml_is_reported_without_secrets() {
    let text = "concurrent = 4\n[[runners]]\ntoken = \"glrt-very\nsecret\"\n";
    let loaded = parse(text, &facts());
    assert!(loaded.config.is_none());
    let output = loaded.problems[0].render(std::path::Path::new("c.toml"));
    assert!(output.contains("c.toml:3:") && output.contains("token = [masked]"), "{output}");
    let all: String = loaded.problems.iter().map(|problem| problem.render(std::path::Path::new("c.toml"))).collect();
    assert!(!all.contains("very") && !all.contains("secret"), "{all}");
    let output = parse("concurrent = 1O\n", &facts()).problems[0].render(std::path::Path::new("c.toml"));
    assert!(output.contains("concurrent = 1O"), "{output}");
    for text in ["concurrent = 1O # abcdefghij", "concurrent = \"abcdefghijklmnopq", "concurrent = 1O, x = \"abc\""] {
        let output = parse(text, &facts()).problems[0].render(std::path::Path::new("c.toml"));
        assert!(output.contains("concurrent = ") && !output.contains("abc"), "{output}");
    }
}

#[test]
fn file_larger_than_10_mib_is_refused() {
    let text = "#".repeat(MAX_FILE_BYTES + 1);
    assert!(parse(&text, &facts()).problems[0].message.contains("10 MiB"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let output = load(file.path(), &facts()).problems[0].message.clone();
    assert!(output.contains("10 MiB"), "{output}");
}

#[test]
fn number_of_reported_problems_is_bounded() {
    let text: String = (0..20_000).map(|index| format!("unknown_{index} = 1\n")).collect();
    let problems = parse(&text, &facts()).problems;
    assert!(problems.len() < 1_100, "{}", problems.len());
    let last = &problems.last().unwrap().message;
    assert!(last.ends_with("more problems are not listed"), "{last}");
    let flags: String = (0..20_000).map(|index| format!("FF_{index} = true\n")).collect();
    assert!(parse(&format!("{RUNNER}[runners.feature_flags]\n{flags}"), &facts()).problems.len() < 1_100);
}

#[test]
fn debug_output_contains_no_secret() {
    let text = RUNNER.replace("https://", "https://user:hidden@");
    let printed = format!("{:?}", parse(&text.replace("glrt-secret", "glrt-hidden"), &facts()));
    assert!(printed.contains("text of 11 bytes") && !printed.contains("hidden"), "{printed}");
}

#[test]
fn shown_line_includes_closing_brackets() {
    let render = |text: &str, code: &str| {
        let problems = parse(text, &HostFacts::default()).problems;
        problems.iter().find(|problem| problem.code == code).unwrap().render(std::path::Path::new("c.toml"))
    };
    let output = render("[[runners]]\n[[runners.autoscaler.policy]]\nperiods = [\"nonsense\"] # glrt-secret\n", "C015");
    assert!(output.contains("3 | periods = [\"nonsense\"]\n"), "{output}");
    let output = render("[[runners]]\nname = \"a\"\n[runners.nothing]\nx = 1\n", "C010");
    assert!(output.contains("3 | [runners.nothing]\n"), "{output}");
}

/// Requirement R043: options of the executor `shell` have the same meaning with the executor `instance`.
#[test]
fn instance_executor_supports_every_shell_option() {
    use super::schema::{KeySupport, Kind, schema};
    let sample = |name: &str, kind: Kind| match (name, kind) {
        ("shell", _) => "\"bash\"",
        ("clone_url", _) => "\"https://git.example\"",
        ("slot_cgroup_template", _) => "\"ci/${slot}\"",
        (_, Kind::Str | Kind::Regex) => "\"x\"",
        (_, Kind::StrOrList | Kind::List) => "[\"KEY=value\"]",
        (_, Kind::Int) => "7",
        (_, Kind::Float) => "1.5",
        (_, Kind::Bool) => "true",
        (_, Kind::Duration) => "\"90s\"",
        (_, Kind::Datetime) => "2026-01-02T03:04:05Z",
        (_, Kind::Map) => "{ name = \"value\" }",
        (_, Kind::Any) => "{ level = 3 }",
        (_, Kind::MapBool) => "{ FF_TIMESTAMPS = false }",
        (_, kind) => panic!("no sample of {kind:?}"),
    };
    // Keys of the runner's identity and tables of other executors are not options of the executor `shell`.
    let identity_keys = ["name", "url", "token", "executor"];
    let executor_tables =
        ["docker", "kubernetes", "machine", "autoscaler", "instance", "ssh", "parallels", "virtualbox", "custom"];
    let mut options = 0;
    for table in schema().tables() {
        let mut names = table.path.split('.');
        if names.next() != Some("runners") || names.next().is_some_and(|name| executor_tables.contains(&name)) {
            continue;
        }
        for key in
            table.keys.iter().filter(|key| key.status == KeySupport::Supported && !identity_keys.contains(&key.name))
        {
            let (name, value) = (key.name, sample(key.name, key.kind));
            let header = if table.path == "runners" { String::new() } else { format!("[{}]\n", table.path) };
            let with = |executor: &str| {
                let runner = RUNNER.replace("\"shell\"", &format!("\"{executor}\""));
                let loaded = parse(&format!("{runner}{header}{name} = {value}\n"), &facts());
                let codes: Vec<_> = loaded.problems.iter().map(|problem| problem.code).collect();
                let config = loaded.config.unwrap_or_else(|| panic!("{name}: {:?}", loaded.problems));
                let mut settings = settings(&config, &SettingsContext::default()).runners.remove(0);
                let runner = std::sync::Arc::make_mut(&mut settings);
                runner.executor.clear();
                // Each executor decides how a shell is started.
                runner.login = false;
                (runner.clone(), codes.contains(&"C009") || codes.contains(&"C010") || codes.contains(&"C014"))
            };
            let (plain, scaled) = (with("shell"), with("instance"));
            assert!(plain == scaled && !plain.1, "{}.{name}: {plain:?}\n{scaled:?}", table.path);
            options += 1;
        }
    }
    assert!(options > 25, "{options}");
}

#[test]
fn key_of_a_runner_has_no_user_and_password() {
    let key = |url: &str, id| RunnerKey::new(&url.parse().unwrap(), id, &Secret::new("t")).to_string();
    assert_eq!(key("https://user:s3cret@host/", 7), "https://host#7");
    let without_id = key("https://user:s3cret@host/", 0);
    assert!(without_id.starts_with("https://host#token-"), "{without_id}");
    assert_eq!(without_id, key("https://user:new@host", 0), "a new password must not change the key");
}
