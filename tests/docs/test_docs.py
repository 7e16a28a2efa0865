"""What the pages say must be so: links, commands, code, texts of errors, the environment table."""

from __future__ import annotations

import ast
import inspect
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("transport", "rpc_backend", "c10d_plugin", "jit_ops", "pipe")
PACKAGES = sorted(path.parent for name in LAYERS for path in ROOT.glob(f"{name}/*/**/BUILD.bazel"))
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "weft/README.md")),
    ROOT / "tests/conformance/README.md",
    *sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md")]),
    *(page for name in LAYERS for page in sorted(ROOT.glob(f"{name}/**/README.md"))),
]
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def without_code(text: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What may follow a # in a link to this page: its headings, as the usual viewers name them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@BY_PAGE
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(
        r"\]\(([^)#\s]*)#?([^)\s]*)\)", without_code(page.read_text())
    ):
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_index_has_every_page():
    index = (ROOT / "docs/README.md").read_text()
    for page in ROOT.glob("docs/*/**/*.md"):
        assert index.count(f"]({page.relative_to(ROOT / 'docs')})") == 1, page.name


@pytest.mark.parametrize("layer", LAYERS)
def test_the_architecture_has_every_package_of_a_layer(layer):
    page = (ROOT / "docs/design/architecture.md").read_text()
    (row,) = re.findall(rf"^\| `{layer}/` \| (.*?) \|", page, re.MULTILINE)
    folders = {path.relative_to(ROOT).parts[1] for path in ROOT.glob(f"{layer}/*/**/BUILD.bazel")}
    assert set(re.findall(r"`(\w+)`", row)) == folders


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_cpp_package_says_what_it_is(package):
    page = package / "README.md"
    assert page.exists(), f"{package.relative_to(ROOT)} has no README.md"
    assert len(page.read_text().splitlines()) <= 10, f"{page.relative_to(ROOT)} is no short README"


def test_the_thread_model_has_every_thread_of_python():
    table = set(
        re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/design/thread_model.md").read_text(), re.M)
    )
    started = re.compile(r'(?:name(?:: str)? ?= ?|Runner\()"(weft-[a-z]+)"')
    sources = [path.read_text() for path in ROOT.glob("weft/**/*.py")]
    named = {name for source in sources for name in started.findall(source)}
    assert {"weft-pipe", "weft-driver", "weft-trace"} <= named <= table


@BY_PAGE
def test_files_that_are_named_exist(page):
    """`folder/file.ext` in backquotes is a file of the checkout."""
    folders = "transport|rpc_backend|c10d_plugin|jit_ops|pipe|weft|examples|bench|tests|tools|docs"
    for name in re.findall(rf"`((?:{folders})/[\w/]+\.\w+)`", page.read_text()):
        assert (ROOT / name).exists() or name.endswith(".so"), name


@BY_PAGE
def test_lines_wrap_at_100(page):
    """Tables aside, whose rows cannot be wrapped."""
    long = [line for line in page.read_text().splitlines() if len(line) > 100]
    assert all(line.startswith("|") for line in long), long


@BY_PAGE
def test_python_blocks_compile(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(block)


@BY_PAGE
def test_commands_exist(page):
    usage = (ROOT / "tools/dev/usage.txt").read_text()
    known = {"help"}
    for names in re.findall(r"^  ([a-z]+(?:, [a-z]+)*)", usage, re.MULTILINE):
        known.update(names.split(", "))
    assert {"demo", "test", "fmt", "lint", "shell"} <= known
    assert set(re.findall(r"\./dev ([a-z]+)", page.read_text())) <= known


def sources() -> str:
    """What the program may say: the text of its sources, string literals joined across lines."""
    layers = ("c10d_plugin", "jit_ops", "pipe", "rpc_backend", "transport")
    files = [path for name in layers for path in ROOT.glob(f"{name}/**/*.[ch]*")]
    text = "\n".join(path.read_text() for path in [*files, *ROOT.glob("weft/**/*.py")])
    text = re.sub(r'"\s*\n\s*(?:std::string\()?f?"', "", text)
    return text.replace('\\"', '"')


def documented_errors() -> list[str]:
    """The texts of docs/reference/errors.md, but for those that it calls PyTorch's own."""
    page = (ROOT / "docs/reference/errors.md").read_text().partition("## PyTorch's own")[0]
    return [row for row in re.findall(r"^\| `([^`]+)`", page, re.MULTILINE) if row not in TORCHS]


# Said by torch in Weft's name, or by Python.
TORCHS = {
    "RPC ran for more than set timeout (… ms) and will now be marked with an error",
    "got an unexpected keyword argument '…'",
}


def pieces(words: list[str], said: str) -> int:
    """How many texts of the sources, one after the other, make up these words."""
    count = 0
    while words:
        lengths = range(len(words), 0, -1)
        length = next((n for n in lengths if " ".join(words[:n]) in said), 0)
        if length == 0 or (length == 1 and count > 0 and length < len(words)):
            return 99  # one word in the middle is found somewhere, whatever it is
        words = words[length:]
        count += 1
    return count


@pytest.mark.parametrize("text", documented_errors())
def test_errors_are_worded_as_in_the_code(text):
    said = sources()
    for part in text.split("…"):
        words = part.strip(" '():;,.").split()
        # Messages are put together from a few texts; more pieces mean that nobody says this.
        assert pieces(words, said) <= 3, part


def test_the_handshakes_sizes_are_the_same_on_both_pages():
    wire = (ROOT / "docs/design/wire_format.md").read_text()
    size = {
        name: re.search(rf"^### {name}: (\d+) bytes$", wire, re.MULTILINE)[1]
        for name in ("Hello", "Proof", "Refusal")
    }
    lines = re.findall(
        r"-> (hello|HMAC).*?(\d+) bytes(?:.*refusal \((\d+)\))?",
        (ROOT / "docs/guide/security.md").read_text(),
    )
    assert lines == [
        ("hello", size["Hello"], ""),
        ("hello", size["Hello"], size["Refusal"]),
        ("HMAC", size["Proof"], ""),
        ("HMAC", size["Proof"], size["Refusal"]),
    ]


def test_the_environment_page_is_the_table():
    from weft import _C

    page = (ROOT / "docs/reference/environment.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    expected = [
        (name, f"`{default}`" if default else "", meaning)
        for name, default, meaning in _C.environment()
    ]
    assert rows == expected


def rows(section: str) -> dict[str, str]:
    """Name and default of each row of a table of the options page."""
    page = (ROOT / "docs/reference/options.md").read_text()
    table = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE)
    return {name: default.strip(" `") for name, default in found}


def test_the_options_page_has_every_rpc_option(monkeypatch):
    import weft

    for name in [name for name in os.environ if name.startswith("WEFT_")]:
        monkeypatch.delenv(name)
    options = weft.RpcBackendOptions()
    documented = rows("RPC")
    assert list(documented) == list(inspect.signature(weft.RpcBackendOptions).parameters)
    for name, default in documented.items():
        value = getattr(options, name)
        if default == "half of the memory":
            machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
            assert 0 < value <= min(64 << 30, machine // 2), name
        else:
            assert default == str(value), name


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ("Process group", "ProcessGroupOptions"),
        ("Pipelines", "Pipe"),
        ("Batching of published modules", "Batch"),
    ],
)
def test_the_options_page_has_every_other_option(section, what):
    import weft

    parameters = inspect.signature(getattr(weft, what)).parameters.values()
    assert rows(section) == {
        p.name: "" if p.default is p.empty else str(p.default) for p in parameters
    }


def test_the_operators_page_has_every_operator():
    import torch

    import weft  # noqa: F401 (registers them)

    page = (ROOT / "docs/reference/operators.md").read_text()
    cells = " ".join(re.findall(r"^\| (.*?) \| ", page, re.MULTILINE))
    schemas = {schema.name for schema in torch._C._jit_get_all_schemas()}
    operators = {name.removeprefix("weft::") for name in schemas if name.startswith("weft::")}
    assert len(operators) > 30
    assert set(re.findall(r"`(\w+)(?:\(|`)", cells)) == {
        name for name in operators if not name.startswith("_")
    }


def test_the_debug_info_page_has_every_key():
    page = (ROOT / "docs/reference/debug_info.md").read_text()
    code = "".join(path.read_text() for path in ROOT.glob("rpc_backend/**/*.cpp"))
    keys = re.findall(r'"(agent\.\w+)"', code) + re.findall(r'key \+ "(\w+)"', code)
    assert len(keys) > 15
    for key in keys:
        assert f"`{key}`" in page, key
