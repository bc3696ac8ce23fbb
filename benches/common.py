"""Functions that the benchmarks share: paths, clean environments, temporary repositories, data and tables."""
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


def programs(muster_path: str | None) -> tuple[str, str | None]:
    """Returns the absolute paths of Muster (`muster_path`, or built with profile `dist`) and of gitlab-runner, if set."""
    gitlab_runner = os.environ.get("MUSTER_TEST_GITLAB_RUNNER")
    return os.path.abspath(muster_path) if muster_path else muster(), os.path.abspath(gitlab_runner) if gitlab_runner else None


def load() -> float:
    """Returns the load average of the last minute."""
    return os.getloadavg()[0]


def clean_env(home: pathlib.Path) -> dict[str, str]:
    """Returns an environment without the user's settings."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb"}


def repository(folder: pathlib.Path, configuration: str) -> None:
    """Creates a repository with one commit and the configuration."""
    folder.mkdir()
    (folder / ".gitlab-ci.yml").write_text(configuration)
    (folder / "README.md").write_text("Repository of a benchmark.\n")
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run(git + arguments, cwd=folder, check=True)
    subprocess.run(["git", "remote", "add", "origin", "https://git.example.org/bench/app.git"], cwd=folder, check=True)


def stored(name: str) -> dict:
    """Returns the stored results."""
    data = ROOT / "benches" / "data" / name
    return json.loads(data.read_text()) if data.exists() else {}


def update(name: str, results: dict) -> dict:
    """Stores results, replacing those with the same names, and returns all stored results."""
    data = ROOT / "benches" / "data" / name
    data.parent.mkdir(exist_ok=True)
    whole = stored(name) | results
    if results:
        data.write_text(json.dumps(whole, indent=1) + "\n")
    return whole


def write_table(name: str, table: str, program: str | None = None) -> None:
    """Replaces a table in docs/benchmarks.md. `program` is the script of benches/ that writes the table, if its name is not `name`."""
    page = ROOT / "docs" / "benchmarks.md"
    begin, end = f"<!-- {name}: written by benches/{program or name} -->\n", "<!-- end -->\n"
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(head + begin + table + end + tail)
