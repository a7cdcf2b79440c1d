// SPDX-License-Identifier: GPL-2.0
/* Measured regions: their counters, their records, and threads that have pages in their TLBs. */
#include "tlb_rs.h"

static const char * const tlb_rs_vmstat[TLB_RS_NR_VMSTAT] = {
	"tlb_batch_pages", "tlb_batch_ranges", "tlb_batch_flush",
	"tlb_batch_overflow", "pgmigrate_success", "pgmigrate_fail",
	"nr_tlb_remote_flush", "nr_tlb_remote_flush_received",
	"nr_tlb_local_flush_all", "nr_tlb_local_flush_one",
};

void tlb_rs_sleep_us(unsigned int us)
{
	struct timespec ts = {
		.tv_sec = us / 1000000,
		.tv_nsec = (long)(us % 1000000) * 1000,
	};

	nanosleep(&ts, NULL);
}

/* Waits until another thread has made @member @least. */
void tlb_rs_reaches(const __u64 *member, __u64 least, const char *who)
{
	__u64 end = tlb_rs_now_ns() + TLB_RS_PATIENCE_NS;

	while (__atomic_load_n(member, __ATOMIC_ACQUIRE) < least) {
		if (tlb_rs_now_ns() > end)
			ksft_exit_fail_msg("%s is stuck\n", who);
		tlb_rs_sleep_us(1000);
	}
}

/* The TLB line of /proc/interrupts, or -1 where there is none. */
static long long tlb_rs_tlb_irqs(void)
{
	long long sum = -1;
	char *line = NULL;	/* has a column for each CPU */
	size_t size = 0;
	FILE *f;

	f = fopen("/proc/interrupts", "r");
	if (!f)
		return -1;
	while (getline(&line, &size, f) > 0) {
		char *p = strstr(line, "TLB:");
		char *end;

		if (!p)
			continue;
		sum = 0;
		for (p += 4;; p = end) {
			long long v = strtoll(p, &end, 10);

			if (end == p)
				break;
			sum += v;
		}
		break;
	}
	free(line);
	fclose(f);
	return sum;
}

void tlb_rs_counters_read(struct tlb_rs_counters *c)
{
	char name[64];
	long long val;
	size_t i;
	FILE *f;

	for (i = 0; i < TLB_RS_NR_VMSTAT; i++)
		c->vmstat[i] = -1;
	f = fopen("/proc/vmstat", "r");
	if (f) {
		while (fscanf(f, "%63s %lld", name, &val) == 2) {
			for (i = 0; i < TLB_RS_NR_VMSTAT; i++) {
				if (!strcmp(name, tlb_rs_vmstat[i]))
					c->vmstat[i] = val;
			}
		}
		fclose(f);
	}
	c->tlb_irqs = tlb_rs_tlb_irqs();
}

/* The counters are read outside the region, the clock inside. */
void tlb_rs_begin(struct tlb_rs_counters *c)
{
	tlb_rs_counters_read(c);
	c->ns = tlb_rs_now_ns();
	tlb_rs_region_start();
}

/* Replaces @c, read earlier, by the differences since then. */
void tlb_rs_counters_diff(struct tlb_rs_counters *c)
{
	struct tlb_rs_counters now;
	size_t i;

	tlb_rs_counters_read(&now);
	for (i = 0; i < TLB_RS_NR_VMSTAT; i++) {
		if (c->vmstat[i] >= 0)
			c->vmstat[i] = now.vmstat[i] - c->vmstat[i];
	}
	if (c->tlb_irqs >= 0)
		c->tlb_irqs = now.tlb_irqs - c->tlb_irqs;
}

/* Leaves the differences since tlb_rs_begin() in @c. */
void tlb_rs_end(struct tlb_rs_counters *c)
{
	tlb_rs_region_stop();
	c->ns = tlb_rs_now_ns() - c->ns;
	tlb_rs_counters_diff(c);
}

/* Members of a JSON object, each with its leading comma. */
void tlb_rs_json_counters(const struct tlb_rs_counters *c)
{
	size_t i;

	for (i = 0; i < TLB_RS_NR_VMSTAT; i++) {
		if (c->vmstat[i] >= 0)
			printf(",\"%s\":%lld", tlb_rs_vmstat[i], c->vmstat[i]);
	}
	if (c->tlb_irqs >= 0)
		printf(",\"tlb_irqs\":%lld", c->tlb_irqs);
}

/*
 * The record of a region, one JSON object on a line of its own. @extra holds
 * further members, each with its leading comma, or is empty.
 */
void tlb_rs_json_region(const char *region, const char *extra, const struct tlb_rs_counters *c)
{
	printf("{\"region\":\"%s\",\"tlb_batch\":%s%s,\"ns\":%llu", region,
	       tlb_batch_json(), extra, c->ns);
	tlb_rs_json_counters(c);
	printf("}\n");
	fflush(stdout);
}

bool tlb_rs_pin_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return !sched_setaffinity(0, sizeof(set), &set);
}

int tlb_rs_nr_cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/*
 * The TCG accelerator of QEMU does not always survive an x86_64 kernel that
 * patches code which other CPUs execute ("Oops: int3", on a stock kernel too),
 * so no static key should be switched under load there.
 */
bool tlb_rs_patching_is_safe(void)
{
#if defined(__x86_64__)
	unsigned int eax, sig[4] = { 0 };

	__cpuid_count(0x40000000, 0, eax, sig[0], sig[1], sig[2]);
	(void)eax;
	return memcmp(sig, "TCGTCGTCGTCG", 12);
#else
	return true;
#endif
}

bool tlb_rs_idle_readers;

static void *tlb_rs_reader(void *arg)
{
	struct tlb_rs_readers *r = arg;
	int nr = __atomic_fetch_add(&r->started, 1, __ATOMIC_RELAXED);
	bool ready = false;
	size_t off;

	tlb_rs_pin_cpu((nr + 1) % tlb_rs_nr_cpus());
	do {
		for (off = 0; off < r->len; off += getpagesize())
			__atomic_load_n(r->base + off, __ATOMIC_RELAXED);
		if (!ready)
			__atomic_fetch_add(&r->ready, 1, __ATOMIC_RELEASE);
		ready = true;
	} while (r->touch && !__atomic_load_n(&r->stop, __ATOMIC_RELAXED));
	while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
		if (tlb_rs_idle_readers)
			tlb_rs_sleep_us(100000);
	}
	return NULL;
}

void tlb_rs_readers_start(struct tlb_rs_readers *r, int nr, bool touch, const char *base,
			  size_t len)
{
	memset(r, 0, sizeof(*r));
	r->touch = touch;
	r->base = base;
	r->len = len;
	for (r->nr = 0; r->nr < nr; r->nr++) {
		if (pthread_create(&r->id[r->nr], NULL, tlb_rs_reader, r))
			ksft_exit_fail_msg("cannot start a reader\n");
	}
	while (__atomic_load_n(&r->ready, __ATOMIC_ACQUIRE) < nr)
		tlb_rs_sleep_us(1000);
}

void tlb_rs_readers_end(struct tlb_rs_readers *r)
{
	int i;

	__atomic_store_n(&r->stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < r->nr; i++)
		pthread_join(r->id[i], NULL);
}
