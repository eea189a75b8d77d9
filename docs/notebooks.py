"""Scripts and notebooks beside the pages of the gallery: a hook of MkDocs."""

import pathlib
import re

import nbformat
from mkdocs.structure.files import File, InclusionLevel
from nbformat import v4

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Starts processes, which find no functions that were typed into a notebook.
SCRIPT_ALONE = {"time_over_ranks"}
MAIN = re.compile(r'if __name__ == "__main__":\n    (main\(\))\n$')


def docstring(script: str) -> tuple[str, str]:
    """Return the first line of a script's docstring, and the rest but how it is run."""
    title, _, rest = script.split('"""')[1].partition("\n")
    return title.removesuffix("."), re.sub(r"\s*Run:  .*", "", rest).strip()


def notebook(
    path: pathlib.Path, arguments: tuple[str, ...] = ()
) -> nbformat.NotebookNode:
    """Return a script as a notebook: its docstring, then a cell for each part."""
    script = path.read_text("utf-8")
    title, text = docstring(script)
    _, _, code = script.split('"""', 2)
    *parts, last = code.strip("\n").split("\n\n\n")
    called = MAIN.fullmatch(last + "\n")
    assert called, f"{path.name} does not end in a call of main()"
    cells = [v4.new_markdown_cell(f"# {title}\n\n{text}")]
    typed = f"import sys\n\nsys.argv = {[path.name, *arguments]}  # or with '--quick'"
    cells += [v4.new_code_cell(part) for part in [typed, *parts, called[1]]]
    if "--output" in script:
        shown = (
            f'from IPython.display import Image\n\nImage("demo-output/{path.stem}.png")'
        )
        cells.append(v4.new_code_cell(shown))
    for number, cell in enumerate(cells):
        cell["id"] = f"part-{number}"  # the same in every build
    return v4.new_notebook(
        cells=cells,
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )


def on_files(files, config):
    """Add what the pages of the gallery offer to download."""
    for path in EXAMPLES:
        contents = {path.name: path.read_text("utf-8")}
        if path.stem not in SCRIPT_ALONE:
            contents[f"{path.stem}.ipynb"] = nbformat.writes(notebook(path))
        for name, content in contents.items():
            file = File.generated(config, f"gallery/{name}", content=content)
            file.inclusion = InclusionLevel.INCLUDED  # whatever `exclude_docs` says
            files.append(file)
    return files
