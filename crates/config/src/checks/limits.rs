//! Checks of the limits on jobs and requests (checks C001 to C005 and C007).

use super::super::problem::Problem;
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    check_concurrent(check);
    check_long_polling(check);
    check_excess(check);
    check_request_rate(check);
}

pub(super) fn concurrent_of(check: &Check<'_>) -> i64 {
    check.tree.int("concurrent").unwrap_or(1)
}

fn check_concurrent(check: &mut Check<'_>) {
    let Some(node) = check.tree.node("concurrent") else { return };
    let concurrent = concurrent_of(check);
    if concurrent < 1 {
        let message = format!("concurrent = {concurrent}: must be at least 1; 0 does not mean unlimited");
        check.add(
            Problem::new("C001", message)
                .at(&node.span)
                .help("set it to the number of jobs that this machine can run at the same time"),
        );
    }
}

/// Checks C002 to C004.
///
/// In Muster, runners take turns, so problems that only affect gitlab-runner are reported as information only.
fn check_long_polling(check: &mut Check<'_>) {
    let concurrent = concurrent_of(check);
    let runners = check.runners.len();
    let node = check.tree.node("concurrent");
    if i64::try_from(runners).is_ok_and(|runners| runners > concurrent.max(1)) {
        let s = if concurrent == 1 { "" } else { "s" };
        let message =
            format!("{runners} runners share {concurrent} job slot{s}: jobs of one wait for jobs of the others");
        let problem =
            Problem::new("C002", message).help(format!("set concurrent to at least {runners}, the number of runners"));
        check.add(match node {
            Some(node) => problem.at(&node.span),
            None => problem,
        });
    }
    for runner in check.runners {
        let requests = runner.table.int("request_concurrency").unwrap_or(1).max(1);
        let limit = runner.table.int("limit").unwrap_or(0);
        let node = runner.table.node("limit").or_else(|| runner.table.node("request_concurrency"));
        let at = node.map_or(&runner.table.header, |node| &node.span);
        if requests == 1 && matches!(limit, 1 | 2) {
            let message = format!(
                "limit = {limit} and request_concurrency = 1: while the server holds the only request, a free slot gets no job"
            );
            check.add(Problem::new("C004", message).of(runner.index, &runner.name).at(at).help("raise either value"));
        } else if requests == 1 && concurrent > 1 {
            let message = "request_concurrency = 1: one job request at a time";
            let help = "set it to 2 to 4, so that a request that the server holds does not delay new jobs";
            check.add(Problem::new("C003", message).of(runner.index, &runner.name).at(at).help(help));
        }
    }
}

fn check_excess(check: &mut Check<'_>) {
    let concurrent = concurrent_of(check);
    for runner in check.runners {
        for key in ["limit", "request_concurrency"] {
            let Some((value, node)) = runner.table.int(key).zip(runner.table.node(key)) else { continue };
            if value > concurrent && concurrent >= 1 {
                let message = format!("{key} = {value} exceeds concurrent = {concurrent}; the excess has no effect");
                let help = format!("raise concurrent, or lower {key}");
                check.add(Problem::new("C005", message).of(runner.index, &runner.name).at(&node.span).help(help));
            }
        }
    }
}

fn check_request_rate(check: &mut Check<'_>) {
    /// Above this number, a server with default limits answers 429.
    const MAX_REQUESTS_PER_SECOND: usize = 10;
    let Some(node) = check.tree.node("check_interval") else { return };
    let seconds = check
        .tree
        .int("check_interval")
        .and_then(|seconds| usize::try_from(seconds).ok())
        .filter(|seconds| *seconds > 0);
    let (seconds, runners) = (seconds.unwrap_or(3), check.runners.len());
    if runners > seconds.saturating_mul(MAX_REQUESTS_PER_SECOND) {
        let message = format!(
            "{runners} runners polled within {seconds} s, one every {} ms; expect HTTP 429 from the server",
            seconds * 1000 / runners
        );
        check.add(Problem::new("C007", message).at(&node.span).help("raise check_interval, or use fewer runners"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, found, found_with};

    fn runners(count: usize, more: &str) -> String {
        let mut text = String::new();
        for index in 0..count {
            text.push_str(&format!("[[runners]]\nname=\"r{index}\"\nurl=\"https://g.example\"\ntoken=\"t{index}\"\nexecutor=\"shell\"\n{more}\n"));
        }
        text
    }

    #[test]
    fn c001_concurrent_below_1_is_fatal() {
        for text in ["concurrent = 0", "concurrent = -4"] {
            assert!(found("C001", text).starts_with("1:14 fatal"));
        }
        clean("C001", "concurrent = 1");
        clean("C001", "");
    }

    #[test]
    fn c002_more_runners_than_job_slots_are_reported() {
        assert!(found("C002", &format!("concurrent = 2\n{}", runners(3, ""))).contains("concurrent to at least 3"));
        clean("C002", &format!("concurrent = 3\n{}", runners(3, "")));
        clean("C002", "concurrent = 0");
    }

    #[test]
    fn c003_one_request_at_a_time_is_reported() {
        assert!(found("C003", &format!("concurrent = 8\n{}", runners(1, ""))).contains("info"));
        clean("C003", &format!("concurrent = 8\n{}", runners(1, "request_concurrency = 2")));
    }

    #[test]
    fn c004_one_request_with_limit_below_3_is_reported() {
        found("C004", &format!("concurrent = 8\n{}", runners(1, "limit = 2")));
        clean("C004", &format!("concurrent = 8\n{}", runners(1, "limit = 2\nrequest_concurrency = 2")));
        clean("C004", &format!("concurrent = 8\n{}", runners(1, "limit = 3")));
    }

    #[test]
    fn c005_more_than_concurrent_has_no_effect() {
        assert!(
            found("C005", &format!("concurrent = 8\n{}", runners(1, "limit = 9"))).contains("runner r0: limit = 9")
        );
        found("C005", &format!("concurrent = 2\n{}", runners(1, "request_concurrency = 3")));
        clean("C005", &format!("concurrent = 8\n{}", runners(1, "limit = 8\nrequest_concurrency = 8")));
    }

    #[test]
    fn c007_small_interval_with_many_runners_is_reported() {
        assert!(found_with("C007", &format!("check_interval = 1\n{}", runners(20, "")), |_| ()).contains("50 ms"));
        clean("C007", &format!("check_interval = 3\n{}", runners(20, "")));
        clean("C007", &format!("check_interval = {}\n{}", i64::MAX, runners(20, "")));
    }
}
