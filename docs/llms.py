"""llms.txt beside the sitemap: a hook of MkDocs. It lists what each page says first."""

import pathlib
import re

pages = []
said: dict[str, str] = {}


def on_nav(nav, config, files):
    """Keep the pages in the order of the navigation."""
    pages[:] = nav.pages
    return nav


def on_page_markdown(markdown, page, **_):
    """Keep the first sentence of a page."""
    text = [part for part in re.split(r"\n\s*\n", markdown) if re.match(r"\w", part)]
    first = " ".join(text[0].split()) if text else page.title
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first).partition(". ")[0]
    said[page.url] = first.rstrip(".:") + "."
    return markdown


def on_post_build(config):
    """Write the file."""
    lines, section = [f"# {config.site_name}\n\n> {config.site_description}\n"], None
    for page in pages:
        above = " / ".join(each.title for each in reversed(page.ancestors))
        if above != section:
            lines.append(f"\n## {above}\n" if above else "")
            section = above
        lines.append(f"- [{page.title}]({page.url or './'}): {said[page.url]}")
    text = "\n".join(lines) + "\n"
    pathlib.Path(config.site_dir, "llms.txt").write_text(text, "utf-8")
