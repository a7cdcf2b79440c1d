# SPDX-License-Identifier: GPL-2.0
"""Tests of size.py with made-up sources."""

import contextlib
import io
import sys
import unittest
from collections import Counter
from unittest import mock

from tlbrs.check import size


class Stripped(unittest.TestCase):
    def test_c(self):
        for text, lines in (("int a;\n\n// no\n/* no\nno */\nint b; // b\n", {1, 6}),
                            ("/* no */ int a;\nint /* no\n*/ b;\n", {1, 2, 3}),
                            # What looks like a comment, in a string or a character, is none.
                            ('char *s = "/*";\nint a;\nchar *t = "*/";\n', {1, 2, 3}),
                            ("int c = '\"';\n/* \" */\nint d = '\\'';\n// '\nint e;\n", {1, 3, 5}),
                            ('s = "\\"// no";\n/* a */\n', {1}),
                            ("#define A \\\n\n\tB\n", {1, 3}),
                            ("a;\n/* never closed\nb;\n", {1}),
                            # Comments of C do not nest.
                            ("/* /* */ a;\nb; /* */\n", {1, 2})):
            self.assertEqual(size.code_of_c(text), (lines, set()), text)

    def test_rust(self):
        for text, lines in (("//! no\n/// ```\n/// no();\n/// ```\nfn a() {}\n", {5}),
                            ("/* no /* no */\nno */\nfn a() {}\n", {3}),
                            ("/* never /* closed */\nfn a() {}\n", set()),
                            ("fn a<'a>(x: &'a str, y: &'a str) {} /* no\n*/\nlet c = '\"';\n// \"\nlet d = '\\'';\n// '\n",
                             {1, 3, 5}),
                            ('let s = r#"a "//" b"#; // no\n// no\n', {1}),
                            ("let s = b'/'; let t = '*';\nlet u = \"\\\\\";\n// no\n", {1, 2}),
                            ('let s = "two\n// lines";\n', {1, 2})):
            self.assertEqual(size.code_of_rust(text), (lines, set()), text)


