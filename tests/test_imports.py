"""Who may import whom, walked over the source: a forbidden import is named by file and line."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("baton", "router", "prefill_node", "decode_node", "kvtransfer")

# Package: what of ours it may import (itself always), and what of others it never may. The longest matching package rules.
RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "baton.wire": ((), ("torch", "ray", "redis")),
    "baton.wire.types": ((), ("grpc", "google", "torch", "pydantic", "ray", "redis")),
    "baton.wire.errors": ((), ("grpc", "google", "torch", "pydantic", "ray", "redis")),
    "baton.engine": (("baton.wire.types",), ("grpc", "google", "redis", "ray", "fastapi", "pydantic")),
    "kvtransfer": (("baton.wire",), ("torch", "fastapi", "ray", "redis")),
    "kvtransfer.protocol": (("baton.wire.types",), ("grpc", "google", "torch", "asyncio", "time", "xxhash", "ray", "redis")),
    "kvtransfer.transports.nccl": (("kvtransfer", "baton.wire"), ("fastapi", "ray", "redis")),
    "baton.cluster": (("baton.wire",), ("torch", "fastapi", "ray", "redis")),
    "baton.cluster.launch_ray": (("baton.wire", "baton.cluster"), ("torch", "fastapi", "redis")),
    "baton.cluster.registry_redis": (("baton.wire", "baton.cluster"), ("torch", "fastapi", "ray")),
    "prefill_node": (("baton.engine", "kvtransfer", "baton.wire", "baton.cluster"), ("fastapi", "ray", "redis")),
    "decode_node": (("baton.engine", "kvtransfer", "baton.wire", "baton.cluster"), ("fastapi", "ray", "redis")),
    "router": (("baton.wire", "baton.cluster", "kvtransfer.protocol"), ("torch", "transformers", "ray", "redis")),
    "baton.loadtest": ((), ("torch", "grpc", "ray", "redis")),
    "baton.client": (("baton.wire",), ("torch", "fastapi", "ray", "redis")),
    "baton.cli": (OURS, ("torch", "ray", "redis")),
}
GENERATED = "baton.wire.pb"


def package_rule(module: str) -> str:
    return max((package for package in RULES if within(module, package)), key=len)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def modules() -> Iterator[tuple[str, Path]]:
    for root in OURS:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if module != "baton" and not within(module, GENERATED):
                yield module, path


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Each imported name as a full dotted path, and its line; a relative import is resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{prefix}.{alias.name}", node.lineno) for alias in node.names)


def fault(module: str, name: str) -> str | None:
    """Why `module` may not import `name`, or None."""
    package = package_rule(module)
    allowed, never = RULES[package]
    if name.split(".")[0] in OURS:
        family = package if package.count(".") < 2 else package.rpartition(".")[0]
        if not any(within(name, other) for other in (package, *allowed)) and not (family in allowed and within(name, family)):
            return f"{package} may import of ours only {', '.join(allowed) or 'itself'}"
        if within(name, GENERATED) and not within(module, "baton.wire"):
            return "generated code stays behind baton.wire"
    if any(within(name, other) for other in never):
        return f"{package} never imports {name.split('.')[0]}"
    return None


def test_every_import_is_allowed():
    faults = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}: {reason}"
        for module, path in modules()
        for name, line in imports(ast.parse(path.read_text()), module, path.name == "__init__.py")
        if (reason := fault(module, name))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("router.flow", "torch"),
        ("router.flow", "baton.engine.api.Engine"),
        ("router.flow", "kvtransfer.frames"),
        ("baton.engine.core", "grpc.aio"),
        ("baton.engine.core", "baton.wire.errors.BatonError"),
        ("kvtransfer.protocol.sender", "baton.wire.errors"),
        ("prefill_node.service", "decode_node.service"),
        ("prefill_node.service", "baton.wire.pb.worker_pb2"),
        ("baton.cluster.registry", "redis.asyncio"),
        ("baton.client.client", "baton.cluster.config"),
    ],
)
def test_the_rules_can_be_broken(module, name):
    assert fault(module, name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("router.flow", "kvtransfer.protocol.coordinator.Coordinator"),
        ("baton.engine.core", "baton.wire.types.Token"),
        ("baton.wire.convert", "baton.wire.pb.worker_pb2"),
        ("baton.cluster.launch_ray", "ray"),
        ("baton.cluster.registry_redis", "redis.asyncio"),
        ("baton.cli.worker", "prefill_node.service"),
    ],
)
def test_the_rules_can_be_kept(module, name):
    assert fault(module, name) is None


FORBID_TORCH = """
import importlib.abc, sys

class Forbid(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "numpy", "safetensors", "gguf", "blake3", "xxhash", "ray", "redis", "transformers"}:
            raise ModuleNotFoundError(f"{name} is not part of the core install", name=name)

sys.meta_path.insert(0, Forbid())
"""


@pytest.mark.parametrize("root", ["router", "baton.client", "baton.cli.main"])
def test_the_core_install_needs_no_torch(root):
    """Imports every module under `root` in a process where the engine's dependencies do not exist."""
    names = [module for module, _ in modules() if within(module, root)]
    code = FORBID_TORCH + "import importlib\n" + f"for name in {names!r}: importlib.import_module(name)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_top_level_names_are_ours_alone():
    owners = packages_distributions()
    shared = {root: owners[root] for root in OURS if set(owners.get(root, [])) - {"baton-serve"}}
    assert not shared, f"another distribution installs {shared}"


def test_proto_is_no_package():
    assert not list((ROOT / "proto").glob("**/*.py")), "proto/ would shadow another library's package of that name"
