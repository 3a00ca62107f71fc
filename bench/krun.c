/* SPDX-License-Identifier: Apache-2.0
 *
 * krun.c: the bench's libkrun arm: the same kernel, initramfs, disk and memory, booted by libkrun,
 * which is loaded with dlopen, so that nothing of ours needs it to build. `make bench-deps` builds
 * it from its published crate. No file shares, no sockets, no network.
 *
 *   bench-krun LIBKRUN KERNEL INITRAMFS CMDLINE MIB [DISK]: the guest's console is stdout.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL_ELF = 1 };

struct krun { /* the functions of its C interface that are used; in the order of the calls */
	int32_t (*set_log_level)(uint32_t level);
	int32_t (*create_ctx)(void);
	int32_t (*set_vm_config)(uint32_t ctx, uint8_t vcpus, uint32_t mib);
	int32_t (*set_kernel)(uint32_t ctx, const char *path, uint32_t format,
		const char *initramfs, const char *cmdline);
	int32_t (*disable_implicit_vsock)(uint32_t ctx);
	int32_t (*set_console_output)(uint32_t ctx, const char *path);
	int32_t (*add_disk)(uint32_t ctx, const char *id, const char *path, bool read_only);
	int32_t (*start_enter)(uint32_t ctx);
};

static const char *const names[] = {"krun_set_log_level", "krun_create_ctx", "krun_set_vm_config",
	"krun_set_kernel", "krun_disable_implicit_vsock", "krun_set_console_output",
	"krun_add_disk", "krun_start_enter"};
static_assert(sizeof(names) / sizeof(*names) == sizeof(struct krun) / sizeof(void (*)(void)),
	"one name a function");

static int must(const char *what, int32_t rc)
{
	if (rc < 0) {
		fprintf(stderr, "bench-krun: %s: %s\n", what, strerror(-rc));
		exit(1);
	}
	return rc;
}

static void load(struct krun *k, const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL), **slot = (void **)k;

	if (!lib) {
		fprintf(stderr, "bench-krun: %s\n", dlerror());
		exit(1);
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		slot[i] = dlsym(lib, names[i]);
		if (!slot[i]) {
			fprintf(stderr, "bench-krun: %s has no %s\n", path, names[i]);
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	struct krun k;
	uint32_t ctx;

	if (argc < 6) {
		fprintf(stderr, "usage: bench-krun LIBKRUN KERNEL INITRAMFS CMDLINE MIB [DISK]\n");
		return 2;
	}
	load(&k, argv[1]);
	must("log level", k.set_log_level(getenv("KRUN_LOG") ? 4 : 1));
	ctx = (uint32_t)must("context", k.create_ctx());
	must("machine", k.set_vm_config(ctx, 1, (uint32_t)strtoul(argv[5], NULL, 10)));
	must("kernel", k.set_kernel(ctx, argv[2], KERNEL_ELF, argv[3], argv[4]));
	must("no vsock", k.disable_implicit_vsock(ctx));
	must("console", k.set_console_output(ctx, "/proc/self/fd/1"));
	if (argc > 6 && *argv[6])
		must("disk", k.add_disk(ctx, "root", argv[6], true));
	must("start", k.start_enter(ctx));
	return 1; /* start_enter() does not return: the process ends with the guest */
}
