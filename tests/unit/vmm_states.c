/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_states: the states of a VM, asked over its control socket as the daemon asks. KVM is one for tests, a device holds its requests until the
 * test lets them end. Requests that meet a stop in progress are the point: what the peer hears is what the VM does.
 */
#include "lib/test.h"

#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/fault.h"
#include "lib/fdpass.h"
#include "lib/log.h"
#include "tests/unit/lib/fake_kvm.h"
#include "vmm/control.h"
#include "vmm/vm.h"

#define VCPUS 2u

struct slow { /* a device whose requests end when the test says so */
	struct virtio_dev dev;
	unsigned int in_flight;
	void (*quiet)(void *arg);
	void *quiet_arg;
};

struct answer {
	uint32_t id;
	uint16_t type;
	int32_t status;
	int32_t event_status; /* VMM_EV_SNAPSHOT's */
	char text[400];
};

struct rig {
	struct fake_kvm *f;
	struct loop *loop;
	struct vm vm;
	struct control *ctl;
	struct slow *slow;
	int sock;
	uint32_t ids;
	struct answer got[64];
	unsigned int ngot;
	bool over;
};

static struct rig r;

static bool slow_kick(struct virtio_dev *d, unsigned int queue)
{
	return false;
}

static int slow_quiesce(struct virtio_dev *d, void (*done)(void *), void *arg)
{
	struct slow *s = container_of(d, struct slow, dev);

	if (!s->in_flight)
		return 0;
	s->quiet = done;
	s->quiet_arg = arg;
	return -EINPROGRESS;
}

static void slow_resume(struct virtio_dev *d)
{
	container_of(d, struct slow, dev)->quiet = NULL;
}

static void slow_destroy(struct virtio_dev *d)
{
	struct slow *s = container_of(d, struct slow, dev);

	virtio_fini(d);
	free(s);
}

static const struct virtio_ops slow_ops = {.name = "slow",
	.device_id = 5,
	.nqueues = 1,
	.queue_max = 16,
	.kick = slow_kick,
	.quiesce = slow_quiesce,
	.resume = slow_resume};

static void requests_end(void)
{
	void (*quiet)(void *) = r.slow->quiet;

	r.slow->in_flight = 0;
	r.slow->quiet = NULL;
	if (quiet)
		quiet(r.slow->quiet_arg);
}

/* ---- the machine */

static void on_event(void *ctx, enum vmm_type ev, const void *p, size_t n, int fd)
{
	if (r.ctl)
		control_event(r.ctl, ev, p, n, fd);
}

static void on_over(void *ctx)
{
	r.over = true;
}

static int kernel_fd(void)
{
	struct {
		Elf64_Ehdr h;
		Elf64_Phdr p;
		uint8_t code[64];
	} k = {.h = {.e_type = ET_EXEC,
		       .e_machine = EM_X86_64,
		       .e_entry = MIB(16),
		       .e_phoff = sizeof(Elf64_Ehdr),
		       .e_phentsize = sizeof(Elf64_Phdr),
		       .e_phnum = 1},
		.p = {.p_type = PT_LOAD,
			.p_offset = sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr),
			.p_paddr = MIB(16),
			.p_filesz = 64,
			.p_memsz = 4096}};
	int fd = memfd_create("kernel", MFD_CLOEXEC);

	memcpy(k.h.e_ident, ELFMAG, SELFMAG);
	k.h.e_ident[EI_CLASS] = ELFCLASS64;
	k.h.e_ident[EI_DATA] = ELFDATA2LSB;
	CHECK_INT(pwrite(fd, &k, sizeof(k), 0), sizeof(k));
	return fd;
}

/* Takes one turn and every message that has come. */
static void turn(int ms)
{
	static uint8_t room[VMM_MSG_MAX];
	int fds[FDPASS_MAX];
	size_t nfds = FDPASS_MAX;
	ssize_t n;

	loop_turn(r.loop, ms);
	while ((n = fdpass_recv(r.sock, room, sizeof(room), fds, &nfds)) > 0) {
		struct vmm_hdr h;
		struct answer *a = &r.got[r.ngot++ % ARRAY_LEN(r.got)];
		struct cur c;

		memcpy(&h, room, sizeof(h));
		c = cur_of(room + sizeof(h), (size_t)n - sizeof(h));
		*a = (struct answer){.id = h.id, .type = h.type, .status = h.status};
		if (h.type == VMM_EV_SNAPSHOT) {
			(void)cur_u32(&c);
			a->event_status = (int32_t)cur_u32(&c);
			(void)cur_u64(&c);
		}
		if (h.status < 0 || h.type == VMM_EV_SNAPSHOT)
			cur_str(&c, a->text, sizeof(a->text));
		nfds = FDPASS_MAX;
	}
}

