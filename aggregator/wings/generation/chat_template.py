"""Format a chat as one prompt by the model's own template, in a sandbox: a template is a program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aggregator.errors import InvalidRequest
from protos.generation.v1.generation_pb2 import Message

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """The template in a folder with a tokenizer's files, as transformers reads it; it may have none."""

    def __init__(self, folder: Path) -> None:
        config: dict[str, object] = {}
        if (folder / _CONFIG).is_file():
            config = json.loads((folder / _CONFIG).read_bytes())
        file = folder / _TEMPLATE
        self._source: str | None = file.read_text(encoding="utf-8") if file.is_file() else _in(config)
        self._special = {name: _content(config[name]) for name in _SPECIAL if config.get(name)}

    def prompt(self, messages: Sequence[Message]) -> str:
        """The prompt, up to where the model is to answer. Raises InvalidRequest."""
        if self._source is None:
            raise InvalidRequest("the model has no chat template: send a prompt, or token ids")
        chat = [
            {"role": message.role, "content": message.content, **({"name": message.name} if message.name else {})}
            for message in messages
        ]
        try:
            return self._template.render(messages=chat, add_generation_prompt=True, **self._special)
        except InvalidRequest:
            raise
        except TemplateError as error:  # the template made the message, and may quote the chat
            raise InvalidRequest(f"the model's chat template does not take these messages: {_reason(error)}") from None
        except Exception as error:  # noqa: BLE001 - a template is a program, and raises anything
            kind = type(error).__name__
            raise InvalidRequest(f"the model's chat template does not take these messages: {kind}") from None

    def compile(self) -> None:
        """Compile it, which takes tens of milliseconds, before the first chat comes. Raises ValueError."""
        if self._source is not None:
            try:
                _ = self._template
            except TemplateError as error:
                raise ValueError(f"the chat template is none: {_reason(error)}") from error

    @cached_property
    def _template(self) -> Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        functions: dict[str, Any] = {"raise_exception": _raise, "strftime_now": _now}
        environment.globals.update(functions)
        return environment.from_string(self._source or "")


def _in(config: Mapping[str, object]) -> str | None:
    """The template in the configuration; of several that are named, the default one."""
    found = config.get("chat_template")
    if isinstance(found, list):
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _content(token: object) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - as transformers has it: the local time


def _reason(error: TemplateError) -> str:
    return (error.message or type(error).__name__)[:200]
