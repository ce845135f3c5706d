"""The model's own tokenizer: opened from its files, kept by fingerprint, called in batches off the event loop."""

from aggregator.adapters.counting import Counting
from aggregator.adapters.fast_tokenizer import FastTokenizer
from aggregator.adapters.tokenizer_cache import TokenizerCache

__all__ = ["Counting", "FastTokenizer", "TokenizerCache"]
