/* SPDX-License-Identifier: Apache-2.0
 *
 * fileserver.c: one mayfly-fs for each sandbox that has volumes. mayflyd's loop; reads no byte of a guest's.
 *
 * The helper opens the sources, one after the other, and starts the process in the group of the sandbox's monitor. The monitor gets the
 * other end of its socket, and keeps the table of nodes: so the process may be started again, by this daemon or the next, and open files go
 * on. It ends by itself when the monitor has gone.
 */
#include "api/volumes/volumes_int.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "api/core/daemon.h"
#include "api/links/helper_client.h"
#include "api/links/monitor_client.h"
#include "api/links/monitors.h"
#include "api/volumes/volume_request.h"
#include "lib/json.h"
#include "lib/log.h"
#include "lib/proto_fs.h"

#define BUFFER_BYTES (1 << 20)
#define AGAIN_NS     1000000000ull

struct fileserver {
	struct volumes *v;
	struct fileserver *next;
	cJSON *list;
	unsigned int n, at; /* volumes; the one that is being opened */
	int fd[FS_VOLUMES_MAX];
	bool is_file[FS_VOLUMES_MAX];
	uint32_t counted; /* a bit for each volume whose limit the host's file system keeps */
	uint32_t slot, monitor;
	bool has_slot; /* `slot` is taken, and no process runs in it */
	bool running;  /* a process runs in `slot` */
	bool linked, adopted;
	bool make;      /* missing folders */
	bool attaching; /* the sources are wanted for a process: it is started when they are open */
	bool asked;     /* the helper has an unanswered request of ours */
	bool unwanted;  /* it was destroyed: the helper's answer frees it */
	int sock;       /* the monitor's end */
	int table;      /* -1: not made yet, or only the monitor has it */
	uint64_t lost_ns; /* when the process was lost the last time; 0: never */
	struct timer *again;
	fileserver_fn fn;
	void *arg;
};

static void open_next(struct fileserver *f);
static void start_process(struct fileserver *f);

/* ---- the end */

static void sources_close(struct fileserver *f)
{
	for (unsigned int i = 0; i < f->n; i++)
		close_fd(&f->fd[i]);
	f->at = 0;
}

static void slot_back(struct fileserver *f)
{
	if (f->has_slot)
		vms_slot_give(f->v->d->vms, f->slot);
	f->has_slot = false;
}

static void process_kill(struct fileserver *f)
{
	struct priv_msg m = {.op = PRIV_KILL, .slot = f->slot};

	if (f->running)
		privctl_call(f->v->d->priv, &m, NULL, 0, NULL, NULL);
	f->running = f->linked = false; /* monitors.c gives the slot back when it has ended */
}

static void fileserver_free(struct fileserver *f)
{
	struct fileserver **at = &f->v->servers;

	while (*at && *at != f)
		at = &(*at)->next;
	if (*at)
		*at = f->next;
	slot_back(f);
	sources_close(f);
	close_fd(&f->sock);
	close_fd(&f->table);
	timer_remove(f->again);
	cJSON_Delete(f->list);
	free(f);
}

void fileserver_destroy(struct fileserver *f)
{
	struct vm *vm;

	if (!f)
		return;
	f->fn = NULL;
	process_kill(f);
	vm = vms_find(f->v->d->vms, f->monitor);
	if (vm && vm->ctl)
		vmmctl_forget(vm->ctl, f);
	timer_set(f->again, 0);
	f->unwanted = true;
	if (!f->asked)
		fileserver_free(f);
}

/* Tells the caller. A process that is started again has no caller: after a failure there is another try. */
static void done(struct fileserver *f, const struct refusal *x)
{
	fileserver_fn fn = take_ptr(f->fn);

	if (x) {
		sources_close(f);
		slot_back(f);
		close_fd(&f->sock);
	}
	if (fn) {
		fn(f->arg, x);
	} else if (x) {
		log_limited(LOG_WARN, "vm%u: its file server cannot be started again: %s",
			f->monitor, x->msg);
		timer_after(f->again, AGAIN_NS);
	}
}

