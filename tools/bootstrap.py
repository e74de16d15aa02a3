"""`make setup`: make the virtual environment and install this project in it, saying what goes on.

Runs under whatever Python there is, before anything is installed: standard library only, and old syntax up to the check of the
version, so that an old Python prints a sentence and no SyntaxError.
"""

import argparse
import os
import subprocess
import sys
import threading
import time

NEEDED = (3, 11)
HEARTBEAT = 20.0  # seconds between signs of life while pip is silent (it unpacks hundreds of megabytes without a word)
OTHERS = ["python3.13", "python3.12", "python3.11", "python3.14"]


def fail(message):
    """Print a sentence and leave with status 1."""
    sys.stderr.write(f"make setup: {message}\n")
    raise SystemExit(1)


def new_enough():
    """A Python that is new enough: this one, or one of the usual names on PATH (None where there is none)."""
    if sys.version_info >= NEEDED:
        return sys.executable
    check = f"import sys, venv; raise SystemExit(sys.version_info < {NEEDED!r})"
    for name in OTHERS:
        try:
            if subprocess.call([name, "-c", check], stderr=subprocess.DEVNULL) == 0:
                return name
        except OSError:
            continue
    return None


def usable(inside, stamp):
    """Whether the environment with Python `inside` can be kept: it has pip, and was made for this folder.

    Scripts of an environment that was moved or copied along with the project point to the old place.
    """
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read().strip() != os.getcwd():
                return False
    command = [inside, "-m", "pip", "--version"]
    return os.path.exists(inside) and subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


class Progress:
    """Runs commands; shows the last line of output so far whenever a command has been silent for a while."""

    def __init__(self):
        self.start = self.spoke = time.time()
        self.last = ""
        self.done = threading.Event()
        self.log = []

    def say(self, text):
        """Print one line with the seconds since the start."""
        self.spoke = time.time()
        print(f"[{self.spoke - self.start:4.0f} s] {text}", flush=True)

    def beat(self):
        """Print a sign of life every HEARTBEAT seconds of silence, until the command ends."""
        while not self.done.wait(1.0):
            if time.time() - self.spoke >= HEARTBEAT:
                self.say(f"still at it: {self.last[:100]}")

    def run(self, title, command):
        """Run a command; its output is shown only if it fails, apart from what pip downloads."""
        self.say(title)
        self.last, self.log = title, []
        self.done.clear()
        thread = threading.Thread(target=self.beat)
        thread.start()
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, errors="replace"
            )
            for line in process.stdout or ():
                line = line.rstrip()
                self.log.append(line)
                if line:
                    self.last = line.strip()
                if line.lstrip().startswith(("Downloading", "Installing", "Building")):
                    self.say(line.strip()[:100])
            status = process.wait()
        finally:
            self.done.set()
            thread.join()
        if status:
            print("\n".join(self.log[-40:]), flush=True)
            fail(f"'{title}' failed with status {status}; what it printed is above")


def main():
    """Make the environment and install; writes the stamp last, so that an interrupted run is repeated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", default=".venv", help="folder of the environment")
    parser.add_argument("--extras", default="torch,gpu,test,bench", help="extras of this project to install")
    parser.add_argument("--stamp", required=True, help="file to write at the end; it holds the project's folder")
    options = parser.parse_args()
    python = new_enough()
    if python is None:
        fail(
            f"Python {NEEDED[0]}.{NEEDED[1]} or later is needed, this is {sys.version.split()[0]}. Install one (for example: "
            "apt install python3.12 python3.12-venv), or name one: make setup PYTHON=/path/to/python3"
        )
    progress = Progress()
    inside = os.path.join(options.venv, "bin", "python")
    if not usable(inside, options.stamp):
        progress.run(f"making {options.venv}", [python, "-m", "venv", "--clear", options.venv])
    target = f".[{options.extras}]"
    pip = [inside, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    progress.run(f"installing {target} (the first time: about a gigabyte, a few minutes)", pip + ["-e", target])
    with open(options.stamp, "w") as file:
        file.write(os.getcwd() + "\n")
    progress.say(f"ready: {os.path.join(options.venv, 'bin')}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
