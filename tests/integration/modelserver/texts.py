"""Texts to embed: real questions, and generated ones of 1 to 256 tokens in several scripts."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from modelserver.model_files import locate

QUESTIONS = Path("loadtest/data/nq_open_dev_queries.txt")

_WORDS = {
    "latin": "the river carried small boats beyond every quiet harbour while engineers measured rainfall",
    "cyrillic": "река несла маленькие лодки мимо тихой гавани пока инженеры измеряли дождь",
    "greek": "το ποτάμι μετέφερε μικρές βάρκες πέρα από κάθε ήσυχο λιμάνι",
    "arabic": "حمل النهر قوارب صغيرة إلى ما وراء كل ميناء هادئ",
    "devanagari": "नदी छोटी नावों को हर शांत बंदरगाह के पार ले गई",
    "han": "河流 把 小船 带 过 每 一个 安静 的 港口",
    "kana": "かわ は ちいさな ふね を はこんだ",
    "hangul": "강은 작은 배를 조용한 항구 너머로 날랐다",
    "hebrew": "הנהר נשא סירות קטנות אל מעבר לכל נמל שקט",
    "symbols": "¿x² ≥ 3·π? 😀 → №7 «q» ™ 100 % €5",
}
_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 120, 180, 233, 300)


def questions(count: int) -> list[str]:
    """Every n-th of the NQ-open questions, `count` in all."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    return lines[:: len(lines) // count][:count]


def generated() -> list[str]:
    """Texts in ten scripts; lengths in words that come to 3 to 256 tokens, the longest truncated."""
    draw = random.Random(7)
    scripts = list(_WORDS.values())
    return [
        " ".join(draw.choices(scripts[number % len(scripts)].split(), k=words))
        for number, words in enumerate(_LENGTHS * 2)
    ]


def token_ids(texts: list[str], max_tokens: int = 256) -> list[list[int]]:
    """As the aggregator tokenizes for MiniLM: special tokens included, truncated at the end."""
    tokenizer = Tokenizer.from_file(str(locate("", "") / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]
