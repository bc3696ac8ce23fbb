//! Root file systems for images, and images that are created from them.

#![expect(clippy::expect_used, reason = "a test whose images cannot be prepared fails")]

use std::path::Path;
use std::process::Command;

use crate::docker::DockerEngine;
use crate::missing;

const BUSYBOX: &str = "/bin/busybox";
/// Names under which an image without a shell contains busybox, its only executable. Busybox acts as the program by
/// whose name it is called.
const TOOLS: [&str; 4] = ["cat", "id", "pwd", "touch"];
/// Message of an error that cannot occur, because the archive is in memory.
const IN_MEMORY: &str = "failed to write to memory";

impl DockerEngine {
    /// Creates an image from [`busybox_root`] with instructions of a Dockerfile, such as `USER 1000`. Returns whether
    /// busybox exists.
    ///
    /// # Panics
    /// If the engine rejects the image.
    #[track_caller]
    #[must_use]
    pub fn create_image(&self, name: &str, instructions: &[&str]) -> bool {
        busybox_root().inspect(|root| self.import_image(name, root, instructions)).is_some()
    }

    /// Creates an image from a root file system with instructions of a Dockerfile.
    ///
    /// # Panics
    /// If the engine rejects the image.
    #[track_caller]
    pub fn import_image(&self, name: &str, root: &[u8], instructions: &[&str]) {
        let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let changes: String = instructions.iter().map(|line| format!("&changes={}", encode(line))).collect();
        // The name includes the tag, because Podman ignores a separate tag.
        let path = format!("/images/create?fromSrc=-&repo={name}{changes}");
        let (status, answer) = self.call("POST", &path, root);
        assert!(status == 200 && !answer.contains("errorDetail"), "{status} {answer}");
    }
}

/// Returns a root file system with all tools of busybox, as a tar archive, or `None` if busybox is missing.
///
/// # Panics
/// If busybox cannot be run. With `MUSTER_TEST_REQUIRE=1`, also if it is missing.
#[track_caller]
#[must_use]
pub fn busybox_root() -> Option<Vec<u8>> {
    Some(finish(with_busybox()?))
}

/// Returns [`busybox_root`] with bash and its libraries from this machine, or `None` if busybox or bash is missing.
///
/// # Panics
/// If busybox or `ldd` cannot be run, or if bash cannot be read. With `MUSTER_TEST_REQUIRE=1`, also if busybox or bash
/// is missing.
#[track_caller]
#[must_use]
pub fn bash_root() -> Option<Vec<u8>> {
    const BASH: &str = "/bin/bash";
    if !Path::new(BASH).exists() {
        missing(format_args!("there is no {BASH} (Debian: bash)"));
        return None;
    }
    let mut tar = with_busybox()?;
    let listed = Command::new("ldd").arg(BASH).output().expect("ldd does not run").stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in [BASH].into_iter().chain(libraries) {
        // If the file is a link, the content of its target is added under the name of the link.
        tar.append_path_with_name(file, file.trim_start_matches('/')).expect("failed to read bash");
    }
    Some(finish(tar))
}

/// Returns a root file system without a shell, with an executable named `cat`, `id`, `pwd` and `touch`.
///
/// Returns `None` if busybox is missing.
///
/// # Panics
/// With `MUSTER_TEST_REQUIRE=1`, if busybox is missing.
#[track_caller]
#[must_use]
pub fn shellless_root() -> Option<Vec<u8>> {
    let busybox = busybox()?;
    let mut tar = tar::Builder::new(Vec::new());
    append_directories(&mut tar, &[("etc/", 0o755), ("tmp/", 0o1777), ("usr/", 0o755), ("usr/bin/", 0o755)]);
    let [first, others @ ..] = TOOLS;
    let first = format!("usr/bin/{first}");
    append_file(&mut tar, &first, 0o755, &busybox);
    for name in others {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Link);
        header.set_mode(0o755);
        header.set_size(0);
        tar.append_link(&mut header, format!("usr/bin/{name}"), &first).expect(IN_MEMORY);
    }
    append_users(&mut tar);
    Some(finish(tar))
}

#[track_caller]
fn busybox() -> Option<Vec<u8>> {
    let read = std::fs::read(BUSYBOX);
    if read.is_err() {
        missing(format_args!("there is no {BUSYBOX} (Debian: busybox-static)"));
    }
    read.ok()
}

/// Returns an archive that contains busybox under all of its names, and the file `etc/passwd`.
#[track_caller]
fn with_busybox() -> Option<tar::Builder<Vec<u8>>> {
    let busybox = busybox()?;
    let mut tar = tar::Builder::new(Vec::new());
    append_directories(&mut tar, &[("bin/", 0o755), ("etc/", 0o755), ("tmp/", 0o1777)]);
    append_file(&mut tar, "bin/busybox", 0o755, &busybox);
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_mode(0o755);
    header.set_size(0);
    let list = Command::new(BUSYBOX).arg("--list").output().expect("busybox does not run").stdout;
    for applet in String::from_utf8_lossy(&list).lines().filter(|applet| *applet != "busybox") {
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox").expect(IN_MEMORY);
    }
    append_users(&mut tar);
    Some(tar)
}

fn append_directories(tar: &mut tar::Builder<Vec<u8>>, directories: &[(&str, u32)]) {
    for (name, mode) in directories {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(*mode);
        header.set_size(0);
        tar.append_data(&mut header, name, std::io::empty()).expect(IN_MEMORY);
    }
}

fn append_file(tar: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, name, content).expect(IN_MEMORY);
}

fn append_users(tar: &mut tar::Builder<Vec<u8>>) {
    append_file(tar, "etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n");
}

fn finish(tar: tar::Builder<Vec<u8>>) -> Vec<u8> {
    tar.into_inner().expect(IN_MEMORY)
}
