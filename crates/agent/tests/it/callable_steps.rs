//! Built-in steps that a job's `run:` list calls.

use std::sync::Arc;

use muster_agent_api::builtin::{
    ArtifactSource, ArtifactsDownload, CacheEntry, CacheRestore, CacheSave, Checkout, ChunkCache, ChunkStore,
    ChunkUpload, ResourceShare,
};
use muster_agent_api::plan::{ArtifactEndpoint, Call, JobPlan, Step, When};
use muster_agent_api::result::{JobResult, Outcome};
use muster_job::{JobId, JobStatus, PolicyRule, StepLimits, StepPolicy};
use muster_runner_api::test_support::{MemoryCoordinator, Served, serve};
use serde_json::{Value, json};

use crate::harness::*;

const JOB: JobId = JobId(7);
/// Line of `default = "deny"` in the policy file.
const DENY_LINE: u64 = 1;

fn list(entries: Value) -> Step {
    step("step_run", When::OnSuccess, Call::Run(entries))
}

fn call(step: &str, inputs: Value) -> Value {
    json!([{ "name": "it", "func": format!("builtin://{step}"), "inputs": inputs }])
}

/// Runs a job with the `run:` list `entries`. `declared` are the steps for other keywords of the job, such as `cache`.
async fn run(agent: &mut Agent, declared: Vec<Step>, entries: Value) -> (String, JobResult) {
    let plan = agent.plan([declared, vec![list(entries)]].concat());
    agent.complete(&plan).await
}

async fn assert_refused(declared: Vec<Step>, entries: Value, text: &str) {
    let (log, result) = run(&mut Agent::start().await, declared, entries).await;
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert!(log.contains(text), "{text:?} is not in {log}");
}

/// Creates a repository with two commits, and returns the checkout of a job with `GIT_STRATEGY: none`.
fn repository(agent: &Agent) -> Checkout {
    let dir = agent.dir.path().join("repository");
    let commit = "git -c user.name=a -c user.email=a@example.com commit -q -m";
    let commands = format!(
        "git init -q -b main \"$0\" && cd \"$0\" && echo 1 >file && git add . && {commit} 1 && echo 2 >file && {commit} 2 -a && git rev-parse HEAD"
    );
    let output = std::process::Command::new("sh").args(["-c", &commands]).arg(&dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Checkout {
        strategy: "none".to_owned(),
        repo_url: format!("file://{}", dir.display()),
        ref_name: "main".to_owned(),
        sha: String::from_utf8(output.stdout).unwrap().trim().to_owned(),
        refspecs: vec!["+refs/heads/main:refs/remotes/origin/main".to_owned()],
        checkout: true,
        ..Checkout::default()
    }
}

#[tokio::test]
async fn step_of_a_list_checks_out_the_sources_of_the_job() {
    let mut agent = Agent::start().await;
    let sources = step("get_sources", When::OnSuccess, Call::builtin(&repository(&agent)));
    let entries = json!([
        { "name": "before", "script": "test ! -e file" },
        { "name": "sources", "func": "builtin://checkout", "inputs": { "strategy": "clone", "depth": "${{ num('1') }}" } },
        { "name": "show", "script": "cat file; git rev-list --count HEAD" }
    ]);
    let plan = JobPlan { steps: vec![sources, list(entries)], ..agent.plan(Vec::new()) };
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\n2\n1\n"), "the checkout must have only the second commit: {log}");
    let names: Vec<_> = result.tree.steps[1].steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["before", "sources", "show"]);

    for (inputs, text) in [
        (json!({ "strategy": "svn" }), "\"svn\" is not a valid `strategy`; write one of: fetch, clone, empty, none"),
        (json!({ "submodules": "all" }), "\"all\" is not a valid `submodules`"),
        (json!({ "depth": -1 }), "-1 is not a valid `depth`"),
        (json!({ "repo_url": "https://other.example" }), "step does not accept input with name \"repo_url\""),
    ] {
        assert_refused(Vec::new(), call("checkout", inputs), text).await;
    }
}

