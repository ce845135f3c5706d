"""Run both engines on folders that sentence-transformers saved, and write how far their vectors are from its own.

Started by `test_engines.py`: `python -m tests.integration.modelserver.run_modules FOLDER`. One process, for
`run_engines` too, since importing vLLM takes longer than everything done here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=True)

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import numpy.typing as npt  # noqa: E402
import torch  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import Dense, Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from modelserver import model_files  # noqa: E402
from modelserver.engines import choice  # noqa: E402
from modelserver.engines.engine import Engine, Spans, Task  # noqa: E402
from modelserver.errors import CannotStart  # noqa: E402
from modelserver.model_files import TOKENIZER_FILE  # noqa: E402
from modelserver.registry import ENGINE_WINGS  # noqa: E402
from modelserver.settings import EngineSettings, ModelServerSettings  # noqa: E402
from tests.integration.modelserver import run_engines, tiny_models  # noqa: E402
from tests.integration.modelserver.model_families import DISTILBERT, ENCODER, QWEN3, SIZE  # noqa: E402
from tests.integration.modelserver.run_engines import CACHE_BLOCKS, STEP_TOKENS, alternatives, embed  # noqa: E402
from tests.integration.modelserver.several_engines import several_engines  # noqa: E402

WORDS = 30522
TEXTS = ("a", "hello world", "", "the quick brown fox jumps over the lazy dog, " * 5, "find these: zebras", "zebra")
PROMPTS = {"query": "find this: ", "document": ""}
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Saved:
    """A folder of sentence-transformers: the model, and what follows it; `old`: rewritten to its layout before 5.0."""

    model: str
    modules: Callable[[], list[torch.nn.Module]]
    old: bool = False


def norm(size: int) -> LayerNorm:
    """With weights of its own."""
    layer = LayerNorm(size)
    torch.nn.init.normal_(layer.norm.weight)
    torch.nn.init.normal_(layer.norm.bias)
    return layer


def pool(*modes: Any, include_prompt: bool = True) -> Pooling:
    return Pooling(SIZE, modes, include_prompt=include_prompt)


EVERY = ("mean", "lasttoken", "max", "cls", "weightedmean", "mean_sqrt_len_tokens")
OLD_KEYS = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
    "lasttoken": "lasttoken",
}
"""In the order in which that layout joins them."""
DOCUMENT = "the quick brown fox jumps over the lazy dog. a zebra does not, and why should it? nobody asked."
CHUNK = 8
SPANS = ((0, 1), (1, 9), (11, 20), (20, 22))
MEANS = ("mean", "mean-without-prompt", "mean-decoder", "norm", "norm-old", "residual")
SAVED: Mapping[str, Saved] = {
    "mean": Saved("bert", lambda: [pool("mean"), Normalize()]),
    "mean-without-prompt": Saved("bert", lambda: [pool("mean", include_prompt=False)]),
    "mean-decoder": Saved("qwen3", lambda: [pool("mean")]),
    "max": Saved("bert", lambda: [pool("max")]),
    "max-old": Saved("bert", lambda: [pool("max"), Normalize()], old=True),
    "weightedmean": Saved("bert", lambda: [pool("weightedmean"), Normalize()]),
    "mean-sqrt": Saved("bert", lambda: [pool("mean_sqrt_len_tokens")]),
    "mean-cls": Saved("bert", lambda: [pool("mean", "cls")]),
    "mean-cls-dense": Saved("bert", lambda: [pool("mean", "cls"), Dense(2 * SIZE, 48), Normalize()]),
    "every-old": Saved("bert", lambda: [pool(*OLD_KEYS), Normalize()], old=True),
    "without-prompt": Saved("bert", lambda: [pool(*EVERY, include_prompt=False), Normalize()]),
    "without-prompt-cls": Saved("bert", lambda: [pool("cls", include_prompt=False)], old=True),
    "norm": Saved("bert", lambda: [pool("mean"), norm(SIZE)]),
    "norm-old": Saved("bert", lambda: [pool("mean"), norm(SIZE), Normalize()], old=True),
    "dense-tanh-old": Saved("bert", lambda: [pool("cls"), Dense(SIZE, 64)], old=True),
    "dense-gelu": Saved("bert", lambda: [pool("cls"), Dense(SIZE, 64, activation_function=torch.nn.GELU())]),
    "residual": Saved("bert", lambda: [pool("mean"), Dense(SIZE, 64, use_residual=True), Dense(64, 64, bias=False)]),
    "between": Saved("bert", lambda: [pool("cls"), Normalize(), Dropout(0.5), Dense(SIZE, 48), norm(48)]),
    "padded": Saved("distilbert", lambda: [pool("max", "mean", include_prompt=False), Normalize()]),
    "decoder": Saved("qwen3", lambda: [pool("weightedmean"), Dense(SIZE, 32), Normalize()]),
}


def bare(folder: Path) -> None:
    """Write the models, with MiniLM's tokenizer."""
    made = {
        "bert": BertModel(BertConfig(**{**ENCODER, "vocab_size": WORDS})),
        "distilbert": DistilBertModel(DistilBertConfig(**{**DISTILBERT, "vocab_size": WORDS})),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**{**QWEN3, "vocab_size": WORDS})),
    }
    for name, model in made.items():
        tiny_models.randomized(model).save_pretrained(folder / name)
        for file in (TOKENIZER_FILE, "tokenizer_config.json"):
            shutil.copy(model_files.locate("", "") / file, folder / name / file)


