"""The client package's requests: words for enums, seconds for times, and errors that name the option."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tokenbatch_client import InputError, requests
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.generation.v1 import generation_pb2

EXCHANGED = [("0", ["a", "b"]), ("2", ["c", "d"]), ("4", ["e"])]


def told(request: pb.EmbedRequest) -> tuple[str, list[str]]:
    return request.request_id, [each.text for each in request.inputs]


def test_options_are_the_fields_of_the_request_with_words_for_enums() -> None:
    options = {"model": "m", "priority": "background", "input_type": "query", "truncate": "end", "normalize": False}
    request = requests.embed(["a", [7, 8]], options, "r-1")
    assert (request.request_id, request.model, request.HasField("normalize")) == ("r-1", "m", True)
    assert request.priority == pb.PRIORITY_BACKGROUND
    assert (request.input_type, request.truncate) == (pb.INPUT_TYPE_QUERY, pb.TRUNCATE_END)
    assert [request.inputs[0].text, list(request.inputs[1].token_ids.ids)] == ["a", [7, 8]]


def test_an_empty_word_leaves_the_choice_to_the_service() -> None:
    request = requests.embed(["a"], {"priority": "", "truncate": "none"})
    assert (request.priority, request.truncate) == (pb.PRIORITY_UNSPECIFIED, pb.TRUNCATE_NONE)


def test_a_request_expires_so_many_seconds_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenbatch_client.requests.time.time", lambda: 1000.25)
    assert requests.embed(["a"], {"expire_s": 2.5}).expire_time.ToMilliseconds() == 1_002_750
    assert not requests.embed(["a"], {"expire_s": None}).HasField("expire_time")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": "urgent"}, "priority is 'urgent': give one of 'interactive', 'default', 'background'"),
        ({"colour": "red"}, "colour is no option: there are model, model_revision, input_type, priority"),
        ({"encoding": "int8"}, "encoding is no option"),
        ({"inputs": ["b"]}, "inputs is no option"),
        ({"dimensions": "many"}, "'str' object"),
    ],
)
def test_a_wrong_option_is_named_with_what_there_is(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        requests.embed(["a"], options)


def test_one_text_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(InputError, match="give a list"):
        requests.embed("a", {})


def test_a_text_takes_options_of_the_request_and_of_sampling() -> None:
    request = requests.generate("once", {"model": "m", "max_tokens": 5, "stop": ["."], "include_token_ids": True})
    assert (request.model, request.prompt, request.final_only, request.include_token_ids) == ("m", "once", True, True)
    assert request.sampling == generation_pb2.Sampling(max_tokens=5, stop=["."])


def test_a_prompt_is_a_text_ids_or_a_chat() -> None:
    assert list(requests.generate([1, 2], {}).token_ids.ids) == [1, 2]
    chat = requests.generate([{"role": "user", "content": "hi"}], {}, final_only=False)
    assert (chat.messages.messages[0].content, chat.final_only) == ("hi", False)
    with pytest.raises(InputError, match="rle"):
        requests.generate([{"rle": "user"}], {})


def test_a_document_and_a_pair_stand_in_their_order() -> None:
    assert list(requests.rank("q", ["a", "b"], {"top_n": 1}).documents) == ["a", "b"]
    alone, pair = requests.score(["a", ("b", "c")], {}).pairs
    assert (alone.text, alone.HasField("second_text"), pair.second_text) == ("a", False, "c")


async def test_a_stream_has_requests_of_so_many_inputs_each() -> None:
    async def inputs() -> AsyncIterator[str]:
        for each in "abcde":
            yield each

    exchange = requests.Exchange(2, {})
    assert [told(each) for each in exchange.requests(iter("abcde"))] == EXCHANGED
    assert [exchange.place(pb.EmbedResponse(request_id=name)) for name, _ in EXCHANGED] == [(2, 0), (2, 2), (1, 4)]
    assert [told(each) async for each in requests.Exchange(2, {}).requests_of(inputs())] == EXCHANGED