static uint32_t ask_with(uint16_t type, const void *payload, size_t n, const int *fds, size_t nfds)
{
	uint8_t m[4096];
	struct vmm_hdr h = {.magic = VMM_MAGIC,
		.version = VMM_VERSION,
		.type = type,
		.id = ++r.ids,
		.len = (uint32_t)n,
		.nfds = (uint32_t)nfds};

	memcpy(m, &h, sizeof(h));
	if (n)
		memcpy(m + sizeof(h), payload, n);
	CHECK_INT(fdpass_send(r.sock, m, sizeof(h) + n, fds, nfds), 0);
	return h.id;
}

static uint32_t ask(uint16_t type)
{
	return ask_with(type, NULL, 0, NULL, 0);
}

static const struct answer *answer_of(uint32_t id)
{
	for (unsigned int i = 0; i < r.ngot && i < ARRAY_LEN(r.got); i++)
		if (r.got[i].id == id)
			return &r.got[i];
	return NULL;
}

/* Turns until the request is answered, at most 30 s: its status; -9999: no answer. */
static int status_of(uint32_t id)
{
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end; turn(10))
		if (answer_of(id))
			return answer_of(id)->status;
	return -9999;
}

static bool guests_run(void)
{
	for (unsigned int i = 0; i < VCPUS; i++)
		if (!atomic_load(&r.f->vcpu[i].in_guest))
			return false;
	return true;
}

static bool guests_stand(void)
{
	for (unsigned int i = 0; i < VCPUS; i++)
		if (atomic_load(&r.f->vcpu[i].in_guest))
			return false;
	return true;
}

/* Turns until it is so, and then a little to see that it stays so. */
static bool settles(bool (*is)(void))
{
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end && !is(); turn(5))
		;
	for (int i = 0; i < 5; i++) {
		turn(2);
		if (!is())
			return false;
	}
	return true;
}

static uint32_t state(void)
{
	return (uint32_t)r.vm.state;
}

static void set_up_blank(void)
{
	struct vm_hooks h = {.ctx = &r, .event = on_event, .over = on_over};
	struct err e = {0};
	int sp[2];

	r = (struct rig){.f = fake_kvm_start(), .loop = loop_create()};
	CHECK_INT(vm_init(&r.vm, r.loop, &h, &e), 0);
	r.vm.kvm_fd_given = r.f->fd;
	r.vm.proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sp), 0);
	r.sock = sp[0];
	r.ctl = control_create(&r.vm, sp[1], &e);
}

static uint32_t ask_prepare(void)
{
	struct buf b;
	uint32_t id;

	buf_init(&b, 64);
	buf_u64(&b, MIB(128));
	buf_u32(&b, VCPUS);
	buf_str(&b, "");
	buf_u32(&b, 0);
	id = ask_with(VMM_PREPARE, b.p, b.len, NULL, 0);
	buf_fini(&b);
	return id;
}

static uint32_t ask_boot(void)
{
	int kernel = kernel_fd();
	struct buf b;
	uint32_t id;

	buf_init(&b, 256);
	buf_str(&b, "");
	buf_u32(&b, 0);
	buf_u16(&b, 0);
	id = ask_with(VMM_BOOT, b.p, b.len, (int[]){kernel, kernel}, 2);
	buf_fini(&b);
	close(kernel);
	return id;
}

static int set_up_prepared(void)
{
	struct err e = {0};
	int rc;

	set_up_blank();
	rc = status_of(ask_prepare());
	r.slow = calloc(1, sizeof(*r.slow));
	if (rc == 0)
		rc = virtio_init(&r.slow->dev, &slow_ops, &r.vm.board.env, SLOT_BALLOON, &e);
	if (rc == 0)
		rc = board_attach(&r.vm.board, SLOT_BALLOON, &r.slow->dev, slow_destroy, &e);
	if (rc < 0)
		printf("set up: %s\n", e.msg);
	return rc;
}

static int set_up(void)
{
	int rc = set_up_prepared();

	if (rc == 0)
		rc = status_of(ask_boot());
	return rc == 0 && settles(guests_run) ? 0 : -EIO;
}

static void tear_down(void)
{
	siginfo_t none;

	/* a snapshot's memory goes with the end of its writer, which takes its time under a sanitizer */
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end;)
		if (waitid(P_ALL, 0, &none, WEXITED | WNOHANG | WNOWAIT) < 0)
			break;
		else
			turn(10);
	control_destroy(r.ctl);
	close(r.sock);
	vm_fini(&r.vm);
	close_fd(&r.vm.proc_fd);
	loop_destroy(r.loop);
	fake_kvm_stop(r.f);
}

/* ---- the tests */