static void fail(struct fileserver *f, const char *what, int rc)
{
	struct refusal x;

	refuse(&x, 500, "SANDBOX::INTERNAL_ERROR", "%s: %s", what, strerror(-rc));
	done(f, &x);
}

/* ---- the sources */

/* Answers for what the helper found wrong with a source. The first row that fits counts. */
static const struct {
	int err;
	enum { ANY, HOST, CLAIM, SUB } of;
	int status;
	const char *code, *text;
} wrong[] = {
	{EPERM, HOST, 400, "VOLUME::HOST_PATH_NOT_ALLOWED",
		"mayfly-priv was not started with a --host-path that contains it"},
	{EXDEV, SUB, 400, "VOLUME::INVALID_SUB_PATH", "subPath leads out of the volume"},
	{EXDEV, ANY, 400, "VOLUME::HOST_PATH_NOT_ALLOWED",
		"the path leads out of the allowed folder by a symbolic link"},
	{ELOOP, SUB, 400, "VOLUME::INVALID_SUB_PATH", "too many symbolic links"},
	{ELOOP, ANY, 400, "VOLUME::INVALID_HOST_PATH", "too many symbolic links"},
	{ENOTDIR, SUB, 400, "VOLUME::INVALID_SUB_PATH", "a part of the path is not a folder"},
	{ENOTDIR, ANY, 400, "VOLUME::INVALID_HOST_PATH", "a part of the path is not a folder"},
	{EMEDIUMTYPE, ANY, 400, "VOLUME::INVALID_HOST_PATH",
		"it is neither a folder nor a regular file"},
	{EOPNOTSUPP, ANY, 400, "VOLUME::INVALID_HOST_PATH",
		"its file system cannot map user ids (ext4, XFS, btrfs and tmpfs can)"},
	{ETIMEDOUT, ANY, 504, "VOLUME::HOST_PATH_NOT_FOUND", "its file system does not answer"},
	{ENOENT, CLAIM, 400, "VOLUME::PVC_INSPECT_FAILED", "its folder is missing"},
	{ENOENT, ANY, 400, "VOLUME::HOST_PATH_NOT_FOUND", "it does not exist"},
	{EAGAIN, ANY, 503, "VOLUME::PVC_INSPECT_FAILED", "too many volumes are being opened"},
	{0, CLAIM, 500, "VOLUME::PVC_INSPECT_FAILED", "its folder cannot be opened"},
	{0, ANY, 500, "VOLUME::HOST_PATH_CREATE_FAILED", "it cannot be opened or made"},
};

static void source_refused(struct fileserver *f, const struct volume_item *i, int err)
{
	struct refusal x = {0};

	for (size_t k = 0; k < ARRAY_LEN(wrong); k++) {
		if ((wrong[k].err && wrong[k].err != err) || (wrong[k].of == HOST && !i->host) ||
			(wrong[k].of == CLAIM && i->host) || (wrong[k].of == SUB && !*i->sub))
			continue;
		refuse(&x, wrong[k].status, wrong[k].code, "Volume %s%s%.150s: %s (%s).", i->source,
			*i->sub ? ", subPath " : "", i->sub, wrong[k].text, strerror(err));
		break;
	}
	done(f, &x);
}

static bool item_at(const struct fileserver *f, unsigned int at, struct volume_item *i)
{
	return volume_item_get(cJSON_GetArrayItem(f->list, (int)at), i);
}

static uint64_t claim_max(const struct volumes *v, const char *folder)
{
	const struct claim *c = claim_by_folder(v, folder);

	return c ? c->max_bytes : 0;
}