class Apart(unittest.TestCase):
    """Tests, debugging, fault injection."""

    def c(self, text, code, apart):
        self.assertEqual(size.code_of_c(text), (code, apart), text)

    def test_ifdef(self):
        self.c("a;\n#ifdef CONFIG_X_DEBUG\nb;\n\n/* no */\n#endif\nc;\n", {1, 7}, {2, 3, 6})
        self.c("#if IS_ENABLED(CONFIG_TLB_RS_FAULT_INJECTION)\na;\n#endif\n", set(), {1, 2, 3})
        self.c("#ifdef CONFIG_MIGRC\na;\n#else\nb;\n#endif\n", {1, 2, 3, 4, 5}, set())
        # With another option beside it, it may be more than debugging.
        self.c("#if defined(CONFIG_MIGRC) || defined(CONFIG_X_DEBUG)\na;\n#endif\n", {1, 2, 3}, set())
        self.c("/*\n#ifdef CONFIG_X_DEBUG\n*/\na;\n", {4}, set())

    def test_nested(self):
        self.c("#ifdef CONFIG_X_DEBUG\n#ifdef CONFIG_A\na;\n#else\nb;\n#endif\nc;\n#endif\nd;\n", {9}, {1, 2, 3, 4, 5, 6, 7, 8})
        self.c("#ifdef CONFIG_A\n#ifdef CONFIG_X_DEBUG\na;\n#endif\nb;\n#endif\n", {1, 5, 6}, {2, 3, 4})

    def test_stand_in(self):
        """What others compile is code, but for functions without one."""
        self.c("#ifdef CONFIG_X_DEBUG\na();\n#else\nb();\n#endif\n", {4}, {1, 2, 3, 5})
        stub = "static inline bool x(int a,\n\t\t     int b)\n{\n\treturn false;\n}\n\n#define y(a) do { } while (0)\n"
        self.c(f"#ifdef CONFIG_X_DEBUG\nbool x(int a, int b);\n#else\n{stub}#endif\n", set(), {1, 2, 3, 4, 5, 6, 7, 8, 10, 11})
        self.c(f"#ifndef CONFIG_X_DEBUG\n{stub}a();\n#endif\n", {9}, {1, 2, 3, 4, 5, 6, 8, 10})
        self.c("#if !IS_ENABLED(CONFIG_X_DEBUG)\na();\n#else\nb();\n#endif\n", {2}, {1, 3, 4, 5})
        self.c("#ifdef CONFIG_X_DEBUG\n#else\nstatic inline int x(void)\n{\n\treturn y();\n}\n#endif\n", {3, 4, 5, 6}, {1, 2, 7})
        # The same function elsewhere is code.
        self.c(stub, {1, 2, 3, 4, 5, 7}, set())

    def rust(self, text, code, apart):
        self.assertEqual(size.code_of_rust(text), (code, apart), text)

    def test_items(self):
        self.rust("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\" }\n    // }\n}\nfn c() {}\n", {1, 7}, {2, 3, 4, 6})
        self.rust("#[cfg(CONFIG_X_KUNIT_TEST)]\nmod tests;\nfn c() {}\n", {3}, {1, 2})
        self.rust("#[cfg(test)]\nuse a::{\n    b,\n};\nfn c() {}\n", {5}, {1, 2, 3, 4})
        self.rust("#[cfg(test)]\nconst A: [u8; 2] = [0;\n    2];\nfn c() {}\n", {4}, {1, 2, 3})
        self.rust("#[cfg(test)]\nconst fn a() {}\nfn c() {}\n", {3}, {1, 2})
        self.rust("#[kunit_tests(rust_x)]\n#[allow(unused)]\nmod tests {\n}\nfn c() {}\n", {5}, {1, 2, 3, 4})
        self.rust("#[cfg(CONFIG_TLB_RS_FAULT_INJECTION)]\nfn a(x: [u8; 3]) {\n}\nfn c() {}\n", {4}, {1, 2, 3})
        for other in ("CONFIG_MIGRC", "not(CONFIG_X_DEBUG)", "not(test)"):
            self.rust(f"#[cfg({other})]\nfn a() {{}}\n", {1, 2}, set())

    def test_files(self):
        stems = size.built_for_debugging("obj-$(CONFIG_A) += a.o\na-y := b.o\na-$(CONFIG_A_DEBUG) += c.o d.o\n"
                                         "obj-$(CONFIG_TLB_ORACLE) += e.o\n")
        self.assertEqual(stems, {"c", "d", "e"})
        for name, want in (("mm/a/c.c", True), ("include/linux/e.h", True), ("mm/a/b.c", False), ("mm/a/tests.rs", True),
                           ("rust/kernel/mm/a/tests/x.rs", True)):
            self.assertEqual(size.is_apart(name, stems), want, name)

    def test_kind(self):
        for name, want in (("mm/a/b.c", "folder"), ("include/trace/events/a.h", "headers"), ("arch/x86/a.h", "arch"),
                           ("mm/a/b.rs", "Rust"), ("Documentation/a.h", None), ("tools/testing/selftests/mm/a.c", None),
                           ("samples/rust/a.rs", None), ("mm/a/Makefile", None)):
            self.assertEqual(size.kind(name), want, name)


def patch(*body, name="mm/a.c", old=1, new=1):
    """A patch of one hunk."""
    return f"Subject: x\n\n+no line of a hunk\n---\n{one(*body, name=name, old=old, new=new)}"


def one(*body, name="mm/a.c", old=1, new=1):
    lengths = [sum(line[0] in chars for line in body) for chars in (" -", " +")]
    return "\n".join([f"--- a/{name}", f"+++ b/{name}", f"@@ -{old},{lengths[0]} +{new},{lengths[1]} @@ x()", *body, ""])


