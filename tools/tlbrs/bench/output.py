# SPDX-License-Identifier: GPL-2.0
"""bench.json, bench.md, bench.html and the plots, from the results of the suites."""

import json

from tlbrs.bench import page, plots
from tlbrs.bench.content import (INTRO, MECHANISMS, OVERVIEW, VERDICTS, about, by_mechanism, cell,
                                 gate_word, gates, met, overview, stale, summary)


def gate_lines(results):
    return [f"{gate_word(gate)}  {gate['text']}: {cell(gate['value'])}, at most {cell(gate['limit'])}"
            for result in results for gate in result["gates"]]


def table(head, rows):
    def line(cells):
        return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"
    bold = {"FAIL", VERDICTS["worse"]}
    return [line(head), "|" + "---|" * len(head),
            *(line(f"**{text}**" if text in bold else text for text in map(cell, row)) for row in rows), ""]


def markdown(results, pictures):
    def picture(name):
        return [f"![{name}]({name}.png)", ""] if name in pictures else []

    groups = by_mechanism(results)
    lines = ["# tlb-rs: measurements", "", *INTRO, *stale(results), "", "## Overview", "", OVERVIEW, "", *picture("overview"),
             *table(*summary(groups))]
    for mechanism, rows in groups.items():
        title, text = MECHANISMS[mechanism]
        head, cells, commands = overview(rows)
        lines += [f"### {mechanism}: {title}", "", text, "", *picture(f"overview-{mechanism}"),
                  *table(head, [[", ".join(map(str, v)) if isinstance(v, list) else v for v in row] for row in cells]),
                  *(f"{i}. `{text}`" for i, text in enumerate(commands, 1)), ""]
    lines += ["## Targets", "", met(results), "", *table(*gates(results))]
    for result in results:
        lines += [f"## {result['suite']}", "", about(result), ""]
        for number, found in enumerate(result["tables"]):
            lines += [f"### {found['title']}", "", *table(found["head"], found["rows"]),
                      *(f"    {text}" for text in found["commands"]), ""]
            for name in plots.names(result, number):
                lines += picture(name)
        for note in result["notes"]:
            lines += [note, ""]
    return "\n".join(lines)


def write(out, results):
    (out / "bench.json").write_text(json.dumps(results, indent=1))
    pictures = plots.draw(out, results)
    (out / "bench.md").write_text(markdown(results, pictures), encoding="utf-8")
    (out / "bench.html").write_text(page.html_page(results, pictures), encoding="utf-8")
