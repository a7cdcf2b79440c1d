// SPDX-License-Identifier: GPL-2.0
/* What is written to our files: toggle, garbage. */
#include "tlb_rs_abuse.h"

/* --- toggle ------------------------------------------------------------------------ */

#define TOGGLE_PAGES	256
#define MAX_VALUES	5

static const struct knob {
	const char *path;
	bool patches;		/* code, see tlb_rs_patching_is_safe() */
	const char *values[MAX_VALUES];
} knobs[] = {
	{ TLB_BATCH_SYSCTL, true, { "0", "1" } },
	{ "/proc/sys/vm/tlb_batch_writeback", true, { "0", "1" } },
	{ MIGRC_ENABLE, true, { "0", "1", "1" } },
	{ MIGRC_READMOSTLY, true, { "0", "1" } },
	{ MIGRC_PAGES, false, { "0", "1", "16", "4096", "18446744073709551615" } },
	{ MIGRC_AGE, false, { "1", "10", "100", "60000" } },
	{ "/proc/sys/vm/migrc_blocks", false, { "0", "1" } },
	{ HVO_SYSCTL, false, { "0", "1" } },
	{ HVO_PARAM "max_ptes", false, { "0", "1", "4096", "4294967295" } },
	{ HVO_PARAM "pause_budget_us", false, { "0", "40", "4294967295" } },
	{ HVO_PARAM "ack_timeout_us", false, { "0", "1", "200000" } },
	{ HVO_PARAM "retries", false, { "0", "8", "1000" } },
	{ HVO_PARAM "duty_pct", false, { "0", "10", "100", "4294967295" } },
	{ HVO_PARAM "retry_s", false, { "0", "1", "86400" } },
	{ HVO_PARAM "strategy", false, { "auto", "pause", "stop_machine" } },
};

/* As they were; an empty string for what is not there. */
static char knob_values[ARRAY_SIZE(knobs)][64];

static void knobs_save(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(knobs); i++) {
		knob_values[i][0] = '\0';
		/* At exit, if this does not come to knobs_restore(). */
		tlb_rs_keep(knobs[i].path);
		tlb_rs_read_file(knobs[i].path, knob_values[i], sizeof(knob_values[i]));
	}
}

static void knobs_restore(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(knobs); i++) {
		if (knob_values[i][0] && tlb_rs_write_file(knobs[i].path, knob_values[i]))
			violation("cannot restore %s", knobs[i].path);
	}
}

static long nr_toggles;

static void toggle_one(unsigned int *state)
{
	const struct knob *knob;
	const char *val;
	size_t i;
	int err;

	do {
		i = tlb_rs_rnd(state) % ARRAY_SIZE(knobs);
		knob = &knobs[i];
		val = knob->values[tlb_rs_rnd(state) % MAX_VALUES];
	} while (!knob_values[i][0] || !val || (knob->patches && !tlb_rs_patching_is_safe()));
	err = tlb_rs_write_file(knob->path, val);
	if (err && !(err == -EOPNOTSUPP && !strcmp(knob->path, MIGRC_READMOSTLY)))
		violation("%s <- %s: %s", knob->path, val, strerror(-err));
	nr_toggles++;
	/* A write of 0 returns when nothing is held, nor will be. Not each time: this is slow. */
	if (!strcmp(knob->path, MIGRC_ENABLE) && val[0] == '0' &&
	    (skip_hooks || !(tlb_rs_rnd(state) % 4)) && migrc_held(-1))
		shown(HELD, "vm.migrc_enable is 0, and pages are held");
}

static bool toggle_stop;

static void *toggle_thread(void *arg)
{
	__u64 next = tlb_rs_now_ns();
	unsigned int state = 7;

	(void)arg;
	leave_last_cpu();
	while (!LOAD(toggle_stop)) {
		__u64 now = tlb_rs_now_ns();

		toggle_one(&state);
		next += 1000000;
		if (next > now)
			tlb_rs_sleep_us((next - now) / 1000);
	}
	return NULL;
}

/* Numbers its pages, at both ends. */
static void *write_thread(void *arg)
{
	size_t size = getpagesize(), i;
	char *base = arg;
	__u64 n = 0;

	leave_last_cpu();
	while (!LOAD(toggle_stop)) {
		for (i = 0; i < TOGGLE_PAGES; i++) {
			__u64 *head = (__u64 *)(base + i * size);
			__u64 *tail = (__u64 *)(base + (i + 1) * size) - 1;

			if (LOAD(*head) != n || LOAD(*tail) != n)
				violation("a write was lost");
			STORE(*head, n + 1);
			STORE(*tail, n + 1);
		}
		n++;
		tlb_rs_sleep_us(500);
	}
	return NULL;
}