fn cache(agent: &Agent, key: &str, path: &str) -> CacheEntry {
    CacheEntry {
        key: key.to_owned(),
        cache_dir: agent.dir.path().join("cache").to_string_lossy().into_owned(),
        paths: vec![path.to_owned()],
        ..CacheEntry::default()
    }
}

#[tokio::test]
async fn steps_of_a_list_save_and_restore_only_caches_of_the_job() {
    let mut agent = Agent::start().await;
    let caches = vec![cache(&agent, "deps", "vendor/"), cache(&agent, "other", "other/")];
    let save = |when| step("archive_cache", when, Call::builtin(&CacheSave { caches: caches.clone() }));
    // Without a failure, these steps do not run, but declare the caches for the list.
    let mut declared = vec![save(When::OnFailure), save(When::OnFailure)];
    let restore = step("restore_cache", When::OnFailure, Call::builtin(&CacheRestore { caches: caches.clone() }));
    declared.push(restore);
    let entries = json!([
        { "name": "make", "script": "mkdir vendor other; echo cached | tee vendor/lib >other/lib" },
        { "name": "save", "func": "builtin://cache/save", "inputs": { "key": "deps" } },
        { "name": "lose", "script": "rm -r vendor other" },
        { "name": "restore", "func": "builtin://cache/restore" },
        { "name": "show", "script": "cat vendor/lib; ls" }
    ]);
    let (log, result) = run(&mut agent, declared.clone(), entries).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\ncached\nvendor\n"), "{log}");
    assert_eq!(log.matches("Creating cache deps").count(), 1, "{log}");
    assert!(log.contains("Checking cache for other...") && !log.contains("Creating cache other"), "{log}");

    let store = ChunkStore { upload: Some(ChunkUpload::default()), ..ChunkStore::default() };
    let chunks = Some(ChunkCache { store: Some(store), ..ChunkCache::default() });
    let chunked = CacheSave { caches: vec![CacheEntry { chunks, ..cache(&agent, "deps", "vendor/") }] };
    let chunked = step("archive_cache", When::OnFailure, Call::builtin(&chunked));
    let text = "the cache `deps` is stored as chunks, which a job can save only once";
    assert_refused(vec![chunked], call("cache/save", json!({})), text).await;

    let text = "the job declares no cache `mine`; it has: deps, other; add it with `cache` to the job";
    assert_refused(declared, call("cache/save", json!({ "key": "mine" })), text).await;
    assert_refused(Vec::new(), call("cache/restore", json!({})), "the job declares no cache; add it with `cache`")
        .await;
}

async fn coordinator() -> (Arc<MemoryCoordinator>, Served) {
    let coordinator = Arc::new(MemoryCoordinator::default());
    coordinator.enqueue(serde_json::from_value(json!({"id": JOB.0, "token": "t0ken"})).unwrap());
    coordinator.set_status(JOB, JobStatus::Running);
    let served = serve(coordinator.clone()).await.unwrap();
    (coordinator, served)
}

