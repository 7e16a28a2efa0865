"""Lets shared objects load beside libstdc++ 11: older_libstdcxx.py FILE…

GCC 12's libstdc++ has condition_variable::wait in two versions: the first one, GLIBCXX_3.4.11, and
one without the possible exception, GLIBCXX_3.4.30, which all that is linked there asks for. It is all
that Weft and Gloo need of GCC 12, and shuts out systems as new as RHEL 9. The request is changed to
the first version, in place, since the names are of one length.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection

NEW, OLD = b"GLIBCXX_3.4.30", b"GLIBCXX_3.4.11"
WAIT = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"


def elf_hash(name: bytes) -> int:
    """The hash of a version's name, as the System V ABI defines it."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


def asking(elf: ELFFile, version: int) -> Iterator[str]:
    """The names of the symbols that ask for the version with this index."""
    names = elf.get_section_by_name(".dynsym")
    for section in elf.iter_sections():
        if isinstance(section, GNUVerSymSection):
            for number, symbol in enumerate(section.iter_symbols()):
                if symbol["ndx"] == version:
                    yield names.get_symbol(number).name


def edits(elf: ELFFile) -> Iterator[tuple[int, bytes]]:
    """What to write where in the file: another name of the version, and that name's hash."""
    for section in elf.iter_sections():
        if not isinstance(section, GNUVerNeedSection):
            continue
        for _, versions in section.iter_versions():
            for version in versions:
                if version.name.encode() != NEW:
                    continue
                if others := set(asking(elf, version["vna_other"])) - {WAIT}:
                    raise SystemExit(
                        f"{NEW.decode()} is needed for {', '.join(sorted(others))}, too"
                    )
                strings = elf.get_section(section["sh_link"])
                yield strings["sh_offset"] + version["vna_name"], OLD
                hashes = section.data().find(elf_hash(NEW).to_bytes(4, sys.byteorder))
                yield section["sh_offset"] + hashes, elf_hash(OLD).to_bytes(4, sys.byteorder)


for path in map(Path, sys.argv[1:]):
    data = bytearray(path.read_bytes())
    with path.open("rb") as file:
        for at, text in edits(ELFFile(file)):
            data[at : at + len(text)] = text
    path.write_bytes(data)
