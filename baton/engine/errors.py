"""What the engine says when a model cannot be served. The message names the file or the field, what is wrong and the way out.

ModelError
├── ModelNotFound           nothing usable at the path
├── CorruptModel            the file contradicts itself or its own length: it is not trusted any further
└── UnsupportedModel        well formed, but of an architecture, rope type, tensor or format that is not served

KernelsUnavailable          a kernel backend cannot serve here; the plain torch reference can
"""

from __future__ import annotations


class ModelError(Exception):
    """A model that cannot be loaded; the text is meant for the person who started the worker."""


class ModelNotFound(ModelError):
    """No model where one was named."""


class CorruptModel(ModelError):
    """A truncated, overlapping or absurd file."""


class UnsupportedModel(ModelError):
    """A model of a kind that is not served; refused by name, never guessed."""


class KernelsUnavailable(Exception):
    """A kernel backend cannot serve here: no compiler, no such instruction set, a shape that it does not take."""
