"""llms.txt beside the sitemap: a hook of MkDocs. It lists what each page says first."""

import pathlib
import re

pages: list[str] = []


def on_nav(nav, config, files):
    """Forget the pages of an earlier build."""
    pages.clear()
    return nav


def on_page_markdown(markdown, page, **_):
    """Keep a line for a page: its section, title, address and first paragraph."""
    section = page.ancestors[-1].title if page.ancestors else ""
    if section and (not pages or f"\n## {section}\n" not in pages):
        pages.append(f"\n## {section}\n")
    text = [part for part in re.split(r"\n\s*\n", markdown) if re.match(r"\w", part)]
    first = " ".join(text[0].split()) if text else ""
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first).partition(". ")[0]
    pages.append(f"- [{page.title}]({page.url or './'}): {first.removesuffix('.')}.")
    return markdown


def on_post_build(config):
    """Write the file."""
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    text = head + "\n".join(pages) + "\n"
    pathlib.Path(config.site_dir, "llms.txt").write_text(text, "utf-8")
