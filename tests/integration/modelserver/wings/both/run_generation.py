"""Have a small model generate by vLLM's own `LLM` and by this project's engine, beside each other.

`run_mixed` runs it in its process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from modelserver.process_env import prepare_engine_env

prepare_engine_env(os.environ, local_model=True, v1_runner=True)
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"

import numpy as np  # noqa: E402 - vLLM reads its environment when it is imported
import torch  # noqa: E402
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: E402
from vllm import LLM, CompletionOutput, SamplingParams, TokensPrompt  # noqa: E402

from aggregator.tokenizers.tokenizer import Tokenizer  # noqa: E402
from aggregator.wings.generation.chat import prompt_of  # noqa: E402
from aggregator.wings.generation.generation import Generation  # noqa: E402
from loadtest.texts.smollm2 import smollm2  # noqa: E402
from modelserver.engines.core import LoadOptions  # noqa: E402
from modelserver.wings.generation.vllm_generator import VllmGenerator, load  # noqa: E402
from protos.generation.v1 import generation_pb2  # noqa: E402
from protos.modelserver.v1 import modelserver_pb2 as pb  # noqa: E402
from tests.integration.modelserver.tiny_models import likeliest  # noqa: E402

MAX_LEN = 512
PROMPTS = ("The capital of France is", "Once upon a time, a small fox", "日本の首都は東京です。🗼 Emoji:")
SCRIPTS = (
    "Привет, мир! Γειά σου Κόσμε",
    "مرحبا بالعالم، שלום עולם",
    "नमस्ते दुनिया, স্বাগতম, வணக்கம்",
    "日本の首都は東京です。你好，世界！안녕하세요",
    "ภาษาไทย ქართული ދިވެހި ⴰⵎⴰⵣⵉⵖ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🗼 e\u0301 Å ﬁ 𝔘𝔫𝔦 \u200d\u200f end",
)
CHAT = (("system", "Be brief."), ("user", "नमस्ते 🗼, who are you?"), ("assistant", "A <model>."), ("user", "And I?"))
NEVER_CUT = 5
"""Tokens that come before the model's own end, and before the stop tokens."""
OUT_OF_RANGE = {
    "temperature": 2.5,
    "top_p": 0.0,
    "repetition_penalty": 0.0,
    "presence_penalty": 3.0,
    "frequency_penalty": -3.0,
    "min_tokens": 5,
}
IN_RANGE = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (0, 2**31 - 1),
    "repetition_penalty": (1e-9, 1e9),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "logprobs": (0, 20),
    "min_tokens": (0, 4),
    "stop_token_ids": (range(1000, 1064),),
}
"""What the aggregator lets through, at most."""
Told = dict[str, Any]
Cases = Mapping[str, dict[str, Any]]


def cases(texts: list[str], ids: list[list[int]]) -> Cases:
    """By name, parameters for vLLM; of greedy texts, so that each stops within them."""
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24}
    stop = [text[20:23] for text in texts]
    stop_token_ids = [each[NEVER_CUT] for each in ids]
    return {
        "greedy": greedy,
        "top_k of 1": {"temperature": 0.9, "top_k": 1, "max_tokens": 16, "seed": 5},
        "top_p of almost 0": {"temperature": 0.9, "top_p": 1e-6, "max_tokens": 16, "seed": 6},
        "repetition_penalty": {**greedy, "repetition_penalty": 1.3},
        "presence_penalty": {**greedy, "presence_penalty": 1.5},
        "frequency_penalty": {**greedy, "frequency_penalty": 1.0},
        "min_tokens": {**greedy, "min_tokens": 12, "max_tokens": 16},
        "ignore_eos": {**greedy, "ignore_eos": True, "max_tokens": 40},
        "logprobs": {**greedy, "logprobs": 3, "max_tokens": 8},
        "stop": {**greedy, "stop": stop, "max_tokens": 40},
        "stop_token_ids": {**greedy, "stop_token_ids": stop_token_ids, "max_tokens": 40},
        "stop_token_ids and min_tokens": {
            **greedy,
            "stop_token_ids": stop_token_ids,
            "min_tokens": 8,
            "max_tokens": 40,
        },
        "stop and min_tokens": {**greedy, "stop": stop, "min_tokens": 10, "max_tokens": 40},
        "one token": {**greedy, "max_tokens": 1},
    }


