"""Small faults in a copy of the aggregator, which the checker must catch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("aggregator", "k8s", "protos")


@dataclass(frozen=True, slots=True)
class Build:
    """One fault: in `file`, `old` (which stands there once) becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    def environment(self, folder: Path) -> dict[str, str]:
        """Of `python -m aggregator`, for the broken one to run; its copy stays in `folder`.

        Raises ValueError where the fault does not fit any more.
        """
        for package in _PACKAGES:
            shutil.copytree(_ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        broken = folder / self.file
        source = broken.read_text()
        if (found := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: the text to replace stands {found} times in {self.file}, not once")
        broken.write_text(source.replace(self.old, self.new))
        return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}  # or the working folder would go before it


COMMITS_WHAT_WAS_ONLY_READ = Build(
    "commits-what-was-only-read",
    "aggregator/sources/kafka/offsets.py",
    "        self._end = offset + 1\n        return in_flight\n",
    "        self._end = offset + 1\n        self.complete(in_flight)\n        return in_flight\n",
)
DROPS_ITS_WORK_WHEN_REVOKED = Build(
    "drops-its-work-when-revoked",
    "aggregator/sources/kafka/member.py",
    "            while self._loop.time() < until_s and",
    "            for each in self.partitions.values():\n"
    "                for in_flight in tuple(each.committed_offset._in_flight):\n"
    "                    each.committed_offset.complete(in_flight)\n"
    "            while self._loop.time() < until_s and",
)
ACKNOWLEDGES_BEFORE_THE_BROKER = Build(
    "acknowledges-before-the-broker",
    "aggregator/sources/kafka/replies.py",
    "                async for delivered in self.producer.send(replies):\n",
    "                for request in live:\n"
    "                    record_of(request).committed_offset.complete(record_of(request))\n"
    "                async for delivered in self.producer.send(replies):\n"
    "                    delivered = [(position, None) for position, _ in delivered]\n",
)
