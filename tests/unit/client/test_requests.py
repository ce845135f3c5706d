"""The client package's requests: words for enums, seconds for times, and errors that name the option."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tokenbatch_client import AsyncClient, Client, InputError, requests
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


def test_what_becomes_of_failed_inputs_is_one_of_two_words() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(InputError, match="errors is 'ignore': give one of 'raise', "):
        client.embed(["a"], errors="ignore")


def test_one_text_in_place_of_a_list_is_refused() -> None:
    wrong: Any
    for wrong in ("a", b"a", None):
        for call in (requests.embed, requests.score, lambda texts, options: requests.rank("q", texts, options)):
            with pytest.raises(InputError, match="give a list"):
                call(wrong, {})


@pytest.mark.parametrize("raw", [b"hello", bytearray(b"hello"), memoryview(b"hello")])
def test_bytes_are_neither_a_text_nor_token_ids(raw: Any) -> None:
    for call, named in (
        (lambda: requests.embed(["a", raw], {}), "input 1: "),
        (lambda: requests.rank(raw, ["a"], {}), "query: "),
        (lambda: requests.rank("q", ["a", raw], {}), "document 1: "),
        (lambda: requests.score(["a", ("b", raw)], {}), "pair 1: "),
        (lambda: requests.generate(raw, {}), "prompt: "),
    ):
        with pytest.raises(InputError, match=f"{named}{type(raw).__name__} is n"):
            call()


@pytest.mark.parametrize("wrong", [[-1], [2**40], [1.5], ["a"], "\ud800", 5, None])
def test_an_input_that_no_field_holds_is_named_as_a_wrong_value(wrong: Any) -> None:
    with pytest.raises(InputError, match="input 1: ") as refused:
        requests.embed(["a", wrong], {})
    assert isinstance(refused.value, ValueError)
    with pytest.raises(InputError, match="prompt: "):
        requests.generate(wrong, {})


@pytest.mark.parametrize("wrong", [("a",), ("a", "b", "c"), ("a", 5), 5])
def test_a_pair_that_is_none_is_named(wrong: Any) -> None:
    with pytest.raises(InputError, match="pair 1: "):
        requests.score([("a", "b"), wrong], {})


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e30, "soon"])
def test_seconds_that_lead_to_no_time_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="expire_s: "):
        requests.embed(["a"], {"expire_s": wrong})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colour": "red"}, "colour is no option"),
        ({"priority": "x"}, "priority is 'x'"),
        ({"per_request": 0}, "per_request is 0: give 1 or more"),
        ({"per_request": "2"}, "per_request is '2'"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"inputs": "one text"}, "inputs is one text"),
        ({"inputs": None}, "inputs is NoneType"),
    ],
)
async def test_a_stream_s_wrong_arguments_are_refused_by_its_call(options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"inputs": ["a"], **options}
    with Client("localhost:1") as client, pytest.raises(InputError, match=said):
        client.embed_stream(**given)
    async with AsyncClient("localhost:1") as client_of_asyncio:
        with pytest.raises(InputError, match=said):
            client_of_asyncio.embed_stream(**given)


def test_a_stream_of_text_refuses_a_wrong_option_by_its_call() -> None:
    with Client("localhost:1") as client, pytest.raises(InputError, match="maximum is no option"):
        client.stream("once", maximum=5)


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


async def test_a_stream_gives_what_came_before_a_wrong_input_then_its_error() -> None:
    async def inputs() -> AsyncIterator[Any]:
        for each in ("a", "b", b"c"):
            yield each

    exchange = requests.Exchange(1, {})
    assert [told(each) for each in exchange.requests(["a", "b", b"c"])] == [("0", ["a"]), ("1", ["b"])]
    with pytest.raises(InputError, match="input 2: bytes"):
        exchange.end()
    exchange = requests.Exchange(1, {})
    exchange.end()
    assert [told(each) async for each in exchange.requests_of(inputs())] == [("0", ["a"]), ("1", ["b"])]
    with pytest.raises(InputError, match="input 2: bytes"):
        exchange.end()


def test_a_stream_s_caller_gets_the_error_of_its_own_inputs() -> None:
    def inputs() -> Iterator[str]:
        yield "a"
        raise KeyError("of a table")

    exchange = requests.Exchange(1, {})
    assert [told(each) for each in exchange.requests(inputs())] == [("0", ["a"])]
    with pytest.raises(KeyError, match="of a table"):
        exchange.end()
