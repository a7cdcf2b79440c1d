// SPDX-License-Identifier: GPL-2.0
/* tlbstat price: events of the kernel, and the rings that have their records */
#include "ring.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#define CONTEXT_MAX		((uint64_t)-4095)

int open_event(struct perf_event_attr *attr, int pid, int cpu, int group)
{
	int fd = syscall(SYS_perf_event_open, attr, pid, cpu, group, PERF_FLAG_FD_CLOEXEC);

	/* Older kernels, and events of software, may not know guests. */
	if (fd < 0 && errno == EINVAL && attr->exclude_guest) {
		attr->exclude_guest = 0;
		fd = syscall(SYS_perf_event_open, attr, pid, cpu, group, PERF_FLAG_FD_CLOEXEC);
	}
	return fd;
}

/* Of @pages at most, of which fewer stay where fewer may be had. */
bool map_ring(struct ring *r, int *pages)
{
	/* Who is no root may lock only some memory. */
	for (; *pages; *pages /= 2) {
		r->pages = *pages;
		r->page = mmap(NULL, (*pages + 1) * page_size, PROT_READ | PROT_WRITE, MAP_SHARED,
			       r->fd, 0);
		if (r->page != MAP_FAILED)
			return true;
	}
	r->page = NULL;
	return false;
}

void close_ring(struct ring *r)
{
	if (r->page)
		munmap(r->page, (r->pages + 1) * page_size);
	close(r->fd);
}

/* Returns how many were lost. */
long long drain_ring(struct prices *p, struct ring *r, int second, on_sample *sample)
{
	static uint64_t record[1 << 13];
	size_t room = r->pages * page_size;
	char *data = (char *)r->page + page_size;
	uint64_t head = __atomic_load_n(&r->page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = r->page->data_tail;
	struct perf_event_header *h;
	long long lost = 0;
	size_t first;

	while (tail < head) {
		h = (void *)(data + tail % room);
		if (h->size < sizeof(*h))
			break;
		/* It may go on at the beginning. */
		first = room - tail % room;
		first = first < h->size ? first : h->size;
		memcpy(record, data + tail % room, first);
		memcpy((char *)record + first, data, h->size - first);
		tail += h->size;
		h = (void *)record;
		if (h->type == PERF_RECORD_SAMPLE)
			sample(p, record + 1, h->size / 8 - 1, second);
		else if (h->type == PERF_RECORD_LOST)
			lost += record[2];
		else if (h->type == PERF_RECORD_THROTTLE)
			p->throttled++;
	}
	__atomic_store_n(&r->page->data_tail, head, __ATOMIC_RELEASE);
	return lost;
}

/* ip, number of addresses, and these, with marks of whose they are: -1 if it is cut off. */
int chain_of(const uint64_t *body, size_t words, uint64_t *chain)
{
	uint64_t i;
	int nr = 0;

	if (words < 2 || body[1] > words - 2)
		return -1;
	for (i = 0; i < body[1] && nr < DEPTH; i++)
		if (body[2 + i] < CONTEXT_MAX)
			chain[nr++] = body[2 + i];
	return nr;
}

/* Empty, if it is too long. */
void chain_text(char *text, enum flush kind, const uint64_t *chain, int nr)
{
	size_t n;
	int i;

	n = snprintf(text, LINE, "%c ", kind);
	for (i = 0; i < nr && n < LINE; i++) {
		/* Behind the leaf are addresses to return to. */
		const struct symbol *s = symbol_of(chain[i] - !!i);

		n += snprintf(text + n, LINE - n, "%s%s", i ? ";" : "", s ? s->name : "unknown");
	}
	if (n >= LINE)
		*text = 0;
}
