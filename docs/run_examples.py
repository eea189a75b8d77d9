"""Run the examples, as notebooks, and write their pages of the gallery.

Run:  python docs/run_examples.py [NAME ...]
"""

import argparse
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from nbclient import NotebookClient
from notebooks import EXAMPLES, SCRIPT_ALONE, docstring, notebook
from PIL import Image

PAGES = pathlib.Path(__file__).parent / "gallery"
# Run in their quick form: the whole takes many minutes.
QUICK = {"long_series", "time_over_ranks"}


def printed(path: pathlib.Path, folder: str) -> str:
    """Run an example in a folder, and return what it prints."""
    arguments = ("--quick",) if path.stem in QUICK else ()
    if path.stem in SCRIPT_ALONE:
        command = [sys.executable, str(path), *arguments]
        return subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True
        ).stdout
    ran = NotebookClient(notebook(path, arguments), timeout=3600).execute(cwd=folder)
    texts = [
        output["text"]
        for cell in ran.cells
        for output in cell.get("outputs", ())
        if output.get("name") == "stdout"
    ]
    return re.sub(r"^picture: .*\n", "", "".join(texts), flags=re.MULTILINE)


def page(path: pathlib.Path, output: str, has_picture: bool) -> str:
    """Return the page of an example."""
    title, text = docstring(path.read_text("utf-8"))
    # In the text of a docstring, ** and * are powers and products.
    text = re.sub(r"(?<!`)\*(?!`)", r"\*", text)
    text = re.sub(r"\bD(_t)?\^alpha", r"$D\1^\\alpha$", text)
    picture = f"![What the example draws]({path.stem}.png)\n\n" if has_picture else ""
    how = ", run with `--quick`" if path.stem in QUICK else ""
    files = f"[the script]({path.name})"
    if path.stem not in SCRIPT_ALONE:
        files += f" or [the notebook]({path.stem}.ipynb)"
    return f"""---
hide: [toc]
script: {digest(path)}
---

# {title}

{text}

Download {files}. It is `examples/{path.name}` of the sources.

## What comes out

{picture}It prints{how}

``` {{ .text .no-copy }}
{output.strip(chr(10))}
```

## The code

```python
--8<-- "examples/{path.name}"
```
"""


def digest(path: pathlib.Path) -> str:
    """Return what changes with a script: a test compares it with that of the page."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def write(path: pathlib.Path) -> None:
    """Run an example, and write its page and its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        output = printed(path, folder)
        drawn = pathlib.Path(folder, "demo-output", f"{path.stem}.png")
        if drawn.exists():
            picture = Image.open(drawn).convert("RGB")
            for name, width in ((path.stem, 1200), (f"{path.stem}-small", 400)):
                smaller = picture.copy()
                smaller.thumbnail((width, width))
                smaller.quantize(128).save(PAGES / f"{name}.png", optimize=True)
        text = page(path, output, drawn.exists())
        (PAGES / f"{path.stem}.md").write_text(text, "utf-8")


def main() -> None:
    """Write the pages of the examples that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of the examples; all by default")
    names = parser.parse_args().names or [path.stem for path in EXAMPLES]
    PAGES.mkdir(exist_ok=True)
    os.environ["PYTHONWARNINGS"] = "ignore"
    for path in (path for path in EXAMPLES if path.stem in names):
        print(path.stem, flush=True)
        write(path)


if __name__ == "__main__":
    main()
