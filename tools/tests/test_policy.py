# SPDX-License-Identifier: GPL-2.0
"""Tests of policy.py and of abi.py with made-up sources."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.check import abi, policy


class Made(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


class Decisions(unittest.TestCase):
    def test_found(self):
        for line in ("if (pages > limit)", "return nr <= most;", "a = min(b, c);", "a = clamp_t(int, b, c, d);",
                     "facts |= BIT(X);", "while (left >= 1)", "for (i = 0; i < n; i++) if (i > k)"):
            self.assertEqual(list(policy.decisions(f"{{\n\t{line}\n}}\n")), [line])

    def test_left_alone(self):
        for line in ("p->next = q;", "a = b << c;", "a = b >> 3;", "for (i = 0; i < n; i++)", "#include <linux/mm.h>",
                     "if (a == b && c != d)", "a |= b;", "/* a > b */", 's = "a > b";', "a <<= 1;", "minimum(a);"):
            self.assertEqual(list(policy.decisions(f"{{\n\t{line}\n}}\n")), [], line)

    def test_debugging_may(self):
        self.assertEqual(list(policy.decisions("#ifdef CONFIG_X_DEBUG\nif (a > b)\n#endif\nif (c > d)\n")), ["if (c > d)"])


class Table(Made):
    def check(self, table):
        self.write("policy.toml", table)
        with mock.patch.object(sys, "argv", ["policy.py", str(self.root)]), \
                mock.patch.object(policy, "TABLE", self.root / "policy.toml"), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            bad = policy.main()
        return bad, out.getvalue()

    def test_each_is_explained_once(self):
        self.write("mm/hvo/a.c", "if (a > b)\n")
        self.write("mm/hvo/a_debug.c", "if (a > b)\n")
        self.write("mm/other/a.c", "if (a > b)\n")
        for table, says in (("", "mm/hvo/a.c: decides: if (a > b)"), ('["mm/hvo/a.c"]\n"if (a > b)" = ""', "decides"),
                            ('["mm/hvo/a.c"]\n"if (a > b)" = "why"\n"if (a > c)" = "why"', "explains what is not there"),
                            ('["mm/hvo/a.c"]\n"if (a > b)" = "why"\n["mm/hvo/b.c"]', "mm/hvo/b.c is not there")):
            bad, said = self.check(table)
            self.assertTrue(bad, table)
            self.assertIn(says, said)
        self.assertEqual(self.check('["mm/hvo/a.c"]\n"if (a > b)" = "why"'), (False, ""))


class Conditionals(Made):
    def test_new_ones_within_functions(self):
        outside = '#ifdef A\nint f(void)\n{\n\treturn 0;\n}\n#else\n#define f() 0\n#endif\nstruct s {\n#ifdef A\n\tint a;\n#endif\n};\n'
        within = 'int %s(void)\n{\n%s\n\tf();\n#endif\n}\n'
        comment = "int g(void)\n{\n\t/*\n#if\n\t */\n}\n"
        self.write("stock/mm/a.c", outside + within % ("old", "#ifdef A"))
        tree, stock = self.root, self.root / "stock"
        for text, found in ((outside + comment, []), (outside + within % ("old", "#ifdef A"), []),
                            (within % ("old", "#ifdef A") + within % ("new", "#ifdef A"), ["mm/a.c: #ifdef A"]),
                            (within % ("old", "# if IS_ENABLED(B)"), ["mm/a.c: # if IS_ENABLED(B)"])):
            self.write("mm/a.c", text)
            self.assertEqual(list(policy.new_conditionals(tree, stock, {"mm/a.c"})), found)
        self.write("mm/b.c", outside + within % ("new", "#if A"))
        self.assertEqual(list(policy.new_conditionals(tree, stock, {"mm/b.c"})), ["mm/b.c: #if A"])


class Names(Made):
    def test_both_ways_of_writing_a_list(self):
        self.write("mm/hvo/a.c", 'x = {\n\t[HVO_X] = "x",\n\t{ HVO_Y, "y" },\n};\n')
        self.write("mm/migrc/a.h", '#define L(EM) EM(X, "x") \\\n\tEM(Y, "y")\n')
        self.assertEqual(abi.names(self.root), ["word hvo x", "word hvo y", "word migrc x", "word migrc y"])

    def test_all_kinds(self):
        self.write("mm/tlb_batch/a.c", '.procname = "tlb_batch",\nmodule_param_cb(p, &o, NULL, 0644);\n'
                   'debugfs_create_file("stats", 0400, d, NULL, &f);\nd = debugfs_create_dir("tlb_batch", NULL);\n'
                   'seq_printf(m, "pages %lu\\n", n);\n/* .procname = "none" */\n')
        self.write("include/trace/events/tlb_batch.h", 'TRACE_EVENT(tlb_batch_add,\n\tTP_printk("a=%d "\n\t\t"b=%d", 1, 2)\n')
        self.write("patches/tlb_batch/1.patch", '--- a/mm/vmstat.c\n+++ b/mm/vmstat.c\n+\t[X] = "x_vm",\n-\t"y_vm",\n'
                   '--- a/mm/rmap.c\n+++ b/mm/rmap.c\n+\t"z"\n--- a/mm/Kconfig\n+++ b/mm/Kconfig\n+config PATCHED\n config NONE\n')
        self.write("mm/tlb_batch/Kconfig", "config OURS\n\tbool\n")
        self.assertEqual(abi.names(self.root), sorted((
            "sysctl vm tlb_batch", "parameter tlb_batch p", "debugfs tlb_batch stats", "debugfs tlb_batch",
            "line tlb_batch pages %lu\\n", "tracepoint tlb_batch_add", 'tracepoint format "a=%d b=%d"', "vmstat x_vm",
            "option OURS", "option PATCHED")))

    def test_of_this_tree(self):
        for name in ("sysctl vm migrc_enable", "parameter hvo retries", "vmstat tlb_batch_flush", "debugfs hvo stats"):
            self.assertTrue(any(n.startswith(name) for n in abi.names(abi.ROOT)), name)