static void it_pauses_and_goes_on(void)
{
	REQUIRE(set_up() == 0);
	CHECK_INT(status_of(ask(VMM_CONTINUE)), -EBUSY);
	for (int i = 0; i < 5; i++) {
		CHECK_INT(status_of(ask(VMM_PAUSE)), 0);
		CHECK(settles(guests_stand));
		CHECK_INT(state(), VMM_S_PAUSED);
		CHECK_INT(status_of(ask(VMM_PAUSE)), -EBUSY);
		CHECK_INT(status_of(ask(VMM_CONTINUE)), 0);
		CHECK(settles(guests_run));
		CHECK_INT(state(), VMM_S_RUNNING);
	}
	tear_down();
}

/* The daemon asks for a pause, changes its mind, and hears that the VM runs. It has to run then, for ever. */
static void continue_while_requests_end(void)
{
	uint32_t pause, go;

	REQUIRE(set_up() == 0);
	r.slow->in_flight = 1;
	pause = ask(VMM_PAUSE);
	CHECK(settles(guests_stand));
	CHECK(!answer_of(pause));
	go = ask(VMM_CONTINUE);
	CHECK_INT(status_of(go), 0);
	CHECK_INT(status_of(pause), -ECANCELED);
	requests_end();
	CHECK(settles(guests_run));
	CHECK_INT(state(), VMM_S_RUNNING);
	/* and the next pause is a whole one */
	r.slow->in_flight = 1;
	pause = ask(VMM_PAUSE);
	CHECK(settles(guests_stand));
	CHECK(!answer_of(pause));
	requests_end();
	CHECK_INT(status_of(pause), 0);
	CHECK_INT(state(), VMM_S_PAUSED);
	tear_down();
}

/* Changes of mind faster than a vCPU leaves the guest: none may be lost, none may spin. */
static void many_changes_of_mind(void)
{
	REQUIRE(set_up() == 0);
	for (int i = 0; i < 200; i++) {
		ask(VMM_PAUSE);
		ask(VMM_CONTINUE);
		turn(0);
		r.ngot = 0;
	}
	CHECK(settles(guests_run));
	CHECK_INT(state(), VMM_S_RUNNING);
	CHECK_INT(status_of(ask(VMM_PAUSE)), 0);
	CHECK(settles(guests_stand));
	tear_down();
}

static void files_make(int fds[2])
{
	fds[0] = memfd_create("state", MFD_CLOEXEC);
	fds[1] = memfd_create("mem", MFD_CLOEXEC);
}

static void files_close(int fds[2])
{
	close(fds[0]);
	close(fds[1]);
}

static uint32_t ask_snapshot_into(uint32_t flags, const int fds[2])
{
	struct buf b;
	uint32_t id;

	buf_init(&b, 64);
	buf_u32(&b, flags);
	buf_u16(&b, 0);
	id = ask_with(VMM_SNAPSHOT, b.p, b.len, fds, 2);
	buf_fini(&b);
	return id;
}

static uint32_t ask_snapshot(uint32_t flags)
{
	uint32_t id;
	int fds[2];

	files_make(fds);
	id = ask_snapshot_into(flags, fds);
	files_close(fds);
	return id;
}

static uint32_t ask_restore(const int fds[2])
{
	struct buf b;
	uint32_t id;

	buf_init(&b, 64);
	buf_u32(&b, VMM_F_RUN);
	buf_u16(&b, 1);
	buf_u16(&b, 0);
	id = ask_with(VMM_RESTORE, b.p, b.len, fds, 2);
	buf_fini(&b);
	return id;
}

/* The pause is answered, and the snapshot refused: it used to take the pause's place. */
static void snapshot_during_a_pause(void)
{
	uint32_t pause;

	REQUIRE(set_up() == 0);
	r.slow->in_flight = 1;
	pause = ask(VMM_PAUSE);
	CHECK(settles(guests_stand));
	CHECK(status_of(ask_snapshot(VMM_F_LIVE)) < 0);
	CHECK(!answer_of(pause));
	requests_end();
	CHECK_INT(status_of(pause), 0);
	CHECK_INT(state(), VMM_S_PAUSED);
	CHECK(settles(guests_stand));
	tear_down();
}

