"""A short table of the results in a folder: ``python -m tests.gpu.table OUT``.

``--picture FILE`` also draws the encoders' times over the length of the text.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS = ("laws", "processes", "updates", "layers", "generation", "multi30k")


def short(value: Any) -> str:
    """Format numbers with three digits, nested ones too."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} {short(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list):
        return f"{short(value[0])} … {short(value[-1])}" if value else "[]"
    return str(value)


def rows(content: dict[str, Any]) -> Iterator[str]:
    """One line for each cell; of the laws only what failed."""
    for name, cell in content["cells"].items():
        if "error" in cell:
            last = cell["error"].strip().splitlines() or ["?"]
            yield f"{name}: ERROR {last[-1][:160]}"
        elif content["step"] != "laws":
            left_out = ("wall_seconds", "setting", "updates", "seconds", "tokens")
            parts = {key: value for key, value in cell.items() if key not in left_out}
            if content["step"] == "multi30k":
                parts["updates"] = cell["updates"]
            yield f"{name}: " + ", ".join(f"{key} {short(entry)}" for key, entry in parts.items())


def draw_encoders(cells: dict[str, Any], path: Path) -> None:
    """Draw milliseconds over the length of the text, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for panel, direction in zip(panels, ("forward", "forward+backward"), strict=True):
        times: dict[str, list[tuple[int, float]]] = {}
        for name, cell in cells.items():
            words = name.split()
            if words[0] == "encoder" and words[2] == direction:
                for encoder, milliseconds in cell["ms"].items():
                    length = int(words[1].removeprefix("n="))
                    times.setdefault(encoder, []).append((length, milliseconds))
        for encoder, points in times.items():
            linformer = encoder.startswith("k=")
            label = f"Linformer, {encoder}" if linformer else encoder
            panel.plot(*zip(*points, strict=True), "o-" if linformer else "s--", label=label)
        panel.set(title=direction, xlabel="tokens in a text", xscale="log", yscale="log")
        panel.set_xticks([length for length, _ in max(times.values(), key=len)])
        panel.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("milliseconds")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of the JSON files")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the encoders' times")
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.picture:
        layers = json.loads((folder / "layers.json").read_text())
        draw_encoders(layers["cells"], arguments.picture)
    for step in STEPS:
        path = folder / f"{step}.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        done = "complete" if content["complete"] else "NOT COMPLETE"
        print(f"\n== {step}: {done} {content.get('counts', '')} {content['machine']['gpu']}")
        for row in rows(content):
            print(row)


if __name__ == "__main__":
    main()
