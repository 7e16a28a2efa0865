"""Makes SITE/weft an importable image of the checkout's weft/: links to its Python files.

Links, not copies: an edit of a .py file takes effect without a build. Beside the package it puts
what an installed wheel would have (the entry point) and what only a checkout needs (sitecustomize:
in the checkout's root, Python would otherwise find weft/ there, without its shared objects).
"""

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The package says its version, once; reading it as text avoids importing torch.
VERSION = re.search(r'^VERSION = "([^"]+)"', (ROOT / "weft/_version.py").read_text(), re.M)[1]
# This file of weft/ is installed beside the package under this name: torch imports it at the end of
# its own import, and importing a module of the package would import all of the package first.
ENTRY_POINT = Path("_torch", "autoload.py")
AUTOLOAD = "weft_autoload"

SITECUSTOMIZE = '''"""Written by ./dev: `import weft` means the package beside this file, whatever the cwd."""

import importlib.machinery
import os
import sys


class _StagedWeft:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "weft":
            return None
        here = os.path.dirname(os.path.abspath(__file__))
        return importlib.machinery.PathFinder.find_spec(name, [here], target)


sys.meta_path.insert(0, _StagedWeft)
'''


def minor_of(torch_version: str) -> str:
    """The shared objects are made for one minor version of torch: its C++ ABI promises no more."""
    return ".".join(torch_version.split(".")[:2])


def full_version(torch_version: str) -> str:
    """Weft's version and torch's minor one, as weft._version says it."""
    return f"{VERSION}+torch{minor_of(torch_version)}"


def built_for(torch_version: str) -> str:
    """weft/_built_for.py."""
    return f'"""Written by the build."""\n\nTORCH = "{minor_of(torch_version)}"\n'


def metadata(torch_version: str) -> str:
    version = full_version(torch_version)
    return f"Metadata-Version: 2.4\nName: weft\nVersion: {version}\n"


def entry_points() -> str:
    return f"[torch.backends]\nweft = {AUTOLOAD}:load\n"


def python_files(package: Path) -> list[Path]:
    """What of weft/ belongs to the package, relative to it."""
    return sorted(
        path.relative_to(package)
        for path in package.rglob("*")
        if path.is_file()
        and (path.suffix in (".py", ".pyi") or path.name == "py.typed")
        and path.relative_to(package) != ENTRY_POINT
    )


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def link(target: Path, at: Path) -> None:
    if at.is_symlink() and os.readlink(at) == str(target):
        return
    at.parent.mkdir(parents=True, exist_ok=True)
    # By rename: another process may be importing this very file.
    temporary = at.with_name(f".{at.name}.{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(at)


def stage(package: Path, site: Path, torch_version: str) -> None:
    wanted = set(python_files(package))
    for relative in wanted:
        link(package / relative, site / "weft" / relative)
    for path in (site / "weft").rglob("*"):
        if path.is_symlink() and path.relative_to(site / "weft") not in wanted:
            path.unlink()
    write_if_changed(site / "sitecustomize.py", SITECUSTOMIZE)
    write_if_changed(site / "weft" / "_built_for.py", built_for(torch_version))
    info = site / f"weft-{full_version(torch_version)}.dist-info"
    for other in set(site.glob("weft-*.dist-info")) - {info}:
        shutil.rmtree(other)
    write_if_changed(info / "METADATA", metadata(torch_version))
    link(package / ENTRY_POINT, site / f"{AUTOLOAD}.py")
    write_if_changed(info / "entry_points.txt", entry_points())


if __name__ == "__main__":
    stage(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