static void debug_during_a_pause(void)
{
	static const uint32_t whats[] = {VMM_DBG_REGS, VMM_DBG_NMI};

	for (size_t i = 0; i < ARRAY_LEN(whats); i++) {
		uint32_t pause;
		struct buf b;

		REQUIRE(set_up() == 0);
		r.slow->in_flight = 1;
		pause = ask(VMM_PAUSE);
		CHECK(settles(guests_stand));
		buf_init(&b, 64);
		buf_u32(&b, whats[i]);
		buf_u64(&b, 0);
		CHECK_INT(status_of(ask_with(VMM_DEBUG, b.p, b.len, NULL, 0)), 0);
		CHECK(settles(guests_stand));
		requests_end();
		CHECK_INT(status_of(pause), 0);
		CHECK(settles(guests_stand));
		/* and one that runs runs on */
		CHECK_INT(status_of(ask(VMM_CONTINUE)), 0);
		CHECK_INT(status_of(ask_with(VMM_DEBUG, b.p, b.len, NULL, 0)), 0);
		CHECK(settles(guests_run));
		buf_fini(&b);
		tear_down();
	}
}

/* A disk that does not answer: the pause fails after its limit, the VM runs, and the socket answers all the time. */
static void requests_that_never_end(void)
{
	uint32_t pause;

	REQUIRE(set_up() == 0);
	r.vm.stop.limit_ns = 100000000;
	r.slow->in_flight = 1;
	pause = ask(VMM_PAUSE);
	CHECK_INT(status_of(ask(VMM_STATS)), 0);
	CHECK(!answer_of(pause));
	CHECK_INT(status_of(pause), -ETIMEDOUT);
	CHECK(settles(guests_run));
	CHECK_INT(state(), VMM_S_RUNNING);
	requests_end();
	CHECK_INT(status_of(ask(VMM_PAUSE)), 0);
	tear_down();
}

/* The same for a snapshot: it fails with that reason, the VM runs, and the next one is written. */
static void a_snapshot_whose_requests_never_end(void)
{
	uint32_t snapshot;

	REQUIRE(set_up() == 0);
	r.vm.stop.limit_ns = 100000000;
	r.slow->in_flight = 1;
	snapshot = ask_snapshot(VMM_F_LIVE);
	CHECK_INT(status_of(ask(VMM_STATS)), 0);
	CHECK_INT(status_of(snapshot), -ETIMEDOUT);
	CHECK(strstr(answer_of(snapshot)->text, "did not stop in time"));
	CHECK(settles(guests_run));
	CHECK_INT(state(), VMM_S_RUNNING);
	requests_end();
	CHECK_INT(status_of(ask_snapshot(VMM_F_LIVE)), 0);
	tear_down();
}

/* A vCPU that does not leave the guest: its memory file's disk does not answer, say. */
static void a_vcpu_that_does_not_come(void)
{
	uint32_t pause;
	struct buf b;

	REQUIRE(set_up() == 0);
	r.vm.stop.limit_ns = 100000000;
	atomic_store(&r.f->vcpu[1].stuck, true);
	pause = ask(VMM_PAUSE);
	CHECK_INT(status_of(ask(VMM_STATS)), 0);
	CHECK_INT(status_of(pause), -ETIMEDOUT);
	CHECK(settles(guests_run));
	/* one who wants to look waits no longer than a second */
	buf_init(&b, 64);
	buf_u32(&b, VMM_DBG_REGS);
	buf_u64(&b, 0);
	CHECK_INT(status_of(ask_with(VMM_DEBUG, b.p, b.len, NULL, 0)), -ETIMEDOUT);
	CHECK(settles(guests_run));
	/* nor does an end wait for it for ever */
	b.len = 0;
	buf_u32(&b, 1);
	CHECK_INT(status_of(ask_with(VMM_SHUTDOWN, b.p, b.len, NULL, 0)), 0);
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end && !r.over;)
		turn(10);
	CHECK(r.over);
	CHECK_INT(state(), VMM_S_ENDED);
	buf_fini(&b);
	atomic_store(&r.f->vcpu[1].stuck, false);
	tear_down();
}

/* The end comes while a pause waits: it is answered, and once. */
static void an_end_during_a_pause(void)
{
	uint32_t pause;

	REQUIRE(set_up() == 0);
	r.slow->in_flight = 1;
	pause = ask(VMM_PAUSE);
	CHECK(settles(guests_stand));
	vm_end(&r.vm, VMM_X_POWEROFF, "the guest powered off");
	CHECK_INT(status_of(pause), -ESRCH);
	requests_end();
	turn(5);
	CHECK_INT(state(), VMM_S_ENDED);
	CHECK_INT(status_of(ask(VMM_CONTINUE)), -ESRCH);
	CHECK_INT(status_of(ask(VMM_PAUSE)), -ESRCH);
	tear_down();
}

/* ---- the writer of a snapshot */

static pid_t writer(void)
{
	char path[64], text[64] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	f = fopen(path, "re");
	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	return (pid_t)atoi(text);
}

