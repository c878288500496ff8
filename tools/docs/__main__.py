"""`make docs`: gathers the pages of the repository where a builder of sites finds them.

    python -m tools.docs FOLDER

The pages lie where GitHub shows them, and link to sources. A builder wants one folder that has
everything: pages, and each file that a page links to. A folder that is linked to gets a page of
its files, and README.md is the first page of its folder.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("*.md", "docs/**/*.md", "clients/**/*.md", "examples/**/*.md")
LINK: Final = re.compile(r"(\]\(|src=\"|srcset=\"|href=\")([^)\s\"#]+)(#[^)\s\"]*)?(?=[)\"])")


def main() -> None:
    """Fill the folder anew."""
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    pages = sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})
    linked: set[Path] = set()
    for page in pages:
        copy = target / _renamed(page.relative_to(ROOT))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_with_links(page, linked), encoding="utf-8")
    for path in sorted(linked - set(pages)):
        _add(path, target / path.relative_to(ROOT))


def _renamed(path: Path) -> Path:
    return path.with_name("index.md") if path.name == "README.md" else path


def _with_links(page: Path, linked: set[Path]) -> str:
    """Return the text of a page, whose links to folders and READMEs name a page of the site."""

    def mended(match: re.Match[str]) -> str:
        before, link, anchor = match.group(1), match.group(2), match.group(3) or ""
        path = (page.parent / link).resolve()
        if re.match(r"[a-z]+:", link) or not path.is_relative_to(ROOT) or not path.exists():
            return match.group(0)
        linked.add(path)
        if path.is_dir():
            link = f"{link.rstrip('/')}/index.md"
            if (path / "README.md").exists():
                linked.discard(path)
        elif path.name == "README.md":
            link = link.removesuffix("README.md") + "index.md"
        return f"{before}{link}{anchor}"

    return LINK.sub(mended, page.read_text(encoding="utf-8"))


def _add(path: Path, copy: Path) -> None:
    """Add what a page links to: a file, or a folder with a page of its files."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        shutil.copyfile(path, copy)
        return
    copy.mkdir(exist_ok=True)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"# {path.relative_to(ROOT)}", ""]
    for file in files:
        name = file.relative_to(path)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy / name)
        lines.append(f"- [{name}]({name})")
    (copy / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
