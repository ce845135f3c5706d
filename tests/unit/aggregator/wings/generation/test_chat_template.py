"""A chat becomes a prompt by the model's own template, which may fail, and may do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aggregator.errors import InvalidRequest
from aggregator.wings.generation.chat_template import ChatTemplate
from protos.generation.v1.generation_pb2 import Message

CHAT = [Message(role="user", content="hi"), Message(role="assistant", content="<b>")]
PLAIN = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def folder(tmp_path: Path, template: str | None = None, config: object = None) -> Path:
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_prompt_ends_where_the_model_is_to_answer(tmp_path: Path) -> None:
    assert ChatTemplate(folder(tmp_path, PLAIN)).prompt(CHAT) == "[user]hi\n[assistant]<b>\n[assistant]"


@pytest.mark.parametrize(
    "found", [PLAIN, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": PLAIN}]]
)
def test_the_template_may_stand_in_the_tokenizers_configuration(tmp_path: Path, found: object) -> None:
    assert ChatTemplate(folder(tmp_path, config={"chat_template": found})).prompt(CHAT).startswith("[user]hi")


def test_it_reads_the_name_of_an_author_who_has_one(tmp_path: Path) -> None:
    template = "{% for each in messages %}{{ each.name if 'name' in each else '-' }} {% endfor %}"
    chat = [Message(role="user", content="hi", name="ada"), Message(role="user", content="hi")]
    assert ChatTemplate(folder(tmp_path, template)).prompt(chat) == "ada - "


def test_special_tokens_are_known_to_it(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    assert ChatTemplate(folder(tmp_path, "{{ bos_token }}{{ eos_token }}", config)).prompt(CHAT) == "<s></s>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9]['role'] + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(99999999) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{% if %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_refuses_the_chat(tmp_path: Path, template: str) -> None:
    with pytest.raises(InvalidRequest, match="does not take these messages"):
        ChatTemplate(folder(tmp_path, template)).prompt(CHAT)


def test_a_model_without_a_template_takes_no_chat(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        ChatTemplate(folder(tmp_path)).prompt(CHAT)