/* Turns until VMM_EV_SNAPSHOT comes: its status; -9999: it does not. */
static int written(char *text, size_t cap)
{
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end; turn(10))
		for (unsigned int i = 0; i < r.ngot && i < ARRAY_LEN(r.got); i++)
			if (r.got[i].type == VMM_EV_SNAPSHOT) {
				snprintf(text, cap, "%s", r.got[i].text);
				return r.got[i].event_status;
			}
	return -9999;
}

static bool no_child(void)
{
	return writer() == 0;
}

static void a_live_snapshot_leaves_nothing(void)
{
	char text[400];

	REQUIRE(set_up() == 0);
	for (int i = 0; i < 3; i++) {
		r.ngot = 0;
		CHECK_INT(status_of(ask_snapshot(VMM_F_LIVE)), 0);
		CHECK(settles(guests_run));
		CHECK_INT(written(text, sizeof(text)), 0);
		CHECK(settles(no_child));
	}
	CHECK_INT(status_of(ask(VMM_PAUSE)), 0);
	r.ngot = 0;
	CHECK_INT(status_of(ask_snapshot(VMM_F_LIVE)), 0);
	CHECK_INT(state(), VMM_S_PAUSED);
	CHECK_INT(written(text, sizeof(text)), 0);
	CHECK(settles(guests_stand));
	tear_down();
}

/* A pause to disk takes as long as the disk does: the socket answers meanwhile, and a writer that dies takes no VM with it. */
static void a_pause_that_is_written_answers(void)
{
	char text[400] = "";
	pid_t pid;

	REQUIRE(set_up() == 0);
	r.vm.fault_step = FAULT_VMM_WRITE;
	r.vm.fault_action = FAULT_WAIT;
	CHECK_INT(status_of(ask_snapshot(VMM_F_EXIT)), 0);
	CHECK_INT(state(), VMM_S_SNAPSHOTTING);
	CHECK_INT(status_of(ask(VMM_STATS)), 0);
	CHECK_INT(status_of(ask(VMM_LAYERS)), 0);
	CHECK_INT(status_of(ask(VMM_CONTINUE)), -EAGAIN);
	CHECK_INT(status_of(ask(VMM_PAUSE)), -EAGAIN);
	CHECK(settles(guests_stand));
	pid = writer();
	CHECK(pid > 0);
	CHECK_INT(kill(pid, SIGKILL), 0);
	CHECK_INT(written(text, sizeof(text)), -ENOMEM);
	CHECK(strstr(text, "died") && strstr(text, "memory limit"));
	CHECK_INT(state(), VMM_S_PAUSED);
	CHECK_INT(status_of(ask(VMM_CONTINUE)), 0);
	CHECK(settles(guests_run));
	/* the next one is written, and the VM ends */
	r.ngot = 0;
	CHECK_INT(status_of(ask_snapshot(VMM_F_EXIT)), 0);
	CHECK_INT(written(text, sizeof(text)), 0);
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end && !r.over;)
		turn(10);
	CHECK(r.over);
	CHECK_INT(r.vm.end_why, VMM_X_SNAPSHOTTED);
	tear_down();
}

/* ---- every request in every state */

static int kept_files[2]; /* a snapshot to restore from */

static void to_blank(void)
{
	set_up_blank();
}

static void to_prepared(void)
{
	CHECK_INT(set_up_prepared(), 0);
}

static void to_running(void)
{
	CHECK_INT(set_up(), 0);
}

static void to_pausing(void)
{
	to_running();
	r.slow->in_flight = 1;
	ask(VMM_PAUSE);
	CHECK(settles(guests_stand));
}

static void to_paused(void)
{
	to_running();
	CHECK_INT(status_of(ask(VMM_PAUSE)), 0);
}

static void to_stopping(void)
{
	to_running();
	r.slow->in_flight = 1;
	ask_snapshot(VMM_F_LIVE);
	CHECK(settles(guests_stand));
}

static void to_snapshotting(void)
{
	to_running();
	r.vm.fault_step = FAULT_VMM_WRITE;
	r.vm.fault_action = FAULT_WAIT;
	CHECK_INT(status_of(ask_snapshot(VMM_F_EXIT)), 0);
}

static void to_ended(void)
{
	to_running();
	vm_end(&r.vm, VMM_X_POWEROFF, "the guest powered off");
	for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end && !r.over;)
		turn(10);
}

static uint32_t ask_pause(void)
{
	return ask(VMM_PAUSE);
}

static uint32_t ask_continue(void)
{
	return ask(VMM_CONTINUE);
}

static uint32_t ask_live(void)
{
	return ask_snapshot(VMM_F_LIVE);
}

static uint32_t ask_kept(void)
{
	return ask_restore(kept_files);
}

