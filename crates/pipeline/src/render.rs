//! Renders diagnostics as text: file, line and column, the source line with the error underlined, and how to fix it.
//!
//! Control characters from the configuration are replaced with visible characters, so that a file cannot send escape
//! sequences to the terminal.

use annotate_snippets::{
    Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet, normalize_untrusted_str as clean,
};

use crate::diagnostic::{Diagnostic, Severity, shortened};
use crate::node::Span;
use crate::source_map::{Source, SourceMap};

/// Maximum length of a source line that is shown. Of a longer line, only the position is shown.
const MAX_LINE_BYTES: usize = 2000;
const MAX_MESSAGE_CHARS: usize = 1000;

/// Returns the text of `diagnostics` in their order, each followed by an empty line. `color` adds ANSI sequences.
#[must_use]
pub fn render(diagnostics: &[Diagnostic], sources: &SourceMap, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for diagnostic in diagnostics {
        let group = group(diagnostic, sources);
        let text = renderer.render(&[group]);
        for line in text.lines() {
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

fn group<'a>(diagnostic: &'a Diagnostic, sources: &'a SourceMap) -> Group<'a> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(shortened(&diagnostic.message, MAX_MESSAGE_CHARS));
    let mut group = Group::with_title(title);
    let primary = diagnostic.span.map(|span| (span, AnnotationKind::Primary, None));
    let related = diagnostic.related.iter().map(|(span, label)| (*span, AnnotationKind::Context, Some(label.as_str())));
    for (span, kind, label) in primary.into_iter().chain(related) {
        let Some(source) = sources.get(span.source) else { continue };
        group = match shown_line(source, span) {
            Some(line) => {
                let annotation: Annotation<'_> = kind.span(line.start..line.end).label(label);
                let snippet = Snippet::source(line.text).line_start(span.line as usize).path(&*source.name);
                group.element(snippet.annotation(annotation))
            }
            None => {
                let origin = Origin::path(&*source.name).line(span.line as usize);
                group.element(origin.char_column(span.column as usize))
            }
        };
    }
    match &diagnostic.help {
        Some(help) => group.element(Level::HELP.message(clean(help))),
        None => group,
    }
}

struct ShownLine<'a> {
    text: &'a str,
    start: usize,
    end: usize,
}

/// Returns the source line of a span. Returns `None` if the span is outside the text or the line is too long.
fn shown_line(source: &Source, span: Span) -> Option<ShownLine<'_>> {
    let (start, end) = (span.start as usize, span.end as usize);
    let line_start = source.text.get(..start)?.rfind('\n').map_or(0, |newline| newline + 1);
    let text = source.text.get(line_start..)?.split('\n').next()?.trim_end_matches('\r');
    let start = (start - line_start).min(text.len());
    let end = end.saturating_sub(line_start).clamp(start, text.len());
    (text.len() <= MAX_LINE_BYTES).then_some(ShownLine { text, start, end })
}
