"""How the reference shows examples: as what was typed, and not as quotations.

The parser of Google's docstrings knows a section "Examples" and takes "Example", as this package writes it, for a
remark in Markdown, where >>> begins a quotation within a quotation within a quotation.
"""

import re
from typing import Any

import griffe

HEAD = re.compile(r"^Example:$", re.MULTILINE)


class ShownExamples(griffe.Extension):
    """Reads "Example:" as "Examples:"."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Change the docstring of what was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = HEAD.sub("Examples:", obj.docstring.value)