static uint32_t ask_regs(void)
{
	struct buf b;
	uint32_t id;

	buf_init(&b, 16);
	buf_u32(&b, VMM_DBG_REGS);
	buf_u64(&b, 0);
	id = ask_with(VMM_DEBUG, b.p, b.len, NULL, 0);
	buf_fini(&b);
	return id;
}

static uint32_t ask_stats(void)
{
	return ask(VMM_STATS);
}

static uint32_t ask_layers(void)
{
	return ask(VMM_LAYERS);
}

static uint32_t ask_end(void)
{
	return ask_with(VMM_SHUTDOWN, &(uint32_t){1}, 4, NULL, 0);
}

/* Each request that changes the state gets a VM of its own. The others leave the state as it is, so they are sent to one VM. */
static void every_request_in_every_state(void)
{
	enum { PREPARE, BOOT, RESTORE, PAUSE, CONTINUE, SNAPSHOT, REGS, STATS, LAYERS, END, N };
	static uint32_t (*const requests[N])(void) = {[PREPARE] = ask_prepare,
		[BOOT] = ask_boot,
		[RESTORE] = ask_kept,
		[PAUSE] = ask_pause,
		[CONTINUE] = ask_continue,
		[SNAPSHOT] = ask_live,
		[REGS] = ask_regs,
		[STATS] = ask_stats,
		[LAYERS] = ask_layers,
		[END] = ask_end};
	static const struct {
		void (*get_there)(void);
		int status[N];
		int becomes[N]; /* where the status is 0; -1: it stays */
	} rows[VMM_S_COUNT] = {
#define STAYS  -1
#define LOOKS  0, 0, 0, 0
#define LOOKED STAYS, STAYS, STAYS, VMM_S_ENDED
		[VMM_S_BLANK] = {to_blank, {0, -EBUSY, -EBUSY, -EBUSY, -EBUSY, -EBUSY, LOOKS},
			{VMM_S_PREPARED, 0, 0, 0, 0, 0, LOOKED}},
		[VMM_S_PREPARED] = {to_prepared, {-EBUSY, 0, 0, -EBUSY, -EBUSY, -EBUSY, LOOKS},
			{0, VMM_S_RUNNING, VMM_S_RUNNING, 0, 0, 0, LOOKED}},
		[VMM_S_RUNNING] = {to_running, {-EBUSY, -EBUSY, -EBUSY, 0, -EBUSY, 0, LOOKS},
			{0, 0, 0, VMM_S_PAUSED, 0, VMM_S_RUNNING, LOOKED}},
		[VMM_S_PAUSING] = {to_pausing, {-EBUSY, -EBUSY, -EBUSY, -EBUSY, 0, -EBUSY, LOOKS},
			{0, 0, 0, 0, VMM_S_RUNNING, 0, LOOKED}},
		[VMM_S_PAUSED] = {to_paused, {-EBUSY, -EBUSY, -EBUSY, -EBUSY, 0, 0, LOOKS},
			{0, 0, 0, 0, VMM_S_RUNNING, VMM_S_PAUSED, LOOKED}},
		[VMM_S_STOPPING] = {to_stopping,
			{-EBUSY, -EBUSY, -EBUSY, -EAGAIN, -EAGAIN, -EBUSY, LOOKS},
			{0, 0, 0, 0, 0, 0, LOOKED}},
		[VMM_S_SNAPSHOTTING] = {to_snapshotting,
			{-EBUSY, -EBUSY, -EBUSY, -EAGAIN, -EAGAIN, -EBUSY, LOOKS},
			{0, 0, 0, 0, 0, 0, LOOKED}},
		[VMM_S_ENDED] = {to_ended, {-EBUSY, -EBUSY, -EBUSY, -ESRCH, -ESRCH, -ESRCH, LOOKS},
			{0, 0, 0, 0, 0, 0, LOOKED}},
	};

	REQUIRE(set_up() == 0);
	files_make(kept_files);
	CHECK_INT(status_of(ask_snapshot_into(VMM_F_LIVE, kept_files)), 0);
	tear_down();
	for (int s = 0; s < VMM_S_COUNT; s++)
		for (int moves = -1; moves < N; moves++) {
			bool moved = moves >= 0 && rows[s].status[moves] == 0 &&
				     rows[s].becomes[moves] != STAYS;

			if (moves >= 0 && !moved)
				continue;
			rows[s].get_there();
			CHECK_INT(state(), s);
			for (int i = 0; i < N; i++)
				if (moved ? i == moves
					  : rows[s].status[i] || rows[s].becomes[i] == STAYS) {
					CHECK_INT(status_of(requests[i]()), rows[s].status[i]);
					CHECK(moved || state() == (uint32_t)s);
				}
			if (r.slow)
				requests_end();
			if (writer() > 0 && s == VMM_S_SNAPSHOTTING)
				kill(writer(), SIGKILL);
			if (moved) {
				for (uint64_t end = mono_ns() + 30000000000ull;
					mono_ns() < end && (int)state() != rows[s].becomes[moves];)
					turn(5);
				CHECK_INT(state(), rows[s].becomes[moves]);
			}
			tear_down();
		}
	files_close(kept_files);
}

