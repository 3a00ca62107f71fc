/* SPDX-License-Identifier: Apache-2.0
 *
 * vcpu.c: see vcpu.h. Hostile: the address, the length and the bytes of each exit. The board
 * checks them.
 *
 * Stopping: ask_stop() sets `stop` and immediate_exit and sends a signal, in this order. The
 * signal interrupts a vCPU in KVM_RUN. A vCPU that is about to enter KVM_RUN finds immediate_exit,
 * one in gate() finds `stop`. The vCPU's own thread clears immediate_exit, after gate() or after a
 * stop that was cancelled, and looks at `stop` again after that. So a stop in between is not lost.
 */
#include "vmm/vcpu.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "lib/log.h"
#include "vmm/arch.h"

#define KICK_SIGNAL    SIGUSR1
#define START_LIMIT_MS 60000u

static void on_kick(int sig)
{
}

static void note(struct vcpu *v, uint64_t where)
{
	v->trail[v->trail_at % VCPU_TRAIL].reason = v->run->exit_reason;
	v->trail[v->trail_at % VCPU_TRAIL].where = where;
	v->trail_at++;
}

static void count(struct vcpu *v, enum vcpu_stat s)
{
	/* only this vCPU's thread writes it */
	atomic_store_explicit(&v->stat[s],
		atomic_load_explicit(&v->stat[s], memory_order_relaxed) + 1, memory_order_relaxed);
}

/* Finishes the access that the last exit was about, without entering the guest. */
static void settle(struct vcpu *v)
{
	if (!v->half_done)
		return;
	v->run->immediate_exit = 1;
	ioctl(v->fd, KVM_RUN, 0);
	v->half_done = false;
}

/* Lets the next KVM_RUN enter the guest. The caller must look at `stop` again before it. */
static void arm(struct vcpu *v)
{
	__atomic_store_n(&v->run->immediate_exit, 0, __ATOMIC_SEQ_CST);
	atomic_thread_fence(memory_order_seq_cst);
}

/* Parks the vCPU until it may run. False: its thread ends. */
static bool gate(struct vcpu *v)
{
	struct vcpus *s = v->all;
	bool go;

	settle(v);
	pthread_mutex_lock(&s->mu);
	if (++s->parked == s->started) {
		pthread_cond_broadcast(&s->cv);
		(void)!write(s->parked_fd, &(uint64_t){1}, sizeof(uint64_t));
	}
	while ((s->stop || v->over) && !s->quit)
		pthread_cond_wait(&s->cv, &s->mu);
	s->parked--;
	go = !s->quit;
	pthread_mutex_unlock(&s->mu);
	arm(v);
	v->ran_ns = mono_ns();
	return go;
}

static bool must_stop(struct vcpu *v)
{
	return __atomic_load_n(&v->all->stop, __ATOMIC_SEQ_CST) || v->over;
}

static void finish(struct vcpu *v, enum vmm_exit why, const char *text)
{
	struct vcpus *s = v->all;

	s->hooks.end(s->hooks.ctx, why, text);
	pthread_mutex_lock(&s->mu);
	v->over = true;
	pthread_mutex_unlock(&s->mu);
}

static void on_pio(struct vcpu *v)
{
	struct kvm_run *r = v->run;
	uint8_t *p = (uint8_t *)r + r->io.data_offset;

	count(v, VS_PIO);
	note(v, r->io.port);
	v->half_done = true;
	for (uint32_t i = 0; i < r->io.count; i++, p += r->io.size)
		v->all->hooks.pio(v->all->hooks.ctx, r->io.port, p, r->io.size,
			r->io.direction == KVM_EXIT_IO_OUT);
}

static void on_mmio(struct vcpu *v)
{
	struct kvm_run *r = v->run;

	count(v, VS_MMIO);
	note(v, r->mmio.phys_addr);
	v->half_done = true;
	v->all->hooks.mmio(
		v->all->hooks.ctx, r->mmio.phys_addr, r->mmio.data, r->mmio.len, r->mmio.is_write);
}

