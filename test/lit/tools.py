"""The tools of lit tests as copies of one process that has imported everything: their start takes longer than most tests.

    python test/lit/tools.py SOCKET             serves, until it is ended
    python test/lit/tools.py SOCKET TOOL ...    runs one of `TOOLS`, as if started here

A copy has the caller's folder, environment, input and outputs.
"""

import array
import json
import os
import signal
import socket
import sys
import traceback

TOOLS = ("kitsune-opt", "FileCheck")
STANDARD = (0, 1, 2)


def call(path: str, words: list[str]) -> int:
    """The exit status of a tool."""
    request = json.dumps({"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        files = array.array("i", STANDARD)
        server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        server.sendall(request)
        answer = server.recv(1)
    return answer[0] if answer else 1


def answer(client: socket.socket) -> None:
    """Become the tool that a client asks for, and tell it the exit status."""
    from filecheck.main import main as filecheck

    from kitsune_mlir.tools.kitsune_opt import main as opt

    size, files, _, _ = socket.recv_fds(client, 8, len(STANDARD))
    asked = json.loads(client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    for source, target in zip(files, STANDARD, strict=True):
        os.dup2(source, target)
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["words"]
    try:
        status = dict(zip(TOOLS, (opt, filecheck), strict=True))[sys.argv[0]]() or 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    client.send(bytes([status]))


def serve(path: str) -> None:
    """Answer clients, each in a copy of this process."""
    import filecheck.main  # noqa: F401

    import kitsune_mlir.tools.kitsune_opt  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the copies
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    answer(client)
                except BaseException:
                    traceback.print_exc()
                os._exit(0)
            client.close()


if __name__ == "__main__":
    sys.exit(call(sys.argv[1], sys.argv[2:]) if len(sys.argv) > 2 else serve(sys.argv[1]))
