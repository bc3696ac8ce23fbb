//! Tests of the formats, levels and counters of the log, with records in memory.

use std::sync::Arc;

use parking_lot::Mutex;
use tracing::subscriber::with_default;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;

struct Log {
    handle: LogHandle,
    buffer: Arc<Mutex<Vec<u8>>>,
}

impl Log {
    fn new(options: LogOptions) -> Self {
        let buffer = Arc::default();
        let (handle, _) = LogHandle::new(options, Sink::memory(&buffer));
        Self { handle, buffer }
    }

    fn with_format(format: Format) -> Self {
        Self::new(LogOptions { format: Some(format), color: Color::Always, ..LogOptions::default() })
    }

    /// Returns the lines that are written while `log_records` runs, with `TIME` in place of times.
    fn lines(&self, log_records: impl FnOnce()) -> String {
        self.buffer.lock().clear();
        with_default(tracing_subscriber::registry().with(self.handle.layer()), log_records);
        let text = String::from_utf8(self.buffer.lock().clone()).unwrap();
        let mut result = String::new();
        for line in text.split_inclusive('\n') {
            match line.find("20").filter(|at| line.get(at + 4..at + 5) == Some("-")) {
                Some(at) => {
                    let end = at + line[at..].find('"').unwrap_or(0);
                    result.push_str(&format!("{}TIME{}", &line[..at], &line[end..]));
                }
                None => result.push_str(line),
            }
        }
        result
    }
}

fn log_job() {
    let span = tracing::info_span!("job", job = 7, runner = "abcdefghi");
    let _guard = span.enter();
    tracing::info!(project = 3, repo_url = "https://u:pw@host/a b.git", "Added job to processing list");
    tracing::warn!(error = "a \"bad\"\nthing", "Submitting job to coordinator... failed");
}

#[test]
fn runner_format_equals_gitlab_runner() {
    let log = Log::with_format(Format::Runner);
    log.handle.state().set_max_builds(4);
    log.handle.state().job_added();
    let expected = "Added job to processing list                      \x1b[0;m  builds\x1b[0;m=1 job\x1b[0;m=7 \
        max_builds\x1b[0;m=4 project\x1b[0;m=3 repo_url\x1b[0;m=https://[MASKED]@host/a b.git runner\x1b[0;m=abcdefghi\n\
        \x1b[0;33mWARNING: Submitting job to coordinator... failed  \x1b[0;m  \x1b[0;33mbuilds\x1b[0;m=1 \
        \x1b[0;33merror\x1b[0;m=a \"bad\"\\nthing \x1b[0;33mjob\x1b[0;m=7 \x1b[0;33mmax_builds\x1b[0;m=4 \
        \x1b[0;33mrunner\x1b[0;m=abcdefghi\n";
    assert_eq!(log.lines(log_job), expected);
}

#[test]
fn text_format_is_logfmt() {
    let expected = "time=\"TIME\" level=info msg=\"Added job to processing list\" job=7 project=3 \
        repo_url=\"https://[MASKED]@host/a b.git\" runner=abcdefghi\n\
        time=\"TIME\" level=warning msg=\"Submitting job to coordinator... failed\" error=\"a \\\"bad\\\"\\nthing\" job=7 \
        runner=abcdefghi\n";
    assert_eq!(Log::with_format(Format::Text).lines(log_job), expected);
}

#[test]
fn json_format_is_one_object_per_line() {
    let expected = "{\"job\":7,\"level\":\"info\",\"msg\":\"Added job to processing list\",\"project\":3,\
        \"repo_url\":\"https://[MASKED]@host/a b.git\",\"runner\":\"abcdefghi\",\"time\":\"TIME\"}\n\
        {\"error\":\"a \\\"bad\\\"\\nthing\",\"job\":7,\"level\":\"warning\",\
        \"msg\":\"Submitting job to coordinator... failed\",\"runner\":\"abcdefghi\",\"time\":\"TIME\"}\n";
    assert_eq!(Log::with_format(Format::Json).lines(log_job), expected);
}

