"""Turn a GGUF file into an ordinary model folder: `python -m loadtest.texts.gguf_to_folder FILE FOLDER`.

A program of its own, which nothing imports: it loads torch and transformers, and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(file: Path, folder: Path) -> None:
    """Write weights in bfloat16, the configuration, the tokenizer and its chat template."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config: Any = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(loaded).__name__]
    # Made again, the model knows nothing of the file that it came from, which vLLM would look for.
    model: Any = type(loaded)(config)
    model.load_state_dict({name: value.clone() for name, value in loaded.state_dict().items()})
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