static void on_quota(void *arg, const struct priv_msg *m, int fd)
{
	struct fileserver *f = arg;

	close_fd(&fd);
	f->asked = false;
	if (f->unwanted) {
		fileserver_free(f);
		return;
	}
	if (m->status == 0)
		f->counted |= 1u << (f->at - 1);
	else if (m->status != -EOPNOTSUPP)
		log_limited(LOG_WARN, "the disk quota of a claim cannot be set: %s",
			strerror(-m->status));
	open_next(f);
}

/* If the claim that was opened last has a limit, asks the helper for a disk quota. false: no limit, or mayfly-fs keeps it. */
static bool quota_ask(struct fileserver *f, const struct volume_item *i)
{
	struct priv_msg m = {.op = PRIV_QUOTA, .what = PRIV_Q_CLAIM};

	f->counted &= ~(1u << (f->at - 1));
	if (i->host || (privctl_host_flags(f->v->d->priv) & PRIV_H_NO_QUOTA))
		return false;
	m.quota.bytes = claim_max(f->v, i->folder);
	/* the folder's name is random: its first 28 bits are the claim's number */
	if (!m.quota.bytes || sscanf(i->folder, "%7" SCNx32, &m.project) != 1 || !m.project)
		return false;
	f->asked = privctl_text(f->v->d->priv, &m, i->folder, on_quota, f) == 0;
	return f->asked;
}

static void on_source(void *arg, const struct priv_msg *m, int fd)
{
	struct fileserver *f = arg;
	struct volume_item i;

	f->asked = false;
	if (f->unwanted) {
		close_fd(&fd);
		fileserver_free(f);
		return;
	}
	if (!item_at(f, f->at, &i)) {
		close_fd(&fd);
		fail(f, "volumes", -EBADMSG);
		return;
	}
	if (m->status < 0 || fd < 0) {
		close_fd(&fd);
		source_refused(f, &i, m->status < 0 ? -m->status : EIO);
		return;
	}
	f->is_file[f->at] = !(m->flags & PRIV_V_FOLDER);
	f->fd[f->at++] = fd;
	if (!quota_ask(f, &i))
		open_next(f);
}

static void open_next(struct fileserver *f)
{
	struct priv_msg m = {.op = PRIV_VOLUME, .slot = f->slot};
	const struct config *c = &f->v->d->cfg;
	char within[PATH_MAX] = "";
	struct volume_item i;
	int rc;

	if (f->at == f->n) {
		if (f->attaching)
			start_process(f);
		else
			done(f, NULL);
		return;
	}
	if (!item_at(f, f->at, &i) || (!i.host && !i.folder)) {
		fail(f, "volumes", -EBADMSG);
		return;
	}
	if (i.host) {
		snprintf(
			within, sizeof(within), "%.*s", (int)host_folder_of(c, i.source), i.source);
		if (!*within) {
			fail(f, "a host folder is not below storage.allowed_host_paths any more",
				-EPERM);
			return;
		}
	}
	m.what = i.host ? PRIV_V_HOST : PRIV_V_CLAIM;
	m.flags = (i.read_only ? PRIV_V_RO : 0) | (f->make ? PRIV_V_MAKE : 0);
	f->asked = true;
	rc = privctl_volume(
		f->v->d->priv, &m, i.host ? i.source : i.folder, i.sub, within, on_source, f);
	if (rc < 0) {
		f->asked = false;
		fail(f, "the helper takes no requests", rc);
	}
}

static void again(void *arg);

static struct fileserver *fileserver_new(struct volumes *v, const cJSON *list)
{
	struct fileserver *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	*f = (struct fileserver){.v = v, .sock = -1, .table = -1, .monitor = UINT32_MAX};
	memset(f->fd, -1, sizeof(f->fd));
	f->list = cJSON_Duplicate(list, true);
	f->n = (unsigned int)cJSON_GetArraySize(f->list);
	f->again = loop_timer(v->d->loop, again, f);
	if (!f->list || !f->again || f->n > FS_VOLUMES_MAX) {
		timer_remove(f->again);
		cJSON_Delete(f->list);
		free(f);
		return NULL;
	}
	f->next = v->servers;
	v->servers = f;
	return f;
}

