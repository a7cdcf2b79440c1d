# SPDX-License-Identifier: GPL-2.0
"""Tests of rules.py with made-up tables and sources."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tlbrs.check import rules

TABLE = """
[reuse]
hazard = "A write fault makes the page
 writable."
hooks = ["do_wp_page", "Walk::meet"]
tests = ["migrc_stale: reuse (x86_64)", "migrc_stale: both, with range"]
remove = "reuse"
proofs = ["model.rs: it_flushes", "reuse-*.litmus", "KUnit: tested"]

[range]
hazard = "Entries change."
hooks = ["do_wp_page"]
tests = ["migrc_stale: zap (arm64)"]
remove = "range"
why_not_removed.x86_64 = "nobody is there"

[order]
hazard = "A store comes too late."
hooks = ["do_wp_page"]
why_not_removed = "no emulator shows it"
proofs = ["model.rs"]
""".replace("page\n writable", "page writable")
FILES = {
    "verify/rules/migrc.toml": TABLE, "verify/rules/tlb_batch.toml": "", "verify/rules/restore.toml": "",
    "verify/rules/mkclean.toml": "", "verify/rules/huge.toml": "", "verify/rules/migrate_device.toml": "",
    "verify/rules/hvo.toml": "",
    "mm/skip.c": 'static const char * const names[] = {\n\t[MIGRC_HOOK_REUSE]\t= "reuse",\n'
                 '\t[MIGRC_HOOK_RANGE] = "range",\n};\n',
    "mm/walk.rs": "impl<M: Copy, H: Holds<M>> Walk<M, H> {\n    pub fn meet(&mut self) {\n"
                  "        // rule: migrc/reuse: as in C\n        match x {\n        }\n    }\n}\n\n"
                  "#[kunit_tests(x)]\nmod tests {\n    #[test]\n    fn tested() {}\n\n    fn helper() {\n    }\n"
                  "    // #[test]\n    fn no_more() {}\n}\n",
    "verify/tests/model.rs": "#[test]\nfn it_flushes() {}\n\n#[test]\n#[should_panic]\nfn it_does_not() {}\n\n"
                             "fn helper() {}\n",
    "verify/litmus/reuse-dmb.litmus": "", "verify/litmus/reuse-no-dmb.litmus": "",
    "tools/testing/selftests/mm/migrc_stale.c": '{ .name = "reuse", },\n{ "both", run },\nset("x", 1);\n'
                                                'int main(void)\n',
    "tools/testing/selftests/mm/migrc_stale_ranges.c": '{ "zap", run },\n',
    "tools/testing/selftests/mm/migrc_file.c":
        'TEST_F(migrc_file, read)\nTEST_F_TIMEOUT(migrc_file_idle, idle, 9)\nFIXTURE_VARIANT_ADD(migrc_file, ext4) {\n'
        'TEST_F(other, other)\nint main(void)\n',
    "tools/testing/selftests/mm/migrc_stale_not.c": '{ "x", run },\nint main(void)\n',
    "patches/migrc/0001-x.patch": "--- a/mm/memory.c\n+++ b/mm/memory.c\n"}
MEMORY = """\
/* rule: migrc/reuse: this is above nothing */

static vm_fault_t other(struct vm_fault *vmf)
{
	return 0;
}

/*
 * A fault.
 *
 * rule: migrc/range: several lines
 * are one comment
 */
