//! Reports among the artifacts of a job.

/// Returns the format in which GitLab expects the upload of this type of report (`gzip`, `zip` or `raw`), and the
/// default name of the report's file.
#[must_use]
pub fn report_format(kind: &str) -> (&'static str, String) {
    let (format, name) = match kind {
        "junit" => ("gzip", "junit.xml"),
        "dotenv" => ("gzip", ".env"),
        "cobertura" => ("gzip", "cobertura-coverage.xml"),
        "jacoco" => ("gzip", "jacoco-coverage.xml"),
        "metrics" => ("gzip", "metrics.txt"),
        "cyclonedx" => ("gzip", "gl-sbom.cdx.json"),
        "annotations" => ("gzip", "gl-annotations.json"),
        "repository_xray" => ("gzip", "gl-repository-xray.json"),
        "lsif" => ("zip", "lsif.json"),
        "codequality" => ("raw", "gl-code-quality-report.json"),
        "accessibility" => ("raw", "gl-accessibility.json"),
        "browser_performance" => ("raw", "browser-performance.json"),
        "load_performance" => ("raw", "load-performance.json"),
        "terraform" => ("raw", "tfplan.json"),
        "requirements" => ("raw", "requirements.json"),
        "coverage_fuzzing" => ("raw", "gl-coverage-fuzzing.json"),
        // All other reports are from security scanners.
        _ => return ("raw", format!("gl-{}-report.json", kind.replace('_', "-"))),
    };
    (format, name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_depends_on_the_type() {
        assert_eq!(report_format("junit"), ("gzip", "junit.xml".to_owned()));
        assert_eq!(report_format("container_scanning"), ("raw", "gl-container-scanning-report.json".to_owned()));
    }
}