#[tokio::test]
async fn steps_of_a_list_upload_artifacts_and_download_those_of_dependencies() {
    let (coordinator, served) = coordinator().await;
    let endpoint = ArtifactEndpoint {
        url: served.url.to_string(),
        job_id: JOB.0,
        token: "t0ken".to_owned(),
        ..ArtifactEndpoint::default()
    };
    let mut agent = Agent::start().await;
    let entries = json!([
        { "name": "make", "script": "mkdir out; echo made >out/a.txt; echo no >out/b.txt" },
        { "name": "upload", "func": "builtin://artifacts/upload",
          "inputs": { "paths": ["out/"], "exclude": ["out/b.txt"], "name": "of-${{ vars.NAME }}" } },
        { "name": "report", "func": "builtin://artifacts/upload", "inputs": { "paths": ["out/a.txt"], "type": "junit", "name": "junit.xml" } },
        { "name": "scan", "func": "builtin://artifacts/upload", "inputs": { "paths": ["out/a.txt"], "type": "sast", "name": "sast.json" } }
    ]);
    let plan = JobPlan { coordinator: endpoint.clone(), ..agent.plan(vec![list(entries)]) };
    agent.run("1-1", &plan, &[variable("NAME", "it")]).await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    agent.close("1-1").await;
    let job = coordinator.job(JOB).unwrap();
    assert_eq!(job.artifacts.keys().collect::<Vec<_>>(), ["junit.xml.gz", "of-it.zip", "sast.json"]);
    let formats: Vec<_> = job.uploads.iter().map(|upload| upload.1.artifact_format.as_deref()).collect();
    assert_eq!(formats, [Some("zip"), Some("gzip"), Some("raw")], "GitLab accepts one format for each type");

    std::fs::remove_dir_all(agent.project()).unwrap();
    let from = vec![ArtifactSource { job_id: JOB.0, name: "build".to_owned(), token: "t0ken".to_owned() }];
    let declared = step("download_artifacts", When::OnFailure, Call::builtin(&ArtifactsDownload { from }));
    let entries = json!([
        { "name": "download", "func": "builtin://artifacts/download", "inputs": { "job": "build" } },
        { "name": "show", "script": "cat out/a.txt; ls out" }
    ]);
    let plan = JobPlan { coordinator: endpoint, ..agent.plan(vec![declared, list(entries)]) };
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nmade\na.txt\n"), "{log}");

    let missing = "the job declares no dependency with artifacts; add it with `needs`";
    assert_refused(Vec::new(), call("artifacts/download", json!({})), missing).await;
    let no_server = "there is no server for artifacts; call `builtin://artifacts/upload` in a job of a pipeline";
    assert_refused(Vec::new(), call("artifacts/upload", json!({ "paths": ["out"] })), no_server).await;
}

const SERVER: &str = "import http.server, sys; http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()";

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn service_of_a_list_serves_its_later_steps_and_ends_with_the_job() {
    let mut agent = Agent::start().await;
    let port = free_port();
    let pid = agent.dir.path().join("pid");
    let program = format!("import os; open('{}', 'w').write(str(os.getpid())); {SERVER}", pid.display());
    let command = json!(["python3", "-c", program, port.to_string()]);
    let entries = json!([
        { "name": "serve", "func": "builtin://service", "inputs": { "command": command, "port": port } },
        { "name": "use", "script": format!("python3 -c \"import urllib.request as u; print('status', u.urlopen('http://127.0.0.1:{port}/').status)\"") }
    ]);
    let (log, result) = run(&mut agent, Vec::new(), entries).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("Starting service python3...") && log.contains("\nstatus 200\n"), "{log}");
    assert!(!is_running(std::fs::read_to_string(pid).unwrap().trim()), "the service must end with the job");

    let exits = json!({ "command": ["sh", "-c", "echo broken; exit 3"], "port": port, "name": "db" });
    let (log, result) = run(&mut agent, Vec::new(), call("service", exits)).await;
    assert_eq!(failure(&result).0, "script_failure", "the author chose the program, so the author must fix it");
    assert!(log.contains("it exited with code 3") && log.contains("broken"), "{log}");
    for (inputs, text) in [
        (json!({ "command": [] }), "the input `command` is empty"),
        (json!({ "command": ["true"], "timeout": "soon" }), "\"soon\""),
        (json!({ "command": ["true"], "port": 70000 }), "the inputs are not valid: "),
    ] {
        assert_refused(Vec::new(), call("service", inputs), text).await;
    }
}

