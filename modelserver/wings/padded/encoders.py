"""Encoders of transformers as models of vLLM, for architectures that vLLM has no class for, nor a backend.

vLLM packs the queries of a step end to end, and transformers needs rows of one length. Queries of similar length are
computed together, so padding at most doubles the computed tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification
from vllm.config import PoolerConfig, VllmConfig
from vllm.model_executor.layers.pooler.special import DispatchPooler
from vllm.model_executor.models.bert import BertEmbeddingModel
from vllm.model_executor.models.interfaces import SupportsCrossEncoding
from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type


@attn_type("encoder_only")
@default_pooling_type(seq_pooling_type="CLS")
class PaddedEncoder(nn.Module):  # type: ignore[misc]  # torch is without types to mypy
    """Hidden states [Σ lengths, hidden] of packed queries, each of which begins at position 0."""

    is_pooling_model = True
    kind: Any = AutoModel

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        del prefix
        super().__init__()
        config = vllm_config.model_config
        assert config.pooler_config is not None, "An encoder is loaded without a pooler. This is a bug."
        self._path, self._dtype = config.model, config.dtype
        self._pad_id = config.hf_config.pad_token_id or 0
        self._unattended: int | None = getattr(config.hf_config, "unattended_id", None)
        self.model: Any = self.kind.from_config(config.hf_config, dtype=config.dtype)
        self.pooler = self._pooler(config.pooler_config)

    def _pooler(self, config: PoolerConfig) -> DispatchPooler:
        return DispatchPooler.for_embedding(config)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.model.get_input_embeddings()(input_ids)
        return vectors

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        del intermediate_tensors, inputs_embeds
        starts = torch.nonzero(positions == 0).flatten()
        lengths = torch.diff(starts, append=starts.new_tensor([input_ids.numel()]))
        hidden = torch.zeros((input_ids.numel(), self._width), dtype=self._dtype, device=input_ids.device)
        doublings = torch.ceil(torch.log2(lengths.float()))
        for doubling in torch.unique(doublings):
            chosen = doublings == doubling
            self._rows(input_ids, token_type_ids, starts[chosen], lengths[chosen], hidden)
        return hidden

    @property
    def _width(self) -> int:
        width: int = self.model.config.hidden_size
        return width

    def _rows(
        self,
        input_ids: torch.Tensor,
        token_types: torch.Tensor | None,
        starts: torch.Tensor,
        lengths: torch.Tensor,
        hidden: torch.Tensor,
    ) -> None:
        """Compute queries of similar length as rows, and put their hidden states in their places."""
        columns = torch.arange(int(lengths.max()), device=input_ids.device)
        mask = columns < lengths[:, None]
        places = (starts[:, None] + columns)[mask]
        rows = {"input_ids": torch.full(mask.shape, self._pad_id, dtype=torch.int64, device=input_ids.device)}
        rows["input_ids"][mask] = input_ids[places].long()
        if token_types is not None:
            rows["token_type_ids"] = torch.zeros_like(rows["input_ids"])
            rows["token_type_ids"][mask] = token_types[places].long()
        hidden[places] = self._states(self.model(**rows, attention_mask=self._attended(rows, mask).long()), mask)

    def _attended(self, rows: Mapping[str, torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        """The tokens that others attend to: all, but for the unattended id at the end of a query."""
        if self._unattended is None:
            return mask
        behind = (rows["input_ids"] != self._unattended) & mask
        attended: torch.Tensor = behind.flip(1).cumsum(1).flip(1) > 0
        return attended

    def _states(self, computed: Any, mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = computed.last_hidden_state[mask]
        return states

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take the weights as transformers reads them, with the names of older checkpoints."""
        del weights
        loaded = self.kind.from_pretrained(self._path, dtype=self._dtype, local_files_only=True)
        self.model.load_state_dict(loaded.state_dict(), strict=True)
        return {name for name, _ in self.named_parameters()}


@attn_type("encoder_only")
@default_pooling_type(seq_pooling_type="CLS")
class PaddedForSequenceClassification(PaddedEncoder, SupportsCrossEncoding):  # type: ignore[misc]
    """Returns, in place of a token's hidden states, the logits of its query: [Σ lengths, labels]."""

    kind = AutoModelForSequenceClassification

    def _pooler(self, config: PoolerConfig) -> DispatchPooler:
        return DispatchPooler.for_seq_cls(config)

    @property
    def _width(self) -> int:
        width: int = self.model.config.num_labels
        return width

    def _states(self, computed: Any, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = computed.logits.unsqueeze(1).expand(*mask.shape, -1)[mask]
        return logits


class HeadlessBert(BertEmbeddingModel):  # type: ignore[misc]  # vLLM is without types to mypy
    """Reads `bert.*` and leaves the head, `cls.*`, out."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Names as in files of the body alone."""
        body = ((name.removeprefix("bert."), weight) for name, weight in weights if not name.startswith("cls."))
        loaded: set[str] = super().load_weights(body)
        return loaded
