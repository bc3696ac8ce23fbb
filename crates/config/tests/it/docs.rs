//! `docs/reference/config.md` matches the schema (`MUSTER_UPDATE_DOCS=1` updates it), and the example configurations are valid.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use muster_config::codes::CODES;
use muster_config::schema::{KeySupport, TableSchema, schema};
use muster_config::{HostFacts, Severity, parse};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/config.md");

fn keys() -> String {
    let mut text = String::new();
    for table in schema().tables() {
        let header = match (table.path.as_str(), table.array) {
            ("", _) => "Global section".to_owned(),
            (path, true) => format!("`[[{path}]]`"),
            (path, false) => format!("`[{path}]`"),
        };
        writeln!(text, "### {header}\n").unwrap();
        if let KeySupport::Unsupported(reason) = table.status {
            writeln!(text, "Not supported: {reason}.\n").unwrap();
        }
        if table.keys.is_empty() {
            writeln!(text, "This table contains only other tables.\n").unwrap();
            continue;
        }
        writeln!(text, "| key | type | default | takes effect | meaning |\n| --- | --- | --- | --- | --- |").unwrap();
        table.keys.iter().filter(|key| !key.rejected).for_each(|key| writeln!(text, "{}", row(table, key)).unwrap());
        text.push('\n');
    }
    text
}

fn row(table: &TableSchema, key: &muster_config::schema::Key) -> String {
    let kind = key
        .kind
        .description()
        .trim_start_matches("a ")
        .trim_start_matches("an ")
        .split(" such as")
        .next()
        .unwrap_or_default();
    let unit = if key.unit.is_empty() { String::new() } else { format!(", {}", key.unit) };
    let not_supported = match key.status {
        KeySupport::Unsupported(reason) if table.status == KeySupport::Supported => {
            format!(". **Not supported**: {reason}")
        }
        _ => String::new(),
    };
    let takes_effect = key.reload.as_str();
    format!("| `{}` | {kind}{unit} | {} | {takes_effect} | {}{not_supported} |", key.name, key.default, key.meaning)
}

fn mistakes() -> String {
    let mut text = "| code | severity | mistake |\n| --- | --- | --- |\n".to_owned();
    for (code, severity, mistake) in CODES {
        writeln!(text, "| {code} | {} | {mistake} |", severity.as_str()).unwrap();
    }
    text
}

/// Replaces the text between the markers of `name`.
fn with_section(page: &str, name: &str, content: &str) -> String {
    let (start, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = page.split_once(&start).unwrap_or_else(|| panic!("{start}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{end}"));
    format!("{before}{start}\n{}\n\n{end}{after}", content.trim_end())
}

#[test]
fn reference_page_lists_every_key_and_problem() {
    let page = std::fs::read_to_string(Path::new(PAGE)).unwrap();
    let wanted = with_section(&with_section(&page, "keys", &keys()), "mistakes", &mistakes());
    if std::env::var_os("MUSTER_UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &wanted).unwrap();
    }
    assert!(
        page == wanted || std::env::var_os("MUSTER_UPDATE_DOCS").is_some(),
        "run this test with MUSTER_UPDATE_DOCS=1"
    );
}

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

fn pages(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let pages_here = files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages_here.chain(directories.iter().flat_map(|directory| pages(directory))).collect()
}

/// Returns the examples of a page that contain `[[runners]]`. An example without a URL or token gets one.
fn configurations(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let of_runners = blocks.filter(|block| block.contains("[[runners]]"));
    let add = |block: &str, key: &str, value: &str| match block.contains(&format!("{key} = ")) {
        true => block.to_owned(),
        false => block.replace("[[runners]]", &format!("[[runners]]\n{key} = \"{value}\"")),
    };
    of_runners.map(|block| add(&add(block, "url", "https://gitlab.example"), "token", "glrt-example")).collect()
}

#[test]
fn example_configuration_is_accepted() {
    let pages = pages(Path::new(DOCS));
    let mut seen = 0;
    for page in &pages {
        for text in configurations(&std::fs::read_to_string(page).unwrap()) {
            seen += 1;
            let problems = parse(&text, &HostFacts { exists: true, writable: true, ..HostFacts::default() }).problems;
            let wrong = problems.iter().filter(|problem| problem.severity <= Severity::Error);
            let wrong: String = wrong.map(|problem| problem.render(page)).collect();
            assert_eq!(wrong, "", "{text}");
        }
    }
    assert!(seen > 5, "{seen} configurations in {} pages", pages.len());
}
