"""vLLM's own client, `vllm bench serve`: lists of arguments as JSON on stdin, what came of each on stdout.

Nothing imports it: it loads vLLM, once for several runs.
"""

from __future__ import annotations

import json
import sys

_ANSWERS = sys.stdout
sys.stdout = sys.stderr  # vLLM writes its tables and its log there

from vllm.benchmarks.serve import add_cli_args, main  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402


def _tell(what: object) -> None:
    print(json.dumps(what), file=_ANSWERS, flush=True)


if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    _tell({})
    for line in sys.stdin:
        arguments = parser.parse_args(json.loads(line))
        assert arguments is not None, "vLLM's parser makes no namespace. This is a bug."
        found = main(arguments)
        _tell({name: found[name] for name in ("completed", "request_throughput")})
