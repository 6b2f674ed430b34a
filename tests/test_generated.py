"""Generated code is what the generator makes of proto/ today, and fits the bounds in pyproject.toml."""

import filecmp
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "baton" / "wire" / "pb"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_generated_code_has_not_drifted(tmp_path):
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto").glob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", "-I", "baton/wire/pb=proto", *outputs, *sources]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    fresh = tmp_path / "baton" / "wire" / "pb"
    names = sorted(path.name for path in fresh.iterdir())
    kept = sorted(path.name for path in GENERATED.glob("*_pb2*"))
    assert names == kept, "files differ; run: make proto"
    _, different, missing = filecmp.cmpfiles(fresh, GENERATED, names, shallow=False)
    assert not different + missing, f"{different + missing} differ from proto/; run: make proto"


def test_lower_bounds_are_not_below_the_generator():
    grpc = re.search(r"GRPC_GENERATED_VERSION = '(.*)'", (GENERATED / "worker_pb2_grpc.py").read_text())
    protobuf = re.search(r"Protobuf Python Version: (\S+)", (GENERATED / "worker_pb2.py").read_text())
    assert grpc
    assert protobuf
    assert any(dependency.startswith(f"grpcio>={grpc[1]}") for dependency in PROJECT["dependencies"])
    assert any(dependency.startswith(f"protobuf>={protobuf[1]}") for dependency in PROJECT["dependencies"])


def test_the_generator_is_pinned():
    assert any(dependency.startswith("grpcio-tools==") for dependency in PROJECT["optional-dependencies"]["dev"])


def test_only_the_constraints_pin_what_users_install():
    pinned = [dependency for dependency in PROJECT["dependencies"] if "==" in dependency.split(";")[0]]
    assert not pinned