static void on_run_failed(struct vcpu *v, int err)
{
	char text[160];

	/* EFAULT: the host could not give the guest a page of its memory */
	if (err == EFAULT || err == EHWPOISON)
		snprintf(text, sizeof(text),
			"guest memory cannot be read any more (a memory file was shortened or its "
			"disk failed)");
	else
		snprintf(text, sizeof(text), "KVM_RUN: %s", strerror(err));
	finish(v,
		err == ENOMEM || err == EFAULT || err == EHWPOISON ? VMM_X_HOST_ERROR
								   : VMM_X_KVM_ERROR,
		text);
}

static void on_exit_reason(struct vcpu *v)
{
	struct kvm_run *r = v->run;
	char text[160];

	switch (r->exit_reason) {
	case KVM_EXIT_IO:
		on_pio(v);
		return;
	case KVM_EXIT_MMIO:
		on_mmio(v);
		return;
	case KVM_EXIT_INTR:
		count(v, VS_INTR);
		return;
	case KVM_EXIT_SHUTDOWN:
		arch_exit_text(v->fd, r, text, sizeof(text));
		finish(v, VMM_X_TRIPLE_FAULT, text);
		return;
	case KVM_EXIT_SYSTEM_EVENT:
		finish(v,
			r->system_event.type == KVM_SYSTEM_EVENT_SHUTDOWN ? VMM_X_POWEROFF
									  : VMM_X_RESET,
			"system event");
		return;
	default:
		count(v, VS_OTHER);
		note(v, 0);
		arch_exit_text(v->fd, r, text, sizeof(text));
		finish(v, VMM_X_KVM_ERROR, text);
	}
}

static void *vcpu_thread(void *arg)
{
	struct vcpu *v = arg;

	while (!must_stop(v) || gate(v)) {
		int rc;

		if (must_stop(v))
			continue;
		rc = ioctl(v->fd, KVM_RUN, 0);
		v->half_done = false;
		if (rc < 0 && (errno == EINTR || errno == EAGAIN)) {
			count(v, VS_INTR);
			/* interrupted by a stop that was cancelled in the meantime */
			if (!must_stop(v))
				arm(v);
		} else if (rc < 0)
			on_run_failed(v, errno);
		else
			on_exit_reason(v);
	}
	return NULL;
}

struct birth {
	struct vcpu *v;
	void (*on_thread)(void);
};

static void *thread_main(void *arg)
{
	struct birth b = *(struct birth *)arg;
	char name[16];

	free(arg);
	snprintf(name, sizeof(name), "vcpu%u", b.v->id);
	pthread_setname_np(pthread_self(), name);
	if (b.on_thread)
		b.on_thread();
	return vcpu_thread(b.v);
}

int vcpus_create(
	struct vcpus *s, struct kvm *k, unsigned int n, const struct vcpu_hooks *h, struct err *e)
{
	pthread_condattr_t mono;

	ASSERT(n >= 1 && n <= VMM_MAX_VCPUS);
	*s = (struct vcpus){.hooks = *h, .kvm = k, .stop = true, .parked_fd = -1};
	pthread_mutex_init(&s->mu, NULL);
	pthread_condattr_init(&mono);
	pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
	pthread_cond_init(&s->cv, &mono);
	pthread_condattr_destroy(&mono);
	s->parked_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->parked_fd < 0)
		return err_set(e, errno, "eventfd");
	for (unsigned int i = 0; i < n; i++) {
		struct vcpu *v = &s->v[i];

		*v = (struct vcpu){.all = s, .id = i};
		v->fd = ioctl(k->vm_fd, KVM_CREATE_VCPU, (unsigned long)i);
		if (v->fd < 0)
			return err_set(e, errno, "KVM_CREATE_VCPU %u", i);
		s->n++;
		v->run = mmap(NULL, k->run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
		if (v->run == MAP_FAILED) {
			v->run = NULL;
			return err_set(e, errno, "map kvm_run of vCPU %u", i);
		}
	}
	return 0;
}

void vcpus_before_seal(void)
{
	struct sigaction sa = {.sa_handler = on_kick};

	sigaction(KICK_SIGNAL, &sa, NULL);
}

