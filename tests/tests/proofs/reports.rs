//! Checks the reports of `benches/` that requirements cite.
//!
//! The reports exist and are complete, and `docs/benchmarks.md` has the measured numbers.

use std::path::Path;

use serde_json::Value;

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// Returns the numbers in a row of `docs/benchmarks.md`.
fn row(page: &str, figure: &str) -> Vec<f64> {
    let head = format!("| {figure} | ");
    let line = page.lines().find_map(|line| line.strip_prefix(&head)).unwrap_or_else(|| panic!("no row of {figure}"));
    line.trim_end_matches(" |").split(" | ").map(|cell| cell.parse().unwrap()).collect()
}

#[test]
fn the_report_compares_idle_time_failed_creations_and_time_to_start_with_the_old_scheme() {
    let data: Value = serde_json::from_str(&read("benches/data/scheme.json")).unwrap();
    let page = read("docs/benchmarks.md");
    let schemes = ["muster", "autoscaler", "machine"];
    let of = |scheme: &str, figure: &str| data[scheme][figure].as_f64().unwrap_or_else(|| panic!("{scheme}: {figure}"));
    for figure in [
        "jobs offered",
        "jobs done",
        "jobs failed by the runner",
        "idle instance seconds per job",
        "creations refused",
        "creations that never came up",
        "offered to first command, p50: s",
        "offered to first command, p95: s",
        "instances left when the runner has ended",
    ] {
        assert_eq!(
            row(&page, figure),
            schemes.map(|scheme| of(scheme, figure)),
            "{figure}: the page is not of the data"
        );
    }
    // Both schemes are compared with the same work and the same failures of the cloud.
    for scheme in schemes {
        assert_eq!(of(scheme, "jobs offered"), of("muster", "jobs offered"), "{scheme}");
        assert!(of(scheme, "creations refused") + of(scheme, "creations that never came up") > 0.0, "{scheme}");
    }
    assert_eq!(of("muster", "jobs done"), of("muster", "jobs offered"));
    assert_eq!(of("muster", "instances left when the runner has ended"), 0.0);
    for figure in
        ["idle instance seconds per job", "offered to first command, p50: s", "offered to first command, p95: s"]
    {
        assert!(of("muster", figure) < of("machine", figure), "{figure} is no better than that of the old scheme");
    }
}
