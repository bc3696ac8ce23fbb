//! Jobs that try to read files of other jobs, to read the manager's token and memory, to use the sockets of agents and
//! engines, or to reach the metadata service of a cloud.
//!
//! Most tests also show that the attack itself works, for example before the metadata is blocked.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{Job, RUNNER_TOKEN};
use muster_test_prerequisites::DockerEngine;
use muster_tests::harness::Harness;
use muster_tests::process::wait_until;
use serde_json::{Value, json};

const VICTIM: JobId = JobId(1);
/// Directories of a container in which jobs, agents and programs leave files.
const WRITABLE_DIRECTORIES: &str = "/builds /cache /tmp /var /dev/shm /home /root /srv /.muster-run";
const IMAGE: &str = "muster-test/attacks:1";
/// User without rights, which exists on every Debian machine.
const JOB_USER: &str = "nobody";
const METADATA: &str = "169.254.169.254";
const METADATA_IPV6: &str = "fd00:ec2::254";
const METADATA_SECRET: &str = "credentials-of-the-machine";

/// Sends a request to the socket in the argument, and prints the answer.
///
/// The number 1 is both the family and the type of the socket. Every Debian machine has perl.
const CONNECT: &str = r#"$SIG{PIPE} = "IGNORE"; socket(S, 1, 1, 0); connect(S, pack("Sa108", 1, $ARGV[0])) or die "no connection: $!\n"; syswrite(S, "GET /_ping HTTP/1.0\r\n\r\n"); sysread(S, $answer, 4096) or die "no answer\n"; print "answer: $answer"; print while <S>"#;

/// Prints the files in `DIRECTORIES`, and the environment variables and arguments of processes, that contain the
/// marker.
///
/// The quotes keep the script itself from containing the marker.
const SEARCH_MARKER: &str = r#"set +e; marker=marker-of-the-"victim-7151"
for directory in $DIRECTORIES; do grep -rlsF "$marker" "$directory"; done
for process in /proc/[0-9]*; do
  for file in environ cmdline; do tr '\0' '\n' < "$process/$file" 2>/dev/null | grep -sF "$marker"; done
done
echo "search ended""#;

/// Leaves the marker in every writable directory and in the environment of a process. Waits until the file `go` exists.
const LEAVE_MARKER: &str = r#"set +e; marker=marker-of-the-"victim-7151"; export marker
for directory in . /tmp /var/tmp /dev/shm "$HOME"; do echo "$marker" 2>/dev/null > "$directory/victim-file"; done
sleep 100000 & until [ -e go ]; do echo waiting; sleep 1; done"#;

/// Starts a manager whose jobs run in containers of `engine`. `docker` is added to `[runners.docker]`.
async fn start_with_containers(engine: DockerEngine, docker: &str) -> Option<Harness> {
    if !engine.create_image(IMAGE, &[]) {
        return None;
    }
    let config = |harness: &Harness| {
        format!(
            "concurrent = 2\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  url = {:?}\n  token = \"{RUNNER_TOKEN}\"\n  \
             executor = \"docker\"\n  request_concurrency = 2\n  [runners.docker]\n    host = {:?}\n    image = \"{IMAGE}\"\n    \
             pull_policy = \"never\"\n    wait_for_services_timeout = -1\n    {docker}\n",
            harness.proxy.url,
            engine.url()
        )
    };
    let mut harness = Harness::with_config(2, config).await;
    harness.engine = Some(engine);
    Some(harness)
}

/// Runs a job, which must succeed: an attack that cannot run proves nothing.
async fn run(harness: &Harness, id: i64, script: &[&str], members: &Value) -> Job {
    harness.push(id, script, members);
    let job = harness.coordinator.wait_for_end(JobId(id)).await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
    job
}