void case_toggle(bool on)
{
	size_t len = TOGGLE_PAGES * getpagesize();
	pthread_t toggler, writer;
	struct migrc_set set, written;
	struct migrc_counters before, d;
	char *base, *numbers;
	long moved = 0, moves = 0;
	__u64 ns = tlb_rs_now_ns();

	nr_toggles = 0;
	toggle_stop = false;
	migrc_read(&before);
	base = migrc_map_readonly(&set, TOGGLE_PAGES, SEED);
	numbers = migrc_mmap(TOGGLE_PAGES, 0, SEED);
	memset(numbers, 0, len);
	migrc_set_init(&written, numbers, TOGGLE_PAGES);
	knobs_save();
	pthread_create(&writer, NULL, write_thread, numbers);
	if (on)
		pthread_create(&toggler, NULL, toggle_thread, NULL);
	do {
		moved += migrc_move(&set, 0, !(moves & 1), MPOL_MF_MOVE);
		moved += migrc_move(&written, 0, !(moves & 1), MPOL_MF_MOVE);
		moves++;
		if (on && broken) {
			mprotect(base, getpagesize(), PROT_READ | PROT_WRITE);
			base[0]++;
			mprotect(base, getpagesize(), PROT_READ);
		}
		if (tlb_rs_check(base, len, SEED))
			shown(CONTENTS, "wrong contents");
		migrc_diff(&before, &d);
	} while (!enough(!on || (nr_toggles && moved && d.val[MIGRC_DEFERRED] &&
				 (!skip_hooks || LOAD(sh->shown) & HELD))));
	STORE(toggle_stop, true);
	if (on)
		pthread_join(toggler, NULL);
	pthread_join(writer, NULL);
	ns = tlb_rs_now_ns() - ns;
	knobs_restore();
	migrc_diff(&before, &d);
	munmap(base, len);
	munmap(numbers, len);
	migrc_set_free(&set);
	migrc_set_free(&written);
	if (!on)
		return;
	ksft_print_msg("toggle: %ld writes, %.0f a second; %ld pages moved, %lld deferred\n",
		       nr_toggles, nr_toggles * 1e9 / ns, moved, d.val[MIGRC_DEFERRED]);
	if (!nr_toggles || !moved || !d.val[MIGRC_DEFERRED])
		violation("nothing to see");
}

/* --- garbage ----------------------------------------------------------------------- */

/*
 * What a file may say after a write that succeeded. Numbers within bounds; of a list (skip_hook,
 * strategy) words, which the kernel compares; nothing, where reading it is for something else.
 */
enum kind { NUMBER, WORD, HOOKS, READ_ONLY, WRITE_ONLY };

struct file {
	const char *path;
	enum kind kind;
	__u64 min, max;
	const char *restore;	/* or what it was */
};

#define U32_LIMIT	4294967295ULL
#define U64_LIMIT	(~0ULL)

