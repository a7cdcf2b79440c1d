/* SPDX-License-Identifier: GPL-2.0 */
/* tlbstat: what its files share */
#ifndef TLBSTAT_H
#define TLBSTAT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctype.h>
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define ARRAY_SIZE(a)		((int)(sizeof(a) / sizeof((a)[0])))
#define KEYS			256
#define STRUCT_PAGE		64	/* bytes, on arm64 and x86_64 */
#define MIB			(1024.0 * 1024.0)
#define FAILURE			1
#define USAGE			2

struct entry {
	char key[48];
	long long val;
};

struct sample {
	struct entry e[KEYS];
	int nr;
	double time;		/* since 1970 */
	double uptime;
	char boot_id[40], kernel[64], arch[16];
};

/* sample.c: samples, and where their counters come from */

/* What --root names. */
extern const char *root;
/* Unsigned, as what is computed from counters that may be anything: it may wrap. */
extern unsigned long long page_size;

const struct entry *find(const struct sample *s, const char *key, int hint);
bool has(const struct sample *s, const char *key);
long long get(const struct sample *s, const char *key);
void set_text(char *to, size_t size, const char *from);
bool add(struct sample *s, long long val, const char *fmt, ...);
bool starts(const char *text, const char *prefix);
bool starts_any(const char *text, const char * const *prefixes);
bool is_gauge(const char *key);
bool same_boot(const struct sample *a, const struct sample *b);
void accumulate(struct sample *sum, const struct sample *was, const struct sample *now);
const char *path(const char *fmt, ...);
char *next(FILE *f);
char *first_line(const char *name);
bool number(const char *word, long long *val);
bool read_pools(struct sample *s, unsigned long long *spare, long long *left);
void trace_begin(void);
bool drain_trace(void);
double seconds_of(clockid_t id);
void take(struct sample *s);

/* view.c: columns, JSON and text */

enum kind { RATE, GAUGE, MIBS, WORST, WHY };

/* Of the table, of rate.GROUP.NAME in JSON, of report and its plots. */
struct column {
	const char *group, *name, *key;
	enum kind kind;
	const char *help;
};

struct counter {
	const char *key, *help;
};

struct family {
	const char *prefix, *head;
};

#define NCOLS			25
#define NCOUNTERS		26
#define NFAMILIES		11

extern const struct column columns[NCOLS];
extern const struct counter counters[NCOUNTERS];
extern const struct family families[NFAMILIES];
extern bool shown[NCOLS];

double column(int c, const struct sample *was, const struct sample *now, double seconds);
void write_json(FILE *out, const struct sample *was, const struct sample *s);
bool next_sample(FILE *f, const char *name, int *nr, struct sample *s);
FILE *open_recording(const char *name);
const char *brief(double v);
void choose_columns(const struct sample *s);
void print_heading(void);
void print_row(const struct sample *was, const struct sample *now);
void print_block(const struct sample *sum, double seconds, const char *what);

/* report.c: what was recorded, as text and plots */

void failed_output(const char *name);
double scale_step(double high);
int report(const char *name, const char *svg);

/* run.c: signals, commands that it runs, and arguments */

extern sigset_t signals;

int wait_until(double deadline, siginfo_t *info);
pid_t start(char **command);
bool ends(int sig, const siginfo_t *info, pid_t pid, int *status);
void block_signals(void);
double positive(const char *text, double least, const char *what);
char **split_command(int *argc, char **argv);
void check_root(void);
pid_t start_group(char **words, int out);
void end_group(pid_t pid);
bool command_ended(char **command, pid_t *pid, int *failed);
void more_files(void);

/* doctor.c: what can matter on this machine */

int doctor(int argc, char **argv);

/* ab.c: the difference that a switch makes */

int ab(int argc, char **argv);

/* price.c: how long CPUs wait for TLB flushes */

int price(int argc, char **argv);

/* tlbstat.c */

FILE *new_recording(const char *name);
void help(void);

#endif
