"""Measure the size of the extras: install the wheel in dist/ with all of them, and write the table of
docs/howto/install.md.

`make weights` runs this. One empty environment of this interpreter gets the wheel with every extra that users install,
from the index, as it is today. A package's size is that of the files in its own list, without byte code. An extra
counts the packages that its requirements lead to and that headwater without extras does not have.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "howto" / "install.md"
BEGIN, END = "<!-- weights -->\n", "<!-- /weights -->\n"
TOOLS = ("dev", "docs")
"""Extras for working on headwater itself."""

WEIGH = """
import json, re
from importlib.metadata import distribution, PackageNotFoundError
from pip._vendor.packaging.requirements import Requirement
def name(text): return re.sub("[-_.]+", "-", text).lower()
def needs(package, extras, seen):
    for text in distribution(package).requires or ():
        needed = Requirement(text)
        if needed.marker and not any(needed.marker.evaluate({"extra": each}) for each in (*extras, "")):
            continue
        key = name(needed.name), tuple(sorted(needed.extras))
        if key not in seen:
            seen.add(key)
            needs(needed.name, needed.extras, seen)
    return {each for each, _ in seen} - {"headwater"}
def weight(package):
    found = (file.locate() for file in distribution(package).files or () if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in found if path.is_file())
bare = needs("headwater", (), set())
weights = {"": {each: weight(each) for each in sorted(bare)}}
for extra in distribution("headwater").metadata.get_all("Provides-Extra"):
    if extra not in SKIPPED:
        weights[extra] = {each: weight(each) for each in sorted(needs("headwater", (extra,), set()) - bare)}
print(json.dumps(weights))
"""


def weighed(wheel: Path, extras: list[str]) -> dict[str, dict[str, int]]:
    """Return the bytes of each package that headwater needs, by extra; "" for headwater without extras."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv", "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        quiet = ("-q", "--disable-pip-version-check", "--no-compile")
        wanted = f"{wheel}[{','.join(extras)}]"
        subprocess.run([str(python), "-m", "pip", "install", *quiet, wanted], check=True)
        code = WEIGH.replace("SKIPPED", repr(TOOLS))
        done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def table(found: dict[str, dict[str, int]]) -> str:
    """Return the table as Markdown, the smallest extra first, after headwater itself."""
    lines = ["| MB | extra | packages | of them the largest |\n|---|---|---|---|\n"]
    ordered = sorted(found.items(), key=lambda each: (bool(each[0]), sum(each[1].values())))
    for extra, packages in ordered:
        largest = sorted(packages, key=lambda each: -packages[each])[:3]
        shown = ", ".join(f"{each} {packages[each] / 1e6:.0f}" for each in largest if packages[each] >= 500_000) or "-"
        megabytes = sum(packages.values()) / 1e6
        named = f"`{extra}`" if extra else "none"
        lines.append(f"| {megabytes:.1f} | {named} | {len(packages)} | {shown} |\n")
    return "".join(lines)


def main() -> int:
    """Measure, and write the page; return the exit status."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found = weighed(wheel, [extra for extra in extras if extra not in TOOLS])
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    said = f"Python {sys.version_info.major}.{sys.version_info.minor}, {sys.platform}"
    PAGE.write_text(f"{before}{BEGIN}Measured with {said}:\n\n{table(found)}{END}{after}", "utf-8")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
