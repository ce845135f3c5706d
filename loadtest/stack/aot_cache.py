"""Keep Kafka's classes as a JVM has loaded and linked them, once: brokers then start with half of the computing.

`.ci/install --dev` makes it (`python -m loadtest.stack.aot_cache`), as tests start brokers by the dozen. A JVM ignores
one of other jars.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from loadtest.stack.jars import DEFAULT_CACHE, linked_classes
from loadtest.stack.kafka import QUICK_START, KafkaBroker

_STOP_S = 120.0


def main() -> None:
    """Start a broker that writes it when it ends."""
    file = linked_classes(DEFAULT_CACHE)
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        broker = KafkaBroker(Path(folder), jvm_options=(*QUICK_START, f"-XX:AOTCacheOutput={made}"))
        broker.start()
        broker.stop(_STOP_S)
        if made.exists():
            made.rename(file)


if __name__ == "__main__":
    main()
