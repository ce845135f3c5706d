"""Score pairs with small classifiers on both engines, beside sentence-transformers.

`run_families` runs it in its process.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=True)

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import torch  # noqa: E402
import transformers  # noqa: E402
from sentence_transformers import CrossEncoder  # noqa: E402
from tokenizers import Tokenizer, processors  # noqa: E402
from torch import nn  # noqa: E402

from modelserver import model_files  # noqa: E402
from modelserver.engines import choice  # noqa: E402
from modelserver.engines.engine import Engine, IdArray  # noqa: E402
from modelserver.modes import tasks_of  # noqa: E402
from modelserver.registry import ENGINE_WINGS, MODES  # noqa: E402
from modelserver.settings import EngineSettings, ModelServerSettings, ModelSettings  # noqa: E402
from tests.integration.modelserver import tiny_models  # noqa: E402

LONGEST = 64
INSTRUCTED = (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n"
    "<Document>: {document}"
)
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""As the model card of Qwen3-Reranker has them."""
WORDS = 30_522
QUERY = "how many people live in Berlin"
DOCUMENTS = (
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "yes",
    "New York City is famous for the Metropolitan Museum of Art.",
    "people " * 100,
    "",
)
ENCODER: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": LONGEST,
}
ROBERTA: Mapping[str, Any] = {
    **ENCODER,
    "pad_token_id": 0,
    "bos_token_id": 101,
    "eos_token_id": 102,
    "max_position_embeddings": LONGEST + 1,
    "type_vocab_size": 1,
}
DEBERTA: Mapping[str, Any] = {
    **ENCODER,
    "type_vocab_size": 0,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
}
DISTILBERT: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "dim": 64,
    "hidden_dim": 128,
    "n_layers": 2,
    "n_heads": 2,
    "max_position_embeddings": LONGEST,
}
DECODER: Mapping[str, Any] = {**ENCODER, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256}
MODERNBERT: Mapping[str, Any] = {
    **ENCODER,
    "num_hidden_layers": 4,
    "local_attention": 16,
    "pad_token_id": 0,
    "bos_token_id": 101,
    "eos_token_id": 102,
    "cls_token_id": 101,
    "sep_token_id": 102,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A class of transformers, its configuration, and entries that its config.json gets beside it.

    `joins`: the tokenizer joins a pair as RoBERTa's does, without types. `newest`: the installed sentence-transformers
    saves it. `activation`: that of transformers, where sentence-transformers knows nothing of the files.
    """

    architecture: str
    config: Mapping[str, Any]
    labels: int = 1
    published: Mapping[str, Any] = field(default_factory=dict[str, Any])
    joins: bool = False
    newest: bool = False
    activation: Any = None
    task: str = "auto"

    def save(self, folder: Path) -> None:
        torch.manual_seed(0)
        kind = getattr(transformers, self.architecture)
        shutil.rmtree(folder, ignore_errors=True)
        model = tiny_models.randomized(kind(kind.config_class(**self.config, num_labels=self.labels)))
        if not self.architecture.startswith("ModernBert"):  # whose scores are far apart as they are
            with torch.no_grad():
                for name, weights in model.named_parameters():
                    if name in ("classifier.weight", "classifier.out_proj.weight", "score.weight"):
                        weights.mul_(_SPREAD)
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(model_files.locate("", "") / name, folder / name)
        if self.joins:
            _join_without_types(folder, self.config["max_position_embeddings"] // LONGEST * LONGEST)
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **self.published}))
        if self.newest:
            CrossEncoder(str(folder), device="cpu").save(str(folder))


def _join_without_types(folder: Path, longest: int) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 102), ("[CLS]", 101), trim_offsets=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    entries = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "CLS", "SEP", "UNK", "MASK")}
    (folder / "tokenizer_config.json").write_text(json.dumps({**entries, **special, "model_max_length": longest}))


_SPREAD = 10.0
_SAVED = "torch.nn.modules."
SHAPES: Mapping[str, Shape] = {
    "bert": Shape("BertForSequenceClassification", ENCODER),
    "bert-newest": Shape("BertForSequenceClassification", ENCODER, newest=True),
    "bert-logits": Shape(
        "BertForSequenceClassification",
        ENCODER,
        published={"sbert_ce_default_activation_function": f"{_SAVED}linear.Identity"},
    ),
    "bert-nli": Shape(
        "BertForSequenceClassification",
        ENCODER,
        labels=3,
        published={"sentence_transformers": {"activation_fn": f"{_SAVED}linear.Identity", "version": "4.1.0"}},
    ),
    "bert-topics": Shape(
        "BertForSequenceClassification",
        ENCODER,
        labels=4,
        published={"problem_type": "multi_label_classification"},
        activation=nn.Sigmoid(),
    ),
    "xlm-roberta": Shape("XLMRobertaForSequenceClassification", ROBERTA, joins=True),
    "roberta-newest": Shape("RobertaForSequenceClassification", ROBERTA, joins=True, newest=True),
    "modernbert": Shape("ModernBertForSequenceClassification", MODERNBERT, joins=True),
    "modernbert-mean": Shape(
        "ModernBertForSequenceClassification", {**MODERNBERT, "classifier_pooling": "mean"}, joins=True, newest=True
    ),
    "gte": Shape("GteForSequenceClassification", {**ENCODER, "type_vocab_size": 1}, joins=True, newest=True),
    "electra": Shape("ElectraForSequenceClassification", {**ENCODER, "embedding_size": 64}, newest=True),
    "deberta": Shape("DebertaV2ForSequenceClassification", DEBERTA, labels=3, joins=True, activation=nn.Softmax(1)),
    "distilbert": Shape("DistilBertForSequenceClassification", DISTILBERT, labels=2, joins=True, newest=True),
    "qwen3-classifier": Shape("Qwen3ForSequenceClassification", {**DECODER, "pad_token_id": 0}, joins=True),
    "qwen3-answers": Shape("Qwen3ForCausalLM", DECODER, joins=True, newest=True),
    "qwen3-reranker": Shape("Qwen3ForCausalLM", DECODER, joins=True, task="rank"),
}


def expected(shape: Shape, folder: Path) -> list[list[float]]:
    """By sentence-transformers; Qwen3-Reranker's as its model card computes them."""
    if not shape.newest and shape.architecture.endswith("ForCausalLM"):
        return [[_of_answers(folder, document)] for document in DOCUMENTS]
    pairs = [(QUERY, document) for document in DOCUMENTS]
    found = CrossEncoder(str(folder), device="cpu").predict(pairs, activation_fn=shape.activation)
    return np.asarray(found, np.float64).reshape(len(DOCUMENTS), -1).tolist()


def _of_answers(folder: Path, document: str) -> float:
    """The probability of *yes* beside *no* behind the published prefix, the pair and the published suffix."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = _tokenizer(folder)
    parts = (PREFIX, INSTRUCTED.format(query=QUERY, document=document), SUFFIX)
    ids = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False).ids]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    no, yes = (tokenizer.token_to_id(word) for word in ("no", "yes"))
    return float(torch.softmax(logits[[no, yes]], 0)[1])


def _tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokens(folder: Path, engine: Engine) -> tuple[IdArray, IdArray, IdArray | None]:
    """The pairs as an aggregator makes them of what is described: the document is truncated, never the query."""
    scoring, longest = engine.facts.scoring, engine.facts.max_input_tokens
    assert scoring is not None
    tokenizer = _tokenizer(folder)
    if scoring.template:
        texts = [scoring.template.format(query=QUERY, document=each) for each in DOCUMENTS]
        encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    else:
        tokenizer.enable_truncation(longest, strategy="only_second")
        encoded = [tokenizer.encode(QUERY, each) for each in DOCUMENTS]
    second = [each.type_ids.index(1) if 1 in each.type_ids else len(each.ids) for each in encoded]
    ids = np.array([token for each in encoded for token in each.ids], np.int32)
    lengths = np.array([len(each.ids) for each in encoded], np.int32)
    return ids, lengths, np.array(second, np.int32) if scoring.token_types else None


def scored(shape: Shape, folder: Path) -> dict[str, Any]:
    """What each engine gives for the pairs, by the way that a model server takes."""
    settings = ModelServerSettings(
        model=ModelSettings(path=str(folder), task=shape.task),  # type: ignore[arg-type]
        engine=EngineSettings(dtype="float32", step_tokens=1024, vllm_options={"num_gpu_blocks_override": 256}),
    )
    files = model_files.read(folder, "")
    (task,) = tasks_of(settings, files, MODES, ENGINE_WINGS.scoring_of)
    chosen = choice.build(settings, files, task, ENGINE_WINGS)
    found: dict[str, Any] = {"engine": chosen.engine.facts.kind, "fallback": chosen.fallback}
    facts = chosen.engine.facts
    found |= {"tasks": sorted(facts.tasks), "token_types": facts.token_types, "longest": facts.max_input_tokens}
    found["scores"] = chosen.engine.prepare(*tokens(folder, chosen.engine)).execute().tolist()
    chosen.engine.close()
    return found


def all_expected(folder: Path) -> dict[str, list[list[float]]]:
    """Write all; what sentence-transformers makes of each."""
    wanted: dict[str, list[list[float]]] = {}
    for name, shape in SHAPES.items():
        shape.save(folder / name)
        wanted[name] = expected(shape, folder / name)
    return wanted


def results(folder: Path, wanted: Mapping[str, list[list[float]]]) -> Iterator[dict[str, Any]]:
    """Of one after the other."""
    for name, shape in SHAPES.items():
        try:
            found = scored(shape, folder / name)
        except Exception as error:  # noqa: BLE001 - it is the result
            found = {"error": f"{type(error).__name__}: {error}"}
        yield {"shape": name, "expected": wanted[name], **found}
