# SPDX-License-Identifier: GPL-2.0
"""bench.html: everything in one file that asks for no other."""

import html
import re

from tlbrs.bench import plots
from tlbrs.bench.content import (INTRO, MECHANISMS, OVERVIEW, VERDICTS, about, by_mechanism, cell, gates,
                                 met, overview, stale, summary)

# A browser that obeys the policy loads nothing, whatever is in the page.
HEAD = """<!DOCTYPE html>
<!-- SPDX-License-Identifier: GPL-2.0 -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>tlb-rs: measurements</title>
<style>
:root { color-scheme: light dark; --paper: #fcfcfb; --ink: #1b1b1a; --soft: #5c5b57; --line: #d5d4ce; --band: #f2f1ed;
  --link: #1a5fb4; --better: #0b7a3d; --worse: #b3261e; --series0: #2a78d6; --series1: #c2570c; --series2: #7a5bc7 }
@media (prefers-color-scheme: dark) { :root { --paper: #181817; --ink: #e9e8e3; --soft: #a5a49d; --line: #44433f;
  --band: #242422; --link: #83b4f0; --better: #4cc383; --worse: #ff8a80; --series0: #5ba0f2; --series1: #f0883e;
  --series2: #a990ee } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 96rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.7rem; margin: .5rem 0 } h2 { margin: 3rem 0 .5rem; border-bottom: 1px solid var(--line) }
h3 { margin: 2rem 0 .5rem; font-size: 1.05rem }
p, nav { max-width: 50rem } a { color: var(--link) } nav { display: flex; flex-wrap: wrap; gap: 0 1rem }
.scroll { overflow-x: auto; margin: .5rem 0 } .scroll:focus-visible { outline: 2px solid var(--link) }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; white-space: nowrap; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line) }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom } tbody th { font-weight: 400 }
tbody tr:hover { background: var(--band) } .number { text-align: right }
.long { white-space: normal; min-width: 16rem }
.better, .pass { color: var(--better) } .worse, .FAIL { color: var(--worse); font-weight: 700 }
code, pre { font: .8125rem/1.45 ui-monospace, monospace; overflow-wrap: anywhere }
pre { margin: .25rem 0; padding: .4rem .7rem; background: var(--band); white-space: pre-wrap }
figure { margin: 1rem 0 } figcaption { color: var(--soft); font-size: .875rem }
svg { display: block } svg * { stroke-linejoin: round; stroke-linecap: butt }
@media print { .scroll { overflow: visible } }
</style>
</head>
"""
# Cells that have a colour of their own.
MARKS = {text: word for word, text in VERDICTS.items()} | {word: word for word in ("pass", "FAIL")}
BLOCKS = {"table", "thead", "tbody", "tr", "div", "h1", "h2", "h3", "p", "pre", "ol", "li", "figure", "nav", "main",
          "body"}


class Html(str):
    """Markup; any other text is escaped."""


def tag(name, *content, **attributes):
    # "class" and "for" are words of Python.
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
                    for key, value in attributes.items() if value is not None)
    inner = "".join(part if isinstance(part, Html) else html.escape(str(part)) for part in content)
    return Html(f"<{name}{words}>{inner}</{name}>" + "\n" * (name in BLOCKS))


def prose(text):
    """A paragraph; what is between backticks is code, between two asterisks strong."""
    parts = re.split(r"`([^`]*)`|\*\*([^*]*)\*\*", text)
    return tag("p", *(tag(("", "code", "strong")[i % 3], part) if i % 3 else part
                      for i, part in enumerate(parts) if part is not None))


def scroll(label, *content):
    """What is wider than the screen moves by itself, with the keyboard, too."""
    return tag("div", *content, class_="scroll", role="region", aria_label=label, tabindex="0")


def is_number(value):
    return not isinstance(value, Html) and (value is None or isinstance(value, (int, float)) or value[:1].isdigit())


def table(label, head, rows):
    """Cells are values, or markup."""
    def one(column, value, first):
        text = value if isinstance(value, Html) else cell(value)
        words = {"number": is_number(value) and not first, "long": len(text) > 35 and not isinstance(value, Html),
                 MARKS.get(value): value in MARKS, column: column in VERDICTS and value}
        words = " ".join(word for word, applies in words.items() if applies) or None
        return tag("th", text, scope="row", class_=words) if first else tag("td", text, class_=words)

    columns = list(zip(*rows))[1:]
    heads = [tag("th", head[0], scope="col")] + [
        tag("th", text, scope="col", class_="number" if columns and all(map(is_number, columns[i])) else None)
        for i, text in enumerate(head[1:])]
    return scroll(label, tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *(
        tag("tr", *(one(column, value, i == 0) for i, (column, value) in enumerate(zip(head, row)))) for row in rows))))


def figure(pictures, name, label):
    """Nothing if it was not drawn."""
    if name not in pictures:
        return ""
    drawing = pictures[name].replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
    return tag("figure", scroll(f"Plot: {label}", Html(drawing)), tag("figcaption", label))


def mechanism_part(mechanism, rows, pictures):
    title, text = MECHANISMS[mechanism]
    head, cells, commands = overview(rows)

    def links(numbers):
        return Html(" ".join(tag("a", f"[{n}]", href=f"#{mechanism}-{n}") for n in numbers))

    cells = [[links(value) if isinstance(value, list) else value for value in row] for row in cells]
    return [tag("h3", f"{mechanism}: {title}", id=mechanism), prose(text),
            figure(pictures, f"overview-{mechanism}", f"{mechanism}, work by work: tlb-rs needs less left of 1"),
            table(f"{mechanism}, all works", head, cells),
            tag("ol", *(tag("li", tag("code", text), id=f"{mechanism}-{n}") for n, text in enumerate(commands, 1)))]


def suite_part(result, pictures):
    yield tag("h2", result["suite"], id=f"suite-{result['suite']}")
    yield prose(about(result))
    for number, found in enumerate(result["tables"]):
        yield tag("h3", found["title"])
        yield table(found["title"], found["head"], found["rows"])
        yield from (tag("pre", text) for text in found["commands"])
        for name, plot in zip(plots.names(result, number), found["plots"]):
            yield figure(pictures, name, plot["title"])
    yield from map(prose, result["notes"])


def html_page(results, pictures):
    groups = by_mechanism(results)
    links = {"overview": "overview", **{m: m for m in groups}, "targets": "targets",
             **{f"suite-{r['suite']}": f"suite {r['suite']}" for r in results}}
    content = [tag("h1", "tlb-rs: measurements"), *map(prose, (*INTRO, *stale(results))),
               tag("nav", *(tag("a", text, href=f"#{name}") for name, text in links.items()), aria_label="Contents")]
    if not pictures:
        content.append(prose(f"Without plots, as matplotlib is not installed: `{plots.INSTALL}`"))
    content += [tag("h2", "Overview", id="overview"), prose(OVERVIEW),
                figure(pictures, "overview",
                       "All works by mechanism and unit: tlb-rs needs less left of 1. An arrow at the edge is a zero."),
                table("How many works are better or worse", *summary(groups))]
    for mechanism, rows in groups.items():
        content += mechanism_part(mechanism, rows, pictures)
    content += [tag("h2", "Targets", id="targets"), prose(met(results)), table("Targets", *gates(results))]
    for result in results:
        content += suite_part(result, pictures)
    return HEAD + tag("body", tag("main", *content)) + "</html>\n"
