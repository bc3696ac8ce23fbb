//! GitLab's client with Muster's servers.

use super::*;
use crate::step_runner::tls::{self, Authority};

fn check_jobs(client: &mut TheirClient, project: &Project) {
    let list = "- {name: a, step: ./echo, inputs: {text: hi}}\n- {name: b, script: 'echo; echo ${{steps.a.outputs.text}} $WHO ${{vars.V}}; cat ${{vars.F}}'}";
    let variables = json!([
        { "Key": "V", "Value": "v", "Masked": false },
        { "Key": "F", "Value": "content of a file\n", "File": true },
        { "Key": "SECRET", "Value": "hunter22", "Masked": true },
    ]);
    let fields = json!({ "steps": definition(list), "env": { "WHO": "me" }, "variables": variables });
    let answer = client.ok("run_and_follow", "1", fields);
    let expected = "Running step name=a\nhi 1 me\nRunning step name=b\n\nhi me v\ncontent of a file\n";
    assert_eq!((answer.log.as_str(), answer.final_state("1")), (expected, ("success", "")));

    let steps =
        definition("- {name: a, script: 'echo before; echo error >&2; exit 3'}\n- {name: b, script: echo never}");
    let answer = client.ok("run_and_follow", "2", json!({ "steps": steps }));
    assert_eq!(answer.log, "Running step name=a\nbefore\nerror\n");
    // gitlab-runner reads the exit code from the end of this message.
    assert_eq!(answer.final_state("2"), ("failure", "step \"a\": exec: exit status 3"));

    // The client closes each job at its end.
    assert_eq!(client.ok("list", "", json!({})).states.len(), 0);
    assert_eq!(project.read("echo/step.yml"), ECHO);
}

#[test]
fn their_client_runs_jobs_at_our_server() {
    let project = Project::new();
    let server = Server::start(&mut project.command(&["serve"]));
    let Some(mut client) = TheirClient::new(&project, json!({ "socket": server.socket })) else { return };
    check_jobs(&mut client, &project);
}

#[test]
fn their_client_runs_jobs_at_our_agent() {
    let project = Project::new();
    let server = Server::start_agent(&project);
    let Some(mut client) = TheirClient::new(&project, json!({ "socket": server.socket })) else { return };
    check_jobs(&mut client, &project);
}

#[test]
fn their_client_runs_jobs_through_our_proxy() {
    let project = Project::new();
    let _server = Server::start(&mut project.command(&["serve"]));
    let proxy = [project.dir.path().join("bin/step-runner"), PathBuf::from("proxy")];
    let Some(mut client) = TheirClient::new(&project, json!({ "program": proxy })) else { return };
    check_jobs(&mut client, &project);
}

#[test]
fn their_client_runs_jobs_at_our_server_through_their_proxy() {
    let project = Project::new();
    let _server = Server::start(&mut project.command(&["serve"]));
    let Some(theirs) = variable(PROGRAM) else { return };
    let Some(mut client) = TheirClient::new(&project, json!({ "program": [theirs, "proxy"] })) else { return };
    check_jobs(&mut client, &project);
}

#[test]
fn their_client_runs_jobs_over_tls() {
    let project = Project::new();
    let authority = Authority::new(project.dir.path(), "authority");
    let files = authority.server();
    let mut serve = project.command(&["serve"]);
    let (_server, lines) = Server::start_with_lines(serve.args(tls::listen_flags("127.0.0.1:0", &files)));
    let address = lines.iter().find_map(|line| line.strip_prefix(tls::MARKER)).unwrap().trim();
    // GitLab's client does not support TLS, so it connects through Muster's proxy.
    let proxy = tls::proxy(&project, address, &authority.client());
    let words: Vec<_> = [proxy.get_program()].into_iter().chain(proxy.get_args()).map(|word| word.to_str()).collect();
    let Some(mut client) = TheirClient::new(&project, json!({ "program": words })) else { return };
    check_jobs(&mut client, &project);
}

