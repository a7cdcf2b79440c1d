# SPDX-License-Identifier: GPL-2.0
"""Why Kconfig has turned an option off: the terms of its "depends on" that a .config does not meet, and by which options.

Kconfig says it in menuconfig only, and olddefconfig drops the option without a word.
"""

import re

TOKEN = re.compile(r'\s*(&&|\|\||!=|!|<=|>=|<|>|=|\(|\)|"[^"]*"|\'[^\']*\'|[\w.$-]+)')
COMPARE = {"=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
           "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}
CONFIG = r"^[ \t]*(?:menu)?config "    # options of a choice are indented by some
TRISTATE = {"n": 0, "m": 1, "y": 2}


def number(text):
    """Of a constant or a value, for comparisons; text where there is none."""
    try:
        return int(text, 0)
    except ValueError:
        return text


def parsed(text):
    """The expression as nested tuples: ("or"|"and", [...]), ("not", x), (operator, a, b), or a word."""
    tokens = TOKEN.findall(text)

    def several(word, sign, part):
        parts = [part()]
        while tokens and tokens[0] == sign:
            tokens.pop(0)
            parts.append(part())
        return parts[0] if len(parts) == 1 else (word, parts)

    def either():
        return several("or", "||", both)

    def both():
        return several("and", "&&", one)

    def one():
        token = tokens.pop(0)
        if token == "!":
            return "not", one()
        if token == "(":
            inner = either()
            tokens.pop(0)
            return inner
        if tokens and tokens[0] in COMPARE:
            return tokens.pop(0), token, tokens.pop(0)
        return token
    return either()


def value(word, config):
    """Of a symbol or a constant: what a .config does not have is n."""
    if word[0] in "\"'":
        return word[1:-1]
    if word in TRISTATE or re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", word):
        return word
    return config.get(f"CONFIG_{word}", "n").strip('"')


def truth(tree, config):
    """0, 1 or 2, as Kconfig has n, m and y."""
    if isinstance(tree, str):
        return TRISTATE.get(value(tree, config), 0)
    if tree[0] == "not":
        return 2 - truth(tree[1], config)
    if tree[0] in ("and", "or"):
        return (min if tree[0] == "and" else max)(truth(t, config) for t in tree[1])
    a, b = (number(value(word, config)) for word in tree[1:])
    if type(a) is not type(b):
        a, b = str(a), str(b)
    return 2 * COMPARE[tree[0]](a, b)


def culprits(tree, config, want=True):
    """The symbols whose values are the reason that the tree is not what is wanted."""
    if not isinstance(tree, str) and tree[0] == "not":
        return culprits(tree[1], config, not want)
    if bool(truth(tree, config)) == want:
        return []
    if not isinstance(tree, str) and tree[0] in ("and", "or"):
        return [word for t in tree[1] for word in culprits(t, config, want)]
    words = [tree] if isinstance(tree, str) else tree[1:]
    return [w for w in words if w not in TRISTATE and re.match("[A-Z0-9]*[A-Z]", w)]


def entry(src, option):
    """The lines of "config OPTION", of the first file that has it; [] if none."""
    begin = re.compile(rf"{CONFIG}{re.escape(option)}$", re.M)
    first = [src / "init/Kconfig", src / "mm/Kconfig"]
    for file in [f for f in first if f.exists()] + sorted(src.rglob("Kconfig*")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if m := begin.search(text):
            lines = text[m.end():].replace("\\\n", " ").splitlines()[1:]
            end = next((n for n, line in enumerate(lines) if line and not line[0].isspace() and line[0] != "#" or
                        re.match(CONFIG, line)), len(lines))
            return lines[:end]
    return []


def conditions(lines):
    """Each "depends on" of an entry, and what a "def_bool" is, without comments; what stands in a help text is none."""
    for line in lines:
        if line.strip() == "help":
            return
        if m := re.match(r"\s+(?:depends on|def_bool) ([^$]*?)\s*(?:#.*)?$", line):
            text, _, only = m[1].partition(" if ")
            yield f"!({only}) || ({text})" if only else text


def selectors(src, symbol, config):
    """Options of the configuration that select this one; itself if there are none, as with one that somebody has chosen."""
    found = []
    pattern = re.compile(rf"^\s+select {re.escape(symbol)}\b", re.M)
    for file in sorted(src.rglob("Kconfig*")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if pattern.search(text):
            for part in re.split(f"(?m){CONFIG}", text)[1:]:
                name = part.split(None, 1)[0]
                if config.get(f"CONFIG_{name}") == "y" and pattern.search(part):
                    found += selectors(src, name, config)
    return list(dict.fromkeys(found)) or [symbol]


def reasons(src, option, config, deeper=True):
    """A line for each term of the option that this configuration does not meet; then of those that these name, which may
    be nobody's choice, such as the version of a tool."""
    rows, further = [], []
    for condition in conditions(entry(src, option.removeprefix("CONFIG_"))):
        tree = parsed(condition)
        if truth(tree, config):
            continue
        words = [name for word in dict.fromkeys(culprits(tree, config))
                 for name in (selectors(src, word, config) if value(word, config) == "y" else [word])]
        named = {f"CONFIG_{word}": config.get(f"CONFIG_{word}", "n") for word in words}
        rows.append(f"{option} is off because of {' and '.join(f'{n}={v}' for n, v in named.items())}: it needs {condition}")
        further += [name for name, v in named.items() if v == "n" and name not in further]
    return rows + [row for name in further * deeper for row in reasons(src, name, config, deeper=False)]
