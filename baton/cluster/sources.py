"""Where a config comes from: flag over BATON_* environment over YAML file over default. Errors name the source and the fix."""

from __future__ import annotations

import argparse
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from baton.cluster.config import SECRET, Config, Limits, RouterConfig, ServeConfig, WorkerConfig, redacted
from baton.cluster.tokens import TOKEN_VARIABLE, TokenError, read_token_file
from baton.wire.types import Timeouts

C = TypeVar("C", bound=Config)
PREFIX = "BATON_"
KINDS: tuple[type[Config], ...] = (WorkerConfig, RouterConfig, ServeConfig)


class ConfigError(Exception):
    """A setting that cannot be used. The message has one line for each, naming its flag, value and source."""


def load(kind: type[C], flags: Mapping[str, Any], file: str | None = None, environ: Mapping[str, str] | None = None) -> C:
    """The config of `kind`; `flags` holds the fields given on the command line. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    _refuse_slips(environ)
    layers = [(f"in {file}", _from_file(kind, file)), ("in the environment", _from_environ(kind, environ)), ("", flags)]
    origins = {name: origin for origin, layer in layers for name in layer}
    values = {name: value for _, layer in layers for name, value in layer.items()}
    try:
        parsed = {name: _parsed(kind.model_fields[name], value) for name, value in values.items() if name in kind.model_fields}
        return _with_secrets(kind(**values | parsed))
    except yaml.YAMLError as error:
        raise ConfigError(f"a mapping is not YAML, such as '{{request_s: 60}}': {error}") from error
    except ValidationError as error:
        raise ConfigError(_explained(kind, error, origins)) from error


def from_argv(kind: type[C], argv: Sequence[str], prog: str | None = None) -> C:
    """Parses a process's arguments, one flag for each field, and loads its config. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog=prog, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    parser.add_argument("--config", default=None, help="YAML file with the same names as the flags.")
    for name, field in flag_fields(kind).items():
        parser.add_argument(flag_of(kind, name), dest=name, help=field.description, **_argument(field))
    flags = vars(parser.parse_args(argv))
    file = flags.pop("config")
    return load(kind, flags, file)


def to_argv(config: Config) -> list[str]:
    """Flags that `from_argv` reads back to `config` in a `child_environ`; defaults and secrets are left out."""
    argv, kind = list[str](), type(config)
    for name, value in config.model_dump(mode="json", exclude_defaults=True).items():
        match value:
            case bool():
                argv.append(flag_of(kind, name) if value else "--no-" + flag_of(kind, name)[2:])
            case list():
                argv += [flag_of(kind, name), ",".join(str(item) for item in value)]
            case dict():
                argv += [flag_of(kind, name), json.dumps(value)]
            case _:
                argv += [flag_of(kind, name), str(value)]
    return argv


def flag_fields(kind: type[Config]) -> dict[str, FieldInfo]:
    """The fields that have a flag: all but secrets."""
    return {name: field for name, field in kind.model_fields.items() if field.json_schema_extra != SECRET}


def flag_of(kind: type[Config], name: str) -> str:
    extra = kind.model_fields[name].json_schema_extra
    return str(extra["flag"]) if isinstance(extra, dict) and "flag" in extra else "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def child_environ(token: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process that we start: the token, and no BATON_* setting, since its flags say everything."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)} | {TOKEN_VARIABLE: token}


def _argument(field: FieldInfo) -> dict[str, Any]:
    if field.annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"action": "append"} if is_list(field) else {}


def is_list(field: FieldInfo) -> bool:
    return str(field.annotation).startswith("tuple")


def is_mapping(field: FieldInfo) -> bool:
    return field.annotation in (Timeouts, Limits)


def _parsed(field: FieldInfo, value: Any) -> Any:
    """A flag's or variable's text as a value: lists split at commas, mappings read as YAML, the rest left to pydantic."""
    if is_list(field):
        parts = [value] if isinstance(value, str) else value
        return tuple(item.strip() for part in parts for item in str(part).split(",") if item.strip())
    return yaml.safe_load(value) if is_mapping(field) and isinstance(value, str) else value


def _refuse_slips(environ: Mapping[str, str]) -> None:
    """A variable that is nearly a setting's is a slip that would go unnoticed; others that begin alike may be anybody's."""
    known = [variable_of(name) for kind in KINDS for name in kind.model_fields]
    lines = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and (close := difflib.get_close_matches(name, known, 1, cutoff=0.85)):
            lines.append(f"{name} in the environment is not a setting; did you mean {close[0]}?")
    if lines:
        raise ConfigError("\n".join(lines))


def _from_environ(kind: type[Config], environ: Mapping[str, str]) -> dict[str, Any]:
    return {name: environ[variable_of(name)] for name in kind.model_fields if environ.get(variable_of(name))}


def _from_file(kind: type[Config], file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        values = yaml.safe_load(Path(file).read_text()) or {}
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--config {file} must hold names and values, such as 'port: 8000'")
    names = {str(name).replace("-", "_"): value for name, value in values.items()}
    if secrets := names.keys() - flag_fields(kind).keys() & kind.model_fields.keys():
        raise ConfigError(
            f"--config {file}: {', '.join(secrets)} does not belong in it; use {', '.join(map(variable_of, secrets))}"
        )
    return names


def _with_secrets(config: C) -> C:
    """Reads what was not given by environment from its file."""
    for name in ("cluster_token", "registry_password"):
        if not getattr(config, name, "") and (path := getattr(config, f"{name}_file", None)):
            config = config.model_copy(update={name: _from_secret_file(type(config), f"{name}_file", path)})
    if config.needs_token and not getattr(config, "cluster_token", ""):
        raise ConfigError(f"no cluster token: set {TOKEN_VARIABLE}, or --cluster-token-file to a file of mode 0600")
    return config


def _from_secret_file(kind: type[Config], name: str, path: str) -> str:
    try:
        return read_token_file(path)
    except TokenError as error:
        raise ConfigError(f"{flag_of(kind, name)} {path}: {error}") from error


def _explained(kind: type[Config], error: ValidationError, origins: Mapping[str, str]) -> str:
    lines: dict[str, str] = {}
    for fault in error.errors():
        name, *inner = [str(part) for part in fault["loc"]] or [""]
        message = fault["msg"].removeprefix("Value error, ")
        if not name:
            lines[message] = message
        elif name not in kind.model_fields:
            lines[name] = f"{name} {origins[name]} is not a setting of this command; see --help"
        else:
            where = ".".join([flag_of(kind, name), *inner]) if is_mapping(kind.model_fields[name]) else flag_of(kind, name)
            origin = f" {origins[name]}".rstrip()
            lines[where] = (
                f"{lines[where]}; or: {message}"
                if where in lines
                else f"{where} {redacted(repr(fault['input']))}{origin}: {message}"
            )
    return "\n".join(lines.values())