#[test]
fn their_client_gets_the_rest_of_a_log_over_another_connection() {
    let project = Project::new();
    let server = Server::start_agent(&project);
    let Some(mut client) = TheirClient::new(&project, json!({ "socket": server.socket })) else { return };
    // GitLab's server would lose blank lines and carriage returns, and would end the stream at a line over 64 KiB.
    let script = r#"printf "one\n\n\rtwo\n"; head -c 100000 /dev/zero | tr "\\0" x; printf "\nlast"; touch written; while [ ! -e end ]; do sleep 0.01; done; printf end"#;
    client.ok("run", "1", json!({ "steps": definition(&format!("- {{name: a, script: {script:?}}}")) }));
    // A repeated request is ignored, even with other steps.
    client.ok("run", "1", json!({ "steps": definition("- {name: other, script: echo other}") }));
    let start = "Running step name=a\none\n\n\rtwo\n";
    let first = client.call("follow", "1", json!({ "stop_after": start.len() }));
    assert_eq!((first.log.as_str(), first.offset), (start, start.len()));
    let middle = client.call("follow", "1", json!({ "offset": first.offset, "stop_after": 50_000 }));
    assert_eq!((middle.log.len(), middle.offset), (50_000, start.len() + 50_000));
    let state = &client.ok("status", "1", json!({})).states["1"];
    assert_eq!((state.state.as_str(), state.ended), ("running", false));
    project.write("end", "");
    let rest = client.ok("follow", "1", json!({ "offset": middle.offset }));
    assert_eq!(rest.log, format!("{}\nlastend", "x".repeat(50_000)));
    assert_eq!(client.ok("status", "1", json!({})).final_state("1"), ("success", ""));
    assert_eq!(
        client.ok("follow", "1", json!({ "offset": rest.offset })).log,
        "",
        "no text may follow the end of the log"
    );
    client.ok("close", "1", json!({}));
}

#[test]
fn their_client_ends_a_job_with_its_processes() {
    let project = Project::new();
    let server = Server::start_agent(&project);
    let Some(mut client) = TheirClient::new(&project, json!({ "socket": server.socket })) else { return };
    // GitLab's server would leave the inner process behind.
    let script = "sh -c 'echo $$ >pid; echo started; exec sleep 1000'; echo never";
    let steps = definition(&format!("- {{name: a, script: {script:?}}}"));
    // The client closes the job when the context of the call is canceled.
    let answer = client.call("run_and_follow", "1", json!({ "steps": steps, "cancel_at": "started" }));
    assert_eq!(answer.error, "following job \"1\": context canceled");
    assert_eq!(answer.log, "Running step name=a\nstarted\n");
    let pid = project.read("pid").trim().parse().unwrap();
    let ended = rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid).unwrap());
    assert_eq!(ended, Err(rustix::io::Errno::SRCH));
    assert_eq!(client.call("status", "1", json!({})).code, "NotFound");
}

#[test]
fn their_client_gets_errors_of_our_server() {
    let project = Project::new();
    let server = Server::start_agent(&project);
    let Some(mut client) = TheirClient::new(&project, json!({ "socket": server.socket })) else { return };
    for call in ["status", "follow"] {
        let answer = client.call(call, "missing", json!({}));
        assert!(answer.error.ends_with("no job with id \"missing\""), "{answer:?}");
        // GitLab's server would answer with the code `Unknown`.
        assert_eq!(answer.code, "NotFound");
    }
    client.ok("close", "missing", json!({}));
    for (id, steps) in [("1", "nonsense"), ("../1", "{}\n---\nrun: [{name: a, script: echo}]\n")] {
        let answer = client.call("run_and_follow", id, json!({ "steps": steps }));
        assert_eq!((answer.log.as_str(), answer.code.as_str()), ("", "InvalidArgument"), "{answer:?}");
    }
    assert_eq!(client.ok("list", "", json!({})).states.len(), 0);
}