#[tokio::test]
async fn policy_and_operator_decide_what_a_list_may_call() {
    let rule = |pattern: &str, is_allowed| PolicyRule {
        line: 3,
        pattern: pattern.to_owned(),
        is_allowed,
        ..PolicyRule::default()
    };
    let service = || call("service", json!({ "command": ["sh", "-c", "exit 0"] }));
    let limits = StepLimits { file_bytes: Some(1 << 30), ..StepLimits::default() };
    let cases = [
        (vec![rule("builtin:cache/*", false)], None, call("cache/save", json!({})), "`deny = \"builtin:cache/*\"`"),
        // A service runs commands of the author, so, like a script, it needs a rule.
        (vec![], Some(DENY_LINE), service(), "`builtin:service`: no rule matches, and `default = \"deny\"`"),
        (
            vec![],
            Some(DENY_LINE),
            call("artifacts/upload", json!({ "paths": ["out"] })),
            "`builtin:artifacts/upload`: no rule matches, and `default = \"deny\"`",
        ),
    ];
    for (rules, denied_by_default, entries, text) in cases {
        let mut agent = Agent::start().await;
        let mut plan = agent.plan(vec![list(entries)]);
        plan.step_policy = Some(StepPolicy { rules, denied_by_default, ..StepPolicy::default() });
        let (log, result) = agent.complete(&plan).await;
        assert_eq!(failure(&result).0, "runner_configuration_error", "{log}");
        assert!(log.contains(text), "{log}");
    }
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![list(service())]);
    let allowed = vec![rule("builtin:service", true)];
    plan.step_policy = Some(StepPolicy { rules: allowed, denied_by_default: Some(DENY_LINE), ..StepPolicy::default() });
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");

    plan.step_policy = Some(StepPolicy { limits, ..StepPolicy::default() });
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert!(log.contains("has limits, which cannot be enforced for `builtin://service`"), "{log}");

    plan.step_policy = None;
    plan.share = Some(ResourceShare { cgroup: "muster-test/slot-0".to_owned(), slots: 1, ..ResourceShare::default() });
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert!(
        log.contains("in the cgroup of its slot, which cannot contain the processes of `builtin://service`"),
        "{log}"
    );

    plan.share = None;
    plan.reserved_builtins = vec!["service".to_owned()];
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert!(log.contains("the operator of this runner has a step for `builtin://service`"), "{log}");
}

#[tokio::test]
async fn step_without_network_cannot_upload_files() {
    let no_network = StepLimits { no_network: true, ..StepLimits::default() };
    let uploads = [
        ("builtin://artifacts/upload", json!({ "paths": ["out"] })),
        ("builtin://cache/save", json!({})),
        ("builtin://function/oci/publish", json!({ "archive": "a.tar", "to_repository": "127.0.0.1:1/a" })),
    ];
    for (step, inputs) in uploads {
        let mut agent = Agent::start().await;
        let caches = vec![cache(&agent, "deps", "vendor/")];
        let declared = crate::harness::step("archive_cache", When::OnFailure, Call::builtin(&CacheSave { caches }));
        let dir = agent.project().join("ci");
        std::fs::create_dir_all(&dir).unwrap();
        let file = json!({ "run": [{ "name": "upload", "func": step, "inputs": inputs }] });
        std::fs::write(dir.join("step.yml"), format!("{{}}\n---\n{file}\n")).unwrap();
        let mut plan = agent.plan(vec![declared, list(json!([{ "name": "it", "step": "./ci" }]))]);
        // The uploading step has the limit of its caller, although its own rule has no limits.
        let rule = |pattern: &str, limits| PolicyRule {
            pattern: pattern.to_owned(),
            is_allowed: true,
            limits,
            ..PolicyRule::default()
        };
        let rules = vec![rule("local:./ci", no_network.clone()), rule("**", StepLimits::default())];
        plan.step_policy = Some(StepPolicy { rules, denied_by_default: Some(DENY_LINE), ..StepPolicy::default() });
        let (log, result) = agent.complete(&plan).await;
        if log.contains("cannot be enforced here") {
            muster_test_prerequisites::missing(log);
            return;
        }
        assert_eq!(failure(&result).0, "script_failure", "{log}");
        let name = step.strip_prefix("builtin://").unwrap();
        assert!(log.contains(&format!("`network = \"none\"` for this step, so it cannot call `{name}`")), "{log}");
    }
}