class Added(unittest.TestCase):
    def count(self, *patches):
        owned = {}
        for index, text in enumerate(patches):
            for name, fresh in size.added(size.hunks(text), owned).items():
                owned[name] |= {number: index for number in fresh}
        return {name: dict(Counter(lines.values())) for name, lines in owned.items()}

    def test_one(self):
        self.assertEqual(self.count(patch(" a", "+b", "+", "+/* c */", "+d", "-e", " f")), {"mm/a.c": {0: 2}})
        text = patch(" a", "+b", " c") + one(" a", "+b", "+c", name="mm/b.h") + one("+b", name="mm/Makefile")
        self.assertEqual(self.count(text), {"mm/a.c": {0: 1}, "mm/b.h": {0: 2}})
        self.assertEqual(self.count(patch("+a").replace("--- a/mm/a.c", "--- /dev/null")), {})
        # A line that begins with "-- " was removed here; it is no head of a file.
        self.assertEqual(self.count(patch(" a", "--- b", "+++ c;", "+d", " e")), {"mm/a.c": {0: 2}})

    def test_comments(self):
        """What a hunk shows may begin within one."""
        self.assertEqual(self.count(patch(" of this", "+and that", "  */", "+a;", " b;")), {"mm/a.c": {0: 1}})
        self.assertEqual(self.count(patch("  * of this", "+ * and that", "  * too")), {"mm/a.c": {}})
        self.assertEqual(self.count(patch(" /* x */", "+a;", " /* y */")), {"mm/a.c": {0: 1}})

    def test_debugging(self):
        self.assertEqual(self.count(patch("+#ifdef CONFIG_X_DEBUG", "+a;", "+#endif", "+b;", " c;")), {"mm/a.c": {0: 1}})

    def test_replaced(self):
        """A line that a later patch takes away is not added, wherever it is by then."""
        first = patch(" a", "+b", "+c", "+d", " e", old=10, new=10)
        self.assertEqual(self.count(first, patch(" b", "-c", "+x", "+y", " d", old=11, new=11)), {"mm/a.c": {0: 2, 1: 2}})
        self.assertEqual(self.count(first, patch(" z", "-q", " z", old=1, new=1), patch("-c", "-d", " e", old=11, new=11)),
                         {"mm/a.c": {0: 1}})
        # Equal lines of others.
        self.assertEqual(self.count(first, patch("-c", " k", old=40, new=40)), {"mm/a.c": {0: 3}})
        twice = patch(" a", "-a", old=1, new=1) + patch(" e", "-f", old=14, new=13).split("---\n", 1)[1].split("\n", 2)[2]
        self.assertEqual(self.count(first, twice, patch(" a", "-b", old=9, new=9)), {"mm/a.c": {0: 2}})


class Limits(unittest.TestCase):
    def test_files(self):
        texts = {"a.c": "x\n" * 700, "b.c": "x\n" * 701}
        self.assertEqual(size.too_long(texts), [("b.c", 701)])

    def test_lines(self):
        texts = {"a.c": "x\n" + "y" * 101 + "\n" + "y" * 100, "b.h": "\t" * 12 + "12345", "c.py": "y" * 101,
                 "d.S": "1\t" * 12 + "1234"}
        self.assertEqual(size.too_wide(texts), [("a.c", 2, 101), ("b.h", 1, 101)])

    def test_targets(self):
        most = {who: round(target * 1.1) for who, target in size.TARGETS.items()}
        self.assertEqual(most, {"tlb_batch": 539, "migrc": 902, "hvo": 990})
        table = {who: Counter(folder=n - 20, headers=10, arch=10, Rust=5000, added=500, apart=900) for who, n in most.items()}
        table["irqchip"] = Counter(folder=5000)
        self.assertEqual(size.over(table), [])
        table["hvo"]["arch"] += 1
        self.assertEqual(size.over(table), [("hvo", 991, 990)])

    def test_status(self):
        """Only --check fails, for each kind of limit."""
        fine = {"hvo": Counter(folder=1)}
        for table, text, status in ((fine, "x\n", 0), ({"hvo": Counter(arch=991)}, "x\n", 1), (fine, "x\n" * 701, 1),
                                    (fine, "y" * 101, 1)):
            for words, want in (([], 0), (["--check"], status)):
                with mock.patch.object(size, "measured", lambda t=table: (t, {})), \
                        mock.patch.object(size, "tracked", lambda root: ["a.c"]), \
                        mock.patch.object(size.Path, "read_text", lambda *_, t=text, **__: t), \
                        mock.patch.object(sys, "argv", ["size.py", *words]), \
                        contextlib.redirect_stdout(io.StringIO()) as said:
                    self.assertEqual(size.main(), want, (words, text[:5]))
                self.assertIn("hvo", said.getvalue())


class Here(unittest.TestCase):
    def test_all(self):
        """Each new file of the kernel belongs to a mechanism, and each mechanism has something of each kind."""
        table, files = size.measured()
        self.assertEqual(set(table), {*size.TARGETS, "irqchip", "restore", "mkclean", "huge", "migrate_device"})
        for who in size.TARGETS:
            self.assertEqual([k for k in size.KINDS if not table[who][k]], [], who)
            self.assertEqual(sum(files[who].values()), sum(table[who][k] for k in (*size.C_KINDS, "Rust")))