/* Without a helper (--no-jail) its requests are answered at once. This way fn is called from the loop all the same. */
static void first_open(void *arg)
{
	struct fileserver *f = arg;

	f->asked = false;
	if (f->unwanted)
		fileserver_free(f);
	else
		open_next(f);
}

struct fileserver *fileserver_open(struct volumes *v, const cJSON *list, bool make,
	fileserver_fn fn, void *arg, struct refusal *x)
{
	struct fileserver *f = fileserver_new(v, list);

	if (!f) {
		refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return NULL;
	}
	f->has_slot = vms_slot_take(v->d->vms, &f->slot);
	f->asked = f->has_slot && loop_defer(v->d->loop, first_open, f) == 0;
	if (!f->asked) {
		fileserver_free(f);
		refuse(x, 503, "SANDBOX::INTERNAL_ERROR",
			"there is no free slot for the file server of its volumes");
		return NULL;
	}
	f->fn = fn;
	f->arg = arg;
	f->make = make;
	return f;
}

int fileserver_table_dup(const struct fileserver *f)
{
	return f->table < 0 ? -1 : fcntl(f->table, F_DUPFD_CLOEXEC, 3);
}

bool fileserver_is_file(const struct fileserver *f, unsigned int i)
{
	return i < f->n && f->is_file[i];
}

/* ---- the process */

static void on_linked(void *arg, const struct vmm_answer *a)
{
	struct fileserver *f = arg;
	struct refusal x;

	if (a->err == 0) {
		f->linked = true;
		done(f, NULL);
		return;
	}
	process_kill(f);
	refuse(&x, 500, "SANDBOX::INTERNAL_ERROR", "the monitor does not take the volumes: %s",
		*a->text ? a->text : strerror(a->err));
	done(f, &x);
}

static void link_monitor(struct fileserver *f)
{
	struct vm *vm = vms_find(f->v->d->vms, f->monitor);
	const int fds[2] = {f->sock, f->table};
	int rc = -ENOTCONN;
	struct buf b;

	buf_init(&b, 16);
	buf_u32(&b, 1);
	if (vm && vm->ctl)
		rc = vmmctl_call(vm->ctl, VMM_FS, &b, fds, 2, on_linked, f);
	buf_fini(&b);
	close_fd(&f->sock);
	if (rc < 0) {
		process_kill(f);
		fail(f, "linking the file server", rc);
	}
}

static void on_spawned(void *arg, const struct priv_msg *m, int fd)
{
	struct fileserver *f = arg;

	close_fd(&fd);
	f->asked = false;
	f->running = m->status == 0;
	if (f->running)
		f->has_slot = false;
	sources_close(f);
	if (f->unwanted) {
		process_kill(f);
		fileserver_free(f);
	} else if (m->status < 0) {
		fail(f, "starting mayfly-fs", m->status);
	} else {
		link_monitor(f);
	}
}

/* Both ends have room for a large write and its reply. */
static int make_socket(struct fileserver *f, int *other)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	for (int i = 0; i < 2; i++)
		setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &(int){BUFFER_BYTES}, sizeof(int));
	close_fd(&f->sock);
	f->sock = pair[0];
	*other = pair[1];
	return 0;
}

