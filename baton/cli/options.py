"""Command-line options out of a config's fields, so that a setting is described once and every command offers it alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from baton.cluster.config import Config
from baton.cluster.sources import flag_fields, flag_of, is_list, variable_of

Given = dict[str, Any]
"""Fields that were given on the command line; the others come from the environment, the file or their defaults."""


def with_options(kind: type[Config], *, argument: str | None = None, without: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Gives a command `(flags: Given, config: str | None)` one option for each field of `kind`; `argument` is positional."""

    def decorate(command: Callable[[Given, str | None], None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            config = values.pop("config")
            command({name: value for name, value in values.items() if value not in (None, [])}, config)

        fields = {name: field for name, field in flag_fields(kind).items() if name not in without}
        parameters = [_parameter(kind, name, field, positional=name == argument) for name, field in fields.items()]
        parameters.sort(key=lambda parameter: parameter.name != argument)
        help_text = "YAML file with the same names as the options."
        config_option = Annotated[str | None, typer.Option("--config", help=help_text, metavar="FILE")]
        parameters.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=config_option))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        return run

    return decorate


def _parameter(kind: type[Config], name: str, field: FieldInfo, *, positional: bool) -> inspect.Parameter:
    help_text = f"{field.description}{_default(field)}"
    annotation: Any
    if positional:
        annotation = Annotated[str | None, typer.Argument(help=help_text, metavar=name.upper(), envvar=variable_of(name))]
    elif field.annotation is bool:
        annotation = Annotated[bool | None, typer.Option(flag_of(kind, name), help=help_text, show_envvar=True)]
    elif is_list(field):
        annotation = Annotated[list[str] | None, typer.Option(flag_of(kind, name), help=help_text)]
    else:
        annotation = Annotated[str | None, typer.Option(flag_of(kind, name), help=help_text, metavar=_metavar(field))]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(field: FieldInfo) -> str:
    plain = isinstance(field.default, int | float | str) and not isinstance(field.default, bool) and field.default != ""
    return f" (default {field.default})" if plain else ""


def _metavar(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    if isinstance(field.default, int) or "int" in str(field.annotation):
        return "N"
    return "MAPPING" if not isinstance(field.default, str | None) else "TEXT"