static const struct file files[] = {
	{ TLB_BATCH_SYSCTL, NUMBER, 0, 1, NULL },
	{ "/proc/sys/vm/tlb_batch_writeback", NUMBER, 0, 1, NULL },
	{ MIGRC_ENABLE, NUMBER, 0, 1, NULL },
	{ MIGRC_READMOSTLY, NUMBER, 0, 1, NULL },
	{ MIGRC_PAGES, NUMBER, 0, U64_LIMIT, NULL },
	{ MIGRC_AGE, NUMBER, 1, 60000, NULL },
	{ "/proc/sys/vm/migrc_blocks", NUMBER, 0, 1, NULL },
	{ HVO_PARAM "max_ptes", NUMBER, 0, U32_LIMIT, NULL },
	{ HVO_PARAM "pause_budget_us", NUMBER, 0, U32_LIMIT, NULL },
	{ HVO_PARAM "ack_timeout_us", NUMBER, 0, 1000000, NULL },
	{ HVO_PARAM "retries", NUMBER, 0, 1000, NULL },
	{ HVO_PARAM "duty_pct", NUMBER, 0, U32_LIMIT, NULL },
	{ HVO_PARAM "retry_s", NUMBER, 0, U32_LIMIT, NULL },
	{ HVO_PARAM "strategy", WORD, 0, 0, NULL },
	{ DEBUGFS "tlb_batch/stats", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "tlb_batch/current", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "tlb_batch/skip_hook", HOOKS, 0, 0, "none" },
	{ DEBUGFS "tlb_batch/delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "tlb_batch/flush_delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "tlb_batch/secondary", WRITE_ONLY, 0, 0, "" },
	{ DEBUGFS "tlb_batch/secondary_delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "migrc/stats", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "migrc/skip_hook", HOOKS, 0, 0, "none" },
	{ DEBUGFS "migrc/walk_delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "migrc/restore_delay_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "migrc/generation", WRITE_ONLY, 0, 0, "0" },
	{ DEBUGFS "hvo/stats", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/verify", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/read", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/race_pfn", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/waits", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/counted", READ_ONLY, 0, 0, NULL },
	{ DEBUGFS "hvo/skip_hook", HOOKS, 0, 0, "none" },
	{ DEBUGFS "hvo/stall_us", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "hvo/fail_swap", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "hvo/flagless_cpu", NUMBER, 0, U32_LIMIT, NULL },
	{ DEBUGFS "hvo/deaf_cpu", NUMBER, 0, U32_LIMIT, NULL },
	/* Page frames of a HugeTLB page, of which there is none. */
	{ DEBUGFS "hvo/count_pfn", WRITE_ONLY, 0, 0, "0" },
	{ DEBUGFS "hvo/heads_pfn", WRITE_ONLY, 0, 0, "0" },
	{ DEBUGFS "hvo/isolate_pfn", WRITE_ONLY, 0, 0, "0" },
	/* Milliseconds for which they go on: only what is refused. */
	{ DEBUGFS "hvo/race", WRITE_ONLY, 0, 0, "" },
	{ DEBUGFS "hvo/read_lock", WRITE_ONLY, 0, 0, "" },
	{ DEBUGFS "hvo/write_lock", WRITE_ONLY, 0, 0, "" },
};

static const char * const our_directories[] = {
	DEBUGFS "tlb_batch/", DEBUGFS "migrc/", DEBUGFS "hvo/", HVO_PARAM,
};

#define LONG_LEN	65536

static char long_letters[LONG_LEN], long_digits[LONG_LEN], long_spaces[LONG_LEN];

#define TEXT(s)		{ s, sizeof(s) - 1 }

static const struct text {
	const char *text;
	size_t len;
} texts[] = {
	TEXT(""), TEXT("\n"), TEXT(" "), TEXT("-1"), TEXT("-0"), TEXT("-9223372036854775808"),
	TEXT("0"), TEXT("1"), TEXT("2"), TEXT("60000"), TEXT("60001"), TEXT("4294967295"),
	TEXT("4294967296"), TEXT("4294967297"), TEXT("9223372036854775808"),
	TEXT("18446744073709551615"), TEXT("18446744073709551616"),
	TEXT("1000000000000000000000000000000000000000000"), TEXT("0x1"), TEXT("010"), TEXT("1.5"),
	TEXT("1e3"), TEXT("+1"), TEXT("abc"), TEXT("1abc"), TEXT("1 2 3"), TEXT("%s%n%p"),
	TEXT("1\0x"), TEXT("\0"), TEXT("\0x"), TEXT("auto\0x"), TEXT("none\0x"),
	TEXT("\xff\xfe"), TEXT("\n1"), TEXT("../../../etc"), TEXT("flush,range"), TEXT("FLUSH"),
	{ long_letters, LONG_LEN }, { long_digits, LONG_LEN }, { long_spaces, LONG_LEN },
};

/* Whether it could be taken for a number, by those which must not be fed one. */
static bool is_number(const struct text *t)
{
	return t->len && t->len < LONG_LEN && strpbrk(t->text, "0123456789") == t->text;
}

static bool is_refusal(int err)
{
	static const int refusals[] = {
		EINVAL, ERANGE, EPERM, EACCES, E2BIG, ENOSPC, EOPNOTSUPP, ENOENT, ESPIPE,
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(refusals); i++) {
		if (err == refusals[i])
			return true;
	}
	return false;
}

static void check_value(const struct file *f, const char *what)
{
	__u64 max = broken && f->max > 1 ? f->max / 2 : f->max, val;
	char buf[4096], *stop;
	int err;

	err = tlb_rs_read_file(f->path, buf, sizeof(buf));
	if (err) {
		violation("%s: %s", f->path, strerror(-err));
		return;
	}
	if (f->kind != NUMBER) {
		if (!strpbrk(buf, "abcdefghijklmnopqrstuvwxyz") || strchr(buf, '%'))
			violation("%s says %.20s after %.20s", f->path, buf, what);
		return;
	}
	errno = 0;
	val = strtoull(buf, &stop, 10);
	if (errno || stop == buf || buf[0] == '-' || val < f->min || val > max)
		shown(BOUND, "%s says %.20s after %.20s", f->path, buf, what);
}

static void feed(const struct file *f, const struct text *t)
{
	int fd = open(f->path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0) {
		if (errno != EACCES && errno != EPERM)
			violation("%s: %s", f->path, strerror(errno));
		return;
	}
	/* A number would be done at once, and takes as long as it says. */
	if (f->kind == WRITE_ONLY && strstr(f->path, "hvo/") && is_number(t)) {
		close(fd);
		return;
	}
	n = write(fd, t->text, t->len);
	if (n < 0) {
		count(&sh->refused);
		if (!is_refusal(errno))
			violation("%s <- %.20s: %s", f->path, t->text, strerror(errno));
	} else if (f->kind == READ_ONLY) {
		if (t->len)
			violation("%s takes %.20s", f->path, t->text);
	} else {
		count(&sh->ops);
	}
	close(fd);
	if (f->kind == NUMBER || f->kind == WORD || f->kind == HOOKS)
		check_value(f, t->text);
	if (f->kind == HOOKS)
		tlb_rs_write_file(f->path, "none");
}

/* In parts, and not from the beginning. */
static void feed_parts(const struct file *f)
{
	int fd = open(f->path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if ((write(fd, "a", 1) < 0 && !is_refusal(errno)) ||
	    (write(fd, "b", 1) < 0 && !is_refusal(errno)) ||
	    (pwrite(fd, "c", 1, 1) < 0 && !is_refusal(errno)) ||
	    (pwrite(fd, "d", 1, LONG_LEN) < 0 && !is_refusal(errno)))
		violation("%s, in parts: %s", f->path, strerror(errno));
	close(fd);
	if (f->kind == NUMBER || f->kind == WORD || f->kind == HOOKS)
		check_value(f, "parts");
	if (f->kind == HOOKS)
		tlb_rs_write_file(f->path, "none");
}

static int user_fds[ARRAY_SIZE(files)];

/* A user, who has got a file from root, too. */
static void nobody_writes(void)
{
	size_t i;

	become_user();
	for (i = 0; i < ARRAY_SIZE(files); i++) {
		int fd = open(files[i].path, O_WRONLY | O_CLOEXEC);

		if (fd >= 0)
			violation("a user can open %s", files[i].path);
		else if (errno != EACCES && errno != EPERM && errno != ENOENT)
			violation("a user: %s: %s", files[i].path, strerror(errno));
		else
			count(&sh->refused);
		/* A sysctl asks the writer, not who opened it. */
		if (user_fds[i] >= 0 && !strncmp(files[i].path, "/proc", 5) &&
		    (write(user_fds[i], "1", 1) >= 0 || errno != EPERM))
			violation("a user can write to %s", files[i].path);
	}
}

static bool is_known(const char *path)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(files); i++) {
		if (!strcmp(path, files[i].path))
			return true;
	}
	return false;
}

/* Who adds a file tells its bounds here. */
static void check_known(void)
{
	char path[512];
	struct dirent *e;
	size_t i;
	DIR *dir;

	for (i = 0; i < ARRAY_SIZE(our_directories); i++) {
		dir = opendir(our_directories[i]);
		while (dir && (e = readdir(dir))) {
			snprintf(path, sizeof(path), "%s%s", our_directories[i], e->d_name);
			if (e->d_name[0] != '.' && !is_known(path))
				violation("%s was not tried", path);
		}
		if (dir)
			closedir(dir);
	}
}

void case_garbage(bool on)
{
	char old[64], now[64];
	size_t i, n = 0, t;

	/* Nothing is compared with it. */
	if (!on)
		return;
	memset(long_letters, 'A', LONG_LEN);
	memset(long_digits, '1', LONG_LEN);
	memset(long_spaces, ' ', LONG_LEN);
	for (i = 0; i < ARRAY_SIZE(files); i++)
		user_fds[i] = open(files[i].path, O_WRONLY);
	if (!end(start(nobody_writes)))
		violation("the user was killed");
	for (i = 0; i < ARRAY_SIZE(files); i++) {
		const struct file *f = &files[i];
		bool number = f->kind == NUMBER || f->kind == WORD;

		if (user_fds[i] < 0)
			continue;
		close(user_fds[i]);
		n++;
		/* At exit, if this does not come to its end. */
		if (number || f->kind == HOOKS)
			tlb_rs_keep(f->path);
		if (number)
			tlb_rs_read_file(f->path, old, sizeof(old));
		for (t = 0; t < ARRAY_SIZE(texts); t++)
			feed(f, &texts[t]);
		feed_parts(f);
		if (number && (tlb_rs_write_file(f->path, old) ||
			       tlb_rs_read_file(f->path, now, sizeof(now)) || strcmp(old, now)))
			violation("%s is %s, and was %s", f->path, now, old);
		else if (f->restore && f->restore[0])
			tlb_rs_write_file(f->path, f->restore);
	}
	check_known();
	ksft_print_msg("garbage: %zu files, %zu texts: %ld writes refused, %ld taken\n", n,
		       ARRAY_SIZE(texts), sh->refused, sh->ops);
	if (!n || !sh->refused || !sh->ops)
		violation("nothing to see");
}
