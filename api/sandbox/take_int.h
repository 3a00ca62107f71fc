/* SPDX-License-Identifier: Apache-2.0
 *
 * take_int.h: what take.c, publish.c and recover.c share: a checkpoint that is being taken. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/take.h"

enum snap_kind { SNAP_TEMPLATE, SNAP_LIVE, SNAP_PAUSE };

struct snap {
	struct sandbox *sb; /* NULL: it ended or was deleted meanwhile */
	struct daemon *d;
	struct vm *orphan; /* sb NULL: the VM that still writes */
	enum snap_kind kind;
	/* noted: its files are in the record; asked: the VM has its request; followed: the sandbox's disk
	 * has the new layers; thawed: the source goes on; taken_up: an earlier daemon began it, as the
	 * record says; asking: settle_ask() waits for its answer */
	bool noted, asked, followed, thawed, taken_up, asking;
	bool sealed; /* a pause: all is durable, and the record is being written */
	bool held;   /* a template: a client waits for its sandbox */
	bool in_ram; /* a fork: memory and state are files in RAM */
	uint32_t kept_mem;
	uint64_t ram_max_bytes; /* the most that an honest monitor writes into them */
	uint32_t
		carried; /* bit i: the checkpoint must not refer to memory file i of the source, but copy it */
	/* The new files; "": not made yet. s has a reference to index_id and data_id until `followed`, and to mem_id until `mem` has it. An id
	 * that is still set says nothing about the reference. key: of a template. */
	char mem_id[BLOB_ID], index_id[BLOB_ID], data_id[BLOB_ID], key[200];
	struct agent_call *prepare;
	struct table_job *table;   /* the table of the volumes' nodes is being copied */
	struct headroom *headroom; /* of a live one */
	struct timer *prove;       /* publish.c: all is written, it is not published yet */
	uint64_t prove_until_ns;
	bool handed_over;  /* the monitor says that it cannot write any more */
	struct disk point; /* the disk of the checkpoint, when `followed` */
	struct memory mem;
	/* With references. sb NULL: the memory files that the sandbox had. Of a pause that is durable: those before the pause. */
	struct memory base;
	int fds[5]; /* of the new files, until the VMM has them: state, mem, index, data, bitmap */
	uint64_t begun_ns, stopped_ns;
	int err; /* why it fails, while the VM is asked which layers it has */
	char why[300];
	snap_fn fn;
	void *arg;
};

/* The VM's disk has these layers now: changes the sandbox, its record and s->point, with their
 * references. */
void snap_follow(struct snap *s, const struct disk *now);
/* The last step of a failure: removes all that was made for s, and continues the source. Frees s. */
void snap_failed(struct snap *s, int err, const char *text);
/* All files of a pause are complete, and s->mem is set: ends the monitor, and commits Paused. s is freed when the commit has ended. */
void snap_paused(struct snap *s);
void snap_source_goes_on(struct snap *s);
/* All files are written. For a pause it calls snap_paused(). Else nobody can write the files any more (publish.c has proved that): it publishes the
 * checkpoint, and frees s. */
void snap_published(struct snap *s);
/* The memory of the new checkpoint: the old files that it still needs, and the new one. Takes no references. */
void snap_memory_list(const struct snap *s, struct memory *m);
void snap_free(struct snap *s);

/* publish.c: takes the monitor's write access away, proves that it is gone, then snap_published(); or snap_failed(). */
void publish_begin(struct snap *s);
/* The monitor's process ends, or has ended: then the proof is all that is left to do. */
void publish_without_monitor(struct snap *s);

/* recover.c, after something was lost. Asks the VM which layers its disk has, continues it, and ends s
 * as failed, or waits until the writing has ended. */
void settle_ask(struct snap *s);
/* For a VM that has ended: are the files of the checkpoint complete? 0: yes, and s->point and s->mem
 * are set. */
int settle_files(struct snap *s, struct err *e);
