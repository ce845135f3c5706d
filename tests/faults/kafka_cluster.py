"""Several Kafka brokers on this machine.

with KafkaCluster(Path("kafka"), brokers=3) as cluster:
cluster.bootstrap
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from loadtest.stack.kafka import QUICK_START, KafkaBroker


class KafkaCluster:
    """Several brokers on this machine, each with its own folder under `folder`; they start together."""

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = QUICK_START,
    ) -> None:
        ids = range(1, brokers + 1)
        self.brokers = tuple(
            KafkaBroker(folder / str(each), node_id=each, settings=settings, jvm_options=jvm_options) for each in ids
        )
        cluster_id = secrets.token_hex(11)
        for broker in self.brokers:
            broker.join([each.seat for each in self.brokers], cluster_id)

    @property
    def bootstrap(self) -> str:
        """host:port of every broker, for clients."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self, timeout_s: float = 180.0) -> None:
        """Start all, and return once each serves clients. Raises StackError, with none left running."""
        try:
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait(timeout_s)
        except BaseException:
            self.kill()
            raise

    def stop(self, grace_s: float = 30.0) -> None:
        """Shut all down at once: one by one, the last would wait for a quorum that is gone."""
        for broker in self.brokers:
            broker.terminate()
        for broker in self.brokers:
            broker.stop(grace_s)

    def kill(self) -> None:
        """End all that run, as a crash would."""
        for broker in self.brokers:
            broker.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