#[test]
fn field_does_not_replace_level() {
    let lines = Log::with_format(Format::Json).lines(|| tracing::info!(level = "x", "hello"));
    assert_eq!(lines, "{\"fields.level\":\"x\",\"level\":\"info\",\"msg\":\"hello\",\"time\":\"TIME\"}\n");
}

#[test]
fn level_and_format_can_change_at_run_time() {
    let log = Log::new(LogOptions::default());
    let log_records = || {
        tracing::debug!("quiet");
        tracing::info!("loud");
    };
    assert_eq!(log.lines(log_records).matches("quiet").count(), 0);
    assert!(log.handle.configure(Some(Level::Debug), Some(Format::Json)));
    assert!(log.handle.is_debug());
    let lines = log.lines(log_records);
    assert!(lines.contains("\"msg\":\"quiet\"") && lines.contains("\"msg\":\"loud\""), "{lines}");
    assert!(log.handle.configure(Some(Level::Error), None));
    assert_eq!(log.lines(log_records), "");
    assert!(!log.handle.configure(Some(Level::Error), None), "the same values change nothing");
    assert!(log.handle.configure(None, None));
    assert!(log.lines(log_records).contains("loud"));
}

#[test]
fn command_line_overrides_configuration() {
    let log = Log::new(LogOptions { level: Some(Level::Error), format: Some(Format::Text), ..LogOptions::default() });
    log.handle.configure(Some(Level::Debug), Some(Format::Json));
    let lines = log.lines(|| {
        tracing::info!("quiet");
        tracing::error!("loud");
    });
    assert_eq!(lines, "time=\"TIME\" level=error msg=loud\n");
}

#[test]
fn directives_select_modules() {
    let directives = Some("warn,muster_telemetry::logs=debug".parse().unwrap());
    let log = Log::new(LogOptions { directives, color: Color::Never, ..LogOptions::default() });
    let lines = log.lines(|| {
        tracing::debug!("here");
        tracing::info!(target: "muster_other", "there");
    });
    assert!(lines.contains("here") && !lines.contains("there"), "{lines}");
    let error = "a=b=c".parse::<Directives>().unwrap_err().to_string();
    assert_eq!(error, "`a=b=c` is not a valid log filter; use for example `info` or `info,muster_manager=debug`");
}

#[test]
fn libraries_log_only_warnings_and_errors() {
    let lines = Log::new(LogOptions { level: Some(Level::Debug), ..LogOptions::default() }).lines(|| {
        tracing::debug!(target: "hyper", "chatter");
        tracing::warn!(target: "sqlx", "slow");
    });
    assert!(!lines.contains("chatter") && lines.contains("slow"), "{lines}");
}

#[test]
fn warnings_and_errors_are_counted_by_level() {
    let log = Log::with_format(Format::Text);
    let lines = log.lines(|| {
        tracing::warn!("one");
        tracing::warn!("two");
        tracing::error!(fatal = true, "fatal error");
        tracing::info!("three");
    });
    assert!(lines.contains("level=fatal msg=\"fatal error\""), "{lines}");
    let counted = |level: &str| log.handle.state().errors().with_label_values(&[level]).get();
    assert_eq!((counted("warning"), counted("error"), counted("fatal"), counted("panic")), (2, 0, 1, 0));
}

#[test]
fn unknown_levels_and_formats_are_rejected() {
    assert_eq!("WARN".parse::<Level>().unwrap(), Level::Warning);
    assert_eq!(
        "verbose".parse::<Level>().unwrap_err().to_string(),
        "`verbose` is not a valid log level; use one of: panic, fatal, error, warn, info, debug, trace"
    );
    assert_eq!(
        "xml".parse::<Format>().unwrap_err().to_string(),
        "`xml` is not a valid log format; use one of: runner, text, json"
    );
}
