"""Starts Muster or gitlab-runner as in production, and measures the resource usage of its processes."""
import ctypes
import os
import pathlib
import signal
import subprocess
import time

import common

PR_SET_CHILD_SUBREAPER = 36
MAX_EXIT_SECONDS = 20
# Placeholder in a configuration for the runner's own directory.
HOME = "@home@"


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants, so that their resource usage is counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shell_configuration(url: str, token: str, concurrent: int) -> str:
    """Returns the configuration of one runner with the shell executor and a job limit."""
    return (
        f'concurrent = {concurrent}\ncheck_interval = 1\n[[runners]]\nname = "bench"\nurl = "{url}"\ntoken = "{token}"\n'
        f'executor = "shell"\nshell = "bash"\nlimit = {concurrent}\nrequest_concurrency = {concurrent}\noutput_limit = 400000\n'
        f'builds_dir = "{HOME}/builds"\ncache_dir = "{HOME}/cache"\n'
    )


class Runner:
    """A runner with a config.toml, and all its processes."""

    def __init__(self, directory: pathlib.Path, program: str, executable: str, text: str, extra_env: dict[str, str] | None = None):
        self.home, self.program = directory / "runner", program
        self.home.mkdir()
        config = self.home / "config.toml"
        config.write_text(text.replace(HOME, str(self.home)))
        config.chmod(0o600)
        run = ["runner", "run"] if program == "muster" else ["run"]
        self.command = [executable, *run, "--config", str(config), "--working-directory", str(self.home)]
        # As root, the default state directory is below /var/lib and would not be deleted.
        self.env = common.clean_env(self.home) | {"MUSTER_STATE_DIR": str(self.home / "state")} | (extra_env or {})
        self.cpu = 0.0
        self.start()

    def start(self) -> None:
        self.log = (self.home / "log").open("a")
        self.process = subprocess.Popen(self.command, cwd=self.home, env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def process_ids(self) -> list[int]:
        """Returns the processes of the runner, without those of its jobs."""
        # After the runner is reaped, another process may have its PID.
        runner = [self.process.pid] if self.process.returncode is None else []
        return sorted({*runner, *(pid for parent in (os.getpid(), *runner) for pid in children(parent) if is_agent(pid))})

    def memory(self) -> float:
        return sum(resident_mib(pid) for pid in self.process_ids())

    def kill(self) -> None:
        self.process.kill()
        self._reap(self.process.pid)

    def close(self, first: signal.Signals = signal.SIGTERM) -> None:
        """Stops the runner and adds the CPU time of its processes. An agent that outlived its manager is a child of this process."""
        for end_signal in (first, signal.SIGKILL):
            pids = [pid for pid in self.process_ids() if os.path.exists(f"/proc/{pid}")]
            for pid in pids:
                os.kill(pid, end_signal)
            deadline = time.monotonic() + MAX_EXIT_SECONDS
            while pids and time.monotonic() < deadline:
                pids = [pid for pid in pids if not self._reap(pid, os.WNOHANG)]
                time.sleep(0.01)
        self.log.close()

    def _reap(self, pid: int, flags: int = 0) -> bool:
        try:
            reaped, status, usage = os.wait4(pid, flags)
        except ChildProcessError:
            return not os.path.exists(f"/proc/{pid}")
        if reaped:
            self.cpu += usage.ru_utime + usage.ru_stime
        if reaped == self.process.pid:
            self.process.returncode = os.waitstatus_to_exitcode(status)
        return bool(reaped)


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
    return memory_mib(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    return memory_mib(pid, "VmHWM")


def memory_mib(pid: int, field: str) -> float:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024
