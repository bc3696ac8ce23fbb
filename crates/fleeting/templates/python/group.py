#!/usr/bin/env python3
"""An instance group: Muster's plugin `script` runs this program for each call.

Its instances are only files: replace them with calls to your provider. After an exception the call fails, and the message is logged.
Exit with 64 for a call that is not implemented.
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
    """Returns every instance with its state."""
    states = {}
    for file in ROOT.iterdir():
        states[file.name] = state = file.read_text()
        # A real provider changes the state itself.
        if state == "creating":
            file.write_text("running")
        elif state == "deleting":
            file.unlink()
    return states


def increase(n):
    """Requests more instances, and returns the number of accepted instances."""
    for _ in range(int(n)):
        handle, path = tempfile.mkstemp(prefix="instance-", dir=ROOT)
        os.write(handle, b"creating")
        os.close(handle)
    return {"succeeded": int(n)}


def decrease(*ids):
    """Deletes these instances. A missing instance counts as deleted."""
    for name in ids:
        if (ROOT / name).exists():
            (ROOT / name).write_text("deleting")
    return {"succeeded": list(ids)}


def connect_info(name):
    if not (ROOT / name).exists():
        sys.exit(f"instance {name} does not exist")
    return {"internal_addr": "127.0.0.1"}


CALLS = {"init": init, "update": update, "increase": increase, "decrease": decrease, "connect-info": connect_info}

if __name__ == "__main__":
    call = CALLS.get(sys.argv[1])
    if call is None:
        sys.exit(NO_SUCH_CALL)
    print(json.dumps(call(*sys.argv[2:])))