static void start_process(struct fileserver *f)
{
	struct priv_msg m = {
		.op = PRIV_SPAWN, .kind = PRIV_K_FILES, .slot = f->slot, .group = f->monitor};
	int fds[2 + FS_VOLUMES_MAX], rc;
	_cleanup_close_ int other = -1;
	struct volume_item i;

	if (f->table < 0)
		f->table = memfd_create("nodes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	rc = f->table < 0 ? -errno : make_socket(f, &other);
	if (rc < 0) {
		fail(f, "starting mayfly-fs", rc);
		return;
	}
	fds[0] = other;
	fds[1] = f->table;
	for (unsigned int k = 0; k < f->n; k++) {
		fds[2 + k] = f->fd[k];
		if (!item_at(f, k, &i))
			continue;
		m.volumes_ro |= (uint32_t)i.read_only << k;
		m.volumes_ids |= (uint32_t)!i.host << k;
		if (!i.host && !(f->counted >> k & 1))
			m.volumes_max[k] = claim_max(f->v, i.folder);
	}
	f->asked = true;
	rc = privctl_call(f->v->d->priv, &m, fds, 2 + f->n, on_spawned, f);
	if (rc < 0) {
		f->asked = false;
		fail(f, "starting mayfly-fs", rc);
	}
}

void fileserver_attach(struct fileserver *f, struct vm *vm, fileserver_fn fn, void *arg)
{
	f->fn = fn;
	f->arg = arg;
	f->monitor = vm->slot;
	f->attaching = true;
	start_process(f);
}

/* ---- started again */

static void again(void *arg)
{
	struct fileserver *f = arg;
	struct vm *vm = vms_find(f->v->d->vms, f->monitor);
	struct buf b;

	if (f->asked || !vm || (f->running && f->table >= 0))
		return;
	if (f->table < 0) {
		/* asks the monitor for it: fileserver_table() continues */
		buf_init(&b, 16);
		buf_u32(&b, 0);
		if (!vm->ctl || vmmctl_call(vm->ctl, VMM_FS, &b, NULL, 0, NULL, NULL) < 0)
			timer_after(f->again, AGAIN_NS);
		buf_fini(&b);
		return;
	}
	sources_close(f);
	if (!f->has_slot)
		f->has_slot = vms_slot_take(f->v->d->vms, &f->slot);
	if (f->has_slot)
		open_next(f);
	else
		timer_after(f->again, AGAIN_NS);
}

void fileserver_table(struct fileserver *f, int fd)
{
	if (f->table >= 0) {
		close(fd);
		return;
	}
	f->table = fd;
	if (f->attaching && !f->running && !f->asked)
		timer_after(f->again, 0);
}

void fileserver_lost(struct fileserver *f, const char *why)
{
	uint64_t now = mono_ns();

	log_limited(LOG_WARN, "vm%u: its file server is gone (%s) and is started again", f->monitor,
		why);
	process_kill(f);
	f->attaching = true;
	/* A bad table or request may end each new process at once. So there is a pause between two starts: each makes the helper, which all sandboxes share, open
	 * the sources. */
	timer_after(f->again, f->lost_ns && now - f->lost_ns < AGAIN_NS ? AGAIN_NS : 0);
	f->lost_ns = now;
}

void fileserver_exited(struct volumes *v, const struct priv_msg *ev)
{
	for (struct fileserver *f = v->servers; f && ev->kind == PRIV_K_FILES; f = f->next) {
		if (!f->running || f->slot != ev->slot)
			continue;
		/* it is started again when the monitor reports it, too, which does so after it has answered the guest: fileserver_lost() */
		f->running = f->linked = false;
		if (ev->wait_status)
			log_limited(LOG_WARN, "mayfly-fs of vm%u ended with status %#x", f->monitor,
				(unsigned int)ev->wait_status);
		return;
	}
}

struct fileserver *fileserver_adopt(struct volumes *v, const cJSON *list, struct vm *vm)
{
	struct fileserver *f = fileserver_new(v, list);

	if (f) {
		f->monitor = vm->slot;
		f->adopted = f->attaching = true;
	}
	return f;
}

void fileservers_loaded(struct volumes *v)
{
	for (struct fileserver *f = v->servers; f; f = f->next) {
		const struct vm *vm = f->adopted ? vms_find(v->d->vms, f->monitor) : NULL;

		if (!vm)
			continue;
		f->slot = vm->files_slot;
		f->running = f->linked = vm->has_files;
		/* the monitor is asked for the table, which the next checkpoint needs */
		timer_after(f->again, 0);
	}
}