def saved(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Write a small random model with SmolLM2's tokenizer, which says plain words; what it says after the prompts.

    Its end is a token that it says greedily after the first one.
    """
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_LEN,
        tie_word_embeddings=False,
        bos_token_id=0,
        initializer_range=0.25,
    )
    model: Any = LlamaForCausalLM(config).float().eval()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if (smollm2() / name).is_file():
            shutil.copy(smollm2() / name, folder / name)
    plain = [place for place, token in _vocabulary(folder) if re.fullmatch("Ġ?[A-Za-z]+", token)]
    others = torch.ones(config.vocab_size, dtype=torch.bool)
    others[plain] = False
    with torch.no_grad():
        model.lm_head.weight[others] = 0
    said = [likeliest(model, ids, 24) for ids in prompts]
    end = next(token for place, token in enumerate(said[0]) if place > NEVER_CUT and token not in said[0][:place])
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    return said


def _vocabulary(folder: Path) -> Iterator[tuple[int, str]]:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    yield from ((place, token) for token, place in content["model"]["vocab"].items())


def ours(engine: VllmGenerator, tokenizer: Tokenizer, prompts: list[list[int]], asked: Cases) -> dict[str, list[Told]]:
    """By case, a text for each prompt, as the aggregator would have it; all run at once."""
    texts: dict[str, Generation] = {}
    logprobs: dict[str, list[list[list[float]]]] = {}
    names = [f"{case}/{number}" for case in asked for number in range(len(prompts))]
    for name, (case, ids) in zip(names, product(asked.values(), prompts), strict=True):
        given = dict(case)
        stop = given.pop("stop", [])
        texts[name] = Generation(generation_pb2.Sampling(stop=stop, min_tokens=case.get("min_tokens", 0)))
        prompt = np.array(ids, "<i4").tobytes()
        texts[name].begin("r", prompt, tokenizer.detokenizer(prompt))
        logprobs[name] = []
        engine.add(name, ids, pb.Sampling(**given))
    while engine.has_work:
        for new in engine.step()[0]:
            text = texts[new.name]
            if text.extend(new.token_ids, (), new.stop_tokens):
                engine.abort([new.name])
            elif new.finished:
                text.end(generation_pb2.FINISH_REASON_LENGTH if new.length else generation_pb2.FINISH_REASON_STOP)
            if new.logprobs is not None:
                rows = zip(new.logprobs.token_ids.tolist(), new.logprobs.values.tolist(), strict=True)
                logprobs[new.name] += [sorted(map(list, zip(*row, strict=True))) for row in rows]
    told = {
        name: {
            "text": text.text,
            "ids": list(text.token_ids),
            "cut": text.finish_reason == generation_pb2.FINISH_REASON_LENGTH,
            "stop": text.stop,
            "logprobs": logprobs[name],
        }
        for name, text in texts.items()
    }
    return {case: [told[f"{case}/{number}"] for number in range(len(prompts))] for case in asked}


def theirs(llm: LLM, prompts: list[list[int]], asked: Cases) -> dict[str, list[Told]]:
    """The same, as vLLM has it."""
    each_asked = [TokensPrompt(prompt_token_ids=ids) for _ in asked for ids in prompts]
    samplings = [SamplingParams(**case) for case in asked.values() for _ in prompts]
    outputs = iter(each.outputs[0] for each in llm.generate(each_asked, samplings, use_tqdm=False))
    return {case: [_told(next(outputs)) for _ in prompts] for case in asked}


def _told(output: CompletionOutput) -> Told:
    return {
        "text": output.text,
        "ids": list(output.token_ids),
        "cut": output.finish_reason == "length",
        "stop": output.stop_reason if isinstance(output.stop_reason, str) else "",
        "logprobs": [
            sorted([token, logprob.logprob] for token, logprob in place.items()) for place in output.logprobs or ()
        ],
    }


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of these tokens, as a caller gets it who reads every one."""
    text = Generation(generation_pb2.Sampling())
    prompt = tokenizer.count(["x"]).ids.tobytes()
    text.begin("r", prompt, tokenizer.detokenizer(prompt))
    deltas: list[str] = []
    for token_id in ids:
        text.extend([token_id], ())
        deltas.append(text.read_new()[1])
    return "".join(deltas)


def chats(tokenizer: Tokenizer, folder: str) -> list[str]:
    """A chat as a prompt, by transformers and by this project."""
    messages = [{"role": role, "content": content} for role, content in CHAT]
    reference: Any = AutoTokenizer.from_pretrained(folder)
    theirs: str = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return [theirs, prompt_of(tokenizer, [generation_pb2.Message(**each) for each in messages])]


def seeded(engine: VllmGenerator, ids: list[int], tokens: int = 24) -> dict[str, Any]:
    """A seeded text, whole, in parts that go on from one another, and beside others."""
    cuts = (1, tokens // 3 + 1, tokens * 2 // 3 + 1)

    def run(name: str, prompt: list[int], tokens: int, seed: int) -> list[int]:
        sampling = pb.Sampling(temperature=0.9, top_p=0.95, seed=seed, max_tokens=tokens, ignore_eos=True)
        engine.add(name, prompt, sampling)
        got: list[int] = []
        while engine.has_work:
            for new in engine.step()[0]:
                if new.name == name:
                    got += new.token_ids
        return got

    whole = run("whole", ids, tokens, 7)
    resumed = [run(f"from {cut}", ids + whole[:cut], tokens - cut, 7) for cut in cuts]
    for number in range(5):
        sampling = pb.Sampling(max_tokens=tokens, seed=number, ignore_eos=True)
        engine.add(f"beside {number}", [*ids[number:], 5, 6], sampling)
    beside = run("beside", ids, tokens, 7)
    return {
        "whole": whole,
        "resumed": [whole[:cut] + rest for cut, rest in zip(cuts, resumed, strict=True)],
        "beside": beside,
        "other seed": run("other", ids, tokens, 8),
    }


def refused(engine: VllmGenerator, **sampling: Any) -> str:
    """Why a sequence is not added."""
    try:
        engine.add("refused", [5, 6], pb.Sampling(max_tokens=4, **sampling))
    except ValueError as error:
        return str(error)
    engine.abort(["refused"])
    return ""


def freed(engine: VllmGenerator, ids: list[int]) -> list[int]:
    """Free tokens before, while a sequence runs, and once it is aborted; one that was half computed, too."""
    engine.limit(64, 8)
    before = engine.free_kv_tokens
    engine.add("long", ids * 20, pb.Sampling(max_tokens=50))
    engine.step()
    during = engine.free_kv_tokens
    engine.abort(["long", "unknown"])
    after = engine.free_kv_tokens
    engine.step()
    return [before, during, after]


def turns(engine: VllmGenerator, ids: list[int]) -> list[str]:
    """The order in which sequences got their first token, with one place: the last to come was to go before another."""
    sampling = pb.Sampling(max_tokens=3, ignore_eos=True)
    engine.limit(64, 1)
    engine.add("first", ids, sampling, turn_s=0.0)
    order = [new.name for new in engine.step()[0]]
    engine.add("bulk", ids, sampling, turn_s=31.0)
    engine.add("question", ids, sampling, turn_s=2.0)
    while engine.has_work:
        order += [new.name for new in engine.step()[0]]
    engine.limit(engine.facts.step_token_capacity, engine.facts.max_sequences)
    return list(dict.fromkeys(order))


def results(folder: Path) -> dict[str, Any]:
    """All of it."""
    tokenizer = Tokenizer(smollm2())
    prompts = [tokenizer.count([prompt]).ids.tolist() for prompt in PROMPTS]
    said = saved(folder, prompts)
    asked = cases([_text(tokenizer, ids) for ids in said], said)
    common: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": MAX_LEN, "block_size": 32}
    llm = LLM(str(folder), max_num_seqs=64, **common)
    expected = theirs(llm, prompts, asked)
    client: Any = llm.llm_engine.engine_core
    client.engine_core.shutdown()
    del llm, client
    engine = load(
        LoadOptions(
            model_path=str(folder),
            dtype="float32",
            model_tokens=MAX_LEN,
            max_input_tokens=MAX_LEN,
            step_tokens=None,
            options={},
        )
    )
    found = {
        "expected": expected,
        "found": ours(engine, tokenizer, prompts, asked),
        "seeded": seeded(engine, prompts[1]),
        "turns": turns(engine, prompts[1]),
        "freed": freed(engine, prompts[1]),
        "refused": [refused(engine, stop_token_ids=range(1000, 1000 + count)) for count in (127, 128)],
        "out_of_range": {name: refused(engine, **{name: value}) for name, value in OUT_OF_RANGE.items()},
        "in_range": [refused(engine, **{name: value}) for name, values in IN_RANGE.items() for value in values],
        "spelled": [[script, _text(tokenizer, tokenizer.count([script]).ids.tolist())] for script in SCRIPTS],
        "chats": chats(tokenizer, str(smollm2())),
    }
    engine.close()
    return found
