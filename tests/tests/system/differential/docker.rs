//! Engine and images of the cases in containers.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use muster_test_prerequisites::{DockerEngine, busybox_root};

/// Images of the cases, with their instructions.
const IMAGES: [(&str, &[&str]); 7] = [
    ("diff/plain:1", &[]),
    ("diff/user:1", &["USER 1000:1000"]),
    ("diff/number:1", &["USER 4321"]),
    ("diff/environment:1", &["WORKDIR /srv", "ENV FROM_IMAGE=yes CI_JOB_NAME=image"]),
    ("diff/wrapper:1", &["ENTRYPOINT [\"sh\", \"-c\", \"echo from the entrypoint; exec \\\"$@\\\"\", \"wrapper\"]"]),
    ("diff/ends:1", &["ENTRYPOINT [\"echo\", \"only this\"]"]),
    ("diff/server:1", &["EXPOSE 80", "CMD [\"nc\", \"-ll\", \"-p\", \"80\", \"-e\", \"echo\", \"served\"]"]),
];
/// Helper image of gitlab-runner.
const HELPER: &str = "diff/helper:1";
/// Size of a block in a tar archive. Two empty blocks end the archive.
const TAR_BLOCK: usize = 512;

pub(super) struct Docker {
    engine: &'static DockerEngine,
}

impl Docker {
    pub(super) fn start() -> Option<Self> {
        let engine = DockerEngine::shared()?;
        IMAGES.iter().all(|(name, instructions)| engine.create_image(name, instructions)).then_some(Self { engine })
    }

    pub(super) fn create_helper_image(&self, program: &Path) {
        let mut archive = tar::Builder::new(Vec::new());
        let program = std::fs::read(program).unwrap();
        let scripts = b"#!/bin/sh\numask 0000\nexec sh\n".as_slice();
        for (name, content) in
            [("usr/bin/gitlab-runner-helper", program.as_slice()), ("usr/bin/gitlab-runner-build", scripts)]
        {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o755);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content).unwrap();
        }
        let mut root = busybox_root().unwrap();
        root.truncate(root.len() - 2 * TAR_BLOCK);
        root.extend(archive.into_inner().unwrap());
        let (repository, tag) = HELPER.split_once(':').unwrap();
        let path = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}");
        let (status, answer) = self.engine.call("POST", &path, &root);
        assert!(status == 200 && !answer.contains("errorDetail"), "{status} {answer}");
    }

    /// Opens a port that the containers, and programs of [`Docker::command`], can reach.
    pub(super) fn listen(&self) -> TcpListener {
        self.engine.listen(self.engine.gateway()).unwrap()
    }

    pub(super) fn command(&self, program: &Path) -> Command {
        self.engine.command_in_network(program)
    }

    pub(super) fn config(&self) -> String {
        format!(
            "[runners.docker]\nhost = {:?}\nimage = \"diff/plain:1\"\nhelper_image = {HELPER:?}\npull_policy = \"if-not-present\"\n\
             allowed_pull_policies = [\"if-not-present\", \"never\"]\nallowed_images = [\"diff/*:*\", \"missing/*:*\", \"127.0.0.1:1/*:*\"]\n\
             allowed_services = [\"diff/*:*\"]\nvolumes = [\"/cache\"]\nwait_for_services_timeout = 5\n\
             memory = \"96m\"\nmemory_swap = \"96m\"\ngroup_add = [\"2000\"]\ncpu_shares = 512\nshm_size = 2097152\n\
             cap_add = [\"SYS_PTRACE\"]\ncap_drop = [\"MKNOD\"]\nextra_hosts = [\"named.example:10.1.2.3\"]\n\
             dns = [\"10.1.2.4\"]\ndns_search = [\"example.org\"]\n\
             [runners.docker.tmpfs]\n\"/scratch\" = \"size=1m\"\n\
             [runners.docker.services_tmpfs]\n\"/of-service\" = \"size=2m\"\n\
             [runners.docker.ulimit]\nnofile = \"200:300\"\n\
             [runners.docker.sysctls]\n\"net.ipv4.ip_default_ttl\" = \"77\"\n",
            self.engine.url()
        )
    }
}
