"""Writes the wheel: a zip with a manifest. No build backend, no network, same bytes every time.

make_wheel.py ROOT SHARED_OBJECTS DIST TORCH_VERSION
"""

import importlib.util
import os
import platform
import sys
import zipfile
from pathlib import Path

# Folders whose headers a C++ program may include, as <weft/include>/<folder>/<header>.
LAYERS = ("transport", "rpc_backend", "jit_ops", "pipe", "c10d_plugin", "third_party/torch")

# The Debian packages whose libraries auditwheel puts into the wheel. Their licences go with them.
BUNDLED = (
    "libssl3",
    "libisal2",
    "libgloo0",
    "libhiredis0.14",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
)
LICENCES = (
    "BSD-3-Clause AND MIT AND Apache-2.0 AND LGPL-2.1-only AND (GPL-2.0-only OR Linux-OpenIB)"
)
SUMMARY = "RPC, process group, remote modules and pipelines for PyTorch"
CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3 :: Only",
    f"Programming Language :: Python :: 3.{sys.version_info.minor}",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: System :: Distributed Computing",
    "Typing :: Typed",
)

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


def metadata(root: Path, torch_version: str, stage) -> str:
    """METADATA: what an index shows, and what pip asks for. The long description is the README."""
    minor = stage.minor_of(torch_version)
    python = f"3.{sys.version_info.minor}"
    lines = [
        stage.metadata(torch_version).rstrip(),
        f"Summary: {SUMMARY}",
        "Author: The Weft authors",
        f"License-Expression: {LICENCES}",
        "License-File: LICENSE",
        "License-File: NOTICE",
        *(f"License-File: {package}" for package in BUNDLED),
        "Keywords: pytorch,rpc,distributed,collectives,pipeline",
        *(f"Classifier: {text}" for text in CLASSIFIERS),
        *project_urls(),
        f"Requires-Python: =={python}.*",
        f"Requires-Dist: torch (=={minor}.*)",
        "Provides-Extra: top",
        'Requires-Dist: rich; extra == "top"',
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (root / "README.md").read_text()


def project_urls() -> list[str]:
    """Where the project lives: whoever publishes the wheel knows (WHEEL_PROJECT_URL)."""
    home = os.environ.get("WHEEL_PROJECT_URL", "").rstrip("/")
    if not home:
        return []
    pages = {
        "Source": home,
        "Documentation": f"{home}/tree/main/docs",
        "Changes": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    return [f"Project-URL: {name}, {url}" for name, url in pages.items()]


def contents(root: Path, shared: Path, torch_version: str, stage) -> dict[str, bytes]:
    files = {}
    for relative in stage.python_files(root / "weft"):
        files[f"weft/{relative}"] = (root / "weft" / relative).read_bytes()
    files["weft/_built_for.py"] = stage.built_for(torch_version).encode()
    files[f"{stage.AUTOLOAD}.py"] = (root / "weft" / stage.ENTRY_POINT).read_bytes()
    for path in sorted(shared.glob("*.so")):
        files[f"weft/{path.name}"] = path.read_bytes()
    for layer in LAYERS:
        for header in sorted((root / layer).rglob("*.h")):
            files[f"weft/include/{header.relative_to(root)}"] = header.read_bytes()
    files[f"{CMAKE}/weft-config.cmake"] = (root / "tools" / "weft-config.cmake").read_bytes()
    files[f"{CMAKE}/weft-config-version.cmake"] = cmake_version(stage.VERSION).encode()
    return files


def about(root: Path, torch_version: str, stage) -> dict[str, bytes]:
    """What goes into the folder .dist-info, without RECORD."""
    files = {"METADATA": metadata(root, torch_version, stage).encode()}
    for text in ("LICENSE", "NOTICE"):
        files[f"licenses/{text}"] = (root / text).read_bytes()
    for package in BUNDLED:
        files[f"licenses/{package}"] = Path(f"/usr/share/doc/{package}/copyright").read_bytes()
    files["WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode()
    )
    files["entry_points.txt"] = stage.entry_points().encode()
    return files


def tag() -> str:
    """Of this machine; auditwheel replaces it by the manylinux one."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}-linux_{platform.machine()}"


def main(root: Path, shared: Path, dist: Path, torch_version: str) -> None:
    stage = load_stage(root)
    files = contents(root, shared, torch_version, stage)
    full_name = f"weft-{stage.full_version(torch_version)}"
    info = f"{full_name}.dist-info"
    files |= {f"{info}/{path}": data for path, data in about(root, torch_version, stage).items()}
    # Names alone: auditwheel changes the libraries, and writes the hashes.
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    files[f"{info}/RECORD"] = record.encode()
    wheel = dist / f"{full_name}-{tag()}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980: the same input gives the same wheel
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
