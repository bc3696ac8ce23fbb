#!/usr/bin/env python3
"""The group: muster's plugin `script` runs this for each call.

As it is, its instances are files: replace what says so by calls of your provider. An exception fails the call, and its words
are logged; exit with 64 for a call that is not there.
"""
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(os.environ.get("SETTING_DIRECTORY", "instances"))
NO_SUCH_CALL = 64


def init():
    ROOT.mkdir(parents=True, exist_ok=True)
    return {"id": f"toy/{ROOT}", "max_size": int(os.environ.get("SETTING_MAX_SIZE", "10"))}


def update():
    """Every instance there is, with its state."""
    states = {}
    for file in ROOT.iterdir():
        states[file.name] = state = file.read_text()
        # A real provider moves it on by itself.
        if state == "creating":
            file.write_text("running")
        elif state == "deleting":
            file.unlink()
    return states


def increase(n):
    """Asks for more, and says how many were taken."""
    for _ in range(int(n)):
        handle, path = tempfile.mkstemp(prefix="instance-", dir=ROOT)
        os.write(handle, b"creating")
        os.close(handle)
    return {"succeeded": int(n)}


def decrease(*ids):
    """Removes exactly these. One that is not there is gone."""
    for name in ids:
        if (ROOT / name).exists():
            (ROOT / name).write_text("deleting")
    return {"succeeded": list(ids)}


def connect_info(name):
    if not (ROOT / name).exists():
        sys.exit(f"there is no instance {name}")
    return {"internal_addr": "127.0.0.1"}


CALLS = {"init": init, "update": update, "increase": increase, "decrease": decrease, "connect-info": connect_info}

if __name__ == "__main__":
    call = CALLS.get(sys.argv[1])
    if call is None:
        sys.exit(NO_SUCH_CALL)
    print(json.dumps(call(*sys.argv[2:])))