#[tokio::test]
async fn services_of_a_list_end_at_the_same_time() {
    let mut agent = Agent::start().await;
    let dir = agent.dir.path().to_owned();
    // Each service waits until the other service is terminated, too.
    let program = |own: &str, other: &str| {
        let dir = dir.display();
        let end = format!(
            "touch {dir}/{own}.ends; until [ -e {dir}/{other}.ends ]; do sleep 0.01; done; touch {dir}/{own}.ended; exit"
        );
        json!(["sh", "-c", format!("trap '{end}' TERM; touch {dir}/{own}.ready; while :; do sleep 0.01; done")])
    };
    let entries = json!([
        { "name": "a", "func": "builtin://service", "inputs": { "command": program("a", "b") } },
        { "name": "b", "func": "builtin://service", "inputs": { "command": program("b", "a") } },
        { "name": "wait", "script": format!("until [ -e {0}/a.ready -a -e {0}/b.ready ]; do sleep 0.01; done", dir.display()) }
    ]);
    let plan = JobPlan { grace_ms: 20_000, ..agent.plan(vec![list(entries)]) };
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    for service in ["a", "b"] {
        assert!(dir.join(format!("{service}.ended")).exists(), "the service {service} must not be killed: {log}");
    }
}

#[tokio::test]
async fn service_of_a_list_ends_when_the_job_is_canceled() {
    let mut agent = Agent::start().await;
    let pid = agent.dir.path().join("pid");
    let service = json!(["sh", "-c", format!("echo $$ >{}; exec sleep 600", pid.display())]);
    let entries = json!([
        { "name": "serve", "func": "builtin://service", "inputs": { "command": service } },
        { "name": "wait", "script": format!("until [ -s {} ]; do sleep 0.01; done; echo started; sleep 600", pid.display()) }
    ]);
    let ended = format!("while kill -0 $(cat {}); do sleep 0.01; done 2>/dev/null; echo service ended", pid.display());
    let mut after = after_script(&[&ended]);
    after.policy.timeout_ms = 20_000;
    let plan = agent.plan(vec![list(entries), after]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nstarted\n").await;
    agent.cancel("1-1").await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(failure(&result).0, "job_canceled", "{log}");
    assert!(log.contains("\nservice ended\n"), "{log}");
    assert!(!log.contains("ended before the job"), "{log}");
}

#[tokio::test]
async fn service_that_is_not_ready_ends_before_the_next_attempt() {
    let mut agent = Agent::start().await;
    let port = free_port();
    // The first process does not listen. A later process fails if the first process still runs.
    let program = "if [ -e \"$0\" ]; then kill -0 \"$(cat \"$0\")\" && exit 3; exec python3 -c \"$1\" \"$2\"; fi; echo $$ >\"$0\"; exec sleep 600";
    let tried = agent.dir.path().join("tried");
    let command = json!(["sh", "-c", program, tried, SERVER, port.to_string()]);
    let entries = json!([{
        "name": "serve", "func": "builtin://service", "muster": { "retry": 5 },
        "inputs": { "command": command, "port": port, "timeout": "2s" }
    }]);
    let (log, result) = run(&mut agent, Vec::new(), entries).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains(&format!("it did not accept a connection on port {port} within 2 s")), "{log}");
    assert!(!log.contains("exited with code 3"), "{log}");
}

#[tokio::test]
async fn number_of_services_of_a_list_is_limited() {
    let service = |number: u32| json!({ "name": format!("s{number}"), "func": "builtin://service", "inputs": { "command": ["true"] } });
    let entries: Vec<Value> = (0..33).map(service).collect();
    let (log, result) = run(&mut Agent::start().await, Vec::new(), json!(entries)).await;
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert_eq!(log.matches("Starting service true...").count(), 32, "{log}");
    assert!(log.contains("the job has already started 32 services, which is the maximum; start several"), "{log}");
}
