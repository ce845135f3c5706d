"""Call all addresses of a name in turn, until standard input ends; what came of it as JSON.

A process of its own, started on the node: gRPC asks the name server of /etc/resolv.conf, which must be the cluster's.
With the cluster's in the target (dns://10.0.0.1/NAME) gRPC 1.85.1 found no address here, for a reason not found.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from tests.cluster.traffic import Calls


async def main(target: str, per_s: float, *, retries: bool) -> None:
    calls = Calls(target, balanced=True, retries=retries)
    calling = asyncio.create_task(calls.run(per_s), name="calls")
    await asyncio.to_thread(sys.stdin.read)
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling
    sys.stdout.write(json.dumps({"answered": len(calls.answered), "errors": calls.errors}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), retries=sys.argv[3:] != ["--no-retries"]))
