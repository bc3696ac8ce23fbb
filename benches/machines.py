"""The environment for `docker+machine`: a simulated docker-machine, and one Docker daemon that serves as all its machines.

Requires root, and dockerd, containerd, runc and docker (Debian: docker.io), a static busybox (busybox-static) and openssl on the PATH.
"""
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import time

import common

REQUIRED = ("dockerd", "containerd", "runc", "docker", "busybox", "openssl")
MAX_START_SECONDS = 30
IMAGE = "bench"

# Fake docker-machine. A machine is a directory. `outcomes` has one line per creation, in order. `log` has the events with the time in
# seconds since boot.
DOCKER_MACHINE = """#!/bin/sh
set -eu
store=$MACHINE_STORAGE_PATH
case $1 in -*) shift ;; esac
command=$1
for name in "$@"; do :; done
case $command in inspect) name=$2 ;; esac
machine=$store/machines/$name
record() { read -r now _ </proc/uptime; echo "$now $1 $name" >>"$store/log"; }
case $command in
create)
    n=1
    until mkdir "$store/creations/$n" 2>/dev/null; do n=$((n + 1)); done
    outcome=$(sed -n "${n}p" "$store/outcomes")
    if [ "$outcome" = rejected ]; then
        record rejected
        echo "Error creating machine: quota exceeded" >&2
        exit 3
    fi
    record created
    mkdir -p "$machine"
    echo '{}' >"$machine/config.json"
    sleep "$(cat "$store/boot")"
    if [ "$outcome" = boot-failed ]; then
        record boot-failed
        echo "Error creating machine: SSH never came up" >&2
        exit 1
    fi
    : >"$machine/up"
    ;;
rm)
    rm -r "$machine"
    record deleted
    ;;
stop | config) [ -e "$machine/up" ] ;;
url) cat "$store/url" ;;
inspect) [ -e "$machine/config.json" ] && echo "$store/certs" ;;
*) exit 2 ;;
esac
"""
CERTIFICATES = """
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca-key.pem -out ca.pem -days 1 -subj /CN=ca
openssl req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=bench
printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' >extensions
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 1 -extfile extensions -out cert.pem
"""


def missing() -> list[str]:
    """Returns the missing requirements."""
    return [name for name in REQUIRED if not shutil.which(name)] + ([] if os.geteuid() == 0 else ["root"])


class Machines:
    """The Docker daemon, and the directory of docker-machine. `close` stops the daemon and deletes its data."""

    def __init__(self, directory: pathlib.Path, outcomes: list[str], boot_seconds: float):
        self.store, self.bin = directory / "machine", directory / "bin"
        for folder in (self.store, self.store / "creations", self.store / "machines", self.store / "certs", self.bin):
            folder.mkdir()
        executable = self.bin / "docker-machine"
        executable.write_text(DOCKER_MACHINE)
        executable.chmod(0o755)
        (self.store / "outcomes").write_text("".join(f"{outcome}\n" for outcome in outcomes))
        (self.store / "boot").write_text(f"{boot_seconds}\n")
        self.log = self.store / "log"
        self.log.touch()
        subprocess.run(["sh", "-euc", CERTIFICATES], cwd=self.store / "certs", check=True, stderr=subprocess.DEVNULL)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (self.store / "url").write_text(f"tcp://127.0.0.1:{port}\n")
        self.env = {"MACHINE_STORAGE_PATH": str(self.store), "PATH": f"{self.bin}:{os.environ['PATH']}"}
        # The path of a socket must be short.
        self.socket_dir = pathlib.Path(tempfile.mkdtemp(prefix="mb-"))
        self.docker = ["docker", "-H", f"unix://{self.socket_dir}/s"]
        self.daemon = None
        try:
            self._start(directory, port)
            self._image(directory)
        except BaseException:
            self.close()
            raise

    def _start(self, directory: pathlib.Path, port: int) -> None:
        """Starts the daemon and waits until it responds."""
        certificates = self.store / "certs"
        with (directory / "dockerd.log").open("w") as log:
            self.daemon = subprocess.Popen(
                ["dockerd", "-H", f"unix://{self.socket_dir}/s", "-H", f"tcp://127.0.0.1:{port}", "--tlsverify", "--tlscacert", certificates / "ca.pem",
                 "--tlscert", certificates / "cert.pem", "--tlskey", certificates / "key.pem", "--data-root", self.socket_dir / "data",
                 "--exec-root", self.socket_dir / "exec", "--pidfile", self.socket_dir / "pid", "--iptables=false", "--ip-masq=false", "--bridge=none"],
                env=common.clean_env(directory), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        deadline = time.monotonic() + MAX_START_SECONDS
        while subprocess.run([*self.docker, "version"], capture_output=True).returncode:
            if time.monotonic() > deadline or self.daemon.poll() is not None:
                raise SystemExit(f"benches/scheme: the Docker daemon did not start; see {directory}/dockerd.log")
            time.sleep(0.1)

    def _image(self, directory: pathlib.Path) -> None:
        """Builds one image for the job and for the runner's helper: busybox, and the two programs that the runner calls."""
        tree = directory / "image"
        for folder in ("bin", "usr/bin", "tmp"):
            (tree / folder).mkdir(parents=True)
        busybox = shutil.copy(shutil.which("busybox"), tree / "bin/busybox")
        for applet in subprocess.check_output([busybox, "--list"], text=True).split():
            if applet != "busybox":
                (tree / "bin" / applet).symlink_to("busybox")
        for name, line in (("gitlab-runner-build", "exec /bin/sh"), ("gitlab-runner-helper", '[ "$1" = cache-init ] && exec chmod 777 "$2"')):
            script = tree / "usr/bin" / name
            script.write_text(f"#!/bin/sh\n{line}\n")
            script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        with tarfile.open(directory / "image.tar", "w") as archive:
            archive.add(tree, arcname=".")
        subprocess.run([*self.docker, "import", directory / "image.tar", f"{IMAGE}:latest"], check=True, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        if self.daemon and self.daemon.poll() is None:
            containers = subprocess.run([*self.docker, "ps", "-aq"], capture_output=True, text=True).stdout.split()
            if containers:
                subprocess.run([*self.docker, "rm", "-f", *containers], stdout=subprocess.DEVNULL)
            self.daemon.terminate()
            try:
                self.daemon.wait(30)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
        shutil.rmtree(self.socket_dir, ignore_errors=True)
