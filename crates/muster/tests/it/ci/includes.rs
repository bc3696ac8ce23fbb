//! Includes that are not files of the project: fetched side by side, vendored, mapped, left out.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use super::Project;

/// Reads a request; answers its path.
fn request(stream: &TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let first = lines.next().unwrap_or_default();
    for line in lines {
        if line.is_empty() {
            break;
        }
    }
    first.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn answer(mut stream: TcpStream, status: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    // Who asked may have gone.
    let _ = stream.write_all(head.as_bytes());
}

/// Serves files by their paths on a free port, until the test ends.
fn serve(files: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let path = request(&stream);
            match files.iter().find(|(name, _)| *name == path) {
                Some((_, body)) => answer(stream, "200 OK", body),
                None => answer(stream, "404 Not Found", ""),
            }
        }
    });
    url
}

#[test]
fn c240_remote_includes_are_fetched_side_by_side() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Nobody is answered before all have asked.
    let server = std::thread::spawn(move || {
        let streams: Vec<TcpStream> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        let paths: Vec<String> = streams.iter().map(request).collect();
        for (stream, path) in streams.into_iter().zip(paths) {
            answer(stream, "200 OK", &format!("job-{}: {{script: ['true']}}\n", &path[1..2]));
        }
    });
    let project = Project::new(&format!("include: ['{url}/a.yml', '{url}/b.yml', '{url}/c.yml']\n"));
    project.ci(&["list"]).code(0).says("job-a").says("job-b").says("job-c");
    server.join().unwrap();
}

#[test]
fn c240_silent_servers_are_named_and_have_one_limit_together() {
    // Connections wait in the queue of a listener that takes none.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let project = Project::new(&format!("include: ['{url}/a.yml', '{url}/b.yml']\na: {{script: ['true']}}\n"));
    project.configure("[remote]\ntimeout = 1\n");
    let said = project.ci(&["list"]).code(2);
    said.warns(&format!("waiting for {url}/a.yml, {url}/b.yml (at most "));
    said.warns("all remote files together may take 1 seconds");
    project.configure("[remote]\ntimeout = 0\n");
    project.ci(&["list"]).code(2).warns("`timeout` of [remote] is a number of seconds above 0");
}

/// The include of everything that is elsewhere, from `HTTP`.
const EVERYWHERE: &str = "
include:
  - {project: group/lib, ref: main, file: ci/a.yml}
  - {component: $CI_SERVER_FQDN/group/kit/greet@1, inputs: {name: ada}}
  - remote: HTTP/r.yml
  - template: Jobs/T.gitlab-ci.yml
  - {remote: HTTP/tagged.yml, rules: [{if: $CI_COMMIT_TAG}]}
child: {trigger: {include: [{project: group/lib, file: ci/child.yml}], strategy: depend}}
";

const SERVED: &[(&str, &str)] = &[
    ("/r.yml", "of-url: {script: ['true']}\n"),
    ("/tagged.yml", "of-tag: {script: ['true']}\n"),
    ("/templates/Jobs/T.gitlab-ci.yml", "of-template: {script: ['true']}\n"),
];

/// A server of repositories, which the user's git finds in a folder instead of at `https://git.example.org`.
struct Forge {
    project: Project,
    lib: Project,
    kit: Project,
}

impl Forge {
    fn new() -> Self {
        let url = serve(SERVED);
        let project = Project::new(&EVERYWHERE.replace("HTTP", &url));
        project.git(&["remote", "add", "origin", "https://git.example.org/group/app.git"]);
        let (lib, kit) = (project.checkout("lib"), project.checkout("kit"));
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
        forge.serves(true);
        forge
    }

    /// Whether the server of repositories answers.
    fn serves(&self, yes: bool) {
        let folder = if yes { self.project.path() } else { Path::new("/nowhere/app").to_owned() };
        let folder = folder.parent().unwrap().display().to_string();
        std::fs::create_dir_all(self.project.home()).unwrap();
        // The projects lie beside each other, and their folders have no `.git` at the end.
        let config = format!(
            "[url \"file://{folder}/lib\"]\n\tinsteadOf = https://git.example.org/group/lib.git\n\
             [url \"file://{folder}/kit\"]\n\tinsteadOf = https://git.example.org/group/kit.git\n"
        );
        std::fs::write(self.project.home().join(".gitconfig"), config).unwrap();
    }
}

