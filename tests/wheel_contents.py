"""Compare a built wheel with the checkout: every file of the package is in it, and nothing else.

``python tests/wheel_contents.py FOLDER`` looks at the one wheel in FOLDER and ends with 1 on a difference.
"""

import sys
from pathlib import Path
from zipfile import ZipFile

CHECKOUT = Path(__file__).parent.parent
PACKAGE = "django_taskclaim"


def packaged(wheel: Path) -> set[str]:
    names = {name for name in ZipFile(wheel).namelist() if not name.endswith("/")}
    return {name for name in names if ".dist-info/" not in name}


def checked_out() -> set[str]:
    files = (CHECKOUT / PACKAGE).rglob("*")
    return {
        str(file.relative_to(CHECKOUT))
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    }


def differences(wheel: Path) -> list[str]:
    inside, outside = packaged(wheel), checked_out()
    found = [f"missing in the wheel: {name}" for name in sorted(outside - inside)]
    found += [f"only in the wheel: {name}" for name in sorted(inside - outside)]
    return found


def main(folder: str) -> int:
    (wheel,) = Path(folder).glob("*.whl")
    found = differences(wheel)
    print("\n".join(found) or f"{wheel.name}: {len(packaged(wheel))} files, as in the checkout.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
