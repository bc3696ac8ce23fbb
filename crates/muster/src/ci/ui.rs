//! Output of commands.
//!
//! anstream removes colors if the output is not a terminal, or if NO_COLOR, CLICOLOR or TERM disable them.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::Duration;

use anstyle::{AnsiColor, Style};

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const BUSY: Style = AnsiColor::Cyan.on_default();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const BOLD: Style = Style::new().bold();

pub(crate) fn paint(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{}{text}{}", style.render(), style.render_reset()) }
}

static OUTPUT_ERROR: OnceLock<std::io::Error> = OnceLock::new();

/// Prints to standard output. A closed pipe (`muster ci list | head`) is not an error; other errors are kept for
/// [`output_error`].
pub(crate) fn out(text: &str) {
    let _ = out_while_read(text);
}

/// Prints to standard output. Returns `Break` if the reader has closed the pipe, or after another error.
pub(crate) fn out_while_read(text: &str) -> ControlFlow<()> {
    write_all(&mut anstream::stdout().lock(), text.as_bytes())
}

/// Like [`out_while_read`], but keeps colors.
pub(crate) fn out_raw_while_read(bytes: &[u8]) -> ControlFlow<()> {
    write_all(&mut std::io::stdout().lock(), bytes)
}

fn write_all(stdout: &mut dyn std::io::Write, bytes: &[u8]) -> ControlFlow<()> {
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            if error.kind() != ErrorKind::BrokenPipe {
                // Later errors have the same cause.
                let _ = OUTPUT_ERROR.set(error);
            }
            ControlFlow::Break(())
        }
    }
}

/// Returns the first error of writing to standard output, except a closed pipe.
pub(crate) fn output_error() -> Option<&'static std::io::Error> {
    OUTPUT_ERROR.get()
}

pub(crate) fn outln(text: &str) {
    out(&format!("{text}\n"));
}

pub(crate) fn errln(text: &str) {
    let mut stderr = anstream::stderr().lock();
    let _ = stderr.write_all(format!("{text}\n").as_bytes());
}

pub(crate) fn error(text: &str) {
    errln(&format!("{} {text}", paint(BAD, "error:")));
}

/// Prints something that may matter to the user.
pub(crate) fn note(text: &str) {
    errln(&format!("{} {text}", paint(BUSY, "note:")));
}

/// Prints something that is probably not as intended.
pub(crate) fn warning(text: &str) {
    errln(&format!("{} {text}", paint(WARN, "warning:")));
}

/// Prints an error with its causes, one per line.
pub(crate) fn report(problem: &dyn std::error::Error) {
    error(&problem.to_string());
    for cause in further_causes(problem) {
        errln(&format!("  caused by: {cause}"));
    }
}

/// Returns the messages of the causes. Omits a message if the message before it already ends with the same text.
fn further_causes(problem: &dyn std::error::Error) -> Vec<String> {
    let mut messages = vec![problem.to_string()];
    for cause in std::iter::successors(problem.source(), |cause| cause.source()) {
        let message = cause.to_string();
        if messages.last().is_none_or(|last| !last.ends_with(&message)) {
            messages.push(message);
        }
    }
    messages.split_off(1)
}

pub(crate) fn stderr_has_color() -> bool {
    !matches!(anstream::AutoStream::choice(&std::io::stderr()), anstream::ColorChoice::Never)
}

pub(crate) fn is_interactive() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the number of columns, or 100 without a terminal.
pub(crate) fn width() -> usize {
    terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0))
}

/// Formats a duration, such as `85ms`, `12.3s`, `4m05s` or `1h02m`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{:.1}s", time.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Formats a size, such as `830 B`, `12.0 KB` or `3.4 GB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 3] = ["MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let mut value = bytes as f64 / 1000.0;
    let mut unit = "KB";
    for next in UNITS {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Replaces control characters, because a name from a repository could send commands to the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns indented JSON with a final line break. Control characters are escaped.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    let mut text = escape_controls(&serde_json::to_string_pretty(value).unwrap_or_default());
    text.push('\n');
    text
}

/// Returns JSON in one line, without a line break. Control characters are escaped.
pub(crate) fn json_line(value: &serde_json::Value) -> String {
    escape_controls(&value.to_string())
}

/// Escapes all control characters except line breaks. JSON itself requires escapes only for U+0000 to U+001F.
fn escape_controls(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        if c.is_control() && c != '\n' {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Truncates the text to `columns` characters, of which the last is then an ellipsis.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut truncated: String = text.chars().take(columns.saturating_sub(1)).collect();
    truncated.push('…');
    truncated
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(String, Style)>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|heading| ((*heading).to_owned(), BOLD)).collect()] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Style)>) {
        self.rows.push(cells.into_iter().map(|(text, style)| (plain(&text), style)).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let widths: Vec<usize> =
            (0..columns).map(|column| cells(column).map(|(text, _)| text.chars().count()).max().unwrap_or(0)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, ((text, style), width)) in row.iter().zip(&widths).enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                line.push_str(&paint(*style, text));
                line.extend(std::iter::repeat_n(' ', width.saturating_sub(text.chars().count())));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_that_a_message_contains_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Layer {
            text: &'static str,
            source: Option<Box<Self>>,
        }
        let chain = |texts: &[&'static str]| {
            let layers = texts.iter().rev().fold(None, |source, text| Some(Box::new(Layer { text, source })));
            further_causes(&*layers.unwrap())
        };
        assert!(chain(&["job: step: no network", "step: no network", "no network"]).is_empty());
        assert_eq!(chain(&["job", "step: no network", "no network"]), ["step: no network"]);
        assert_eq!(chain(&["job", "step", "no network"]), ["step", "no network"]);
    }

    #[test]
    fn durations_and_sizes_are_short() {
        let texts = [0, 950, 59_900, 61_000, 3_725_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(texts, ["0ms", "950ms", "59.9s", "1m01s", "1h02m"]);
        assert_eq!(
            [0, 999, 1000, 5_300_000, 12_000_000_000].map(size),
            ["0 B", "999 B", "1.0 KB", "5.3 MB", "12.0 GB"]
        );
    }

    #[test]
    fn plain_text_has_no_terminal_commands() {
        assert_eq!(plain("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }

    #[test]
    fn json_has_no_terminal_commands_and_the_same_value() {
        // U+009B starts a command, like ESC and `[`. JSON allows this character in a text.
        let value = serde_json::json!({ "name\u{9b}2J": ["é\u{7f}\u{1b}[2J\n"], "more": {} });
        let text = json(&value);
        assert!(text.chars().all(|c| !c.is_control() || c == '\n') && text.contains("é\\u007f\\u001b"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        let line = json_line(&value);
        assert!(!line.contains(char::is_control), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
