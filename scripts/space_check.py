"""A dry run of the Space: ``make space-check``, or ``python scripts/space_check.py``. Needs an index to install from.

What is committed is copied into an empty folder and installed as a Space's build does: an environment of its own,
requirements.txt, then Gradio at the front matter's sdk_version with what Spaces add to it. ``python app.py`` starts
there with a Space's variables and an empty home. A run that ships with the app is opened through ``/?run=``, as the
page does it. One comparison of all five papers' methods is run on the bundled model, which the app fetches itself, as
on a Space; it has to be the one that the shipped codebooks are of. The seconds of every step are printed; the first
step that fails ends it.
"""

import argparse
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FRONT = (ROOT / "README.md").read_text(encoding="utf-8").split("---\n")[1]
MODEL = "smollm2-135m-instruct-q4_1"
METHODS = ("commvq", "innerq", "qaq", "squat", "svdq")
SPEC = {"prompt": "The tide came in. " * 60, "max_new_tokens": 8, "lanes": [{"method": name} for name in METHODS]}
PATIENCE_S = 900  # for anything asked of the server: a machine that does other work as well takes its time


def front(name: str) -> str:
    """A field of the front matter."""
    found = re.search(rf'^{name}: *"?([^"\n]*)', FRONT, re.M)
    assert found, f"README.md has no {name}"
    return found[1]


@contextmanager
def step(name: str) -> Iterator[None]:
    print(f"            {name} ...", flush=True)
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:8.1f} s  {name}", flush=True)


def copy_committed(target: Path) -> None:
    """What a push to the Space would bring."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)


def install(python: str, venv: Path, app: Path) -> None:
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--retries=10"]
    with step("environment"):
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
    with step("requirements.txt"):
        subprocess.run([*pip, "-r", "requirements.txt"], cwd=app, check=True)
    with step(f"gradio {front('sdk_version')} with what Spaces add"):
        gradio = f"gradio[oauth,mcp]=={front('sdk_version')}"
        subprocess.run([*pip, gradio, "uvicorn>=0.14.0", "websockets>=10.4", "spaces"], check=True)


def variables(venv: Path, home: Path, port: int) -> dict[str, str]:
    """The environment of a Space; of this shell's only how pip reaches an index."""
    return {
        **{name: value for name, value in os.environ.items() if name.upper().startswith(("PIP_", "HTTP"))},
        "PATH": f"{venv / 'bin'}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "GRADIO_SERVER_PORT": str(port),
        "SYSTEM": "spaces",
        "SPACE_ID": "somebody/kvq-explorer",
        "SPACE_HOST": "somebody-kvq-explorer.hf.space",
    }


def ask(url: str, data: Any = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def wait_for(address: str, server: subprocess.Popen) -> Any:
    """The page's configuration, once it answers."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert server.poll() is None, "app.py ended"
        try:
            return ask(f"{address}/config")
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the page did not answer in {PATIENCE_S} s")


def open_run(address: str, config: Any, run: str) -> None:
    """What a browser asks when it opens /?run=: the page, then its load handler with the same query."""
    with urllib.request.urlopen(f"{address}/?run={run}", timeout=PATIENCE_S) as page:
        assert page.status == 200
    status = next(c["id"] for c in config["components"] if c["props"].get("elem_id") == "status")
    loads = [
        d
        for d in config["dependencies"]
        if status in d["outputs"] and any(event == "load" for _, event in d["targets"])
    ]
    session = secrets.token_hex(8)
    event = {"data": [None] * len(loads[0]["inputs"]), "fn_index": loads[0]["id"], "session_hash": session}
    ask(f"{address}/gradio_api/queue/join?run={run}", event)
    with urllib.request.urlopen(
        f"{address}/gradio_api/queue/data?session_hash={session}", timeout=PATIENCE_S
    ) as stream:
        told = next(line.decode() for line in stream if b"process_completed" in line)
    assert "Stored run" in told, told[:500]


def compare(address: str) -> dict[str, Any]:
    event = ask(f"{address}/gradio_api/call/compare", {"data": [SPEC]})["event_id"]
    with urllib.request.urlopen(f"{address}/gradio_api/call/compare/{event}", timeout=PATIENCE_S) as stream:
        lines = [line.decode().rstrip("\n") for line in stream]
    assert "event: complete" in lines, lines[-4:]
    (last,) = json.loads(lines[lines.index("event: complete") + 1].removeprefix("data: "))
    return dict(last["result"])


def check(python: str, folder: Path, venv: Path | None) -> None:
    app, home = folder / "app", folder / "home"
    app.mkdir()
    home.mkdir()
    with step("copy of what is committed"):
        copy_committed(app)
    if venv is None:
        venv = folder / "venv"
        install(python, venv, app)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(venv / "bin/python"), front("app_file")]
    server = subprocess.Popen(command, cwd=app, env=variables(venv, home, port))
    address = f"http://127.0.0.1:{port}"
    try:
        with step("python app.py until the page answers"):
            config = wait_for(address, server)
        run = next(path.name for path in sorted((app / "presets/runs").iterdir()))
        with step(f"/?run={run}, which ships with the app"):
            open_run(address, config, run)
        with step("the bundled model, and a comparison of the five papers' methods on it"):
            result = compare(address)
            assert result["model"] == MODEL and all(lane["status"] == "done" for lane in result["lanes"]), result
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="builds the environment; a Space takes python_version")
    parser.add_argument(
        "--venv", type=lambda path: Path(path).absolute(), help="use this environment and install nothing"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvq-space-") as folder:
        check(arguments.python, Path(folder), arguments.venv)
    print("           the Space would start")


if __name__ == "__main__":
    main()
