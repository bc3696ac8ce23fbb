//! Which server a pipeline belongs to: the one of the project's remote, whoever runs the jobs.

use super::Project;

/// A repository with a remote, and the checkout of a component's project that `ci.toml` names.
fn with_component() -> Project {
    let project = Project::new(
        "include: [{component: $CI_SERVER_FQDN/group/kit/greet@1, inputs: {name: ada}}]\n\
         vars: {script: ['echo \"[$CI_SERVER_HOST $CI_SERVER_PORT $CI_SERVER_FQDN $CI_SERVER_URL $CI_API_V4_URL]\"']}\n",
    );
    project.git(&["remote", "add", "origin", "https://git.example.org:8443/group/app.git"]);
    let kit = project.checkout("kit");
    kit.write(
        "templates/greet.yml",
        "spec: {inputs: {name: }}\n---\ngreet: {script: ['echo \"hello $[[ inputs.name ]]\"']}\n",
    );
    kit.commit("Greet");
    kit.git(&["tag", "1.2.0"]);
    project.configure(&format!("[components]\n\"git.example.org:8443/group/kit\" = {:?}\n", kit.path()));
    project
}

#[test]
fn c224_the_server_is_that_of_the_projects_remote_in_compilation_and_in_jobs() {
    let project = with_component();
    project.ci(&["list"]).code(0).says("greet");
    let said = project.ci(&["--log", "all"]).code(0);
    said.says("hello ada");
    said.says("[git.example.org 8443 git.example.org:8443 https://git.example.org:8443 http://127.0.0.1:");
}

#[test]
fn c224_without_a_remote_the_server_is_the_coordinator() {
    let project = Project::new("a: {script: ['echo \"[$CI_SERVER_HOST]\"']}\n");
    project.ci(&["--log", "all"]).code(0).says("[127.0.0.1]");
}
