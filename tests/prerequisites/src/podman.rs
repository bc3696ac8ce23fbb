//! Runs Debian's Podman as an engine: as root, or as an unprivileged user, who exists only in the engine's own mounts.

#![expect(clippy::expect_used, reason = "a test whose engine cannot be prepared fails")]

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::docker::DockerEngine;
use crate::missing;

const NO_PODMAN: &str =
    "podman cannot run here (it needs root and Debian's packages podman netavark aardvark-dns slirp4netns uidmap)";
/// Path of the socket in the engine's directory, whose subdirectory `run` is the user's `XDG_RUNTIME_DIR`. Clients
/// expect the socket of a user's Podman at `$XDG_RUNTIME_DIR/podman/podman.sock`.
const SOCKET: &str = "run/podman/podman.sock";
/// Podman's settings for the registries on this machine, which have no TLS.
const REGISTRIES: &str = "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n";
const READY: &str = "API service listening on";
/// Command that starts a shell in new namespaces. All processes of an engine end with this shell.
const NAMESPACES: [&str; 8] =
    ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh"];
/// Prepares the namespaces of an engine, and runs the program as the user with this ID.
///
/// The root directory is a new directory with the same entries, because the user may not be permitted to enter the root
/// directory of the machine. Only this engine sees the user.
const PREPARE: &str = r#"set -e
dir=$1 uid=$2; shift 2
ip link set lo up
mkdir -p "$dir/root" "$dir/etc" "$dir/home" "$dir/run/podman" "$dir/tmp" /var/lib/cni
mount -t tmpfs -o mode=755 tmpfs "$dir/root"
for path in /*; do
    if [ -L "$path" ]; then cp -a "$path" "$dir/root$path"
    elif [ -d "$path" ]; then mkdir "$dir/root$path"; mount --rbind "$path" "$dir/root$path"; fi
done
cd "$dir/root"; mkdir -p old; pivot_root . old; umount -l /old; rmdir /old
mount -t tmpfs -o mode=755 tmpfs /run; mount -t tmpfs tmpfs /var/lib/cni
if [ "$uid" != 0 ]; then
    (cat /etc/passwd; echo "muster-test:x:$uid:$uid::$dir/home:/bin/sh") >"$dir/etc/passwd"
    (cat /etc/group; echo "muster-test:x:$uid:") >"$dir/etc/group"
    echo "muster-test:100000:65536" | tee "$dir/etc/subuid" >"$dir/etc/subgid"
    for file in passwd group subuid subgid; do mount --bind "$dir/etc/$file" "/etc/$file"; done
    mknod -m 666 "$dir/etc/tun" c 10 200; mount --bind "$dir/etc/tun" /dev/net/tun
    chown "$uid:$uid" "$dir" "$dir/home" "$dir/run" "$dir/run/podman" "$dir/tmp"
fi
export HOME="$dir/home" XDG_RUNTIME_DIR="$dir/run" TMPDIR="$dir/tmp"; cd "$dir"
# The first process remains root. With another user, it would no longer end with its parent.
setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"
exit"#;

/// Programs without which containers have no network or cannot resolve names.
const PROGRAMS: [&str; 4] =
    ["/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns", "/usr/bin/slirp4netns", "/usr/bin/newuidmap"];

/// User of a Podman service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodmanUser {
    /// Root of the machine.
    Root,
    /// A user without privileges.
    Unprivileged,
}

impl PodmanUser {
    /// Returns the ID of the user.
    #[must_use]
    pub fn id(self) -> u32 {
        match self {
            Self::Root => 0,
            Self::Unprivileged => 4000,
        }
    }
}

impl DockerEngine {
    /// Starts Podman's service as root in the network of this machine, where it can reach the registries of tests.
    ///
    /// Returns `None` if Podman cannot run here.
    ///
    /// # Panics
    /// If no temporary directory can be created.
    #[track_caller]
    #[must_use]
    pub fn podman() -> Option<Self> {
        let started = Self::run("TERM", SOCKET, READY, |dir| {
            std::fs::create_dir_all(dir.join("run/podman")).expect("failed to create a directory of the engine");
            let registries = dir.join("registries.conf");
            std::fs::write(&registries, REGISTRIES).expect("failed to write Podman's settings");
            (service(dir), vec![("CONTAINERS_REGISTRIES_CONF", registries.into_os_string())])
        });
        started.map_err(|error| missing(format_args!("{NO_PODMAN}: {error}"))).ok()
    }

    /// Returns a Podman service of this user, which the tests of this process share, or `None` if Podman cannot run
    /// here.
    ///
    /// The service has a separate network with the default bridge.
    ///
    /// # Panics
    /// If no temporary directory can be created.
    #[track_caller]
    #[must_use]
    pub fn shared_podman(user: PodmanUser) -> Option<&'static Self> {
        static ROOT: OnceLock<Result<DockerEngine, String>> = OnceLock::new();
        static UNPRIVILEGED: OnceLock<Result<DockerEngine, String>> = OnceLock::new();
        let shared = match user {
            PodmanUser::Root => &ROOT,
            PodmanUser::Unprivileged => &UNPRIVILEGED,
        };
        let started = shared.get_or_init(|| {
            let missing = PROGRAMS.into_iter().find(|program| !Path::new(program).exists());
            if let Some(program) = missing {
                return Err(format!("{program} does not exist"));
            }
            Self::run("KILL", SOCKET, READY, |dir| {
                let mut command: Vec<OsString> = NAMESPACES.map(Into::into).into();
                command.extend(["-c", PREPARE, "sh"].map(Into::into));
                command.extend([dir.into(), user.id().to_string().into()]);
                command.extend(service(dir));
                (command, Vec::new())
            })
        });
        started.as_ref().map_err(|error| missing(format_args!("{NO_PODMAN}: {error}"))).ok()
    }

    /// Returns a command that runs a program as the user of a shared Podman service, with its mounts and its network.
    ///
    /// The program starts in `dir`.
    ///
    /// # Panics
    /// If the engine has ended.
    #[must_use]
    pub fn podman_user_command(&self, user: PodmanUser, dir: &Path, program: &Path) -> Command {
        let process = self.process_id("podman").expect("the engine has ended");
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(process).args(["--mount", "--net", "--pid", "--", "setpriv", "--clear-groups"]);
        command.args(["--reuid", &user.id().to_string(), "--regid", &user.id().to_string()]);
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).args([dir, program]);
        command.env("XDG_RUNTIME_DIR", self.dir().join("run"));
        command
    }
}

fn service(dir: &Path) -> Vec<OsString> {
    let path = |name: &str| dir.join(name).into_os_string();
    let mut command: Vec<OsString> =
        ["podman", "--log-level=info", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file"]
            .map(Into::into)
            .into();
    for (option, name) in [("--root", "data"), ("--runroot", "exec"), ("--network-config-dir", "networks")] {
        command.extend([option.into(), path(name)]);
    }
    command.extend(["system", "service", "--time=0"].map(Into::into));
    command.push(format!("unix://{}", dir.join(SOCKET).display()).into());
    command
}
