"""Make a model that generates at next to no cost: `python -m loadtest.texts.tiny FOLDER`.

Two layers of random weights and a tokenizer of a thousand byte pairs, learnt from the bundled questions: what is
measured with it is everything but the computation. With `--mid` it has 20 million parameters in four layers, whose
steps take tens of milliseconds. A program of its own: it loads torch and transformers, and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from loadtest.questions import bundled_questions

_VOCABULARY = 1024
_CONTEXT = 2048
_END = "<|end|>"
_SPREAD = 0.25
"""Of the weights: wide enough that the most likely token is not the same one for ever."""


def make(folder: Path) -> None:
    """Write it as Hugging Face has models."""
    _tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=_CONTEXT,
        initializer_range=_SPREAD,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)


def make_mid(folder: Path) -> None:
    """Write the larger one; its tokenizer uses the first of its 8,000 ids."""
    _tokenizer().save_pretrained(folder)
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2 * _CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.05,
        bos_token_id=0,
        eos_token_id=0,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(folder)
    # Of this model's kind transformers fixes how texts are split, whatever the file says.
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learnt.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=[_END], initial_alphabet=alphabet, show_progress=False
    )
    learnt.train_from_iterator(bundled_questions(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=learnt, bos_token=_END, eos_token=_END, pad_token=_END)


if __name__ == "__main__":
    (make_mid if "--mid" in sys.argv else make)(Path(sys.argv[1]))
