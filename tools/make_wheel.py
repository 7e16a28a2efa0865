"""Writes the wheel: a zip with a manifest. No build backend, no network, same bytes every time.

make_wheel.py ROOT SHARED_OBJECTS DIST TORCH_VERSION
"""

import base64
import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path

# Folders whose headers a C++ program may include, as <weft/include>/<folder>/<header>.
LAYERS = ("transport", "rpc_backend", "jit_ops", "pipe", "c10d_plugin", "third_party/torch")

# Where find_package(weft) looks below weft.cmake_prefix_path().
CMAKE = "weft/share/cmake/weft"


def cmake_version(version: str) -> str:
    """A program that asks for this version or an older one gets this one."""
    return f"""set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"""


def load_stage(root: Path):
    """tools/stage.py knows which files are the package; ./dev runs us isolated (-I)."""
    spec = importlib.util.spec_from_file_location("stage", root / "tools" / "stage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def contents(root: Path, shared: Path, stage) -> dict[str, bytes]:
    files = {}
    for relative in stage.python_files(root / "weft"):
        files[f"weft/{relative}"] = (root / "weft" / relative).read_bytes()
    files[f"{stage.AUTOLOAD}.py"] = (root / "weft" / "_autoload.py").read_bytes()
    for path in sorted(shared.glob("*.so")):
        files[f"weft/{path.name}"] = path.read_bytes()
    for layer in LAYERS:
        for header in sorted((root / layer).rglob("*.h")):
            files[f"weft/include/{header.relative_to(root)}"] = header.read_bytes()
    files[f"{CMAKE}/weft-config.cmake"] = (root / "tools" / "weft-config.cmake").read_bytes()
    files[f"{CMAKE}/weft-config-version.cmake"] = cmake_version(stage.VERSION).encode()
    return files


def tag() -> str:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}-linux_x86_64"


def main(root: Path, shared: Path, dist: Path, torch_version: str) -> None:
    stage = load_stage(root)
    files = contents(root, shared, stage)
    # The shared objects are made for one torch minor version: its C++ ABI promises no more.
    minor = ".".join(torch_version.split(".")[:2])
    major = f"Requires-Python: >=3.10\nRequires-Dist: torch (=={minor}.*)\n"
    extras = 'Provides-Extra: top\nRequires-Dist: rich; extra == "top"\n'
    licence = "License: BSD-3-Clause\nLicense-File: LICENSE\nLicense-File: NOTICE\n"
    info = f"weft-{stage.VERSION}.dist-info"
    files[f"{info}/METADATA"] = (stage.metadata() + major + extras + licence).encode()
    for text in ("LICENSE", "NOTICE"):
        files[f"{info}/{text}"] = (root / text).read_bytes()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode()
    )
    files[f"{info}/entry_points.txt"] = stage.entry_points().encode()
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}")
    record.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    wheel = dist / f"weft-{stage.VERSION}-{tag()}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980: the same input gives the same wheel
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
