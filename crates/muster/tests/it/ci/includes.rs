//! Includes from outside the project: downloaded in parallel, vendored, mapped, or ignored.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use super::{CommandOutput, Project};

fn read_request_path(stream: &TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let first = lines.next().unwrap_or_default();
    for line in lines {
        if line.is_empty() {
            break;
        }
    }
    first.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn respond(mut stream: TcpStream, status: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    // The client may have closed the connection.
    let _ = stream.write_all(head.as_bytes());
}

/// Serves files by their paths. Returns the URL of the server.
fn serve(files: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let path = read_request_path(&stream);
            match files.iter().find(|(name, _)| *name == path) {
                Some((_, body)) => respond(stream, "200 OK", body),
                None => respond(stream, "404 Not Found", ""),
            }
        }
    });
    url
}

#[test]
fn c240_remote_includes_are_fetched_in_parallel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // No request is answered before all have arrived.
    let server = std::thread::spawn(move || {
        let streams: Vec<TcpStream> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        let paths: Vec<String> = streams.iter().map(read_request_path).collect();
        for (stream, path) in streams.into_iter().zip(paths) {
            respond(stream, "200 OK", &format!("job-{}: {{script: ['true']}}\n", &path[1..2]));
        }
    });
    let project = Project::new(&format!("include: ['{url}/a.yml', '{url}/b.yml', '{url}/c.yml']\n"));
    project.ci(&["list"]).code(0).prints("job-a").prints("job-b").prints("job-c");
    server.join().unwrap();
}

#[test]
fn c240_silent_servers_are_named_and_share_one_timeout() {
    // Connections wait in the queue of a listener that accepts none.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let project = Project::new(&format!("include: ['{url}/a.yml', '{url}/b.yml']\na: {{script: ['true']}}\n"));
    project.configure("[remote]\ntimeout = 1\n");
    let output = project.ci(&["list"]).code(2);
    output.warns(&format!("waiting for {url}/a.yml, {url}/b.yml (at most "));
    output.warns("no answer within 1 s, the timeout for all remote files together");
    project.configure("[remote]\ntimeout = 0\n");
    project.ci(&["list"]).code(2).warns("line 2: `remote.timeout` is 0; expected a number of seconds above 0");
}

const ALL_INCLUDE_KINDS: &str = "
include:
  - {project: group/lib, ref: main, file: ci/a.yml}
  - {component: $CI_SERVER_FQDN/group/kit/greet@1, inputs: {name: ada}}
  - remote: HTTP/r.yml
  - template: Jobs/T.gitlab-ci.yml
  - {remote: HTTP/tagged.yml, rules: [{if: $CI_COMMIT_TAG}]}
child: {trigger: {include: [{project: group/lib, file: ci/child.yml}], strategy: depend}}
";

const SERVED_FILES: &[(&str, &str)] = &[
    ("/r.yml", "of-url: {script: ['true']}\n"),
    ("/tagged.yml", "of-tag: {script: ['true']}\n"),
    ("/templates/Jobs/T.gitlab-ci.yml", "of-template: {script: ['true']}\n"),
];

/// Repositories at `https://git.example.org`. The user's git reads them from a local directory.
struct Forge {
    project: Project,
    lib: Project,
    kit: Project,
}

impl Forge {
    fn new() -> Self {
        let url = serve(SERVED_FILES);
        let project = Project::new(&ALL_INCLUDE_KINDS.replace("HTTP", &url));
        project.git(&["remote", "add", "origin", "https://git.example.org/group/app.git"]);
        let (lib, kit) = (project.other_repository("lib"), project.other_repository("kit"));
        lib.write("ci/a.yml", "include: [{local: 'ci/parts/*.yml'}]\nof-project: {script: ['true']}\n");
        lib.write("ci/parts/p.yml", "of-part: {script: ['true']}\n");
        lib.write("ci/child.yml", "of-child: {script: ['true']}\n");
        lib.commit("Lib");
        kit.write(
            "templates/greet.yml",
            "spec: {inputs: {name: }}\n---\ngreet: {script: ['echo \"hello $[[ inputs.name ]]\"']}\n",
        );
        kit.commit("Greet");
        kit.git(&["tag", "1.2.0"]);
        project.configure(&format!("[templates]\nurl = \"{url}/templates\"\n"));
        let forge = Self { project, lib, kit };
        forge.set_reachable(true);
        forge
    }