/* ---- a KVM that refuses what a VM needs */

static void a_vm_without_its_interrupts(void)
{
	uint32_t id;

	set_up_blank();
	r.f->no_call[0] = KVM_IRQFD;
	id = ask_prepare();
	CHECK_INT(status_of(id), -EPERM);
	CHECK(strstr(answer_of(id)->text, "KVM_IRQFD"));
	tear_down();
}

static unsigned int devices(void)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		n += r.vm.board.dev[i] != NULL;
	return n;
}

static bool all_are_connected(void)
{
	return r.f->nnotifications == BOARD_VIRTIO_SLOTS;
}

/* A blank monitor has every slot connected when a restore comes. One that boots at once connects its devices, before the guest runs. */
static void what_is_connected_when(void)
{
	int kernel = kernel_fd();
	struct buf b;

	set_up_blank();
	CHECK_INT(status_of(ask_prepare()), 0);
	CHECK(settles(all_are_connected));
	CHECK_INT(r.f->nlines, 2 + BOARD_VIRTIO_SLOTS); /* generation id, serial port */
	CHECK_INT(status_of(ask_boot()), 0);
	CHECK(settles(all_are_connected));
	CHECK_INT(r.f->nlines, 2 + BOARD_VIRTIO_SLOTS);
	tear_down();

	set_up_blank();
	buf_init(&b, 256);
	buf_u64(&b, MIB(128));
	buf_u32(&b, VCPUS);
	buf_str(&b, "");
	buf_u32(&b, 0);
	buf_str(&b, "");
	buf_u32(&b, VMM_F_WITH_PREPARE);
	buf_u16(&b, 0);
	CHECK_INT(status_of(ask_with(VMM_BOOT, b.p, b.len, (int[]){kernel, kernel}, 2)), 0);
	CHECK_INT(r.f->nnotifications, devices());
	CHECK(settles(guests_run));
	CHECK(devices() < BOARD_VIRTIO_SLOTS);
	CHECK_INT(r.f->nlines, 2 + devices());
	tear_down();
	buf_fini(&b);
	close(kernel);
}

/* How many descriptors of this process are of the memory file with that name. */
static int open_files(const char *name)
{
	char path[64], link[128];
	int n = 0;

	for (int fd = 0; fd < 256; fd++) {
		ssize_t k;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		k = readlink(path, link, sizeof(link) - 1);
		link[MAX(k, 0)] = 0;
		n += strstr(link, name) != NULL;
	}
	return n;
}

/* The first of two disks is good: what the VM owns then is not closed with the request. */
static void a_disk_that_is_refused_leaves_the_others(void)
{
	int good = memfd_create("good-disk", MFD_CLOEXEC),
	    bad = memfd_create("bad-disk", MFD_CLOEXEC);
	int kernel = kernel_fd();
	struct buf b;

	CHECK(ftruncate(good, MIB(1)) == 0);
	CHECK(ftruncate(bad, 100) == 0);
	set_up_prepared();
	buf_init(&b, 256);
	buf_str(&b, "");
	buf_u32(&b, 0);
	buf_u16(&b, 2);
	for (int i = 0; i < 2; i++) {
		buf_u32(&b, VMM_DISK_RO);
		buf_str(&b, "");
		buf_u16(&b, 0);
	}
	CHECK(status_of(ask_with(VMM_BOOT, b.p, b.len, (int[]){kernel, kernel, good, bad}, 4)) < 0);
	CHECK_INT(open_files("good-disk"), 2);
	CHECK_INT(open_files("bad-disk"), 1);
	tear_down();
	CHECK_INT(open_files("good-disk"), 1);
	buf_fini(&b);
	close(kernel);
	close(good);
	close(bad);
}

/* Notifications are exits then. */
static void a_vm_without_its_notifications(void)
{
	set_up_blank();
	r.f->no_call[0] = KVM_IOEVENTFD;
	CHECK_INT(status_of(ask_prepare()), 0);
	CHECK_INT(status_of(ask_boot()), 0);
	CHECK(settles(guests_run));
	tear_down();
}

