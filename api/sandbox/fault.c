/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.c: see fault.h. mayflyd's loop. The file is a test's.
 */
#include "api/sandbox/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "api/links/helper_client.h"
#include "api/links/monitor_client.h"
#include "lib/log.h"

static void fault_path(const struct daemon *d, char to[160], const char *more)
{
	snprintf(to, 160, "%.100s/fault%s", d->cfg.run_dir, more);
}

/* Takes the first line of this step, or of any of the VM's, out of the file. */
static enum fault_action take_line(struct daemon *d, enum fault_step *s)
{
	char path[160], tmp[160], text[1024], rest[1024], *save = NULL;
	enum fault_action found = 0;
	_cleanup_close_ int fd = -1;
	ssize_t n;

	fault_path(d, path, "");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return 0;
	text[n] = rest[0] = 0;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char name[32] = "", action[32] = "";
		enum fault_step is = sscanf(line, "%31s %31s", name, action) == 2
					     ? fault_step_of(name)
					     : FAULT_NONE;

		if (!found && is && (is == *s || (!*s && is >= FAULT_VMM_FIRST))) {
			found = fault_action_of(action);
			*s = is;
			log_warn("fault: %s %s", name, action);
			continue;
		}
		snprintf(rest + strlen(rest), sizeof(rest) - strlen(rest), "%s\n", line);
	}
	if (!found)
		return 0;
	fault_path(d, tmp, ".new");
	close_fd(&fd);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write_full(fd, rest, strlen(rest)) < 0 ||
		renameat(AT_FDCWD, tmp, AT_FDCWD, path) < 0)
		return 0; /* its line is still in the file: it would happen again and again */
	return found;
}

int fault_at(struct sandbox *sb, enum fault_step s)
{
	struct priv_msg m = {.op = PRIV_KILL};
	enum fault_action a;

	if (!sb || !sb->d->cfg.faults)
		return 0;
	a = take_line(sb->d, &s);
	if (a == FAULT_KILL)
		raise(SIGKILL);
	if (a == FAULT_KILL_VMM && sb->vm && sb->vm->spawned) {
		m.slot = sb->vm->slot;
		privctl_call(sb->d->priv, &m, NULL, 0, NULL, NULL);
	}
	return a == FAULT_FAIL ? -ENOSPC : 0;
}

int fault_in(struct daemon *d, enum fault_step s)
{
	enum fault_action a = d->cfg.faults ? take_line(d, &s) : 0;

	if (a == FAULT_KILL)
		raise(SIGKILL);
	return a == FAULT_FAIL ? -ENOSPC : 0;
}

static void told(void *arg, const struct vmm_answer *a)
{
	if (a->err && a->err != ECONNRESET)
		log_warn("fault: the VM does not take it: %s", a->text);
}

void fault_tell_vm(struct sandbox *sb)
{
	enum fault_step s = FAULT_NONE;
	enum fault_action a = sb->d->cfg.faults ? take_line(sb->d, &s) : 0;
	struct buf b;

	if (!a || !sb->vm || !sb->vm->ctl)
		return;
	buf_init(&b, 64);
	buf_u32(&b, VMM_DBG_FAULT);
	buf_u64(&b, (uint64_t)s | (uint64_t)a << 32);
	vmmctl_call(sb->vm->ctl, VMM_DEBUG, &b, NULL, 0, told, NULL);
	buf_fini(&b);
}
