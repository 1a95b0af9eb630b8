"""What Hydra, OmegaConf and we say about a user's mistake, as one line with a way out."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    ConfigTypeError,
    OmegaConfBaseException,
    ValidationError,
)

from growpage.budget.registry import POLICIES
from growpage.config import GROUPS, Config, no_such_key
from growpage.errors import UsageError, closest, unknown
from growpage.places import CONFIG_FOLDER

USER_ERRORS = (UsageError, HydraException, OmegaConfBaseException)
CHOICE_GROUPS = ("debug", "experiment")  # groups that set keys of other groups

_TYPE_WORDS = {"Float": "a number", "Integer": "a whole number", "Boolean": "true or false"}
_NOISE = ("See https://", "To append to your", "Config search path", "provider=")
_OVERRIDE = re.compile(r"(?:To append to your config use \+|Error merging override )(.*)")
_NOT_CONVERTIBLE = re.compile(r"could not be converted to (\w+)")
_NOT_IN_ENUM = re.compile(r"expected one of \[(.*)\]")
_NO_BOOL = re.compile(r"is not a valid bool")
_IS_NULL = re.compile(r"is not Optional|Incompatible value 'None'")
_EXISTS = re.compile(r"An item is already at '(.*)'")
_NOT_A_CHOICE = re.compile(r"Could not override '(.*?)'\. No match in the defaults list")
_SEVERAL = re.compile(r"Ambiguous value for argument '(.*)'")
_OPTIONS_OF = re.compile(r"Available options in '(.*)'")
_DEREFERENCED = re.compile(r"While dereferencing interpolation '(.*?)': (.*)")


def explain(error: BaseException) -> str:
    """The mistake in one line: key, value, what is allowed, the closest match."""
    chain = list(_causes(error))
    for item in chain:
        if isinstance(item, UsageError):
            return str(item)
        if isinstance(item, MissingConfigException):
            return _missing_option(item)
    override = next((found for item in chain if (found := _override_of(item))), None)
    for item in chain:
        if isinstance(item, OmegaConfBaseException):
            return _value_error(item, override)
    return _hydra_error(str(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _override_of(error: BaseException) -> str | None:
    match = _OVERRIDE.search(str(error))
    return match[1] if match else None


def _missing_option(error: MissingConfigException) -> str:
    """`policy=growpag`, `experiment=tabel8`, `--config-name=foo`."""
    match, file = _OPTIONS_OF.search(str(error)), error.missing_cfg_file or ""
    if "primary config" in str(error):
        return str(
            unknown("--config-name", file, [path.stem for path in CONFIG_FOLDER.glob("*.yaml")])
        )
    if match is None:
        return _one_line(str(error))
    return str(unknown(match[1], file.removeprefix(f"{match[1]}/"), error.options or ()))


def _value_error(error: OmegaConfBaseException, override: str | None) -> str:
    key, text = error.full_key or str(error.key), (error.msg or str(error)).splitlines()[0]
    shown = override or key
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return _unknown_key(key, override, error.object_type)
    if isinstance(error, ConfigTypeError) and "deletion" in text:
        return f"~{key}: this key cannot be removed. Set {key}=… instead."
    if match := _DEREFERENCED.search(text):
        reason = "which is null" if _IS_NULL.search(match[2]) else match[2]
        return f"{key}: takes its value from {match[1]}, {reason}. Set either."
    if not isinstance(error, ValidationError):
        return f"{shown}: {text}"
    if _IS_NULL.search(text):
        return f"{shown}: must have a value."
    if match := _NOT_IN_ENUM.search(text):
        guess = closest(str(error.value), match[1].split(", ")) if error.value else ""
        return f"{shown}: must be one of {match[1]}.{guess}"
    if _NO_BOOL.search(text):
        return f"{shown}: must be {_TYPE_WORDS['Boolean']}."
    if match := _NOT_CONVERTIBLE.search(text):
        return f"{shown}: must be {_TYPE_WORDS.get(match[1], match[1])}."
    return f"{shown}: {text}"


def _unknown_key(key: str, override: str | None, schema: object) -> str:
    names = {item.name for item in fields(schema)} if is_dataclass(schema) else set()
    if schema is Config:
        names |= set(CHOICE_GROUPS)
    value = override.partition("=")[2] if override else ""
    return str(no_such_key(key, names, _elsewhere(key, value)))


def _elsewhere(key: str, value: str) -> str:
    """Where else a key of this name exists: under another policy, or in a group."""
    group, _, leaf = key.rpartition(".")
    owners = [name for name, cls in POLICIES.items() if leaf in {x.name for x in fields(cls)}]
    if group == "policy" and owners:
        return f" It belongs to policy={', '.join(owners)}."
    if group:
        return ""
    homes = [name for name, cls in GROUPS.items() if leaf in {x.name for x in fields(cls)}]
    homes += ["policy"] if owners else []
    if not homes:
        return ""
    return f" Did you mean {' or '.join(f'{home}.{leaf}={value}' for home in homes)}?"


def _hydra_error(text: str) -> str:
    if match := _SEVERAL.search(text):
        return f"{match[1]}: several values. Add -m to run one job for each."
    if match := _NOT_A_CHOICE.search(text):
        return _unknown_key(match[1], None, Config)
    if match := _EXISTS.search(text):
        return f"+{match[1]}: this key exists. Set it without the plus: {match[1]}=…"
    return _one_line(text)


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(_NOISE))