static vm_fault_t do_wp_page(struct vm_fault *vmf)
	__releases(vmf->ptl)
{
	/* rule: migrc/reuse: before anybody can write, others may still read the old page */
	flush(vmf);
	done(vmf);	/* rule: migrc/order: behind a statement */
	return rule;
}
""".partition("\n\n")[2]


class Made(unittest.TestCase):
    """A repository and a kernel tree of these files."""

    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tree = self.root / "tree"
        for name, text in {**FILES, "tree/mm/memory.c": MEMORY}.items():
            self.write(name, text)
        self.write(rules.PAGE, rules.written(rules.load(self.root)))
        rules.kunit_cases.cache_clear()

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def change(self, name, old, new):
        text = (self.root / name).read_text(encoding="utf-8")
        self.assertEqual(text.count(old), 1, old)
        self.write(name, text.replace(old, new))

    def wrong(self):
        return [what for _, wrong in rules.faults(self.tree, self.root) for what in wrong]

    def table(self, old, new):
        """What is wrong with this in the table; the page is written anew."""
        self.change("verify/rules/migrc.toml", old, new)
        with contextlib.suppress(rules.Wrong):
            self.write(rules.PAGE, rules.written(rules.load(self.root)))
        return self.wrong()


class Checks(Made):
    def test_nothing_is_wrong(self):
        self.assertEqual(self.wrong(), [])

    def test_hook_without_comment(self):
        self.change("tree/mm/memory.c", "rule: migrc/order: behind", "migrc/order: behind")
        self.assertEqual(self.wrong(), ["order: no comment in do_wp_page()"])

    def test_hook_that_does_not_exist(self):
        self.assertEqual(self.table('"Walk::meet"', '"Walk::meet", "meet"'), ["reuse: no comment in meet()"])

    def test_no_hook(self):
        self.assertIn("order: no hook", self.table('hooks = ["do_wp_page"]\nwhy', "why"))

    def test_comment_elsewhere(self):
        self.change("tree/mm/memory.c", "\treturn 0;", "\t/* rule: migrc/reuse: a second place */\n\treturn 0;")
        self.assertEqual(self.wrong(), ["reuse: mm/memory.c has it in other, which is none of its hooks"])
        self.write("tree/mm/memory.c", MEMORY + "\n/* rule: migrc/reuse: behind all */\n")
        self.assertEqual(self.wrong(), ["reuse: mm/memory.c has it in no function, which is none of its hooks"])

    def test_comment_without_rule(self):
        for name in ("migrc/gone", "gone/reuse", "reuse"):
            self.write("tree/mm/memory.c", MEMORY + f"\n/* rule: {name}: why */\n")
            self.assertEqual(self.wrong(), [f"mm/memory.c names {name}, which is no rule"])

    def test_comment_without_reason(self):
        self.change("tree/mm/memory.c", "migrc/range: several lines", "migrc/range:")
        self.assertEqual(self.wrong(), ["range: mm/memory.c does not say why"])

    def test_no_test_and_no_proof(self):
        self.assertEqual(self.table('proofs = ["model.rs"]', ""), ["order: no test and no proof"])

    def test_tests_and_proofs_that_do_not_exist(self):
        for old, new, wrong in (("stale: zap", "stale: x", "range: no test migrc_stale: x (arm64)"),
                                ("stale: zap", "gone: zap", "range: no test migrc_gone: zap (arm64)"),
                                ("model.rs: it_flushes", "model.rs: helper", "reuse: no proof model.rs: helper"),
                                ("reuse-*.litmus", "order-*.litmus", "reuse: no proof order-*.litmus"),
                                ("KUnit: tested", "KUnit: helper", "reuse: no proof KUnit: helper"),
                                ("KUnit: tested", "KUnit: no_more", "reuse: no proof KUnit: no_more"),
                                ("KUnit: tested", "migrc_stale: x", "reuse: no proof migrc_stale: x"),
                                ('["model.rs"]', '["other.rs"]', "order: no proof other.rs")):
            self.assertEqual(self.table(old, new), [wrong])
            self.write("verify/rules/migrc.toml", TABLE)
        self.assertEqual(self.table("KUnit: tested", "migrc_stale: zap"), [])
        # Cases and variants of the harness, of fixtures with the program's name.
        for old, new in (("stale: zap", "file: read"), ("file: read", "file: idle"), ("file: idle", "file: ext4")):
            self.assertEqual(self.table(f'"migrc_{old}"', f'"migrc_{new}"'), [])
        self.assertEqual(self.table('"migrc_file: ext4"', '"migrc_file: other"'), ["reuse: no proof migrc_file: other"])

    def test_skip_hook(self):
        self.change("mm/skip.c", '= "range"', '= "other"')
        self.assertEqual(self.wrong(), ["reuse: no range in skip_hook", "range: no range in skip_hook",
                                        "no rule removes other"])

    def test_skip_hook_list(self):
        self.write("mm/skip.c", '#define MIGRC_HOOKS(EM)\t\\\n\tEM(REUSE, "reuse")\t/* why */\t\\\n'
                                '\tEM(RANGE, "range")\n#define OTHERS(EM)\tEM(ZAP, "zap")\n')
        self.assertEqual(self.wrong(), [])
        self.change("mm/skip.c", '"range"', '"other"')
        self.assertEqual(self.wrong(), ["reuse: no range in skip_hook", "range: no range in skip_hook",
                                        "no rule removes other"])

    def test_skip_hook_of_another(self):
        """The names of restore are in that of tlb_batch."""
        self.write("mm/batch.c", '#define TLB_BATCH_HOOKS(EM) EM(RUNEND, "runend")\n')
        self.assertEqual(self.wrong(), ["no rule removes runend"])
        self.change("tree/mm/memory.c", "\treturn 0;", "\t/* rule: restore/runend: why */\n\treturn 0;")
        self.write("verify/rules/restore.toml", '[runend]\nhazard = "It goes on."\nhooks = ["other"]\n'
                                                'tests = ["migrc_stale: zap"]\nremove = "runend"\n')
        self.write(rules.PAGE, rules.written(rules.load(self.root)))
        self.assertEqual(self.wrong(), [])
        self.change("mm/batch.c", "runend", "other")
        self.assertEqual(self.wrong(), ["no rule removes other", "runend: no runend in skip_hook"])

    def test_each_architecture(self):
        self.assertEqual(self.table("why_not_removed.x86_64 = ", "# "),
                         ["range: nothing sees range removed on x86_64, and no reason"])
        # A suite that has to be asked for is none of make sabotage.
        self.change("verify/rules/migrc.toml", "zap (arm64)", "zap (SUITE=fs)")
        self.assertIn("range: nothing sees range removed on arm64, and no reason", self.wrong())

    def test_not_removed(self):
        self.assertEqual(self.table('why_not_removed = "no emulator shows it"', ""),
                         ["order: neither remove nor why_not_removed"])

    def test_several_names(self):
        """A test removes that of them which its case is called."""
        self.table('remove = "range"', 'remove = ["zap", "reuse"]')
        self.change("mm/skip.c", '= "range"', '= "zap"')
        self.change("verify/rules/migrc.toml", ", with range", "")
        self.write(rules.PAGE, rules.written(rules.load(self.root)))
        self.assertEqual(self.wrong(), ["range: nothing sees reuse removed on arm64, and no reason"])
        self.assertEqual(self.table("zap (arm64)", "both (arm64)")[0],
                         "range: migrc_stale: both (arm64) removes nothing")

    def test_page(self):
        self.change(rules.PAGE, "A write fault", "A fault")
        self.assertEqual(self.wrong(), ["run make rules"])
        (self.root / rules.PAGE).unlink()
        self.assertEqual(self.wrong(), ["run make rules"])

    def test_tables_that_cannot_be_read(self):
        for old, new, wrong in (("hazard = \"Entries", "danger = \"Entries", "migrc/range: danger is no key"),
                                ('remove = "range"', "remove = 1", "migrc/range: remove is no key, or empty"),
                                ("zap (arm64)", "zap (arm)", "'migrc_stale: zap (arm)', which is not"),
                                ("[range]", "[range", "")):
            self.write("verify/rules/migrc.toml", TABLE.replace(old, new))
            what, = self.wrong()
            self.assertIn(wrong, what)


class Parts(unittest.TestCase):
    def test_functions_of_c(self):
        text = ("#define X(a) \\\n\tdo_x(a)\nstruct s {\n\tint a;\n};\n\nstatic __always_inline void\nf(struct s *s,\n"
                "  int b)\n{\n\tif (b) {\n\t}\n}\nint (*p)(void);\n\nint g(void)\n\t__acquires(x)\n{\n}\n")
        self.assertEqual(rules.functions_of_c(text.split("\n")), [("f", 6, 12), ("g", 15, 18)])

    def test_functions_of_rust(self):
        text = ("impl<T: A<B>> Mms for Drained<T> {\n    fn a(&self) {\n        x\n    }\n}\n\n"
                'pub unsafe extern "C" fn b() {\n    fn c() {\n    }\n}\n')
        self.assertEqual(rules.functions_of_rust(text.split("\n")), [("Drained::a", 1, 3), ("b", 6, 9), ("c", 7, 8)])

    def test_comments_of_rust(self):
        text = ("// rule: a/b: why\n// more\n#[inline]\nfn f() {\n    // rule: a/c: why\n}\n"
                "/// rule: a/d: why\nfn g() {\n}\n")
        self.assertEqual(rules.comments("x.rs", text), [("a/b", True, "f"), ("a/c", True, "f"), ("a/d", True, "g")])

    def test_tests(self):
        test = rules.parsed("migrc_stale: uffd-rwp (arm64), with protnone", "x")
        self.assertEqual((test.program, test.case, test.arches, test.also),
                         ("migrc_stale", "uffd-rwp", ("arm64",), ("protnone",)))
        test = rules.parsed("tlb_batch_mark", "x")
        self.assertEqual((test.case, test.arches, test.also), (None, None, ()))
        self.assertEqual(rules.parsed("migrc_bounds: pressure, with kswapd and round", "x").also, ("kswapd", "round"))
        self.assertEqual(rules.parsed("migrc_file: btrfs (SUITE=fs)", "x").arches, ())

    def test_page(self):
        self.assertNotIn("\n\n\n", rules.written(rules.load()))
        self.assertEqual([line for line in rules.written(rules.load()).splitlines() if len(line) > rules.WIDTH], [])

    def test_usage(self):
        for words in ([], ["--check", "a", "b"], ["--check", "/gone"]):
            with mock.patch.object(sys, "argv", ["rules.py", *words]), self.assertRaises(SystemExit), \
                    contextlib.redirect_stdout(io.StringIO()):
                rules.main()
