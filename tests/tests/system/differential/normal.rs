//! Replaces times, names, paths and numbers that differ between two runs.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        // Each section marker gets a separate line.
        (r"section_(start|end):[0-9]+:([^\r\n]*\r\x1b\[0K)", "section_$1:TIME:$2\n"),
        // Builds directory, with the runner's token and the slot.
        (r"HOME/builds/[A-Za-z0-9_-]+/[0-9]+/group", "BUILDS"),
        (r"HOME/repos/group", "REPOS"),
        (r"HOME/cache/group", "CACHE"),
        // Messages of a shell contain its process ID and a line number, which differs between the runners.
        (r"bash: (eval: )?line [0-9]+: ( *[0-9]+ )?", "bash: ${1}line N: "),
        // The helpers of gitlab-runner have their own log format: padding, colors and fields.
        (r"\x1b\[0;m=", "="),
        (r" *\x1b\[0;m +([a-z]+=)", " $1"),
        (r" +\x1b\[0;m", "\x1b[0;m"),
        (r"(?m)\x1b\[0;m +$", "\x1b[0;m"),
        (r"(?m)^([^\x1b\n]+)\x1b\[0;m$", "$1"),
        (r" (pid|token|host)=\S+", ""),
        (r"system ID: [rs]_[0-9A-Za-z]{12}", "system ID: S"),
        (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z?", "DATE"),
        (r"(127\.0\.0\.1|172\.17\.0\.1):[0-9]+", "COORDINATOR"),
        // Objects of an engine have random IDs. The names of containers contain the slot, and a hash of the job.
        (r"sha256:[0-9a-f]{64}", "sha256:ID"),
        (r"\b[0-9a-f]{64}\b", "ID"),
        (r"(runner-[0-9a-z-]+-project-)[0-9]+", "${1}N"),
        (r"concurrent-[0-9]+(-[0-9a-f]{16})?", "concurrent-N"),
        (r"\(manager\.go:[0-9]+:[0-9]+s\)", "(manager.go:N)"),
        // git prints numbers of deltas that depend on the transfer.
        (r"\(delta [0-9]+\), reused [0-9]+ \(delta [0-9]+\)", "(delta N)"),
    ]
    .into_iter()
    .map(|(pattern, replacement)| (Regex::new(pattern).unwrap(), replacement))
    .collect()
});

pub(super) fn normalize(text: &str, home: &Path) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut text = text.replace(&*home.to_string_lossy(), "HOME");
    text = text.replace(&format!("Running on {}...", host.trim()), "Running on HOST...");
    text = text.replace(&format!(" via {}...", host.trim()), " via HOST...");
    for (pattern, replacement) in &*RULES {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    text
}

/// Normalizes a trace. Also makes control characters visible, and replaces repeated lines by one line and their number.
pub(super) fn normalize_trace(bytes: &[u8], home: &Path) -> String {
    let trace = String::from_utf8_lossy(bytes);
    let text = normalize(&trace, home);
    let mut lines: Vec<(String, usize)> = Vec::new();
    for line in text.split_inclusive('\n') {
        let end = if line.ends_with('\n') { "" } else { "<no end of line>" };
        let line = escape_controls(line.trim_end_matches('\n')) + end;
        match lines.last_mut() {
            Some((last, times)) if *last == line => *times += 1,
            _ => lines.push((line, 1)),
        }
    }
    let render = |(line, times): (String, usize)| {
        let line = if line.len() > 2000 { format!("<{} characters>", line.chars().count()) } else { line };
        if times == 1 { format!("{line}\n") } else { format!("{line}\n<{times} times>\n") }
    };
    lines.into_iter().map(render).collect()
}

pub(super) fn escape_controls(line: &str) -> String {
    let escape = |c: char| match c {
        '\x1b' => "\\e".to_owned(),
        c if c.is_control() => c.escape_debug().to_string(),
        c => c.to_string(),
    };
    line.chars().map(escape).collect()
}
