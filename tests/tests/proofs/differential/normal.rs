//! Takes times, names, paths and numbers out of what was observed: what two runs may differ in.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

/// Pattern and replacement, in this order.
static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        // A marker stands on a line of its own here, so that a line is compared with a line.
        (r"section_(start|end):[0-9]+:([^\r\n]*\r\x1b\[0K)", "section_$1:TIME:$2\n"),
        // Where the job's files are: folder of the runner's token, slot, group.
        (r"HOME/builds/[A-Za-z0-9_-]+/[0-9]+/group", "BUILDS"),
        (r"HOME/repos/group", "REPOS"),
        (r"HOME/cache/group", "CACHE"),
        // A shell's messages name its process, and the line of a script that each runner writes in its own way.
        (r"bash: (eval: )?line [0-9]+: ( *[0-9]+ )?", "bash: ${1}line N: "),
        // The stock runner's helpers are programs with a log of their own: padding, colours, and fields of theirs.
        (r"\x1b\[0;m=", "="),
        (r" *\x1b\[0;m +([a-z]+=)", " $1"),
        (r" +\x1b\[0;m", "\x1b[0;m"),
        (r"(?m)\x1b\[0;m +$", "\x1b[0;m"),
        (r"(?m)^([^\x1b\n]+)\x1b\[0;m$", "$1"),
        (r" (pid|token|host)=\S+", ""),
        (r"system ID: [rs]_[0-9A-Za-z]{12}", "system ID: S"),
        (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z?", "DATE"),
        (r"127\.0\.0\.1:[0-9]+", "COORDINATOR"),
        // git says how much it moved, and how fast.
        (r"\(delta [0-9]+\), reused [0-9]+ \(delta [0-9]+\)", "(delta N)"),
    ]
    .into_iter()
    .map(|(pattern, replacement)| (Regex::new(pattern).unwrap(), replacement))
    .collect()
});

/// Normalises text line by line.
pub(super) fn text(text: &str, home: &Path) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut text = text.replace(&*home.to_string_lossy(), "HOME");
    text = text.replace(&format!("Running on {}...", host.trim()), "Running on HOST...");
    for (pattern, replacement) in &*RULES {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    text
}

/// Normalises a trace, and makes what a terminal hides visible. Of a run of equal lines only the number is kept.
pub(super) fn trace(bytes: &[u8], home: &Path) -> String {
    let whole = String::from_utf8_lossy(bytes);
    let text = text(&whole, home);
    let mut lines: Vec<(String, usize)> = Vec::new();
    for line in text.split_inclusive('\n') {
        let end = if line.ends_with('\n') { "" } else { "<no end of line>" };
        let line = visible(line.trim_end_matches('\n')) + end;
        match lines.last_mut() {
            Some((last, times)) if *last == line => *times += 1,
            _ => lines.push((line, 1)),
        }
    }
    let shown = |(line, times): (String, usize)| {
        let line = if line.len() > 2000 { format!("<{} characters>", line.chars().count()) } else { line };
        if times == 1 { format!("{line}\n") } else { format!("{line}\n<{times} times>\n") }
    };
    lines.into_iter().map(shown).collect()
}

/// Control characters as their escapes.
pub(super) fn visible(line: &str) -> String {
    let shown = |c: char| match c {
        '\x1b' => "\\e".to_owned(),
        c if c.is_control() => c.escape_debug().to_string(),
        c => c.to_string(),
    };
    line.chars().map(shown).collect()
}
