"""Writes the copyright file: our licence, and the texts of all that the program carries. `python copyright.py BINARY` prints it."""

import pathlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata

__all__ = ["copyright_text"]

OURS = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: smg
Source: the repository that this package was built from

Files: *
Copyright: The SMG developers
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
"""
# Libraries of the machine that the binary was made on; their texts are in Debian's packages.
HOST = {
    "libpython3": "python3.11",
    "libcrypto": "libssl3",
    "libssl": "libssl3",
    "libnghttp2": "libnghttp2-14",
    "libz": "zlib1g",
    "libffi": "libffi8",
    "libbz2": "libbz2-1.0",
    "liblzma": "liblzma5",
    "libuuid": "libuuid1",
    "libexpat": "libexpat1",
}
COMMON = {r"Apache License\s+Version 2\.0": "Apache-2.0", r"(?i:GNU GENERAL PUBLIC LICENSE)[^\n]*\n\s*Version 2": "GPL-2"}
# In the venv for the sake of the build, or wanted by parts of libraries that are left out.
NOT_CARRIED = (
    "pip",
    "setuptools",
    "cython",
    "grpcio-tools",
    "altgraph",
    "packaging",
    "pyinstaller-hooks-contrib",
    "huggingface_hub",
    "fsspec",
)
NOT_CARRIED += (
    "filelock",
    "hf-xet",
    "click",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "h11",
    "anyio",
    "idna",
    "certifi",
    "tqdm",
    "truststore",
    "smg",
)


def copyright_text(binary: pathlib.Path) -> str:
    """Gives the file. `binary`: the folder of the frozen program; raises LookupError for a library whose licence is not found."""
    parts = [OURS]
    for name, text in sorted({**dict(_distributions(binary)), **dict(_libraries(binary))}.items()):
        body = "\n".join(" " + (line.rstrip() or ".") for line in _shortened(text).strip().splitlines())
        parts.append(f"Files: usr/lib/smg/_internal/{name}*\nCopyright: as said in the text\nLicense: {name}\n{body}\n")
    return "\n".join(parts)


def _shortened(text: str) -> str:
    """A licence whose text every Debian system has is named instead."""
    for beginning, name in COMMON.items():
        text = re.sub(
            beginning + r".*?END OF TERMS AND CONDITIONS",
            f"{name}: the text is in /usr/share/common-licenses/{name}",
            text,
            flags=re.DOTALL,
        )
    return text


def _distributions(binary: pathlib.Path) -> Iterator[tuple[str, str]]:
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name.lower() in NOT_CARRIED or (name == "numpy" and not (binary / "_internal" / "numpy").exists()):
            continue
        texts = [file.read_text() for file in distribution.files or () if _is_licence(str(file))]
        said = [distribution.metadata[key] for key in ("License-Expression", "License", "Classifier") if key in distribution.metadata]
        if not texts and not said:
            raise LookupError(f"{name} says no licence")
        yield name, "\n\n".join(texts) or said[0]


def _is_licence(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.split("/")[0].endswith(".dist-info") and name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE"))


def _libraries(binary: pathlib.Path) -> Iterator[tuple[str, str]]:
    for path in sorted((binary / "_internal").glob("lib*.so*")):
        stem = next((stem for stem in HOST if path.name.startswith(stem + ".") or path.name.startswith(stem + "-")), None)
        if path.name.startswith("libpython3"):
            yield "libpython3", _python_licence()
        elif stem is None:
            raise LookupError(f"{path.name}: whose licence is not known; add it to HOST in {pathlib.Path(__file__).name}")
        else:
            text = pathlib.Path("/usr/share/doc", HOST[stem], "copyright")
            if not text.exists():
                raise LookupError(f"{path.name}: {text} is missing")
            yield stem, text.read_text(encoding="utf-8")


def _python_licence() -> str:
    base = pathlib.Path(sys.base_prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "LICENSE.txt")
    found = base if base.exists() else pathlib.Path("/usr/share/doc", f"python{sys.version_info[0]}.{sys.version_info[1]}", "copyright")
    return found.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.stdout.write(copyright_text(pathlib.Path(sys.argv[1])))
