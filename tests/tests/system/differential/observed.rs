//! Renders the final state of a job as text that can be compared line by line.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use muster_runner_api::test_support::Job;

use super::normal;

/// Returns the normalized result, artifacts and trace of a job. `home` is the home directory of the runner.
pub(super) fn observe(job: &Job, home: &Path) -> String {
    let mut text = format!("state: {}\n", job.status);
    if let Some(last) = job.reports().last() {
        writeln!(text, "reported: {}", last.state).unwrap();
        writeln!(text, "failure_reason: {}", last.failure_reason.as_deref().unwrap_or("-")).unwrap();
        writeln!(text, "exit_code: {}", last.exit_code.map_or("-".to_owned(), |code| code.to_string())).unwrap();
        // A different size means that a part of the trace was lost or duplicated.
        let is_complete = last.output.bytesize == Some(job.trace.len() as u64);
        writeln!(text, "trace is whole: {is_complete}").unwrap();
    }
    for (name, query) in &job.uploads {
        let field = |value: &Option<String>| value.clone().filter(|value| !value.is_empty()).unwrap_or("-".to_owned());
        let (kind, format) = (field(&query.artifact_type), field(&query.artifact_format));
        writeln!(text, "artifact: {name} type={kind} format={format} expire_in={}", field(&query.expire_in)).unwrap();
        let content = job.artifacts[name].to_vec();
        text.push_str(&normal::normalize(&render_artifact(&format, &content), home));
    }
    text.push_str("trace:\n");
    text.push_str(&normal::normalize_trace(&job.trace, home));
    text
}

fn render_artifact(format: &str, content: &[u8]) -> String {
    match format {
        "zip" | "-" => render_members(content),
        "gzip" => {
            let mut text = Vec::new();
            flate2::read::MultiGzDecoder::new(content).read_to_end(&mut text).unwrap();
            render_content(&text)
        }
        _ => render_content(content),
    }
}

fn render_members(content: &[u8]) -> String {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(content)).unwrap();
    let mut members = Vec::new();
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).unwrap();
        let mode = member.unix_mode().map_or("-".to_owned(), |mode| format!("{mode:o}"));
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).unwrap();
        members.push(format!("  {} {mode}\n{}", member.name().to_owned(), render_content(&bytes)));
    }
    members.concat()
}

fn render_content(bytes: &[u8]) -> String {
    const MAX_BYTES: usize = 1000;
    if bytes.len() > MAX_BYTES {
        return format!("    {} bytes\n", bytes.len());
    }
    String::from_utf8_lossy(bytes).lines().map(|line| format!("    {}\n", normal::escape_controls(line))).collect()
}
