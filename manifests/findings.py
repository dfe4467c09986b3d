"""What is wrong with a document, and where in it: errors of a JSON Schema in the words of those who wrote the YAML."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

__all__ = ["Finding", "path_text", "schema_findings"]


@dataclass(frozen=True)
class Finding:
    """`path` is as in `spec.template.spec.containers[0].image`; empty for the document as a whole."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def path_text(parts: Iterable[str | int]) -> str:
    """Keys and places as a path."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "." in part or "/" in part:
            text += f"[{part!r}]"
        else:
            text += f".{part}" if text else part
    return text


def schema_findings(validator: Draft202012Validator, document: object) -> Iterator[Finding]:
    """In the order of the document. A null counts as not given, as the API server has it."""
    errors = validator.iter_errors(_without_nulls(document))
    for error in sorted(errors, key=lambda error: path_text(error.absolute_path)):
        yield from _findings(error)


def _findings(error: ValidationError) -> Iterator[Finding]:
    here, rule = list(error.absolute_path), error.validator_value
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {})) if isinstance(error.schema, dict) else []
        for key in error.instance:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                meant = f" (did you mean {near[0]}?)" if near else ""
                yield Finding(path_text([*here, str(key)]), f"unknown field{meant}")
    elif error.validator == "required" and isinstance(rule, list):
        # One error a key, which only its message names.
        missing = next((key for key in rule if error.message.startswith(repr(key))), "")
        yield Finding(path_text([*here, missing]), "missing, and required")
    elif error.validator == "type":
        expected = " or ".join(rule) if isinstance(rule, list) else str(rule)
        yield Finding(path_text(here), f"{_shown(error.instance)}: expected {expected}")
    elif error.validator == "enum" and isinstance(rule, list):
        accepted = ", ".join(map(str, rule))
        yield Finding(path_text(here), f"{_shown(error.instance)} is not accepted: expected {accepted}")
    else:
        yield Finding(path_text(here), error.message)


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value
