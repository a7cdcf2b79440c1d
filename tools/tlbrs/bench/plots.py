# SPDX-License-Identifier: GPL-2.0
"""The plots: as PNG for bench.md, as SVG that takes its colours from the page for bench.html."""

import io
import re
import shutil
import sys

from tlbrs.bench.content import base, by_mechanism, verdict

INSTALL = ("sudo apt-get install -y python3-matplotlib" if sys.prefix == "/usr" and shutil.which("apt-get")
           else f"{sys.executable} -m pip install matplotlib")
# Colours that nothing else has, so that the SVG's can be replaced by those of the page, which has a dark mode.
INK, GRID, BETTER, WORSE = "#1b1b1a", "#c8c7c1", "#0b7a3d", "#b3261e"
SERIES = ("#2a78d6", "#c2570c", "#7a5bc7")
VARIABLES = {INK: "currentColor", GRID: "var(--line)", BETTER: "var(--better)", WORSE: "var(--worse)",
             **{colour: f"var(--series{i})" for i, colour in enumerate(SERIES)}}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tlb-rs", "font.family": "sans-serif", "font.size": 9,
         "axes.titlesize": 10, "axes.titleweight": "bold", "text.color": INK, "axes.labelcolor": INK,
         "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": GRID, "grid.color": GRID, "grid.linewidth": 0.6,
         "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "figure.dpi": 100}
MARKERS = "osD"


def names(result, number):
    """Of the plots of a table."""
    return [f"{result['suite']}-{number}-{i}" for i in range(len(result["tables"][number]["plots"]))]


