// SPDX-License-Identifier: GPL-2.0
#include "migrc_record.h"

char record_text[4096];
static size_t len;

void record_begin(void)
{
	len = 0;
	*record_text = '\0';
}

void record_add(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	len += vsnprintf(record_text + len, sizeof(record_text) - len, format, args);
	va_end(args);
	if (len >= sizeof(record_text))
		ksft_exit_fail_msg("too long a record\n");
}

void migrc_stats_read(struct migrc_stats *s)
{
	char kind[24], name[24], line[128];
	FILE *f = fopen(MIGRC_STATS, "r");

	memset(s, 0, sizeof(*s));
	if (!f)
		return;
	while (s->nr < MIGRC_MAX_STATS && fgets(line, sizeof(line), f)) {
		long long *val = s->line[s->nr].val;

		if (sscanf(line, "%23s %23s %lld %lld", kind, name, &val[0], &val[1]) < 3 ||
		    !strcmp(kind, "age"))
			continue;
		snprintf(s->line[s->nr++].name, sizeof(s->line[0].name), "%s_%s", kind, name);
	}
	fclose(f);
}

/* What was denied, drained and flushed by hooks, by reason; not what is 0. */
void record_add_stats(const struct migrc_stats *before)
{
	struct migrc_stats now;
	int i;

	migrc_stats_read(&now);
	for (i = 0; i < now.nr && i < before->nr; i++) {
		long long n = now.line[i].val[0] - before->line[i].val[0];
		long long pages = now.line[i].val[1] - before->line[i].val[1];

		if (n)
			record_add(",\"%s\":%lld", now.line[i].name, n);
		if (pages)
			record_add(",\"%s_pages\":%lld", now.line[i].name, pages);
	}
}
