"""Functions for all benchmarks: paths, clean environments, temporary repositories, data and tables."""
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "muster"


def muster() -> str:
    """Builds the release executable (profile `dist`) of this tree, and returns its path."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
    env = dict(os.environ, CARGO_TARGET_DIR=str(target))
    subprocess.run(["cargo", "build", "--locked", "--profile", "dist", "--quiet", "--package", "muster"], cwd=ROOT, env=env, check=True)
    host = next(
        line.split()[1] for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines() if line.startswith("host:")
    )
    return str(target / host / "dist" / "muster")


def programs(given: str | None) -> tuple[str, str | None]:
    """Returns the paths of Muster (as given, or built with profile `dist`) and of gitlab-runner, if set. Paths are absolute."""
    peer = os.environ.get("MUSTER_TEST_GITLAB_RUNNER")
    return os.path.abspath(given) if given else muster(), os.path.abspath(peer) if peer else None


def load() -> float:
    """Returns the load of the machine in the last minute."""
    return os.getloadavg()[0]


def clean(home: pathlib.Path) -> dict[str, str]:
    """Returns an environment without the user's settings."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb"}


def repository(folder: pathlib.Path, configuration: str) -> None:
    """Creates a repository with one commit and the configuration."""
    folder.mkdir()
    (folder / ".gitlab-ci.yml").write_text(configuration)
    (folder / "README.md").write_text("a repository for a measurement\n")
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run(git + arguments, cwd=folder, check=True)
    subprocess.run(["git", "remote", "add", "origin", "https://git.example.org/bench/app.git"], cwd=folder, check=True)


def kept(name: str) -> dict:
    """Returns the stored results."""
    data = ROOT / "benches" / "data" / name
    return json.loads(data.read_text()) if data.exists() else {}


def renew(name: str, results: dict) -> dict:
    """Replaces stored results of the same names, and returns all results."""
    data = ROOT / "benches" / "data" / name
    data.parent.mkdir(exist_ok=True)
    whole = kept(name) | results
    if results:
        data.write_text(json.dumps(whole, indent=1) + "\n")
    return whole


def write_table(name: str, table: str) -> None:
    """Replaces a table in docs/benchmarks.md."""
    page = ROOT / "docs" / "benchmarks.md"
    begin, end = f"<!-- {name}: written by benches/{name} -->\n", "<!-- end -->\n"
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(head + begin + table + end + tail)
