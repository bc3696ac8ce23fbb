"""A coordinator that offers jobs at given times. It has the part of GitLab's runner API that a shell job needs.

Other benchmarks use `muster ci run --executor external`, which offers the jobs of a pipeline. This coordinator offers any number of
jobs, at a rate or at listed times, and stores only the times of their events.
"""
import asyncio
import collections
import dataclasses
import json
import re
import threading
import time

# Seconds for which a job request without a job is held. GitLab's front end holds it for 50 s.
HOLD_SECONDS = 20
TOKEN = "glrt-bench-coordinator"
JOB_PATH = re.compile(r"/api/v4/jobs/(\d+)(/trace)?$")
REASONS = {200: "OK", 201: "Created", 202: "Accepted", 204: "No Content", 404: "Not Found"}


@dataclasses.dataclass(slots=True)
class Job:
    """One job with the wall-clock times of its events."""

    offered: float
    assigned: float = 0.0
    ended: float = 0.0
    assignments: int = 0
    reports: int = 0
    state: str = "pending"
    reason: str = ""
    trace_bytes: int = 0


class Coordinator:
    """Listens on a free port until it is closed. `payload(id)` returns the script, variables and image of a job."""

    def __init__(self, payload):
        self.payload, self.jobs, self.waiters, self.queue = payload, {}, collections.deque(), collections.deque()
        self.changed, self.ended, self.requested = threading.Condition(), 0, threading.Event()
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(self.loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=512))
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def offer(self, moments) -> None:
        """Offers one job at each of these times (seconds from now), and returns after the last offer."""
        asyncio.run_coroutine_threadsafe(self._offer(moments), self.loop).result()

    async def _offer(self, moments) -> None:
        began = self.loop.time()
        for moment in moments:
            wait = began + moment - self.loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            number = len(self.jobs) + 1
            self.jobs[number] = Job(time.time())
            self.queue.append(number)
            self._assign()

    def _assign(self) -> None:
        while self.queue and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.is_open():
                continue
            number = self.queue.popleft()
            job = self.jobs[number]
            job.assigned, job.assignments = time.time(), job.assignments + 1
            waiter.answer(201, json.dumps(self._full_payload(number)).encode())

    def _full_payload(self, number: int) -> dict:
        """Returns a payload like GitLab's, with the script, variables and image of the benchmark."""
        variables = {"CI_JOB_ID": str(number), "GIT_STRATEGY": "none", "FF_TIMESTAMPS": "false"}
        own = self.payload(number)
        variables |= own.get("variables", {})
        return {
            "id": number, "token": f"job-token-{number}", "allow_git_fetch": True,
            "job_info": {"name": f"job{number}", "stage": "test", "project_id": 1, "project_name": "bench"},
            "git_info": {
                "repo_url": "http://git.example.org/bench/app.git", "ref": "main", "ref_type": "branch", "refspecs": [], "depth": 0,
                "sha": "0123456789012345678901234567890123456789", "before_sha": "0" * 40,
            },
            "runner_info": {"timeout": 600},
            "variables": [{"key": key, "value": value, "public": True, "masked": False} for key, value in variables.items()],
            "steps": [{"name": "script", "script": own["script"], "timeout": 600, "when": "on_success", "allow_failure": False}],
            "image": {"name": own.get("image", "")}, "services": [], "artifacts": [], "cache": [], "credentials": [], "dependencies": [],
            "features": {"trace_sections": False, "failure_reasons": ["runner_system_failure", "script_failure"]},
        }

    def handle(self, connection, path: str, body: bytes) -> None:
        """Handles one request."""
        match = JOB_PATH.match(path)
        if path == "/api/v4/jobs/request":
            self.requested.set()
            self.waiters.append(connection)
            connection.set_timer(self.loop.call_later(HOLD_SECONDS, self._answer_empty, connection))
            self._assign()
        elif path == "/api/v4/runners/verify":
            connection.answer(200, json.dumps({"id": 1, "token": TOKEN, "token_expires_at": None}).encode())
        elif match and (job := self.jobs.get(int(match[1]))):
            if match[2]:
                job.trace_bytes += len(body)
                connection.answer(202, b"", f"Range: 0-{job.trace_bytes}\r\n")
                return
            update = json.loads(body)
            if update["state"] in ("success", "failed"):
                job.state, job.reason, job.ended, job.reports = update["state"], update.get("failure_reason") or "", time.time(), job.reports + 1
                with self.changed:
                    self.ended += job.reports == 1
                    self.changed.notify_all()
            connection.answer(200, b"")
        else:
            connection.answer(404, b"")

    def _answer_empty(self, connection) -> None:
        if connection in self.waiters:
            self.waiters.remove(connection)
            connection.answer(204, b"")

    def until_ended(self, count: int, seconds: float) -> bool:
        """Waits until `count` jobs have ended, for at most `seconds`. Returns whether they have ended."""
        with self.changed:
            return self.changed.wait_for(lambda: self.ended >= count, seconds)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.server.close()


class Connection(asyncio.Protocol):
    """Handles one keep-alive connection. Both runners send a content length."""

    def __init__(self, coordinator: Coordinator):
        self.coordinator, self.buffer, self.timer = coordinator, b"", None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def connection_lost(self, _) -> None:
        if self.timer:
            self.timer.cancel()
        if self in self.coordinator.waiters:
            self.coordinator.waiters.remove(self)

    def is_open(self) -> bool:
        return not self.transport.is_closing()

    def set_timer(self, timer) -> None:
        self.timer = timer

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            length = int(headers.get("content-length", 0))
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            _, target, _ = lines[0].split(" ", 2)
            self.coordinator.handle(self, target.partition("?")[0], rest[:length])

    def answer(self, status: int, body: bytes, extra_headers: str = "") -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nJob-Status: running\r\n"
            f"X-GitLab-Trace-Update-Interval: 3\r\nX-GitLab-Last-Update: 1\r\n{extra_headers}"
        )
        length = "" if status == 204 else f"Content-Length: {len(body)}\r\n"
        self.transport.write(f"{head}{length}\r\n".encode() + body)