    fn set_reachable(&self, reachable: bool) {
        let project = if reachable { self.project.path() } else { Path::new("/nowhere/app").to_owned() };
        let directory = project.parent().unwrap().display().to_string();
        std::fs::create_dir_all(self.project.home()).unwrap();
        // Each project needs its own entry, because its directory has no `.git` suffix, unlike its URL.
        let config = format!(
            "[url \"file://{directory}/lib\"]\n\tinsteadOf = https://git.example.org/group/lib.git\n\
             [url \"file://{directory}/kit\"]\n\tinsteadOf = https://git.example.org/group/kit.git\n"
        );
        std::fs::write(self.project.home().join(".gitconfig"), config).unwrap();
    }
}

#[test]
fn c242_vendored_pipeline_needs_no_network() {
    let forge = Forge::new();
    let (project, lib) = (&forge.project, &forge.lib);
    project.ci(&["list"]).code(2).warns("run `muster ci vendor` to fetch and pin it");
    let output = project.ci(&["vendor"]).code(0);
    let first = lib.git(&["rev-parse", "HEAD"]);
    output.prints("project group/lib@main:ci/a.yml ").prints(&first[..8]).prints("1.2.0 (").prints("/r.yml");
    output.prints("project group/lib:ci/child.yml").prints("/tagged.yml");

    lib.write("ci/a.yml", "changed: {script: ['true']}\n");
    lib.commit("Changed");
    forge.set_reachable(false);
    std::fs::remove_dir_all(forge.kit.path()).unwrap();
    let output = project.ci(&["list", "--offline"]).code(0);
    for job in ["of-project", "of-part", "greet", "of-url", "of-template", "child"] {
        output.prints(job);
    }
    output.lacks("changed").lacks("of-tag");
    output
        .warns("using includes pinned in muster-ci.lock: ")
        .warns(&format!("group/lib@main:ci/a.yml is {}", &first[..8]));
    project.ci(&["list", "--offline", "--tag", "v1"]).code(0).prints("of-tag");
    project.ci(&["--offline", "--log", "all"]).code(0).prints("hello ada").prints("of-child");
    project.ci(&["vendor", "--offline"]).code(0).prints("1.2.0 (");

    // Vendoring again fails without `group/kit`, and leaves the pins unchanged.
    forge.set_reachable(true);
    let output = project.ci(&["vendor"]).code(2);
    output.warns("failed to download some of the included files").warns("group/kit");
    project.ci(&["list", "--offline"]).code(0).prints("greet");
}

#[test]
fn c242_vendored_files_in_the_repository_are_verified() {
    let forge = Forge::new();
    let project = &forge.project;
    let link = project.home().join("link");
    std::os::unix::fs::symlink(project.path(), &link).unwrap();
    project.ci(&["vendor", "--into", link.join(".muster/includes").to_str().unwrap()]).code(0);
    forge.set_reachable(false);
    // Simulate another machine, which has the repository but no cache.
    std::fs::remove_dir_all(project.home().join("state")).unwrap();
    project.ci(&["list", "--offline"]).code(0).prints("of-part").prints("greet");
    let lock = std::fs::read_to_string(project.path().join("muster-ci.lock")).unwrap();
    assert!(lock.contains("directory = \".muster/includes\""), "{lock}");
    for entry in std::fs::read_dir(project.path().join(".muster/includes")).unwrap() {
        std::fs::write(entry.unwrap().path(), "evil: {script: ['true']}\n").unwrap();
    }
    project.ci(&["list"]).code(2).warns("is not what was pinned");
    project.write("muster-ci.lock", "version = 1\ndirectory = \"../elsewhere\"\n");
    project.ci(&["list"]).code(2).warns("`directory` must be a relative path inside the repository");
    std::fs::remove_file(project.path().join("muster-ci.lock")).unwrap();
    for directory in ["/tmp", "../elsewhere"] {
        project.ci(&["vendor", "--into", directory]).code(2).warns("is not a directory inside the repository");
    }
    let mut command = project.command(&["vendor", "-C", project.path().to_str().unwrap(), "--into", "sub/includes"]);
    forge.set_reachable(true);
    CommandOutput::from(command.current_dir("/").output().unwrap()).code(0);
    assert!(project.path().join("sub/includes").is_dir());
}

