"""The wishes of a model's config.json: its class, how it scores texts and pairs, and sizes for CUDA graphs.

Every key that changes a score is known, or refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from modelserver.engines.engine import Activation, Matrix, Scoring, Task
from modelserver.engines.pooling import check_transformer, read_config, read_listed
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles, read_json
from modelserver.tokenizer_check import joins_with_token_types, tokens_of

OWN_CLASSES: Mapping[str, str] = {
    "PaddedEncoder": "modelserver.engines.padded:PaddedEncoder",
    "PaddedForSequenceClassification": "modelserver.engines.padded:PaddedForSequenceClassification",
    "HeadlessBert": "modelserver.engines.padded:HeadlessBert",
}
"""Registered with vLLM, by architecture."""
_SERVED_AS: Mapping[str, str] = {
    # vLLM has neither a class nor a backend for the attention of these: they run as they are in transformers.
    **dict.fromkeys(("MPNetModel", "MPNetForMaskedLM", "DistilBertModel", "DistilBertForMaskedLM"), "PaddedEncoder"),
    **dict.fromkeys(("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"), "PaddedEncoder"),
    # vLLM takes these for models that do not embed.
    **dict.fromkeys(("BertForMaskedLM", "BertForPreTraining"), "HeadlessBert"),
}
_PADDED_CLASSIFIERS = frozenset(
    f"{name}ForSequenceClassification"
    for name in ("Albert", "Camembert", "Deberta", "DebertaV2", "DistilBert", "Electra", "Gte", "MPNet", "NomicBert")
)
"""Classifiers that vLLM has no class for."""
_CODE_SERVED_AS: Mapping[str, str] = {"Qwen3BidirectionalModel": "VoyageQwen3BidirectionalEmbedModel"}
"""vLLM's class, by the class in code that was published with a model: its config.json names another architecture."""
_OTHER_FILES = frozenset({"GteModel", "NomicBertModel"})
"""vLLM's classes of these names read files of the code that was published with the models, not transformers' own."""
_ROBERTA = frozenset({"roberta", "xlm-roberta", "camembert"})
_SMALLEST, _LARGEST = 8, 4096
"""Tokens. Above the largest, a GPU computes longer than its kernels take to launch (estimated: `make bench-gpu`)."""
_ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": Activation.IDENTITY,
    "Sigmoid": Activation.SIGMOID,
    "Softmax": Activation.SOFTMAX,
}
"""The activations by their names in torch.nn, as sentence-transformers has them."""
_PROBLEMS: Mapping[Any, Activation] = {
    None: Activation.SOFTMAX,
    "single_label_classification": Activation.SOFTMAX,
    "multi_label_classification": Activation.SIGMOID,
    "regression": Activation.IDENTITY,
}
"""transformers' `problem_type` of a model with several labels."""
_DEFAULT_LABELS = 2
"""The labels that transformers assumes where a config.json names none."""
_QWEN3_RERANKER = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
"""The template published with Qwen3-Reranker, whose files do not hold it."""


def runs_eagerly(overrides: Mapping[str, Any]) -> bool:
    """Whether these overrides choose a class that vLLM cannot compile."""
    return overrides.get("architectures") in (["PaddedEncoder"], ["PaddedForSequenceClassification"])


def known_type(config: Mapping[str, Any]) -> str | None:
    """The model type of transformers whose entries a config.json has, if it names a type of published code."""
    if config.get("model_type") != "jina_embeddings_v5":
        return None
    return "qwen3" if config.get("is_decoder", True) else "eurobert"


def refusal(config: Mapping[str, Any]) -> str | None:
    """Why a model cannot be served without the code that was published with it, where vLLM's own error does not say."""
    if "lora_adaptations" not in config:
        return None
    return (
        "it chooses its adapters by code that was published with it: serve jinaai/jina-embeddings-v3-hf instead, the"
        " same model without adapters, as transformers reads it"
    )


def hf_overrides(config: Mapping[str, Any], scoring: Scoring | None = None) -> dict[str, Any]:
    """Entries of a model's config.json to replace for vLLM when the model embeds or scores."""
    architecture = next(iter(config.get("architectures") or ()), "")
    if scoring is not None and scoring.answers:
        return {
            "architectures": [architecture.replace("ForCausalLM", "ForSequenceClassification")],
            "classifier_from_token": list(scoring.answers),
            "method": "from_2_way_softmax",
            "num_labels": 1,
        }
    code = str((config.get("auto_map") or {}).get("AutoModel", "")).rpartition(".")[2]
    replaced: dict[str, Any] = {}
    native = "auto_map" not in config and "activation_function" not in config
    if architecture in _OTHER_FILES and native:
        replaced["architectures"] = ["PaddedEncoder"]
    elif code in _CODE_SERVED_AS:
        replaced["architectures"] = [_CODE_SERVED_AS[code]]
    elif architecture in _PADDED_CLASSIFIERS and "auto_map" not in config:
        replaced["architectures"] = ["PaddedForSequenceClassification"]
    elif architecture in _SERVED_AS and "auto_map" not in config:
        replaced["architectures"] = [_SERVED_AS[architecture]]
    if config.get("model_type") in _ROBERTA and "position_embedding_type" not in config:
        replaced["position_embedding_type"] = "absolute"  # vLLM reads it; transformers 5 no longer writes it
    return replaced


