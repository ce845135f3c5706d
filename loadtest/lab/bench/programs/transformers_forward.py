"""Time Hugging Face's transformers, one query at a time: steps asked on stdin, seconds on stdout.

python -m loadtest.lab.bench.programs.transformers_forward --tokens 12

It measures transformers as `engine_forward` measures our engine. Nothing imports it: it loads torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModel

from loadtest.stack.instant_modelserver import tokenizer_folder

_FIRST_ID = 1000
_WARM_UP = 20


def main() -> None:
    """Answer until stdin ends; the first line says what computes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, required=True, help="of each query")
    tokens: int = parser.parse_args().tokens
    model: Any = AutoModel.from_pretrained(str(tokenizer_folder()), dtype=torch.float32).eval()
    _seconds(model, _WARM_UP, tokens)
    print(json.dumps({"engine": "transformers", "dtype": "float32"}), flush=True)
    for line in sys.stdin:
        print(_seconds(model, int(line), tokens), flush=True)


def _seconds(model: Any, steps: int, tokens: int) -> float:
    """How long this many queries of random ids take, each with its mean vector, of length 1."""
    queries = torch.randint(_FIRST_ID, model.config.vocab_size, (steps, 1, tokens))
    mask = torch.ones((1, tokens), dtype=torch.int64)
    began_s = time.perf_counter()
    with torch.inference_mode():
        for ids in queries:
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
            torch.nn.functional.normalize(hidden.mean(dim=1)).numpy()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