def saved(name: str, folder: Path) -> Vectors:
    """Save it; the vectors that sentence-transformers computes when it is loaded: of queries, then of documents."""
    wanted, path = SAVED[name], folder / "saved" / name
    modules = [Transformer(str(folder / wanted.model)), *wanted.modules()]
    SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu").save(str(path))
    if wanted.old:
        to_old_layout(path)
    loaded = SentenceTransformer(str(path), device="cpu")
    return np.concatenate([loaded.encode_query(list(TEXTS)), loaded.encode_document(list(TEXTS))])


def document(folder: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """Its tokens, special ones included, and all of them in fixed chunks, as vLLM's late chunking has them."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(DOCUMENT).ids
    return ids, [(start, min(start + CHUNK, len(ids))) for start in range(0, len(ids), CHUNK)]


def in_spans(name: str, folder: Path) -> Vectors:
    """The states that transformers computes of a document, averaged over spans; then what follows the pooling."""
    loaded = SentenceTransformer(str(folder / "saved" / name), device="cpu")
    ids, fixed = document(folder / "saved" / name)
    model = AutoModel.from_pretrained(folder / SAVED[name].model).eval()
    with torch.no_grad():
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        means = torch.stack([states[start:end].mean(0) for start, end in (*SPANS, *fixed)])
        for module in list(loaded)[2:]:
            means = module({"sentence_embedding": means})["sentence_embedding"]
    vectors: Vectors = means.numpy()
    return vectors


def to_old_layout(folder: Path) -> None:
    """As sentence-transformers wrote it before 5.0."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.models.{kind}"
        file = folder / module["path"] / "config.json"
        if kind == "Pooling":
            file.write_text(json.dumps(_old_pooling(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")
        elif kind == "Normalize":
            file.unlink()
        elif kind == "Dense":
            config = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps({k: v for k, v in config.items() if not k.startswith("module_")}))
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 128, "do_lower_case": false}')
    last = folder / modules[-1]["path"] / "model.safetensors"
    if last.is_file():  # weights were pickled
        from safetensors.torch import load_file  # noqa: PLC0415 - of this layout alone

        torch.save(load_file(last), last.with_name("pytorch_model.bin"))
        last.unlink()


def _old_pooling(config: dict[str, Any]) -> dict[str, Any]:
    modes = config["pooling_mode"] if isinstance(config["pooling_mode"], list) else [config["pooling_mode"]]
    flags = {f"pooling_mode_{key}": mode in modes for mode, key in OLD_KEYS.items()}
    return {"word_embedding_dimension": SIZE, **flags, "include_prompt": config["include_prompt"]}


def settings() -> ModelServerSettings:
    options = {"num_gpu_blocks_override": CACHE_BLOCKS}
    return ModelServerSettings(
        engine=EngineSettings(kind="core", dtype="float32", step_tokens=STEP_TOKENS, vllm_options=options)
    )


def apart(folder: Path, expected: Vectors, of_spans: Vectors | None) -> dict[str, Any]:
    """How far each engine is from the expected vectors; an alternative is left out where it does not agree."""
    files = model_files.read(folder, "")
    tokenizer = Tokenizer.from_buffer(files.tokenizer[TOKENIZER_FILE])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    prompted = [prompt + text for prompt in (files.query_prompt, files.document_prompt) for text in TEXTS]
    queries = [each.ids for each in tokenizer.encode_batch(prompted)]
    core = choice.build(settings(), files, Task.EMBED, ENGINE_WINGS).engine
    engines: dict[str, Engine] = {"core": core, **alternatives(core)}  # type: ignore[arg-type]  # it is a CoreEngine
    found = {name: _finished(embed(engine, queries), normalizes=files.normalizes) for name, engine in engines.items()}
    said = {"dimensions": core.facts.dimensions, "expected_dimensions": expected.shape[1]}
    if core.facts.pools_spans:
        assert of_spans is not None, folder
        said["spans"] = {
            name: _spans_apart(engine, folder, of_spans, files.normalizes) for name, engine in engines.items()
        }
    core.close()
    return said | {name: float(np.abs(vectors - expected).max()) for name, vectors in found.items()}


def _spans_apart(engine: Engine, folder: Path, expected: Vectors, normalizes: bool) -> float:
    """How far the vectors of spans are from the expected ones, in a step with the same document as a whole."""
    ids, fixed = document(folder)
    counts = np.array([0, len(SPANS), 0, len(fixed)], np.int32)
    spans = Spans(counts, np.array([*SPANS, *fixed], np.int32))
    found = engine.prepare(np.array(4 * ids, np.int32), np.full(4, len(ids), np.int32), None, spans).execute()
    rows = np.delete(found, [0, 1 + len(SPANS)], axis=0)
    return float(np.abs(_finished(rows, normalizes=normalizes) - expected).max())


def _finished(vectors: Vectors, *, normalizes: bool) -> Vectors:
    """As the aggregator finishes them."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalizes else vectors


def refused(folder: Path) -> Iterator[dict[str, Any]]:
    """What is said to folders that are not computed, when they are checked and when they are loaded."""
    for name, path, change in (
        ("mean-cls", "1_Pooling/config.json", {"pooling_mode": "median"}),
        ("dense-gelu", "2_Dense/config.json", {"activation_function": "mine.Gelu"}),
        ("dense-gelu", "2_Dense/config.json", {"bias": False}),
        ("norm", "config_sentence_transformers.json", {"truncate_dim": 16}),
    ):
        copied = shutil.copytree(folder / "saved" / name, folder / "refused", dirs_exist_ok=True)
        content = json.loads((copied / path).read_text(encoding="utf-8"))
        (copied / path).write_text(json.dumps({**content, **change}), encoding="utf-8")
        said: list[str] = []
        for job in (run_engines.check, run_engines.build):
            try:
                job(settings(), model_files.read(copied, ""))
            except CannotStart as error:
                said.append(str(error))
        yield {"refused": [*change], "said": said}
        shutil.rmtree(copied)


def main(folder: Path) -> None:
    """Save all, before one is served: vLLM changes classes of transformers. Then run them, a line each."""
    torch.manual_seed(0)
    bare(folder)
    expected = {name: saved(name, folder) for name in SAVED}
    spans = {name: in_spans(name, folder) for name in MEANS}
    with several_engines():
        run_engines.run(folder)
        with (folder / "modules.jsonl").open("w", encoding="utf-8") as file:
            for name in SAVED:
                found = apart(folder / "saved" / name, expected[name], spans.get(name))
                file.write(json.dumps({"name": name, **found}) + "\n")
            file.writelines(json.dumps(each) + "\n" for each in refused(folder))
    run_engines.write(folder, "freed", run_engines.freed())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
