//! Server variables of a pipeline: they name the server of the project's remote, or the coordinator if there is no remote.

use super::Project;

fn project_with_component() -> Project {
    let project = Project::new(
        "include: [{component: $CI_SERVER_FQDN/group/kit/greet@1, inputs: {name: ada}}]\n\
         vars: {script: ['echo \"[$CI_SERVER_HOST $CI_SERVER_PORT $CI_SERVER_FQDN $CI_SERVER_URL $CI_API_V4_URL]\"']}\n",
    );
    project.git(&["remote", "add", "origin", "https://git.example.org:8443/group/app.git"]);
    let kit = project.other_repository("kit");
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
fn c224_server_variables_refer_to_the_remote() {
    let project = project_with_component();
    project.ci(&["list"]).code(0).prints("greet");
    let output = project.ci(&["--log", "all"]).code(0);
    output.prints("hello ada");
    // Only `CI_API_V4_URL` names the coordinator.
    output.prints("[git.example.org 8443 git.example.org:8443 https://git.example.org:8443 http://127.0.0.1:");
}

#[test]
fn c224_server_variables_refer_to_the_coordinator_if_there_is_no_remote() {
    let project = Project::new("a: {script: ['echo \"[$CI_SERVER_HOST]\"']}\n");
    project.ci(&["--log", "all"]).code(0).prints("[127.0.0.1]");
}