/// Runs a job that searches for the marker. Returns the lines of its output that contain the marker or name a file with
/// it.
async fn search(harness: &Harness, id: i64, directories: &str) -> Vec<String> {
    let job = run(harness, id, &[&format!("DIRECTORIES=\"{directories}\""), SEARCH_MARKER], &json!({})).await;
    let text = job.text();
    assert!(text.contains("search ended"), "{text}");
    let output = text.lines().filter(|line| !line.starts_with("\x1b[32;1m$ "));
    output.filter(|line| line.contains("victim") || line.contains("marker")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn job_in_a_container_sees_no_files_and_processes_of_another_job() {
    let Some(engine) = DockerEngine::isolated() else { return };
    let Some(harness) = start_with_containers(engine, "").await else { return };
    // The search finds a marker that the searching job itself has left.
    let control = run(
        &harness,
        9,
        &["echo marker-of-the-\"victim-7151\" > /tmp/victim-file; DIRECTORIES=/tmp", SEARCH_MARKER],
        &json!({}),
    )
    .await;
    assert!(control.text().contains("\n/tmp/victim-file"), "{}", control.text());
    harness.push(VICTIM.0, &[LEAVE_MARKER], &json!({}));
    harness.coordinator.wait_for(VICTIM, |job| job.text().contains("\nwaiting")).await;
    assert_eq!(search(&harness, 2, WRITABLE_DIRECTORIES).await, [""; 0], "while the other job runs");
    harness.coordinator.set_status(VICTIM, JobStatus::Canceling);
    harness.coordinator.wait_for(VICTIM, |job| job.reports().count() == 1).await;
    assert_eq!(search(&harness, 3, WRITABLE_DIRECTORIES).await, [""; 0], "after the other job");
    assert_eq!(harness.leftovers().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_in_a_container_reaches_no_token_and_no_socket_of_the_host() {
    let Some(engine) = DockerEngine::isolated() else { return };
    let socket = engine.socket();
    let Some(harness) = start_with_containers(engine, "").await else { return };
    let paths = [harness.path("config.toml"), harness.path("state"), socket, "/var/run/docker.sock".into()];
    let exist = || paths[..3].iter().all(|path| path.exists());
    assert!(wait_until(exist).await, "{paths:?}");
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let script = format!(
        "set +e; for path in {}; do ls \"$path\" 2>/dev/null && echo \"found $path\"; done\n\
         find / -xdev -type s 2>/dev/null | sed 's/^/socket /'\n\
         for process in /proc/[0-9]*; do tr '\\0' ' ' < $process/cmdline | sed 's/^/process /'; echo; done\n\
         grep -lsF {} /proc/[0-9]*/environ | sed 's/^/token /'\necho attack ended",
        paths.join(" "),
        RUNNER_TOKEN
    );
    let job = run(&harness, 1, &[&script], &json!({})).await;
    let text = job.text();
    let output = text.rsplit_once("echo attack ended\n").map_or(text.as_str(), |(_, output)| output);
    assert!(output.contains("attack ended"), "{text}");
    assert!(!output.contains("found /") && !output.contains("token /") && !output.contains("runner run"), "{output}");
    // The only socket is that of the agent in this container, which serves only this job.
    let sockets: Vec<_> = output.lines().filter_map(|line| line.strip_prefix("socket ")).collect();
    assert!(sockets.iter().all(|socket| socket.starts_with("/.muster-r")), "{sockets:?}");
    // Jobs can use a socket of the engine that is configured as a volume. The other volumes contain the program that
    // connects to it.
    let engine_socket = &paths[2];
    let programs: Vec<String> =
        ["/usr", "/lib", "/lib64"].map(str::to_owned).into_iter().filter(|path| Path::new(path).exists()).collect();
    let programs = programs.iter().map(|path| format!("\"{path}:{path}:ro\"")).collect::<Vec<_>>().join(", ");
    harness.replace_in_config(
        "pull_policy",
        &format!("volumes = [\"{engine_socket}:/run/docker.sock\", {programs}]\n    pull_policy"),
    );
    assert!(wait_until(|| harness.log().contains("C050")).await, "{}", harness.log());
    let connect = format!("perl -e '{CONNECT}' /run/docker.sock");
    let text = run(&harness, 2, &[&connect], &json!({})).await.text();
    assert!(text.contains("answer: HTTP/1.0 200 OK\r\n") && text.contains("\nOK"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_a_separate_user_reads_neither_token_nor_memory_nor_spool_of_the_manager() {
    let mut as_user = Command::new("su");
    if !as_user.args([JOB_USER, "-s", "/bin/sh", "-c", "true"]).output().is_ok_and(|output| output.status.success()) {
        return if std::fs::metadata("/").is_ok_and(|root| root.mode() & 0o001 == 0) {
            muster_test_prerequisites::unsuitable("no user but root may enter the root directory of this machine")
        } else {
            muster_test_prerequisites::missing("only root can start a process of another user")
        };
    }
    let config = |harness: &Harness| {
        format!(
            "concurrent = 2\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  url = {:?}\n  token = \"{RUNNER_TOKEN}\"\n  \
             executor = \"shell\"\n  shell = \"bash\"\n  request_concurrency = 2\n  builds_dir = \"{}\"\n  cache_dir = \"{}\"\n",
            harness.proxy.url,
            harness.path("builds").display(),
            harness.path("cache").display()
        )
    };
    let mut harness = Harness::with_config_for_user(2, JOB_USER, config).await;
    // The first job starts the agent.
    run(&harness, 9, &["echo started"], &json!({})).await;
    let pids: Vec<String> = harness.process_ids().iter().map(ToString::to_string).collect();
    let home = harness.home.path().display().to_string();
    let socket = harness.path(&format!("state/agent-{JOB_USER}/agent.sock"));
    // The agent answers the manager's user.
    let connect = Command::new("perl").args(["-e", CONNECT]).arg(&socket).output().unwrap();
    assert!(String::from_utf8_lossy(&connect.stdout).starts_with("answer: "), "{connect:?}");
    let socket = socket.display();
    let script = format!(
        "set +e; id -un\nperl -e '{CONNECT}' {socket}\nfor file in {home}/config.toml {home}/state/state.log; do cat \"$file\" && echo \"read $file\"; done 2>/dev/null\n\
         ls {home}/state 2>/dev/null && echo \"listed the state\"\n\
         for pid in {} $(pgrep -f 'runner run'); do\n\
         for file in environ mem maps; do head -c 16 /proc/$pid/$file > /tmp/attack-$$ 2>/dev/null; [ ! -s /tmp/attack-$$ ] || echo \"read /proc/$pid/$file\"; done\n\
         ls /proc/$pid/fd > /dev/null 2>&1 && echo \"listed /proc/$pid/fd\"; kill -0 $pid 2>/dev/null && echo \"may signal $pid\"\n\
         done; rm -f /tmp/attack-$$; echo attack ended",
        harness.manager_pid()
    );
    let job = run(&harness, 1, &[&script], &json!({})).await;
    let text = job.text();
    let output = text.rsplit_once("echo attack ended\n").map_or(text.as_str(), |(_, output)| output);
    assert!(output.contains(JOB_USER) && output.contains("attack ended"), "{text}");
    assert!(!pids.is_empty());
    for word in ["read ", "listed ", "may signal", "answer: ", RUNNER_TOKEN] {
        assert!(!output.contains(word), "{word}: {output}");
    }
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_on_a_new_instance_sees_no_files_and_processes_of_the_job_before() {
    let harness = Harness::with_instances(1, "max_instances = 2\n    max_use_count = 1", "").await;
    let script = LEAVE_MARKER.replace("/tmp /var/tmp /dev/shm ", "");
    harness.push(VICTIM.0, &[&script], &json!({}));
    harness.coordinator.wait_for(VICTIM, |job| job.text().contains("\nwaiting")).await;
    harness.coordinator.set_status(VICTIM, JobStatus::Canceling);
    harness.coordinator.wait_for(VICTIM, |job| job.reports().count() == 1).await;
    let found = search(&harness, 2, "$HOME/..").await;
    assert_eq!(found, [""; 0], "{}", harness.log());
}

/// A metadata service in the network of an engine. Dropping this value ends the service.
struct MetadataService(Child);

impl Drop for MetadataService {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl MetadataService {
    /// Starts a service on the loopback interface of the engine's network. Containers reach it through their gateway.
    fn start(engine: &DockerEngine) -> Self {
        const SERVE: &str = r#"ip address add "$1/32" dev lo && ip address add "$4/128" dev lo || exit 1
            mkdir -p "$2/latest" && echo "$3" > "$2/latest/index.html" || exit 1
            /bin/busybox httpd -f -p "$1:80" -h "$2" & first=$!; /bin/busybox httpd -f -p "[$4]:80" -h "$2" &
            echo ready; read -r _; kill $first $!"#;
        let directory = engine.dir().join("metadata");
        let mut command = engine.command_in_network("sh");
        command.args(["-c", SERVE, "sh", METADATA]);
        command.arg(directory).args([METADATA_SECRET, METADATA_IPV6]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the metadata service does not start");
        Self(process)
    }
}

/// Requests the metadata in several ways: through the routes, and on the link of each interface.
const REQUEST_METADATA: &str = r#"set +e; for attempt in 1 2 3; do for address in 169.254.169.254 fd00:ec2::254; do
printf 'GET /latest/ HTTP/1.0\r\n\r\n' | nc -w 2 $address 80 | sed "s/^/from $address: /"; done; done
for interface in $(ls /sys/class/net); do for address in 169.254.169.254 fd00:ec2::254; do
ping -c 1 -W 1 -I "$interface" $address > /dev/null 2>&1 && echo "answer on $interface from $address"; done; done
ip route del 169.254.169.254 2>/dev/null; ip route replace 169.254.169.254 dev eth0 2>/dev/null; ip neigh flush dev eth0 2>/dev/null
ip -6 route del unreachable fd00:ec2::254 metric 1 2>/dev/null
for address in 169.254.169.254 fd00:ec2::254; do printf 'GET /latest/ HTTP/1.0\r\n\r\n' | nc -w 2 $address 80; done; echo attack ended"#;

#[tokio::test(flavor = "multi_thread")]
async fn job_in_a_container_of_a_public_runner_reaches_no_metadata_service() {
    let Some(engine) = DockerEngine::isolated() else { return };
    let service = MetadataService::start(&engine);
    let members = json!({
        "variables": [{ "key": "GIT_STRATEGY", "value": "none" }, { "key": "FF_NETWORK_PER_BUILD", "value": "true" },
            { "key": "CI_DEBUG_SERVICES", "value": "true" }],
        "services": [{ "name": IMAGE, "alias": "web", "entrypoint": ["/bin/sh", "-c"],
            "command": ["printf 'GET /latest/ HTTP/1.0\\r\\n\\r\\n' | nc -w 2 169.254.169.254 80; echo service attack ended; exec sleep 100000"] }]
    });
    // Some machines use the metadata service as their name server. The runner would refuse all jobs if it had to block
    // its name server, so the test configures another one.
    let Some(harness) = start_with_containers(engine, "dns = [\"192.0.2.53\"]").await else { return };
    let open = run(&harness, 1, &[REQUEST_METADATA], &members).await.text();
    // The network of a job has no IPv6 addresses here. The tests `docker::services` of the crate `muster` cover them.
    let (line, answer) = (format!("from {METADATA}: {METADATA_SECRET}"), format!("answer on eth0 from {METADATA}"));
    assert!(
        open.contains(&line) && open.contains(&answer),
        "a job of a runner that is not public must reach the metadata service: {open}"
    );
    // By default, a public runner blocks the service.
    harness.replace_in_config("executor =", "public = true\n  allow_machine_reuse = true\n  executor =");
    let is_reloaded = || harness.log().contains("allow_machine_reuse");
    assert!(wait_until(is_reloaded).await, "{}", harness.log());
    let blocked = run(&harness, 2, &[REQUEST_METADATA, "sleep 1"], &members).await.text();
    // The trace also has the commands, which contain this text. In the output, a timestamp that ends with `O` precedes
    // it.
    assert!(blocked.contains("service attack ended") && blocked.contains("O attack ended"), "{blocked}");
    assert!(!blocked.contains(METADATA_SECRET) && !blocked.contains("answer on"), "{blocked}");
    let network = run(&harness, 3, &["set +e; ping -c 1 -W 5 web > /dev/null 2>&1; wget -q -O - http://web:1/ 2>&1 | grep -o refused; ip route | grep default"], &members).await;
    // The service has no server, but its name resolves.
    assert!(network.text().contains("O refused") && network.text().contains("default via"), "{}", network.text());
    // A privileged job could undo the block, so it is refused.
    harness.replace_in_config("pull_policy", "privileged = true\n    pull_policy");
    let is_privileged = || harness.log().contains("privileged: default -> true") && harness.log().contains("C113");
    assert!(wait_until(is_privileged).await, "{}", harness.log());
    harness.push(4, &["echo never"], &json!({}));
    let refused = harness.coordinator.wait_for_end(JobId(4)).await.text();
    assert!(
        refused.contains("the job is refused: the runner blocks addresses, which has no effect with `privileged`"),
        "{refused}"
    );
    // The operator can permit access.
    harness.replace_in_config("privileged = true", "blocked_addresses = []");
    assert!(wait_until(|| harness.log().contains("privileged: true -> default")).await, "{}", harness.log());
    let permitted = run(&harness, 5, &[REQUEST_METADATA], &members).await.text();
    assert!(permitted.contains(&line), "{permitted}");
    assert_eq!(harness.leftovers().await, [""; 0]);
    drop(service);
}

#[tokio::test(flavor = "multi_thread")]
async fn public_runner_with_shared_machines_gets_no_job_until_the_operator_permits_it() {
    let mut harness = Harness::with_instances(1, "max_instances = 1", "").await;
    assert!(wait_until(|| harness.log().contains("Starting multi-runner")).await, "{}", harness.log());
    harness.replace_in_config("shell = \"bash\"", "shell = \"bash\"\n  public = true");
    assert!(wait_until(|| harness.log().contains("C112")).await, "{}", harness.log());
    // A request that was sent before the reload may still be answered.
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    harness.push(1, &["echo started"], &json!({}));
    harness.start_manager();
    let is_refused = || harness.log().matches("this runner requests no jobs").count() >= 2;
    assert!(wait_until(is_refused).await, "{}", harness.log());
    harness.replace_in_config("public = true", "public = true\n  allow_machine_reuse = true");
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
}