/* The guest cannot run: the VM ends with that reason, and everybody hears it. */
static void a_guest_that_kvm_does_not_run(void)
{
	static const struct {
		int err;
		enum vmm_exit why;
		const char *text;
	} cases[] = {{EINVAL, VMM_X_KVM_ERROR, "KVM_RUN: Invalid argument"},
		{ENOMEM, VMM_X_HOST_ERROR, "KVM_RUN: Cannot allocate memory"},
		{EFAULT, VMM_X_HOST_ERROR, "guest memory cannot be read"}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		REQUIRE(set_up_prepared() == 0);
		r.f->no_call[0] = KVM_RUN;
		r.f->no_call_errno = cases[i].err;
		CHECK_INT(status_of(ask_boot()), 0);
		for (uint64_t end = mono_ns() + 30000000000ull; mono_ns() < end && !r.over;)
			turn(10);
		CHECK_INT(state(), VMM_S_ENDED);
		CHECK_INT(r.vm.end_why, cases[i].why);
		CHECK(strstr(r.vm.end_text, cases[i].text));
		tear_down();
	}
}

/* Refused, and done without: the guest runs, is restored, pauses and goes on. Only who asks for an interrupt hears of it. */
static void calls_that_are_done_without(void)
{
	static const unsigned long calls[] = {KVM_KVMCLOCK_CTRL, KVM_PRE_FAULT_MEMORY, KVM_NMI};
	struct buf b;
	int fds[2];

	files_make(fds);
	REQUIRE(set_up() == 0);
	CHECK_INT(status_of(ask_snapshot_into(VMM_F_LIVE, fds)), 0);
	tear_down();
	buf_init(&b, 16);
	buf_u32(&b, VMM_DBG_NMI);
	buf_u64(&b, 0);
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		REQUIRE(set_up_prepared() == 0);
		r.f->no_call[0] = calls[i];
		CHECK_INT(status_of(ask_restore(fds)), 0);
		CHECK(settles(guests_run));
		CHECK_INT(status_of(ask(VMM_PAUSE)), 0);
		CHECK_INT(status_of(ask(VMM_CONTINUE)), 0);
		CHECK(settles(guests_run));
		CHECK_INT(status_of(ask_with(VMM_DEBUG, b.p, b.len, NULL, 0)),
			calls[i] == KVM_NMI ? -EPERM : 0);
		CHECK(settles(guests_run));
		tear_down();
	}
	buf_fini(&b);
	files_close(fds);
}

/* A sealed monitor that was taken over cannot make a file of its longer than its disks and its memory ever need. */
static void files_have_a_longest_length(void)
{
	static struct vm vm = {
		.state = VMM_S_PREPARED, .sealed = true, .size = {.mem_bytes = MIB(128)}};
	int st = -1, fd = memfd_create("file", MFD_CLOEXEC);
	pid_t pid = fork(); /* the limit is for ever */
	unsigned int taken;
	struct err e;

	if (pid == 0) {
		signal(SIGXFSZ, SIG_IGN);
		if (vm_add_disks(&vm, NULL, 0, &taken, &e) < 0)
			_exit(2);
		if (ftruncate(fd, MIB(128)) < 0)
			_exit(3);
		_exit(ftruncate(fd, GIB(64)) < 0 && errno == EFBIG ? 0 : 4);
	}
	CHECK(waitpid(pid, &st, 0) == pid && WIFEXITED(st));
	CHECK_INT(WEXITSTATUS(st), 0);
	close(fd);
}

static const struct test tests[] = {
	{"files_have_a_longest_length", files_have_a_longest_length},
	{"it_pauses_and_goes_on", it_pauses_and_goes_on},
	{"continue_while_requests_end", continue_while_requests_end},
	{"many_changes_of_mind", many_changes_of_mind},
	{"snapshot_during_a_pause", snapshot_during_a_pause},
	{"debug_during_a_pause", debug_during_a_pause},
	{"requests_that_never_end", requests_that_never_end},
	{"a_snapshot_whose_requests_never_end", a_snapshot_whose_requests_never_end},
	{"a_vcpu_that_does_not_come", a_vcpu_that_does_not_come},
	{"an_end_during_a_pause", an_end_during_a_pause},
	{"a_live_snapshot_leaves_nothing", a_live_snapshot_leaves_nothing},
	{"a_pause_that_is_written_answers", a_pause_that_is_written_answers},
	{"every_request_in_every_state", every_request_in_every_state},
	{"what_is_connected_when", what_is_connected_when},
	{"a_vm_without_its_interrupts", a_vm_without_its_interrupts},
	{"a_disk_that_is_refused_leaves_the_others", a_disk_that_is_refused_leaves_the_others},
	{"a_vm_without_its_notifications", a_vm_without_its_notifications},
	{"a_guest_that_kvm_does_not_run", a_guest_that_kvm_does_not_run},
	{"calls_that_are_done_without", calls_that_are_done_without},
};

int main(int argc, char **argv)
{
	log_level = LOG_ERROR; /* what is refused here is meant to be */
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