def inline(svg, name):
    """An SVG as a part of a page: no metadata with its addresses, no style for all of the page, ids of its own."""
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>| xmlns(:\w+)?=\"[^\"]*\"", "",
                 svg[svg.index("<svg"):], flags=re.S).replace("xlink:href", "href")
    used = set(re.findall(r"[\"(]#([^\")]+)", svg))
    svg = re.sub(r" id=\"([^\"]+)\"", lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"([\"(]#)", rf"\1{name}-", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    # It shrinks a little on a narrow screen, and scrolls then.
    return re.sub(r' width="([\d.]+)pt" height="[\d.]+pt"', lambda m: f' style="width: {m[1]}pt; max-width: 100%; '
                  f'min-width: {0.75 * float(m[1]):.0f}pt"', svg, count=1)


def chart(pyplot, plot):
    figure, axes = pyplot.subplots(figsize=(7, 4))
    positions = range(len(plot["x"]))
    width = 0.8 / max(len(plot["series"]), 1)
    for i, (label, values) in enumerate(plot["series"].items()):
        values = [float("nan") if v is None else v for v in values]
        if plot["kind"] == "bars":
            axes.bar([p + i * width for p in positions], values, width, label=label, color=SERIES[i])
        else:
            axes.plot(plot["x"], values, marker=MARKERS[i], label=label, color=SERIES[i])
    if plot["kind"] == "bars":
        axes.set_xticks([p + 0.4 - width / 2 for p in positions], plot["x"], rotation=20, ha="right")
        axes.grid(axis="x", visible=False)
    if plot["log"]:
        axes.set_yscale("log")
    axes.set(title=plot["title"], xlabel=plot["xlabel"], ylabel=plot["ylabel"])
    axes.legend()
    figure.tight_layout()
    return figure


def scale(axes, rows):
    """Of ratios: 1 is in it, and zero, which has no logarithm, is at its left end. Returns both ends."""
    found = [r for row in rows for r in row[f"over {base(row)}"] or () if r > 0]
    least, most = min([0.8, *(r / 1.2 for r in found)]), max([1.25, *(r * 1.2 for r in found)])
    bases = sorted(set(map(base, rows)))
    axes.set(xscale="log", xlim=(least, most), xlabel=f"tlb-rs / {bases[0]}")
    steps = next(steps for span, *steps in ((100, 1), (5, 1, 2, 5), (1.8, 1, 1.5, 2, 3, 5, 7),
                                            (0, 8, 9, 1, 1.1, 1.2, 1.5)) if most / least > span)
    ticks = [step * 10 ** power for power in range(-9, 9) for step in steps]
    axes.set_xticks(ticks := [t for t in ticks if least <= t <= most], [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.axvspan(least, 1, color=BETTER, alpha=0.07, linewidth=0)
    axes.axvspan(1, most, color=WORSE, alpha=0.10, linewidth=0)
    axes.axvline(1, color=INK, linewidth=1)
    return least, most


def ratios(pyplot, rows, machines, line, panel):
    """Dots of ours over stock: each row of the overview in a line and a panel, a colour for each machine."""
    lines, panels = (list(dict.fromkeys(map(key, rows))) for key in (line, panel))
    alone = panels == [None]
    height = 1.2 + (0.45 if alone else 0.3) * len(lines)
    figure, grid = pyplot.subplots(1, len(panels), sharey=True, squeeze=False,
                                   figsize=(4.7 if alone else 3.2 + 2.4 * len(panels), height))
    for axes, title in zip(grid[0], panels):
        mine = [row for row in rows if panel(row) == title]
        axes.set(title=title, ylim=(len(lines) - 0.6, -0.7 if alone else -0.5))
        # Side by side the names are left of all panels; alone they are above the dots, for narrow screens.
        axes.set_yticks([i + 0.37 * alone for i in range(len(lines))], [""] * len(lines) if alone else lines)
        axes.tick_params(left=False)
        least, most = scale(axes, mine)
        for i, name in enumerate(lines if alone else ()):
            axes.annotate(name, (0, i - 0.45), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                          va="center")
        for row in mine:
            mark(axes, row, lines.index(line(row)), machines.index(row["arch"]), least, most)
    handles = [pyplot.Line2D([], [], color=SERIES[i], marker=MARKERS[i], linestyle="", markersize=5, label=name)
               for i, name in enumerate(machines) if name in {row["arch"] for row in rows}]
    if any(base(row) == "unbatched" for row in rows):
        handles.append(pyplot.Line2D([], [], color=INK, marker="o", fillstyle="none", linestyle="", markersize=5,
                                     label="over unbatched"))
    figure.legend(handles=handles, loc="lower center", ncol=len(handles), columnspacing=1, handletextpad=0.1)
    figure.tight_layout(rect=(0, 0.3 / height, 1, 1))
    return figure


def mark(axes, row, y, machine, least, most):
    """The median of a row with its quartiles; an arrow where it lies outside of the axis."""
    if verdict(row) == "no figure":
        return
    y += 0.2 * (machine - 1)
    low, middle, high = row[f"over {base(row)}"] or 3 * [most if verdict(row) == "worse" else 1]
    axes.plot([max(low, least), max(high, least)], [y, y], color=SERIES[machine], linewidth=1.5, solid_capstyle="butt")
    axes.plot(max(middle, least), y, "<" if middle < least else ">" if middle == most else MARKERS[machine],
              color=SERIES[machine], markersize=5, clip_on=False, fillstyle="full" if base(row) == "stock" else "none")


def draw(out, results):
    """{name: SVG}; nothing if there is no matplotlib."""
    try:
        import matplotlib    # pylint: disable=import-outside-toplevel
    except ImportError:
        print(f"no plots: matplotlib is not installed: {INSTALL}")
        return {}
    matplotlib.use("Agg")
    from matplotlib import pyplot    # pylint: disable=import-outside-toplevel
    groups, pictures = by_mechanism(results), {}

    def keep(name, figure):
        figure.savefig(out / f"{name}.png", dpi=120)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", transparent=True)
        pyplot.close(figure)
        pictures[name] = inline(svg.getvalue(), name)

    with matplotlib.rc_context(STYLE):
        if groups:
            everything = [row for rows in groups.values() for row in rows]
            machines = sorted({row["arch"] for row in everything})
            keep("overview", ratios(pyplot, everything, machines, lambda row: f"{row['mechanism']}: {row['unit']}",
                                    lambda row: None))
        for mechanism, rows in groups.items():
            keep(f"overview-{mechanism}", ratios(pyplot, rows, machines, lambda row: row["work"],
                                                 lambda row: row["unit"]))
        for result in results:
            for number, table in enumerate(result["tables"]):
                for name, plot in zip(names(result, number), table["plots"]):
                    keep(name, chart(pyplot, plot))
    return pictures
