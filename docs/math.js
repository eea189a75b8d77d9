/* Formulas: pymdownx.arithmatex leaves their TeX in the page, KaTeX, which stands beside this file, draws it. */
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const source = place.textContent.trim();
    katex.render(source.slice(2, -2), place, { displayMode: source.startsWith("\\["), throwOnError: false });
  }
});
