//! `docs/benchmarks.md`, which the requirements cite, must have the numbers that `benches/` measured.

use std::path::Path;

use serde_json::Value;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

fn numbers_in_row(page: &str, figure: &str) -> Vec<f64> {
    let prefix = format!("| {figure} | ");
    let line =
        page.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("no row for {figure}"));
    line.trim_end_matches(" |").split(" | ").map(|cell| cell.parse().unwrap()).collect()
}

#[test]
fn report_has_the_measured_numbers_and_muster_beats_docker_machine() {
    let data: Value = serde_json::from_str(&read("benches/data/scheme.json")).unwrap();
    let page = read("docs/benchmarks.md");
    let schemes = ["muster", "autoscaler", "machine"];
    let measured =
        |scheme: &str, figure: &str| data[scheme][figure].as_f64().unwrap_or_else(|| panic!("{scheme}: {figure}"));
    for figure in [
        "jobs offered",
        "jobs succeeded",
        "jobs failed by the runner",
        "idle instance seconds per job",
        "creations rejected",
        "accepted instances that never started",
        "offered to first command, p50: s",
        "offered to first command, p95: s",
        "instances left after the exit of the runner",
    ] {
        assert_eq!(
            numbers_in_row(&page, figure),
            schemes.map(|scheme| measured(scheme, figure)),
            "{figure}: docs/benchmarks.md and benches/data/scheme.json differ"
        );
    }
    // All systems got the same jobs, and each had failing creations.
    for scheme in schemes {
        assert_eq!(measured(scheme, "jobs offered"), measured("muster", "jobs offered"), "{scheme}");
        assert!(
            measured(scheme, "creations rejected") + measured(scheme, "accepted instances that never started") > 0.0,
            "{scheme}"
        );
    }
    assert_eq!(measured("muster", "jobs succeeded"), measured("muster", "jobs offered"));
    assert_eq!(measured("muster", "instances left after the exit of the runner"), 0.0);
    for figure in
        ["idle instance seconds per job", "offered to first command, p50: s", "offered to first command, p95: s"]
    {
        assert!(
            measured("muster", figure) < measured("machine", figure),
            "{figure} must be better than with Docker Machine"
        );
    }
}
