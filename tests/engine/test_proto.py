"""Our protocols against those of PyPI smg-grpc-proto 0.4.28: every message, field, enum and rpc, and nothing besides."""

import base64
import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

FILES = [
    "common",
    "mlx_engine",
    "sglang_encoder",
    "sglang_scheduler",
    "tokenspeed_encoder",
    "tokenspeed_scheduler",
    "trtllm_service",
    "vllm_engine",
]
VERSION = "0.4.28"
# Both sides register the same full names, so theirs needs a process of its own.
DUMP = """
import base64, importlib, json, sys
print(json.dumps({
    name: base64.b64encode(importlib.import_module(f"{sys.argv[1]}.{name}_pb2").DESCRIPTOR.serialized_pb).decode() for name in sys.argv[2:]
}))
"""


def test_installed_reference_is_the_pinned_one():
    assert importlib.metadata.version("smg-grpc-proto") == VERSION


@pytest.fixture(scope="module")
def theirs() -> dict[str, descriptor_pb2.FileDescriptorProto]:
    done = subprocess.run([sys.executable, "-c", DUMP, "smg_grpc_proto.generated", *FILES], capture_output=True, text=True, check=True)
    return {name: descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(data)) for name, data in json.loads(done.stdout).items()}


def ours(name: str) -> descriptor_pb2.FileDescriptorProto:
    module = importlib.import_module(f"smg.pb.{name}_pb2")
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def facts(file: descriptor_pb2.FileDescriptorProto) -> dict[str, object]:
    """All that the wire or a caller can tell: names, numbers, labels, types, oneofs, enum values, rpcs."""
    found: dict[str, object] = {"package": file.package, "syntax": file.syntax}
    for message in file.message_type:
        found.update(message_facts(message, f"{file.package}.{message.name}"))
    for enum in file.enum_type:
        found[f"enum {file.package}.{enum.name}"] = {value.name: value.number for value in enum.value}
    for service in file.service:
        for method in service.method:
            streams = (method.client_streaming, method.server_streaming)
            found[f"rpc {file.package}.{service.name}.{method.name}"] = [method.input_type, method.output_type, *streams]
    return found


def message_facts(message: descriptor_pb2.DescriptorProto, name: str) -> dict[str, object]:
    found: dict[str, object] = {f"message {name}": sorted(field.name for field in message.field)}
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        found[f"field {name}.{field.name}"] = {
            "number": field.number,
            "label": field.Label.Name(field.label),
            "type": field.Type.Name(field.type),
            "type_name": field.type_name,
            "oneof": oneof,
            "optional": field.proto3_optional,
            "packed": field.options.packed if field.options.HasField("packed") else None,
        }
    for nested in message.nested_type:
        found.update(message_facts(nested, f"{name}.{nested.name}"))
    for enum in message.enum_type:
        found[f"enum {name}.{enum.name}"] = {value.name: value.number for value in enum.value}
    return found


@pytest.mark.parametrize("name", FILES)
def test_descriptors_are_equal(name: str, theirs: dict[str, descriptor_pb2.FileDescriptorProto]):
    mine, reference = facts(ours(name)), facts(theirs[name])
    assert len(reference) > 5
    assert json.loads(json.dumps(mine)) == json.loads(json.dumps(reference))


def test_every_file_of_ours_is_compared():
    root = Path(__file__).parents[2] / "proto"
    assert sorted(path.stem for path in root.glob("*.proto")) == FILES


def test_a_changed_field_is_noticed():
    changed = ours("mlx_engine")
    before = facts(changed)
    changed.message_type[2].field[0].number += 100
    assert facts(changed) != before
