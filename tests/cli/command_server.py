"""A process that has imported what commands import, and forks one for each that is asked for.

    python command_server.py SOCKET

Half of a short command's time is its imports. A forked one has the descriptors, the exit code and the signals of a
process of its own, and runs the installed script as its `__main__`. A request is a line of JSON with two descriptors
(stdout, stderr), its answer one with the exit code; the command ends when its client closes the connection.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module

IMPORTS = (
    "gymnasium",
    "h5py",
    "minari",
    "pydantic.fields",
    "typer",
    "rich.console",
    "rich.progress",
    "treadle.cli.main",
)
COMMANDS = ("check", "collect", "dataset", "eval", "replay", "report")


def play(arguments: list[str], cwd: str, streams: list[int]) -> None:
    """Run a command in this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((null, *streams)):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def attend(connection: socket.socket) -> None:
    """Answer one request, in a process of its own: the command is its child."""
    said, streams, *_ = socket.recv_fds(connection, 65536, 2)
    request = json.loads(said)
    command = os.fork()
    if not command:
        connection.close()
        play(request["arguments"], request["cwd"], streams)
        return
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(command)
    ready, *_ = select.select([connection, ended], [], [])
    if ended not in ready:
        os.kill(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    if ended in ready:
        connection.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def main(path: str) -> None:
    for name in (*IMPORTS, *(f"treadle.cli.{each}" for each in COMMANDS)):
        import_module(name)
    gc.collect()
    gc.freeze()  # a command's end would look through all of it, and copy its pages: 0.1 to 0.3 s of each
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who attends is reaped by the system
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    while True:
        ready, *_ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:  # whoever has started it is gone
            return
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            attend(connection)
            return
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
