/* SPDX-License-Identifier: Apache-2.0
 *
 * take_int.h: what take.c and recover.c share: a point that is being taken. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/take.h"

enum snap_kind { SNAP_TEMPLATE, SNAP_LIVE, SNAP_PAUSE };

struct snap {
	struct sandbox *sb; /* NULL: it was cleared away meanwhile */
	struct daemon *d;
	struct vm *orphan; /* then: the VM that still writes */
	enum snap_kind kind;
	/* noted: its files are in the record; asked: the VM has its request; followed: the
	 * sandbox's disk is known to stand on the new layers; taken_up: from the record, an earlier
	 * daemon began it */
	bool noted, asked, followed, thawed, taken_up, asking;
	bool sealed; /* a pause: all is durable, and the record is being written */
	bool held;   /* a template: somebody waits for its sandbox */
	bool in_ram; /* a fork: memory and state are files in RAM */
	uint32_t kept_mem;
	uint64_t ram_max_bytes; /* that an honest monitor can need for them */
	uint32_t
		carried; /* bit i: the new memory file must not refer to memory file i of the source */
	char mem_id[BLOB_ID], index_id[BLOB_ID], data_id[BLOB_ID],
		key[200]; /* referenced while they are not "" */
	struct agent_call *prepare;
	struct table_job *table;   /* the table of the volumes' nodes is being copied */
	struct headroom *headroom; /* of a live one */
	struct timer *prove;       /* publish.c: all is written, it is not published yet */
	uint64_t prove_until_ns;
	bool handed_over;  /* the monitor says that it cannot write any more */
	struct disk point; /* frozen, after the reply */
	struct memory mem;
	struct memory
		base; /* referenced. Without a sandbox: what its memory stood on. Sealed: what it stood on before */
	int fds[5]; /* of the new files, until the VMM has them: state, mem, index, data, bitmap */
	uint64_t begun_ns, stopped_ns;
	int err; /* failing, while the VM is asked where it stands */
	char why[300];
	snap_fn fn;
	void *arg;
};

/* The disk has changed over to these layers: references, the record, and the point that others will
 * stand on. */
void snap_follow(struct snap *s, const struct disk *now);
/* The last step of one that failed: all that was made for it goes, the source goes on. Frees s. */
void snap_failed(struct snap *s, int err, const char *text);
/* The sandbox is Paused; s->mem is set. Frees s. */
void snap_paused(struct snap *s);
void snap_source_goes_on(struct snap *s);
/* All of it is written, and nobody can write it any more: it is made known. Frees s. */
void snap_published(struct snap *s);
/* What the new point's memory is: the files the VMM still counts on, and the new one. No references. */
void snap_memory_list(const struct snap *s, struct memory *m);
void snap_free(struct snap *s);

/* publish.c: takes the monitor's write access away, proves that it is gone, then snap_published(); or snap_failed(). */
void publish_begin(struct snap *s);
/* The monitor's process ends, or has ended: then the proof is all that is left to do. */
void publish_without_monitor(struct snap *s);

/* recover.c: after something was lost, how far did it get?
 * Asks the VM which layers its disk has, lets it run again where it stands, then ends s as failed
 * (or waits for the end of the writing). */
void settle_ask(struct snap *s);
/* The VM has ended: do the files hold a whole point? Then disk and memory are s->point and s->mem,
 * 0. */
int settle_files(struct snap *s, struct err *e);
