"""Install what `make dist` has built in clean environments, and use it as its README says.

    python .ci/check_dist.py dist/*.whl dist/*.tar.gz

For each file, in an environment of its own: the library alone runs the first example of the README, its command says in
a sentence what it needs, and with the extra `lab` the command works, the codec that comes with it among the rest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"

PICTURES = """
import numpy as np
from PIL import Image
draw = np.random.default_rng(0)
for name in ("photo", "painting"):
    Image.fromarray(draw.integers(0, 256, (64, 64, 3), np.uint8)).save(f"{name}.png")
"""


def run(*command: object, cwd: Path, code: int = 0) -> str:
    """Run a command outside of the checkout, and return what it printed, complaints only if it is to fail.

    End with all of it if its exit code differs.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    text = done.stdout + done.stderr
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}; expected {code}\n{text}")
    return text if code else done.stdout


def require(condition: bool, message: str) -> None:
    """End with a message unless a condition holds."""
    if not condition:
        sys.exit(message)


def check(artefact: Path, folder: Path) -> None:
    """Install a wheel or a source distribution in a new environment in the folder, and use it."""
    print(f"==> {artefact.name}: a clean environment", flush=True)
    venv.create(folder / "env", with_pip=True)
    binaries = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    python, command = binaries / "python", binaries / "eigengrad"
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", CONSTRAINTS)
    run(*install, artefact, cwd=folder)

    print("    the first example of the README, with torch alone", flush=True)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[:1]
    (folder / "example.py").write_text(block)
    shown = run(python, "example.py", cwd=folder)
    require("nan" not in shown, f"the example of the README gives NaN:\n{shown}")
    loaded = (
        "import sys, eigengrad, eigengrad.nn; print(sorted(n for n in sys.modules if n.startswith('eigengrad.lab')))"
    )
    require(run(python, "-c", loaded, cwd=folder).strip() == "[]", "the core imports the lab")
    text = run(command, "compare", cwd=folder, code=1)
    require("needs the extra `lab`" in text and "Traceback" not in text, f"without the extra the command says:\n{text}")
    require(run(command, "info", cwd=folder).startswith("eigengrad "), "`eigengrad info` does not work")

    print("    the command, with the extra lab", flush=True)
    run(*install, f"{artefact}[lab]", cwd=folder)
    run(python, "-c", PICTURES, cwd=folder)
    run(command, "stylize", "photo.png", "painting.png", "-o", "out.png", "--threads", 1, cwd=folder)
    require((folder / "out.png").exists(), "`eigengrad stylize` has written nothing")
    run(command, "reproduce", "fig3", "--scale", "smoke", cwd=folder)
    run(python, "-c", "from eigengrad.lab.studio.server import Studio; s = Studio(); s.close()", cwd=folder)
    page = "from importlib.resources import files; (files('eigengrad.lab.studio') / 'static' / 'app.js').read_text()"
    run(python, "-c", page, cwd=folder)


def main() -> None:
    """Check every file that is named."""
    artefacts = [Path(name).resolve() for name in sys.argv[1:]]
    require(bool(artefacts), __doc__ or "")
    for artefact in artefacts:
        with tempfile.TemporaryDirectory() as folder:
            check(artefact, Path(folder))
    print("all of it works")


if __name__ == "__main__":
    main()
