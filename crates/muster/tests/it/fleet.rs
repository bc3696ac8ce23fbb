//! `muster fleet`, without instances.

use std::path::Path;
use std::process::Output;

fn muster(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = assert_cmd::Command::cargo_bin("muster").unwrap();
    command.current_dir(directory).env("HOME", directory).args(arguments).output().unwrap()
}

fn policies() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("on-demand.toml", "max_instances = 50\nprice_per_hour = 0.1\n[[policy]]\nidle_time = \"5m0s\"\n");
    write(
        "floor.toml",
        "max_instances = 50\nprice_per_hour = 0.1\n[[policy]]\nidle_count = 10\nidle_time = \"5m0s\"\n",
    );
    write("jobs.csv", "arrival_s,duration_s\n0,60\n10,60\n2000,30\n");
    directory
}

#[test]
fn simulate_compares_and_draws_policies() {
    let directory = policies();
    let arguments = [
        "fleet",
        "simulate",
        "--pattern",
        "day",
        "--seed",
        "7",
        "--policy",
        "on-demand.toml",
        "--policy",
        "floor.toml",
        "--svg",
        "picture.svg",
        "--json",
    ];
    let output = muster(directory.path(), &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let metric = |policy: usize, pointer: &str| result["policies"][policy].pointer(pointer).unwrap().as_f64().unwrap();
    assert_eq!(metric(0, "/report/done"), result["jobs"].as_f64().unwrap());
    assert!(metric(1, "/wait_s/mean") < metric(0, "/wait_s/mean") / 2.0, "idle instances must reduce the waits");
    assert!(metric(1, "/report/cost") > metric(0, "/report/cost"), "idle instances must increase the cost");
    let picture = std::fs::read_to_string(directory.path().join("picture.svg")).unwrap();
    assert!(picture.contains(">floor: wait p95") && picture.ends_with("</svg>\n"));
    let second_output = muster(directory.path(), &arguments);
    assert_eq!(output.stdout, second_output.stdout, "the same seed must give the same result");
}

#[test]
fn simulate_replays_a_trace() {
    let directory = policies();
    let output = muster(directory.path(), &["fleet", "simulate", "--trace", "jobs.csv", "--policy", "on-demand.toml"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("3 jobs, seed 1\npolicy "), "{text}");
    assert!(text.lines().nth(2).unwrap().starts_with("on-demand     3 "), "{text}");
}

/// Regression test: a policy that runs no job must not look like the best one.
#[test]
fn simulate_counts_waits_of_jobs_that_never_run() {
    let directory = policies();
    std::fs::write(
        directory.path().join("too-expensive.toml"),
        "max_instances = 5\nprice_per_hour = 1.0\nmax_cost_per_hour = 0.5\n",
    )
    .unwrap();
    let arguments = ["fleet", "simulate", "--trace", "jobs.csv", "--policy", "too-expensive.toml", "--json"];
    let result: serde_json::Value = serde_json::from_slice(&muster(directory.path(), &arguments).stdout).unwrap();
    let metric = |pointer: &str| result["policies"][0].pointer(pointer).unwrap().as_f64().unwrap();
    assert_eq!((metric("/report/done"), metric("/report/unfinished")), (0.0, 3.0), "{result}");
    assert!(metric("/wait_s/p50") > 80_000.0, "jobs that never run must count as waiting for about a day: {result}");
}

/// The quota still applies to the jobs that wait when the last job arrives.
#[test]
fn simulate_applies_a_quota_after_the_last_job_has_arrived() {
    let directory = policies();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("three.csv", "0,3600\n10,3600\n20,3600\n");
    write("one.toml", "quota = 1\n");
    write("none.toml", "quota = 0\n");
    write("out.toml", "stockouts = [[0.0, 24.0]]\n");
    write("demand.toml", "max_instances = 5\nmax_use_count = 1\n");
    let simulated = |cloud: &str| {
        let arguments =
            ["fleet", "simulate", "--trace", "three.csv", "--policy", "demand.toml", "--json", "--cloud", cloud];
        let result: serde_json::Value = serde_json::from_slice(&muster(directory.path(), &arguments).stdout).unwrap();
        let metric = |pointer: &str| result["policies"][0].pointer(pointer).unwrap().as_f64().unwrap();
        (metric("/report/done"), metric("/report/unfinished"), metric("/wait_s/max"))
    };
    let (done, unfinished, longest) = simulated("one.toml");
    assert!(
        (done, unfinished) == (3.0, 0.0) && longest > 7200.0,
        "the jobs must run one after the other: {done} done, {longest} s"
    );
    for cloud in ["none.toml", "out.toml"] {
        let (done, unfinished, _) = simulated(cloud);
        assert_eq!((done, unfinished), (0.0, 3.0), "{cloud}");
    }
}

/// Effect of `request_ahead`: shorter waits with the same number of instances.
#[test]
fn simulate_shows_the_effect_of_request_ahead() {
    let directory = policies();
    let policy = "max_instances = 30\nmax_use_count = 1\n[[policy]]\nidle_count = 2\nidle_time = \"5m0s\"\n";
    let jobs: String = (0..40).map(|_| "600,120\n").collect();
    for (name, text) in
        [("on.toml", policy), ("off.toml", &format!("request_ahead = false\n{policy}")), ("jobs.csv", &jobs)]
    {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let arguments =
        ["fleet", "simulate", "--trace", "jobs.csv", "--policy", "on.toml", "--policy", "off.toml", "--json"];
    let result: serde_json::Value = serde_json::from_slice(&muster(directory.path(), &arguments).stdout).unwrap();
    let metric = |policy: usize, pointer: &str| result["policies"][policy].pointer(pointer).unwrap().as_f64().unwrap();
    assert!(metric(0, "/wait_s/mean") < metric(1, "/wait_s/mean") / 3.0, "{result}");
    assert_eq!(metric(0, "/report/machines"), metric(1, "/report/machines"), "{result}");
}

#[test]
fn simulate_reports_invalid_input() {
    let directory = policies();
    std::fs::write(directory.path().join("bad.toml"), "max_instances = -1\n[[policy]]\nperiods = [\"@daily\"]\n")
        .unwrap();
    std::fs::write(directory.path().join("typo.toml"), "max_instances = 1\n[[polcy]]\nidle_count = 5\n").unwrap();
    std::fs::write(directory.path().join("bad.csv"), "1,2\nsoon,3\n").unwrap();
    for (arguments, expected) in [
        (["--trace", "jobs.csv", "--policy", "bad.toml"], "policy[1].periods`: `@daily` is not a valid period"),
        (
            ["--trace", "jobs.csv", "--policy", "typo.toml"],
            "error[C010]: unknown key `runners.autoscaler.polcy`\n --> typo.toml:2:3\n",
        ),
        (["--trace", "bad.csv", "--policy", "floor.toml"], "line 2: `soon` is not a number"),
        (["--trace", "none.csv", "--policy", "floor.toml"], "failed to read none.csv"),
        (["--days", "0", "--policy", "floor.toml"], "--days must be from 1 to 365, not 0"),
        (["--skip-days", "1", "--policy", "floor.toml"], "--skip-days must be below --days, not 1"),
        (["--peak-rate", "-1", "--policy", "floor.toml"], "--peak-rate must be from 0 to 1000000, not -1"),
        (["--svg", "none/x.svg", "--policy", "floor.toml"], "failed to write none/x.svg"),
    ] {
        let output = muster(directory.path(), &[["fleet", "simulate"].as_slice(), &arguments].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(error.contains(expected), "{error}");
    }
}

/// Requirement R036.
#[test]
fn simulated_day_meets_the_objective_for_waits_with_limited_idle_time() {
    let directory = policies();
    let text = "max_instances = 100\n[[policy]]\nidle_time = \"10m0s\"\nscale_factor = 0.3\nscale_factor_limit = 20\n\
                preemptive_mode = false\n";
    std::fs::write(directory.path().join("factor.toml"), text).unwrap();
    let arguments = ["--pattern", "day", "--peak-rate", "150", "--seed", "7", "--policy", "factor.toml", "--json"];
    let output = muster(directory.path(), &[&["fleet", "simulate"][..], &arguments].concat());
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let metric = |pointer: &str| result["policies"][0].pointer(pointer).unwrap().as_f64().unwrap();
    assert!(metric("/wait_s/p95") < 1.0 && metric("/wait_s/p99") < 60.0, "{result}");
    let idle_hours = metric("/report/slot_hours") - metric("/report/busy_slot_hours");
    assert!(idle_hours < 110.0, "a fleet for the peak, all day, would be idle for ten times as long: {result}");
    assert_eq!(metric("/report/done"), result["jobs"].as_f64().unwrap());
}

#[test]
fn invalid_arguments_and_state_directories_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let check_error = |arguments: &[&str], expected: &str| {
        let output = muster(directory.path(), arguments);
        let output_text =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output_text}");
        assert!(output_text.contains(expected), "{arguments:?}: {output_text}");
    };
    check_error(&["fleet", "status", "--state-dir", "nope"], "nope: no such directory");
    check_error(&["fleet", "status", "--config", "nope.toml"], "nope.toml: no such file");
    std::os::unix::fs::symlink("circle.toml", directory.path().join("circle.toml")).unwrap();
    check_error(&["fleet", "status", "--config", "circle.toml"], "form a loop");
    check_error(&["fleet", "drain", "x", "--config", "nope.toml"], "nope.toml: no such file");
    let error = "no running manager with instances uses the state directory nope";
    check_error(&["fleet", "drain", "x", "--state-dir", "nope"], error);
    let long = "x".repeat(1001);
    check_error(
        &["fleet", "drain", "x", "--reason", &long, "--state-dir", "."],
        "the reason has 1001 characters; the maximum is 1000",
    );
    check_error(&["fleet", "explain", "job", "abc", "--state-dir", "."], "`abc` is not a valid job ID");
    check_error(&["fleet", "status", "--state-dir", "."], "not a manager's state directory");
    std::fs::write(directory.path().join("file"), "").unwrap();
    check_error(&["fleet", "status", "--state-dir", "file"], "failed to read file");
    let ledgers = directory.path().join("instances");
    std::fs::create_dir(&ledgers).unwrap();
    std::fs::write(ledgers.join("x.ledger"), "garbage\n").unwrap();
    check_error(&["fleet", "status", "--state-dir", "."], "x.ledger at line 1");
    check_error(&["fleet", "explain", "--state-dir", "."], "x.ledger at line 1");
    check_error(&["fleet", "explain", "job", "1", "--state-dir", "."], "x.ledger at line 1");
}

#[test]
fn simulate_rejects_unusable_input_and_shows_paths_of_policies_with_equal_names() {
    let directory = policies();
    let write = |name: &str, text: &[u8]| std::fs::write(directory.path().join(name), text).unwrap();
    std::fs::create_dir(directory.path().join("other")).unwrap();
    write("other/floor.toml", b"[[policy]]\nidle_count = 10\n");
    write("endless.toml", b"[[policy]]\nidle_count = 4000000000\n");
    write("factor.toml", b"[[policy]]\nscale_factor = 1e300\n");
    write("never.toml", b"creations_per_second = 0\n");
    write("odd.toml", b"spot_preemptions_per_hour = nan\n");
    write("number.toml", b"boot = 5\n");
    write("words.toml", b"[[policy]]\nidle_time = \"5 minutes\"\n");
    write("latin.csv", b"0,1\n\xff,2\n");
    write("night.toml", b"stockouts = [[20.0, 3.0]]\n");
    write("early.toml", b"boot = { median_s = -5.0, factor = 1.0 }\n");
    let with = |more: &[&str]| muster(directory.path(), &[&["fleet", "simulate"][..], more].concat());
    let output = with(&["--trace", "jobs.csv", "--policy", "floor.toml", "--policy", "other/floor.toml"]);
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<Vec<&str>> = output_text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows[0][0], rows[1][0]), ("floor.toml", "other/floor.toml"), "{output_text}");
    assert!(
        rows[1].contains(&"-") && !rows[0].contains(&"-"),
        "only the policy without a price must have no cost: {output_text}"
    );
    for (arguments, expected) in [
        (&["--trace", "jobs.csv", "--policy", "endless.toml"][..], "set max_instances"),
        (&["--trace", "jobs.csv", "--policy", "factor.toml"], "set max_instances"),
        (&["--trace", "jobs.csv", "--policy", "floor.toml", "--skip-days", "2"], "the last one arrives on day 1"),
        (
            &["--trace", "jobs.csv", "--policy", "floor.toml", "--cloud", "never.toml"],
            "creations_per_second: 0.0 is not",
        ),
        (
            &["--trace", "jobs.csv", "--policy", "floor.toml", "--cloud", "odd.toml"],
            "spot_preemptions_per_hour: NaN is not",
        ),
        (&["--trace", "jobs.csv", "--policy", "floor.toml", "--cloud", "number.toml"], "expected a table such as"),
        (&["--trace", "jobs.csv", "--policy", "words.toml"], "` needs a duration such as"),
        (&["--trace", "latin.csv", "--policy", "floor.toml"], "latin.csv: line 2 is not UTF-8"),
        (
            &["--trace", "jobs.csv", "--policy", "floor.toml", "--cloud", "night.toml"],
            "split one that includes midnight",
        ),
        (&["--trace", "jobs.csv", "--policy", "floor.toml", "--cloud", "early.toml"], "boot: median_s and factor"),
        (
            &["--peak-rate", "1", "--off-peak-rate", "2", "--policy", "floor.toml"],
            "--peak-rate must be at least --off-peak-rate, not 1",
        ),
        (&["--burst", "0", "--policy", "floor.toml"], "--burst must be at least 1, not 0"),
        (&["--daily-variation", "0", "--policy", "floor.toml"], "--daily-variation must be at least 1, not 0"),
    ] {
        let output = with(arguments);
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && output_text.contains(expected), "{arguments:?}: {output_text}");
    }
}
