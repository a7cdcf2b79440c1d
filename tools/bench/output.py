# SPDX-License-Identifier: GPL-2.0
"""bench.json, bench.md and the plots, from the results of the suites."""

import json
import os
import platform


def cell(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.2f}" if value >= 10 else f"{value:.4g}"
    return str(value)


def gate_lines(results):
    lines = []
    for result in results:
        for gate in result["gates"]:
            word = "pass" if gate["ok"] else "FAIL" if gate["hard"] else "miss"
            lines.append(f"{word}  {gate['text']}: {cell(gate['value'])}, at most {cell(gate['limit'])}")
    return lines


def markdown(results, pictures):
    lines = ["# tlb-rs: measurements", "",
             "Counts are of executed instructions (arm64) or of the kernel's own counters (x86_64), under QEMU TCG, and",
             "repeat. Times are only ratios of neighbours in one boot: an emulated TLBI or refill costs what the emulator",
             "makes of it. *stock* is `vm.tlb_batch=0` in the same boot, *unbatched* is `-1`, *tlb-rs* is `1`.",
             f"Host: {os.cpu_count()} CPUs, {platform.machine()}.", "", "## Targets", ""]
    lines += ["| | target | measured | at most | counts? |", "|---|---|---|---|---|"]
    for result in results:
        for gate in result["gates"]:
            lines.append(f"| {'pass' if gate['ok'] else '**FAIL**' if gate['hard'] else 'missed'} | {gate['text']} | "
                         f"{cell(gate['value'])} | {cell(gate['limit'])} | {'hard' if gate['hard'] else 'report'} |")
    for result in results:
        lines += ["", f"## {result['suite']}", "", f"{result['about']}; {result['seconds']} s."]
        for table in result["tables"]:
            lines += ["", f"### {table['title']}", ""]
            lines += ["| " + " | ".join(table["head"]) + " |", "|" + "---|" * len(table["head"])]
            lines += ["| " + " | ".join(map(cell, row)) + " |" for row in table["rows"]]
            lines += [""] + [f"    {text}" for text in table["commands"]]
        lines += ["", *(f"![{name}]({name})" for name in pictures.get(result["suite"], []))]
        for note in result["notes"]:
            lines += ["", note]
    return "\n".join(lines) + "\n"


def plots(out, results):
    """{suite: file names}, or a note why there are none."""
    try:
        import matplotlib    # pylint: disable=import-outside-toplevel
    except ImportError:
        print("no plots: matplotlib is not installed")
        return {}
    matplotlib.use("Agg")
    from matplotlib import pyplot    # pylint: disable=import-outside-toplevel
    names = {}
    for result in results:
        for number, plot in enumerate(result["plots"]):
            figure, axes = pyplot.subplots(figsize=(7, 4))
            positions = range(len(plot["x"]))
            width = 0.8 / max(len(plot["series"]), 1)
            for i, (label, values) in enumerate(plot["series"].items()):
                values = [float("nan") if v is None else v for v in values]
                if plot["kind"] == "bars":
                    axes.bar([p + i * width for p in positions], values, width, label=label)
                else:
                    axes.plot(plot["x"], values, marker="o", label=label)
            if plot["kind"] == "bars":
                axes.set_xticks([p + 0.4 - width / 2 for p in positions], plot["x"], rotation=20, ha="right")
            if plot["log"]:
                axes.set_yscale("log")
            axes.set(title=plot["title"], xlabel=plot["xlabel"], ylabel=plot["ylabel"])
            axes.legend()
            figure.tight_layout()
            name = f"{result['suite']}-{number}.png"
            figure.savefig(out / name, dpi=120)
            pyplot.close(figure)
            names.setdefault(result["suite"], []).append(name)
    return names


def write(out, results):
    (out / "bench.json").write_text(json.dumps(results, indent=1))
    (out / "bench.md").write_text(markdown(results, plots(out, results)))
