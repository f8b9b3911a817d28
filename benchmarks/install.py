"""Time an installation of the package without torch, and its first translation.

``python benchmarks/install.py --wheel full/*.whl --python python3.12 --json install.json``

The script does the following for each interpreter of ``--python``:

- download the wheels that the package needs, without timing this;
- make an environment;
- install the package from the downloaded wheels;
- translate one sentence, twice;
- start a server and wait until it answers (`serve`).

Only the first file of ``--wheel`` is installed. Of further files, such as a wheel without the
trained models, only the sizes are reported. ``--extra serve,subwords`` installs as much as the
image of docs/howto/serve/Dockerfile.

``python benchmarks/install.py --recipes --json install_recipes.json`` clones the repository, lets a
recipe install its environment, and reports the time of each command. For this, set
PIP_NO_CACHE_DIR=1. Otherwise pip may install a fairseq that it compiled earlier.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import bench

SENTENCE = ("--model", "tatoeba-es-en", "¿Dónde está la biblioteca?")
ANSWER = "Where is the library?"
CLEAN = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def main() -> None:
    parser = bench.parser_with(__doc__)
    parser.add_argument("--wheel", type=Path, nargs="+", help="the wheel, and others to weigh")
    parser.add_argument("--python", nargs="+", help="Python interpreters")
    parser.add_argument("--extra", help="extras of the package, separated by commas")
    parser.add_argument("--recipes", action="store_true", help="time what the recipes install")
    options = parser.parse_args()
    if options.recipes == bool(options.wheel and options.python):
        parser.error("give either --wheel and --python, or --recipes")
    if options.recipes:
        bench.save(options.json, title="Installation by a recipe", rows=recipe_rows())
        return
    wheel = options.wheel[0].resolve()
    rows = [measure(python, wheel, options.extra) for python in options.python]
    wheels = {path.parent.name: path.stat().st_size for path in options.wheel}
    width = max(len(row["python"]) for row in rows)
    for row in rows:
        print(f"{row['python']:<{width}}  " + ", ".join(f"{k} {row[k]}" for k in list(row)[1:]))
    bench.save(options.json, title=wheel.name, wheel_bytes=wheels, rows=rows)


def recipe_rows() -> list[dict[str, object]]:
    """Let a recipe install its environment in a new clone of this repository.

    Return a row for each command, with the command and its seconds. End this script if one fails.
    """
    clone = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        run("git", "clone", "-q", clone, folder)
        script = f"source {folder}/recipes/lib.sh && use_environment sacremoses"
        done = subprocess.run(
            ["bash", "-c", script], env=CLEAN, stderr=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    pip = re.findall(r"^\+ (pip install .*)\n(?:.*\n)*?\[.*\] took (\d+) s$", done.stderr, re.M)
    together = re.findall(r"^\[.*\] (installed) in (\d+) s$", done.stderr, re.M)
    rows = [{"command": command, "s": int(seconds)} for command, seconds in [*pip, *together]]
    print(*(f"{row['s']:>5} s  {row['command']}" for row in rows), sep="\n")
    return rows


def measure(python: str, wheel: Path, extra: str | None) -> dict[str, object]:
    requirement = f"{wheel}[{extra}]" if extra else str(wheel)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fetched, venv = folder / "wheels", folder / "venv"
        run(python, "-m", "venv", folder / "fetching")
        run(folder / "fetching/bin/pip", "wheel", "-q", "-w", fetched, requirement)
        began = time.perf_counter()
        run(python, "-m", "venv", venv)
        pip_start = time.perf_counter()
        pip = (venv / "bin/pip", "install", "-q", "--no-index", "--find-links", fetched)
        run(*pip, requirement)
        installed = time.perf_counter()
        first = translate(venv)
        seconds = {
            "environment": pip_start - began,
            "installation": installed - pip_start,
            "first translation": first,
            "together": time.perf_counter() - began,
            "later translation": translate(venv),
            "serve": until_served(venv),
        }
        return {
            "python": run(venv / "bin/python", "--version").split()[1],
            **{f"{what}, s": round(value, 2) for what, value in seconds.items()},
            "environment, MB": round(size(venv) / 1e6, 1),
            "of which pip, MB": round(sum(map(size, venv.glob("lib/*/*/pip"))) / 1e6, 1),
            "fetched, MB": round(size(fetched) / 1e6, 1),
            "doctor": run(venv / "bin/fairseq-ext", "doctor").splitlines()[-1],
        }


def run(*words: object) -> str:
    """Run a command in the system's temporary folder; return its output, or raise if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=tempfile.gettempdir(),
        env=CLEAN,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def translate(venv: Path) -> float:
    began = time.perf_counter()
    translation = run(venv / "bin/fairseq-ext", "translate", *SENTENCE)
    if translation.strip() != ANSWER:
        raise ValueError(f"{translation!r} is not {ANSWER!r}")
    return time.perf_counter() - began


def until_served(venv: Path) -> float:
    """Return the seconds from the start of a server until it answers that it is ready."""
    began = time.perf_counter()
    command = [venv / "bin/fairseq-ext", "serve", SENTENCE[1], "--port", "0"]
    with subprocess.Popen(
        command, cwd=venv, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            with urllib.request.urlopen(f"{address}/health", timeout=30) as answer:
                answer.read()
            return time.perf_counter() - began
        finally:
            server.terminate()


def size(folder: Path) -> int:
    """Count the bytes of all files in a folder and its subfolders."""
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


if __name__ == "__main__":
    main()
