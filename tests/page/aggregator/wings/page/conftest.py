"""A whole tokenbatch under load and the page of its aggregator in Chromium; axe comes from npm."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service as Driver

from loadtest.questions import bundled_questions
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from loadtest.stack.service import Aggregator, ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from protos.generation.v1 import generation_pb2 as generation
from protos.generation.v1 import generation_pb2_grpc as generation_grpc
from tests.support.listening import MODEL_FOLDER

GENERATING = "generating"
SYNTHETIC = {
    "ENGINE__KIND": "synthetic",
    "PROFILE__ENABLED": "false",
    "SYNTHETIC__FIXED_S": "0.02",
    "SYNTHETIC__PER_TOKEN_S": "0.0001",
}
AXE = {"private": True, "dependencies": {"axe-core": "4.14.1"}}
CHROMIUM = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


class Stack:
    """Two model servers that embed, one that does both tasks, an aggregator, and callers that do not stop."""

    def __init__(self, folder: Path, kafka: KafkaBroker) -> None:
        self.kafka = kafka
        self.servers = [ModelServer(folder / f"server-{number}.log", settings=SYNTHETIC) for number in (1, 2)]
        model = folder / "model"
        shutil.copytree(MODEL_FOLDER, model)
        both = {**SYNTHETIC, "MODEL__TASK": "both", "MODEL__NAME": GENERATING, "MODEL__PATH": str(model)}
        self.mixed = ModelServer(folder / "mixed.log", settings=both)
        models = [
            {"name": self.servers[0].model, "servers": [server.address for server in self.servers]},
            {"name": GENERATING, "servers": [self.mixed.address]},
        ]
        port, self.demand_port = free_ports(2)
        self.aggregator = Aggregator(
            folder / "aggregator.log",
            kafka=kafka.bootstrap,
            model=self.servers[0].model,
            servers=[],
            settings={"MODELS": json.dumps(models), "DEMAND__BIND": f"127.0.0.1:{self.demand_port}"},
            port=port,
        )
        self._ended = threading.Event()
        self._calling = threading.Event()
        self._calling.set()
        self._callers: list[threading.Thread] = []

    @property
    def page(self) -> str:
        """The address of the page."""
        return f"http://{self.aggregator.metrics_address}/"

    def start(self) -> None:
        """Start all, and the callers."""
        for server in (*self.servers, self.mixed):
            server.launch()
        for server in (*self.servers, self.mixed):
            server.wait(60)
        self.aggregator.start()
        for call in (self._embed, self._embed, self._generate):
            caller = threading.Thread(target=self._call, args=(call,))
            caller.start()
            self._callers.append(caller)

    def pause(self) -> None:
        """Let the callers make no further calls."""
        self._calling.clear()

    def go_on(self) -> None:
        """Let them call again."""
        self._calling.set()

    def stop(self) -> None:
        """Stop the callers, and all."""
        self._ended.set()
        self.go_on()
        for caller in self._callers:
            caller.join()
        for part in (self.aggregator, *self.servers, self.mixed):
            part.stop()

    def _call(self, call: Callable[[grpc.Channel, random.Random], None]) -> None:
        chance = random.Random(7)
        with grpc.insecure_channel(self.aggregator.address) as channel:
            while not self._ended.is_set():
                self._calling.wait()
                try:
                    call(channel, chance)
                except grpc.RpcError:  # while a part is away
                    self._ended.wait(0.3)
                self._ended.wait(0.1 * chance.random())

    def _embed(self, channel: grpc.Channel, chance: random.Random) -> None:
        texts = chance.sample(bundled_questions(), chance.randint(1, 40))
        model = chance.choice(["", "", GENERATING])
        request = pb.EmbedRequest(model=model, inputs=[pb.Input(text=text) for text in texts])
        pb_grpc.EmbeddingsStub(channel).Embed(request, timeout=5)

    def _generate(self, channel: grpc.Channel, chance: random.Random) -> None:
        sampling = generation.Sampling(max_tokens=chance.randint(5, 30))
        request = generation.GenerateRequest(model=GENERATING, prompt="who wrote hamlet", sampling=sampling)
        for _ in generation_grpc.GenerationStub(channel).Generate(request, timeout=5):
            pass


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One for all tests; a test that kills a part starts it again."""
    folder = tmp_path_factory.mktemp("stack")
    with KafkaBroker(folder / "kafka") as broker:
        stack = Stack(folder, broker)
        try:
            stack.start()
            yield stack
        finally:
            stack.stop()


class Browser:
    """Chromium with one page."""

    def __init__(self, folder: Path) -> None:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (*CHROMIUM, f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options, Driver(shutil.which("chromedriver")))

    def open(self, address: str) -> None:
        """Load a page, and wait until it is live."""
        self.driver.get(address)
        self.until("return document.getElementById('connection').textContent === 'live'")

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script of the page returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, within_s: float = 30.0) -> Any:
        """Wait until a script returns something true, and return that."""
        deadline_s = time.monotonic() + within_s
        while not (found := self.run(script)):
            assert time.monotonic() < deadline_s, f"{script}: still {found!r}; the page shows {self.text()}"
            time.sleep(0.05)
        return found

    def text(self) -> str:
        """What the page shows, as text."""
        return str(self.run("return document.body.innerText"))

    def emulate(self, width: int = 1600, **features: str) -> None:
        """Set the width in pixels, and media features such as prefers-color-scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})

    def console(self) -> list[str]:
        """What the console says since the last call."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """The addresses that were asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """It at 1600 pixels, light, with an empty log."""
    chromium.emulate()
    chromium.console()
    chromium.requested()
    yield chromium
    chromium.driver.get("about:blank")


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe."""
    folder = tmp_path_factory.mktemp("axe")
    (folder / "package.json").write_text(json.dumps(AXE))
    install = ["npm", "install", "--silent", "--no-package-lock"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
