"""A runner started as in production, Muster or gitlab-runner, and the resource usage of its processes."""
import ctypes
import os
import pathlib
import signal
import subprocess
import time

import common

PR_SET_CHILD_SUBREAPER = 36
END_SECONDS_MAX = 20
# Placeholder in a configuration for the runner's own directory.
HOME = "@home@"


def adopt_orphans() -> None:
    """Makes this process the parent of orphans, so that their usage can be summed up."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shell(url: str, token: str, concurrent: int) -> str:
    """Returns the configuration of one runner with the shell executor and a job limit."""
    return (
        f'concurrent = {concurrent}\ncheck_interval = 1\n[[runners]]\nname = "bench"\nurl = "{url}"\ntoken = "{token}"\n'
        f'executor = "shell"\nshell = "bash"\nlimit = {concurrent}\nrequest_concurrency = {concurrent}\noutput_limit = 400000\n'
        f'builds_dir = "{HOME}/builds"\ncache_dir = "{HOME}/cache"\n'
    )


class Runner:
    """A runner with a config.toml, and all its processes."""

    def __init__(self, place: pathlib.Path, program: str, executable: str, text: str, more: dict[str, str] | None = None):
        self.home, self.program = place / "runner", program
        self.home.mkdir()
        config = self.home / "config.toml"
        config.write_text(text.replace(HOME, str(self.home)))
        config.chmod(0o600)
        run = ["runner", "run"] if program == "muster" else ["run"]
        self.command = [executable, *run, "--config", str(config), "--working-directory", str(self.home)]
        # As root, the default is in /var/lib and would remain there.
        self.env = common.clean(self.home) | {"MUSTER_STATE_DIR": str(self.home / "state")} | (more or {})
        self.cpu = 0.0
        self.start()

    def start(self) -> None:
        self.log = (self.home / "log").open("a")
        self.process = subprocess.Popen(self.command, cwd=self.home, env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def own(self) -> list[int]:
        """Returns the processes of the runner, without those of its jobs."""
        # After it is reaped, its PID may belong to another process.
        runner = [self.process.pid] if self.process.returncode is None else []
        return sorted({*runner, *(pid for parent in (os.getpid(), *runner) for pid in children(parent) if is_agent(pid))})

    def memory(self) -> float:
        return sum(resident_mib(pid) for pid in self.own())

    def kill(self) -> None:
        self.process.kill()
        self._reap(self.process.pid)

    def close(self, first: signal.Signals = signal.SIGTERM) -> None:
        """Stops the runner and returns its usage. An agent that outlives its manager has become a child of this process."""
        for end in (first, signal.SIGKILL):
            own = [pid for pid in self.own() if os.path.exists(f"/proc/{pid}")]
            for pid in own:
                os.kill(pid, end)
            deadline = time.monotonic() + END_SECONDS_MAX
            while own and time.monotonic() < deadline:
                own = [pid for pid in own if not self._reap(pid, os.WNOHANG)]
                time.sleep(0.01)
        self.log.close()

    def _reap(self, pid: int, flags: int = 0) -> bool:
        try:
            done, status, usage = os.wait4(pid, flags)
        except ChildProcessError:
            return not os.path.exists(f"/proc/{pid}")
        if done:
            self.cpu += usage.ru_utime + usage.ru_stime
        if done == self.process.pid:
            self.process.returncode = os.waitstatus_to_exitcode(status)
        return bool(done)


def children(pid: int) -> list[int]:
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:
            pass
    return found


def is_agent(pid: int) -> bool:
    try:
        return b"\0agent\0serve\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def resident_mib(pid: int) -> float:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
