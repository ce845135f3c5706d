"""Drive the one-node cluster of lab/: build it, start it, give it images, stop it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

from tests.chart.rendering import ROOT, kubectl

SCRIPTS = Path(__file__).parent / "lab"
HOME = ROOT / ".run/kube"
NODE_IP = "10.0.0.1"
BASE = "localhost/python:3.13"
_CLONE_NEWNET = 0x40000000
_SAYS = "==> "

Progress = Callable[[str], None]
"""Hears what is being done now, for a person who waits."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image's bytes unpacked, its user, and whether PyTorch is in it."""

    size_bytes: int
    user: str
    has_torch: bool


class OneNodeCluster:
    """A Kubernetes cluster in namespaces of its own; everything of it is under .run/kube."""

    def __init__(self, on_progress: Progress, *, on_disk: bool = False) -> None:
        self._progress = on_progress
        self._environment = {"LAB_DISK": "1"} if on_disk else {}

    def build(self) -> None:
        """Make what a cluster is started from; minutes the first time, seconds after."""
        (HOME / "bin").mkdir(parents=True, exist_ok=True)
        link = HOME / "bin/kubectl"
        link.unlink(missing_ok=True)
        link.symlink_to(kubectl())
        self._script("build.sh", doing="build the cluster's binary (7 minutes the first time)")
        self._script("base.sh", doing="make the base image from Debian's packages")

    def build_keda(self) -> None:
        """Make KEDA's image and its manifests from its Go module; minutes the first time."""
        self._script("keda/build.sh", doing="build KEDA (5 minutes the first time)")

    def image(self, name: str, dockerfile: Path, context: Path, *options: str) -> None:
        """Build a Dockerfile as localhost/`name`; layers that are there already are taken."""
        given = ("--build-arg", f"BASE_IMAGE={BASE}", "--file", str(dockerfile), *options)
        self._script("image.sh", name, str(context), *given, doing=f"build the image {name}")

    def up(self) -> None:
        """Start the cluster and join its network: what this thread starts from now on is on the node."""
        self._script("up.sh", doing="start the cluster")
        self._own_network = os.open("/proc/self/ns/net", os.O_RDONLY)
        join_network(Path(f"/proc/{self._pid()}/ns/net"))
        os.environ["KUBECONFIG"] = str(HOME / "state/pki/admin.conf")

    def load(self, *names: str) -> None:
        self._script("load.sh", *names, doing=f"load {', '.join(names)}")

    def down(self) -> None:
        """End the cluster and all that runs in it, and leave its network."""
        if hasattr(self, "_own_network"):
            _setns(self._own_network)
            os.close(self._own_network)
            del self._own_network
        self._script("down.sh", doing="stop the cluster")

    def signal(self, component: str, signal: str) -> None:
        """Send a signal such as STOP to one of the cluster's own processes, such as kube-apiserver."""
        self.inside("pkill", f"-{signal}", "-f", f"^kube {component}")

    def inside(self, *command: str) -> str:
        """Run a command in all of the cluster's namespaces; what it printed."""
        return self._run([str(SCRIPTS / "lab"), *command])

    def describe(self, name: str) -> ImageFacts:
        """What a built image is like."""
        size, user, torches = self._run([str(SCRIPTS / "describe.sh"), name]).splitlines()
        return ImageFacts(int(size), user, int(torches) > 0)

    def try_out(self, name: str, *command: str) -> str:
        """Run a command in a built image as a pod would, on a read-only root and without a network; what it printed."""
        return self._run([str(SCRIPTS / "try.sh"), name, *command])

    def bill_of_materials(self, name: str) -> dict[str, Any]:
        """What a built image holds, package by package, in CycloneDX; the file stays in .run/kube."""
        file = HOME / f"{name.rpartition('/')[2].replace(':', '-')}.cdx.json"
        self._script("sbom.sh", name, str(file), doing=f"list what is in {name}")
        listed: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return listed

    def _pid(self) -> int:
        outer = int((HOME / "state/pid").read_text())
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])

    def _script(self, name: str, *arguments: str, doing: str) -> None:
        """Run a script of lab/; what it says behind ==> is told at once."""
        self._progress(doing)
        began_s = time.monotonic()
        said: deque[str] = deque(maxlen=60)
        command = [str(SCRIPTS / name), *arguments]
        with subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, text=True, env=self._environ()) as script:
            for line in script.stdout or ():
                said.append(line)
                if line.startswith(_SAYS):
                    self._progress(f"{doing}: {line.removeprefix(_SAYS).strip()}")
        assert script.returncode == 0, f"{' '.join(command)}: {''.join(said)}"
        self._progress(f"{doing}: {time.monotonic() - began_s:.0f} s")

    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self._environment}

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=self._environ())
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


def join_network(namespace: Path) -> None:
    """Let the calling thread, and all that it starts, be in that network namespace."""
    opened = os.open(namespace, os.O_RDONLY)
    try:
        _setns(opened)
    finally:
        os.close(opened)


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot join the cluster's network namespace")
