"""Text to token ids and back, and the chat template: thin over `tokenizers` and `transformers`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from growpage.engine.models.decoder import token_ids
from growpage.errors import UsageError

# what AutoTokenizer can build a tokenizer from when there is no tokenizer.json
_OLD_FILES = ("tokenizer.model", "vocab.json", "vocab.txt")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A tokenizer with the ids that end a text and, when the checkpoint has one, a chat template."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Sequence[int] = (),
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """special_tokens: what the template may name, as `bos_token` -> its text."""
        self._backend = backend
        self._special_tokens = dict(special_tokens or {})
        own = backend.token_to_id(self._special_tokens.get("eos_token", ""))
        ids = [*eos_token_ids, *([] if own is None else [own])]
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ids))
        self.unknown_token_id = backend.token_to_id(self._special_tokens.get("unk_token", ""))
        self.chat_template = chat_template

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint folder; None when it has none. UsageError for broken files."""
        backend = _backend(folder)
        if backend is None:
            return None
        settings = read_json(folder / "tokenizer_config.json")
        generation = read_json(folder / "generation_config.json")
        config = read_json(folder / "config.json")
        return cls(
            backend,
            eos_token_ids=(
                *_end_ids(folder / "generation_config.json", generation),
                *_end_ids(folder / "config.json", config),
            ),
            chat_template=_chat_template(folder, settings),
            special_tokens=_special_tokens(settings),
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model may have more rows than that."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of the text as it stands: special tokens in it are recognised, none are added."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def unknown_words(self, text: str) -> list[str]:
        """Parts of the text that the vocabulary does not cover, in order."""
        if self.unknown_token_id is None:
            return []
        encoding = self._backend.encode(text, add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return [
            text[start:stop] for token, (start, stop) in spans if token == self.unknown_token_id
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids without special tokens; ids of no token give nothing."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def render(self, messages: list[dict[str, str]], *, enable_thinking: bool | None = None) -> str:
        """The chat as text, ending where the assistant begins.

        Without a template: the contents joined by blank lines. `enable_thinking` goes to the
        template when it is not None. Raises UsageError when the template refuses the messages.
        """
        if self.chat_template is None:
            return "\n\n".join(message["content"] for message in messages)
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        options: dict[str, Any] = dict(self._special_tokens)
        if enable_thinking is not None:
            options["enable_thinking"] = enable_thinking
        try:
            texts: Any = render_jinja_template(  # typed as str, returns a tuple
                conversations=[messages],
                chat_template=self.chat_template,
                add_generation_prompt=True,
                **options,
            )
        except jinja2.TemplateSyntaxError as error:
            raise UsageError(f"chat template: {error}. Mend the template of this model.") from error
        except Exception as error:  # the template is a program of the checkpoint
            raise UsageError(
                f"chat template: {_first_line(error)}. Give messages that the template of this "
                "model accepts, or mend it."
            ) from error
        return str(texts[0][0])

    def encode_chat(
        self, messages: list[dict[str, str]], *, enable_thinking: bool | None = None
    ) -> list[int]:
        return self.encode(self.render(messages, enable_thinking=enable_thinking))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} when there is no such file. Raises UsageError when it is no JSON object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _broken(path, error) from error
    if not isinstance(value, dict):
        raise _broken(path, "not an object")
    return value


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """UsageError with the file's name for what its content makes fail."""
    try:
        yield
    except UsageError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error


def _end_ids(path: Path, content: Mapping[str, Any]) -> tuple[int, ...]:
    with reading(path):
        return token_ids(content.get("eos_token_id"))


def _broken(path: Path, reason: object) -> UsageError:
    return UsageError(f"{path}: not readable ({reason}). Download the file again.")


def _backend(folder: Path) -> tokenizers.Tokenizer | None:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a broken file
            raise _broken(path, error) from error
    old = [folder / name for name in _OLD_FILES if (folder / name).is_file()]
    if not old:
        return None
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        backend: tokenizers.Tokenizer = loaded.backend_tokenizer
    except (AttributeError, ImportError, OSError, ValueError) as error:
        raise UsageError(
            f"{old[0]}: no tokenizer could be built from it ({_first_line(error)}). "
            "Put a tokenizer.json beside it."
        ) from error
    return backend


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja`, else the entry of tokenizer_config.json (of several, `default`)."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    with reading(folder / "tokenizer_config.json"):
        entry = settings.get("chat_template")
        if isinstance(entry, list):
            entry = {item["name"]: item["template"] for item in entry}.get("default")
        if not isinstance(entry, str | None):
            raise TypeError(f"chat_template is of type {type(entry).__name__}")
        return entry


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None:
            tokens[name] = str(value)
    return tokens


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
