"""Who imports whom in weft/: no circles."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, modules: set[str]) -> set[str]:
    """What a module imports of weft, also inside functions and for type checkers."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in modules or name == "weft._C" else node.module)
    return found & modules


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next, and the last the first; empty if there are none."""
    left = dict(graph)
    while leaves := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in leaves:
            del left[name]
    walk: list[str] = list(left)[:1]
    while walk and walk[-1] not in walk[:-1]:
        walk.append(min(graph[walk[-1]] & left.keys()))
    return walk[walk.index(walk[-1]) : -1] if walk else []


def test_no_module_imports_itself_by_way_of_others():
    files = {module_name(path): path for path in (ROOT / "weft").rglob("*.py")}
    graph = {
        name: imported(ast.parse(path.read_text()), set(files)) for name, path in files.items()
    }
    assert "weft._torch.patches.patch" in graph["weft._torch.patches.calls"]
    assert circle(graph) == []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}) == ["b", "c"]
    assert circle({"a": {"b"}, "b": set()}) == []
