"""The tokens of a text, and the text of tokens, over HTTP."""

from __future__ import annotations

from typing import Any

from tests.integration.frontdoor.test_http import http_door
from tests.support.listening import tokenizer


async def test_texts_are_tokenized_and_token_ids_are_text_again() -> None:
    async with http_door() as (_, session):

        async def post(path: str, **body: Any) -> tuple[int, Any]:
            async with session.post(path, json=body) as response:
                return response.status, await response.json()

        text = "who wrote hamlet"
        status, found = await post("/tokenize", prompt=text, model="alias")
        ids = tokenizer().count([text]).ids.tolist()
        assert (status, found) == (200, {"count": len(ids), "max_model_len": 64, "tokens": ids})
        assert (await post("/tokenize", prompt=text, add_special_tokens=False))[1]["tokens"] == ids[1:-1]
        placed = (await post("/tokenize", prompt="café, who?", return_token_offsets=True))[1]["token_offsets"]
        assert ["café, who?"[start:end] for start, end in placed] == ["", "café", ",", "who", "?", ""]
        bare = await post("/tokenize", prompt=text, return_token_offsets=True, add_special_tokens=False)
        assert bare[1]["token_offsets"] == [[0, 3], [4, 9], [10, 16]]
        assert await post("/detokenize", tokens=ids[1:-1]) == (200, {"prompt": text})
        for path, body, status, param in (
            ("/tokenize", {"prompt": 5}, 400, "prompt"),
            ("/tokenize", {"prompt": "a" * 70_000}, 400, "prompt"),
            ("/tokenize", {"prompt": "a", "model": "gpt"}, 404, "model"),
            ("/detokenize", {"tokens": [30522]}, 400, "tokens"),
            ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
            ("/detokenize", {"tokens": [5] * 65}, 400, "tokens"),
        ):
            found_status, answer = await post(path, **body)
            assert (found_status, answer["error"]["param"]) == (status, param), (path, body, answer)