#[test]
fn c242_missing_vendored_file_error_has_a_remedy() {
    let forge = Forge::new();
    forge.project.ci(&["vendor"]).code(0);
    std::fs::remove_dir_all(forge.project.home().join("state")).unwrap();
    let output = forge.project.ci(&["list", "--offline"]).code(2);
    output.warns("is pinned, but its content is not on this machine; run `muster ci vendor` to fetch it");
}

#[test]
fn c243_includes_map_to_directories_and_files() {
    let project = Project::new(
        "include:\n- {project: group/lib, ref: v9, file: ci/a.yml}\n- {component: git.example.org/group/kit/greet@1.0.0}\n\
         - remote: https://ci.example.org/shared/x.yml\n- remote: https://ci.example.org/one.yml\n",
    );
    let files = project.home().join("files");
    for (path, text) in [
        ("lib/ci/a.yml", "include: {local: 'ci/p*.yml'}\n"),
        ("lib/ci/part.yml", "of-part: {script: ['true']}\n"),
        ("kit/templates/greet.yml", "greet: {script: ['true']}\n"),
        ("shared/x.yml", "of-prefix: {script: ['true']}\n"),
        ("one.yml", "of-file: {script: ['true']}\n"),
    ] {
        std::fs::create_dir_all(files.join(path).parent().unwrap()).unwrap();
        std::fs::write(files.join(path), text).unwrap();
    }
    let files = files.display();
    project.configure(&format!(
        "[projects]\n\"group/lib\" = \"{files}/lib\"\n[components]\n\"git.example.org/group/kit\" = \"{files}/kit\"\n\
         [remote.map]\n\"https://ci.example.org/shared/\" = \"{files}/shared\"\n\
         \"https://ci.example.org/one.yml\" = \"{files}/one.yml\"\n"
    ));
    let output = project.ci(&["list", "--offline"]).code(0);
    output.prints("of-part").prints("greet").prints("of-prefix").prints("of-file");
}

#[test]
fn c241_include_stub_skips_unavailable_includes() {
    let project = Project::new(
        "include: [{project: group/lib, file: ci/a.yml}]\nwhole: {script: ['true']}\npart: {extends: .base, stage: verify}\n",
    );
    project.ci(&["list"]).code(2).warns("`group/lib` is not on this machine");
    let output = project.ci(&["list", "--include-stub"]).code(0);
    output.prints("part   verify  on_success  false          stage order  incomplete").warns("skipped");
    project.ci(&["graph", "--include-stub"]).code(0).prints("incomplete");
    project.ci(&["lint", "--include-stub"]).code(0).prints("2 jobs in the pipeline, 1 of them incomplete");
    project.ci(&["explain", "part", "--include-stub"]).code(0).prints("incomplete");
    let output = project.ci(&["list", "--include-stub", "--output", "json"]).code(0);
    let jobs: Vec<serde_json::Value> = serde_json::from_str(&output.out).unwrap();
    assert_eq!((jobs[0].get("lacks_parts"), &jobs[1]["lacks_parts"]), (None, &serde_json::json!(true)));
    project.ci(&["run", "--include-stub"]).code(2).warns("unexpected argument");
}

#[test]
fn include_stub_does_not_skip_local_files_that_cannot_be_read() {
    let project = Project::new("include: [{project: group/lib, file: loop.yml}]\na: {script: ['true']}\n");
    let library = project.home().join("lib");
    std::fs::create_dir_all(&library).unwrap();
    std::os::unix::fs::symlink("loop.yml", library.join("loop.yml")).unwrap();
    project.configure(&format!("[projects]\n\"group/lib\" = \"{}\"\n", library.display()));
    project.ci(&["list", "--include-stub"]).code(2).warns("failed to read").warns("loop.yml");
}
