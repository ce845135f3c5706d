"""Quantize the bundled MiniLM for vLLM: `python -m loadtest.texts.minilm_int8 FOLDER`.

W8A8 in the compressed-tensors format: static int8 weights per channel, dynamic int8 activations per token. The module
imports torch, so benchmarks run it as a subprocess.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from loadtest.stack.instant_modelserver import tokenizer_folder

_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
_LARGEST = 127
_QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["pooler.dense"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
        }
    },
}


def quantize(folder: Path) -> None:
    """Write the model with the matrices of its layers in int8; embeddings, biases and norms stay as they are."""
    shutil.copytree(tokenizer_folder(), folder)
    written: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        written[name] = weight.contiguous()
        if name.startswith("encoder.layer.") and weight.ndim > 1:
            scale = weight.float().abs().amax(1, keepdim=True) / _LARGEST
            written[name] = torch.round(weight.float() / scale).to(torch.int8)
            written[f"{name}_scale"] = scale
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**config, "quantization_config": _QUANTIZATION})
    (folder / "config.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    quantize(Path(sys.argv[1]))