#[test]
fn c242_vendor_fetches_and_pins_and_the_pipeline_needs_no_network() {
    let forge = Forge::new();
    let (project, lib) = (&forge.project, &forge.lib);
    project.ci(&["list"]).code(2).warns("`muster ci vendor` fetches and pins it");
    let said = project.ci(&["vendor"]).code(0);
    let first = lib.git(&["rev-parse", "HEAD"]);
    said.says("project group/lib@main:ci/a.yml ").says(&first[..8]).says("1.2.0 (").says("/r.yml");
    said.says("project group/lib:ci/child.yml").says("/tagged.yml");

    // The projects go on, and then nothing answers any more.
    lib.write("ci/a.yml", "changed: {script: ['true']}\n");
    lib.commit("Changed");
    forge.serves(false);
    std::fs::remove_dir_all(forge.kit.path()).unwrap();
    let said = project.ci(&["list", "--offline"]).code(0);
    for job in ["of-project", "of-part", "greet", "of-url", "of-template", "child"] {
        said.says(job);
    }
    said.lacks("changed").lacks("of-tag");
    said.warns("pinned by muster-ci.lock: ").warns(&format!("group/lib@main:ci/a.yml is {}", &first[..8]));
    project.ci(&["list", "--offline", "--tag", "v1"]).code(0).says("of-tag");
    project.ci(&["--offline", "--log", "all"]).code(0).says("hello ada").says("of-child");
    project.ci(&["vendor", "--offline"]).code(0).says("1.2.0 (");

    // What has changed since is had by vendoring again, and only so.
    forge.serves(true);
    let said = project.ci(&["vendor"]).code(2);
    said.warns("not every include could be fetched").warns("group/kit");
    project.ci(&["list", "--offline"]).code(0).says("greet");
}

#[test]
fn c242_contents_beside_the_repository_work_on_another_machine_and_are_checked() {
    let forge = Forge::new();
    let project = &forge.project;
    project.ci(&["vendor", "--into", ".muster/includes"]).code(0);
    forge.serves(false);
    // Another machine has the repository, and no cache.
    std::fs::remove_dir_all(project.home().join("state")).unwrap();
    project.ci(&["list", "--offline"]).code(0).says("of-part").says("greet");
    let lock = std::fs::read_to_string(project.path().join("muster-ci.lock")).unwrap();
    assert!(lock.contains("folder = \".muster/includes\""), "{lock}");
    for entry in std::fs::read_dir(project.path().join(".muster/includes")).unwrap() {
        std::fs::write(entry.unwrap().path(), "evil: {script: ['true']}\n").unwrap();
    }
    project.ci(&["list"]).code(2).warns("is not what was pinned");
    project.write("muster-ci.lock", "version = 1\nfolder = \"../elsewhere\"\n");
    project.ci(&["list"]).code(2).warns("`folder` has to be a path inside the repository");
    project.ci(&["vendor", "--into", "/tmp"]).code(2).warns("inside the repository");
}

#[test]
fn c242_a_pin_without_its_content_says_what_to_do() {
    let forge = Forge::new();
    forge.project.ci(&["vendor"]).code(0);
    std::fs::remove_dir_all(forge.project.home().join("state")).unwrap();
    let said = forge.project.ci(&["list", "--offline"]).code(2);
    said.warns("is pinned, but its content is not on this machine; `muster ci vendor` fetches it");
}

#[test]
fn c243_a_mapped_folder_need_not_be_a_repository_and_urls_can_be_mapped() {
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
    let said = project.ci(&["list", "--offline"]).code(0);
    said.says("of-part").says("greet").says("of-prefix").says("of-file");
}

#[test]
fn c241_include_stub_shows_what_can_be_had() {
    let project = Project::new(
        "include: [{project: group/lib, file: ci/a.yml}]\nwhole: {script: ['true']}\npart: {extends: .base, stage: verify}\n",
    );
    project.ci(&["list"]).code(2).warns("`group/lib` is not on this machine");
    let said = project.ci(&["list", "--include-stub"]).code(0);
    said.says("part   verify  on_success  false          stage order  lacks parts").warns("skipped");
    project.ci(&["graph", "--include-stub"]).code(0).says("lacks parts");
    project.ci(&["lint", "--include-stub"]).code(0).says("2 jobs, 1 of them without all parts");
    project.ci(&["explain", "part", "--include-stub"]).code(0).says("lacks parts");
    let said = project.ci(&["list", "--include-stub", "--output", "json"]).code(0);
    let jobs: Vec<serde_json::Value> = serde_json::from_str(&said.out).unwrap();
    assert_eq!((jobs[0].get("lacks_parts"), &jobs[1]["lacks_parts"]), (None, &serde_json::json!(true)));
    project.ci(&["run", "--include-stub"]).code(2).warns("unexpected argument");
}
