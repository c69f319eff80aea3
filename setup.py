"""Builds what pyproject.toml cannot say: protobuf modules from `proto/`, and the Cython modules of `smg_ext`."""

import os
import pathlib

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = pathlib.Path(__file__).parent
PROTOS = sorted(path.name for path in (ROOT / "proto").glob("*.proto"))
MODULES: dict[str, list[str]] = {  # name -> C libraries
    "blocks": [],
    "body": [],
    "bpe": [],
    "bpe_ascii": [],
    "bpe_characters": [],
    "bpe_marks": [],
    "bpe_merge": [],
    "bpe_splits": [],
    "bpe_vocabulary": [],
    "bpe_words": [],
    "buckets": [],
    "channels": [],
    "collector": [],
    "events": [],
    "grammar": [],
    "grammar_json": [],
    "grammar_named": [],
    "grammar_nested": [],
    "grammar_python": [],
    "grammar_tagged": [],
    "headers": ["nghttp2"],
    "literal": [],
    "loads": [],
    "machine": [],
    "marks": [],
    "plane": ["nghttp2"],
    "prefix": [],
    "prompt": [],
    "request": [],
    "response": [],
    "seats": [],
    "series": [],
    "session": ["nghttp2"],
    "shm": [],
    "sink": [],
    "splitter": [],
    "sticky": [],
    "stream": [],
    "text": [],
    "thoughts": [],
    "tls": ["nghttp2"],
    "trailer": [],
    "value": [],
    "wire": [],
}


def make_protos() -> None:
    """Runs protoc so that `proto/x.proto` becomes `smg/pb/x_pb2.py`, importable as it lies."""
    import grpc_tools
    from grpc_tools import protoc

    out = ROOT / "smg" / "pb"
    made = min((path.stat().st_mtime for path in out.glob("*_pb2.py")), default=0.0)
    if made > max((ROOT / "proto" / name).stat().st_mtime for name in PROTOS) and len(list(out.glob("*_pb2.py"))) == len(PROTOS):
        return
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    arguments = [f"-Ismg/pb={ROOT / 'proto'}", f"-I{well_known}", *(f"--{kind}_out={ROOT}" for kind in ("python", "grpc_python", "pyi"))]
    if protoc.main(["protoc", *arguments, *(f"smg/pb/{name}" for name in PROTOS)]):
        raise SystemExit("protoc failed")


class BuildPython(build_py):
    """build_py with the protobuf modules made first."""

    def run(self) -> None:
        make_protos()
        super().run()


class BuildExtensions(build_ext):
    """build_ext that translates .pyx with warnings as errors, and makes the protobuf modules for in-place builds."""

    def finalize_options(self) -> None:
        from Cython.Build import cythonize
        from Cython.Compiler import Options

        Options.warning_errors = True
        self.distribution.ext_modules[:] = cythonize(self.distribution.ext_modules, build_dir="build")
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        make_protos()
        super().run()


class SourceArchive(sdist):
    """sdist with the files that the build reads and that lie in no package."""

    def make_distribution(self) -> None:
        self.filelist.extend([f"proto/{name}" for name in PROTOS])
        super().make_distribution()


setup(
    cmdclass={"build_py": BuildPython, "build_ext": BuildExtensions, "sdist": SourceArchive},
    ext_modules=[
        Extension(f"smg_ext.{name}", [f"smg_ext/{name}.pyx"], libraries=libraries, extra_compile_args=["-O2", "-std=c11"])
        for name, libraries in MODULES.items()
    ],
)
