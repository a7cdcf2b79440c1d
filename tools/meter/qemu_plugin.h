/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The part of QEMU's TCG plugin interface that the meter uses, of version 1 (tried
 * with QEMU 7.2) and of version 4 and newer (tried with QEMU 10.0). QEMU exports
 * these symbols but not every distribution ships a header for them.
 */
#ifndef QEMU_PLUGIN_H
#define QEMU_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/types.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;

struct qemu_plugin_info {
	const char *target_name;
	int version_min;
	int version_cur;
	bool system_emulation;
	int smp_vcpus;
	int max_vcpus;
};

/* A callback that reads or writes no guest register. */
#define QEMU_PLUGIN_CB_NO_REGS	0

/*
 * Loads and stores. Always both: 7.2 does not filter properly, callbacks for
 * stores alone are made for loads too and those for loads alone never.
 */
#define QEMU_PLUGIN_MEM_RW	3

void qemu_plugin_register_vcpu_tb_trans_cb(__u64 id,
					   void (*cb)(__u64 id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
					  void (*cb)(unsigned int vcpu, void *udata),
					  int flags, void *udata);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    void (*cb)(unsigned int vcpu, void *udata),
					    int flags, void *udata);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn,
				      void (*cb)(unsigned int vcpu, __u32 info,
						 __u64 vaddr, void *udata),
				      int flags, int rw, void *udata);
void qemu_plugin_register_atexit_cb(__u64 id, void (*cb)(__u64 id, void *udata),
				    void *udata);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
__u64 qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
						 size_t idx);
/* Version 1 has only the first parameter, and returns where the bytes are. */
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *dest, size_t len);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
__u64 qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);

bool qemu_plugin_mem_is_store(__u32 info);
unsigned int qemu_plugin_mem_size_shift(__u32 info);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(__u32 info, __u64 vaddr);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *haddr);
__u64 qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *haddr);

#endif /* QEMU_PLUGIN_H */