static int wait_parked(struct vcpus *s, unsigned int limit_ms)
{
	uint64_t end = mono_ns() + limit_ms * 1000000ull;
	struct timespec at = {
		.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)};
	int rc = 0;

	pthread_mutex_lock(&s->mu);
	while (s->parked < s->started && rc == 0)
		rc = pthread_cond_timedwait(&s->cv, &s->mu, &at);
	rc = s->parked < s->started ? -ETIMEDOUT : 0;
	pthread_mutex_unlock(&s->mu);
	return rc;
}

int vcpus_start(struct vcpus *s, void (*on_thread)(void), struct err *e)
{
	for (unsigned int i = 0; i < s->n; i++) {
		struct birth *b = malloc(sizeof(*b));
		int rc;

		if (!b)
			return err_set(e, ENOMEM, "vCPU thread");
		*b = (struct birth){&s->v[i], on_thread};
		rc = pthread_create(&s->v[i].thread, NULL, thread_main, b);
		if (rc) {
			free(b);
			return err_set(e, rc, "thread of vCPU %u", i);
		}
		pthread_mutex_lock(&s->mu);
		s->v[i].started = true;
		s->started++;
		pthread_mutex_unlock(&s->mu);
	}
	/* every thread parks itself first; then the state of the vCPUs can be set */
	return wait_parked(s, START_LIMIT_MS) == 0
		       ? 0
		       : err_plain(e, ETIMEDOUT, "the vCPU threads did not start within %u s",
				 START_LIMIT_MS / 1000);
}

void vcpus_run(struct vcpus *s)
{
	pthread_mutex_lock(&s->mu);
	__atomic_store_n(&s->stop, false, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&s->mu);
	pthread_cond_broadcast(&s->cv); /* unlocked, because the threads that wake need the lock */
}

static void ask_stop(struct vcpus *s)
{
	__atomic_store_n(&s->stop, true, __ATOMIC_SEQ_CST);
	for (unsigned int i = 0; i < s->n; i++) {
		if (!s->v[i].started)
			continue;
		__atomic_store_n(&s->v[i].run->immediate_exit, 1, __ATOMIC_SEQ_CST);
		pthread_kill(s->v[i].thread, KICK_SIGNAL);
	}
	/* all are parked already: signal that here, because gate() will not */
	if (s->parked == s->started)
		(void)!write(s->parked_fd, &(uint64_t){1}, sizeof(uint64_t));
}

void vcpus_ask_stop(struct vcpus *s)
{
	pthread_mutex_lock(&s->mu);
	ask_stop(s);
	pthread_mutex_unlock(&s->mu);
}

bool vcpus_parked(struct vcpus *s)
{
	bool all;

	pthread_mutex_lock(&s->mu);
	all = s->stop && s->parked == s->started;
	pthread_mutex_unlock(&s->mu);
	return all;
}

int vcpus_stop(struct vcpus *s, unsigned int limit_ms)
{
	vcpus_ask_stop(s);
	return wait_parked(s, limit_ms);
}

void vcpus_forget(struct vcpus *s)
{
	if (!s->kvm)
		return; /* never made */
	for (unsigned int i = 0; i < s->n; i++) {
		if (s->v[i].run)
			munmap(s->v[i].run, s->kvm->run_bytes);
		s->v[i].run = NULL;
		s->v[i].started = false;
		close_fd(&s->v[i].fd);
	}
	s->n = s->started = 0;
	close_fd(&s->parked_fd);
}

void vcpus_destroy(struct vcpus *s)
{
	if (!s->n)
		return;
	pthread_mutex_lock(&s->mu);
	ask_stop(s);
	s->quit = true;
	pthread_cond_broadcast(&s->cv);
	pthread_mutex_unlock(&s->mu);
	for (unsigned int i = 0; i < s->n; i++)
		if (s->v[i].started)
			pthread_join(s->v[i].thread, NULL);
	vcpus_forget(s);
	pthread_cond_destroy(&s->cv);
	pthread_mutex_destroy(&s->mu);
}
