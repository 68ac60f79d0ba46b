"""What `mkdocs build` adds to the pages in this folder.

Decides how files that live elsewhere become pages (README, SECURITY, CONTRIBUTING, CHANGELOG, the notebooks with their
pictures, the diagrams, the help of every command), so that no fact is written twice, and turns ```math blocks and
$formulas$ into MathML, which browsers draw without a script. Fetches nothing from the network.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
DIAGRAMS = "src/quad4fhe/report/diagrams"  # drawn once, for README, site and report
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Code first, so that a dollar inside it is left alone; then $...$ within a paragraph.
INLINE = re.compile(
    r"^```.*?^```$|`[^`\n]*`|(?<![\\\w$])\$(?=\S)((?:[^$\n]|\n(?!\n))+?)(?<=\S)\$(?![\w$])",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose source is not a Markdown file of this folder."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    for drawing in sorted((ROOT / DIAGRAMS).glob("*.svg")):
        text = drawing.read_text(encoding="utf-8")
        files.append(File.generated(config, f"assets/{drawing.name}", content=text))
    files.append(File.generated(config, "reference/cli.md", content=command_line_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw formulas, and let links between files of the repository lead to the pages made from them."""
    here = posixpath.dirname(page.file.src_uri)
    home = dict.fromkeys(PAGES.values(), "").get(page.file.src_uri, posixpath.join("docs", here))

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(home, target))
        inside = PAGES.get(path, path.removeprefix("docs/"))
        if inside.endswith(".ipynb"):
            inside = inside.removesuffix(".ipynb") + ".md"
        if path not in PAGES and not path.startswith("docs/"):
            if not (ROOT / path).exists():
                return found[0]  # mkdocs names the broken link
            return text if text.startswith("`") else f"{text} (`{path}`)"
        return f"[{text}]({posixpath.relpath(inside, here or '.')}{anchor})"

    def image(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(home, found[2]))
        inside = path.replace(DIAGRAMS, "assets").removeprefix("docs/")
        return f"![{found[1]}]({posixpath.relpath(inside, here or '.')})"

    if not page.file.src_uri.startswith("notebooks/"):  # their pictures are made here
        markdown = IMAGE.sub(image, markdown)
    drawn = MATH.sub(lambda found: f'<div class="formula">{formula(found[1])}</div>', LINK.sub(link, markdown))
    # In a span, because a line that begins with <math> would be a block of its own.
    return INLINE.sub(lambda found: f"<span>{formula(found[1], 'inline')}</span>" if found[1] else found[0], drawn)


def formula(latex: str, display: str = "block") -> str:
    """A formula as MathML."""
    drawn: str = convert(" ".join(latex.split()), display=display)
    return drawn


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook with its stored outputs as Markdown, and its pictures by file name."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(document["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("data", {})
            if "image/png" in shown:
                name = f"{path.stem}_{number}.png"
                pictures[name] = base64.b64decode("".join(shown["image/png"]))
                parts.append(f"![{cell['metadata']['alt']}]({name})")
            elif "text/html" in shown:
                parts.append("".join(shown["text/html"]))
            else:
                text = output["text"] if output["output_type"] == "stream" else shown["text/plain"]
                parts.append(f"```text\n{''.join(text).rstrip()}\n```")
    parts.append(f"*This page is the notebook `docs/notebooks/{path.name}`; the tests run it.*")
    return "\n\n".join(parts) + "\n", pictures


def command_line_page() -> str:
    """The help of every command, as the program itself prints it."""
    import quad4fhe.cli  # noqa: F401 - registers the commands
    from quad4fhe.cli.app import app

    root: Any = get_command(app)
    top = root.make_context("quad4fhe", [], resilient_parsing=True, terminal_width=78, max_content_width=78)
    parts = [f"# Command line\n\n```text\n{root.get_help(top).strip()}\n```"]
    for name, command in root.commands.items():
        context = command.make_context(name, [], parent=top, resilient_parsing=True)
        parts.append(f"## {name}\n\n```text\n{command.get_help(context).strip()}\n```")
    return "\n\n".join(parts) + "\n"