def capture_sizes(step_tokens: int, smallest: int = _SMALLEST, largest: int = _LARGEST) -> tuple[int, ...]:
    """Powers of two and their midpoints, which are also the totals of the profile, up to a step's capacity.

    A smaller step is padded to the next of them. vLLM's default, 51 sizes up to 512, leaves larger steps without.
    """
    most = min(step_tokens, largest)
    sizes = {size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power // 2)}
    return tuple(sorted({size for size in sizes if smallest <= size < most} | {most}))


def read_scoring(files: ModelFiles) -> Scoring:
    """How the model in these files scores. Raises CannotStart for a score that is not computed here."""
    config = read_json(files.path / "config.json")
    _check_modules(files)
    if files.is_causal:
        return _of_answers(files, config)
    labels, activation = _labels(config), _named_activation(files, config)
    if len(labels) > 1:
        activation = activation or _of_problem(files, config)
    elif activation is Activation.SOFTMAX:
        raise CannotStart(f"{files.path} has the activation Softmax and one label, whose score would always be 1")
    token_types = _token_types(files, config)
    return Scoring(labels, activation or Activation.SIGMOID, token_types=token_types)


def synthetic_scoring(files: ModelFiles, task: Task) -> Scoring:
    """How the synthetic engine scores for a task, whatever the model: with its labels if it has several."""
    config = read_json(files.path / "config.json")
    labels = ("",) if task is Task.RANK else _labels(config)
    if task is Task.CLASSIFY and len(labels) == 1:
        labels = _labels({})
    return Scoring(labels, Activation.SIGMOID, token_types=_token_types(files, config))


def activated(logits: Matrix, activation: Activation) -> Matrix:
    """Scores float32 [queries, labels] of logits of the same shape."""
    if activation is Activation.IDENTITY:
        return logits
    if activation is Activation.SIGMOID:
        return np.asarray(np.exp(-np.logaddexp(np.float32(0.0), -logits)), np.float32)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def _of_answers(files: ModelFiles, config: Mapping[str, Any]) -> Scoring:
    """A decoder that is asked whether a document answers a query: by the logits of *yes* and *no* after the pair."""
    if config.get("model_type") != "qwen3":
        raise CannotStart(
            f"{files.path} is a {config.get('model_type')} without a classifier: of decoders that answer yes or no,"
            " only Qwen3-Reranker's template for a query and a document is known"
        )
    activation = _named_activation(files, config) or Activation.SIGMOID
    listed = read_listed(files.path)
    if listed is None:
        return Scoring(("",), activation, template=_QWEN3_RERANKER, answers=tokens_of(files, ("no", "yes")))
    folder = files.path / str(listed[1].get("path", ""))
    module = read_config(folder, ("true_token_id", "false_token_id", "module_input_name"))
    if module.get("false_token_id") is None or module.get("module_input_name", "causal_logits") != "causal_logits":
        raise CannotStart(
            f"{folder} does not score by the logits of a true and a false token: nothing else is computed"
        )
    answers = tokens_of(files, (module["false_token_id"], module.get("true_token_id", "yes")))
    return Scoring(("",), activation, answers=answers)


def _check_modules(files: ModelFiles) -> None:
    listed = read_listed(files.path)
    kinds = [str(module.get("type", "")) for module in listed or ()]
    wanted = ("Transformer", "LogitScore") if files.is_causal else ("Transformer",)
    saved = all(kind.startswith("sentence_transformers.") for kind in kinds)
    if listed is not None and (not saved or tuple(kind.rpartition(".")[2] for kind in kinds) != wanted):
        raise CannotStart(
            f"{files.path / 'modules.json'} lists {', '.join(kinds)}: of a model that scores by"
            f" {'its answers' if files.is_causal else 'a classifier'}, sentence-transformers' {' and '.join(wanted)} is"
            " computed"
        )
    check_transformer(files.path, "text-generation" if files.is_causal else "sequence-classification")


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    return tuple(f"LABEL_{number}" for number in range(int(config.get("num_labels") or _DEFAULT_LABELS)))


def _named_activation(files: ModelFiles, config: Mapping[str, Any]) -> Activation | None:
    """The activation that sentence-transformers saved: where it does today, since version 4, and before."""
    whole = read_json(files.path / "config_sentence_transformers.json") or {}
    saved = config.get("sentence_transformers") or {}
    older = saved.get("activation_fn", config.get("sbert_ce_default_activation_function"))
    name = older if whole.get("activation_fn") is None else whole["activation_fn"]
    if name is None:
        return None
    known = _ACTIVATIONS.get(str(name).rpartition(".")[2])
    if known is None or not str(name).startswith("torch.nn."):
        raise CannotStart(
            f"{files.path} has the activation {name}: those of torch.nn that are computed are {', '.join(_ACTIVATIONS)}"
        )
    return known


def _of_problem(files: ModelFiles, config: Mapping[str, Any]) -> Activation:
    problem = config.get("problem_type")
    if problem not in _PROBLEMS:
        raise CannotStart(
            f"config.json in {files.path} sets problem_type to {json.dumps(problem)}: transformers knows"
            f" {', '.join(filter(None, _PROBLEMS))}"
        )
    return _PROBLEMS[problem]


def _token_types(files: ModelFiles, config: Mapping[str, Any]) -> bool:
    """Whether the model tells the second text of a pair by its tokens' type, and its tokenizer gives them one."""
    return int(config.get("type_vocab_size") or 0) > 1 and joins_with_token_types(files)
