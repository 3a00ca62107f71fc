# SPDX-License-Identifier: Apache-2.0
# One non-recursive Makefile. Every folder is one trust domain; its main.c makes the program, the rest an archive that tests link too.
CC ?= gcc
CLANG ?= clang
AR ?= ar
SAN ?=
Q := $(if $(V),,@)
B := build$(if $(SAN),/$(SAN))
O := $(B)/obj
BIN := $(B)/bin
T ?=
# A newer compiler's new warning must not stop a user's build: warnings are errors only for developers (WERROR=1 in local.mk, which git ignores) and in CI.
-include local.mk

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wundef -Wpointer-arith -Wcast-qual \
	-Wwrite-strings -Wvla -Wimplicit-fallthrough -Wswitch-enum -Wno-unused-parameter \
	-Wno-gnu-variable-sized-type-not-at-end $(if $(WERROR),-Werror)
CPPFLAGS += -D_GNU_SOURCE -I. -MMD -MP
CFLAGS_BASE := -std=gnu11 -g -O2 $(WARN) -fno-strict-aliasing
SANFLAGS_asan := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1
SANFLAGS_tsan := -fsanitize=thread -O1 $(if $(findstring clang,$(CC)),,-Wno-tsan)
SANFLAGS_fuzz := -Wno-gnu-variable-sized-type-not-at-end -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1
SANFLAGS_cov := --coverage -O0
HARDEN := $(if $(SAN),,-D_FORTIFY_SOURCE=2 -fstack-protector-strong)
CFLAGS_ALL = $(CFLAGS_BASE) $(HARDEN) $(SANFLAGS_$(SAN)) $(CFLAGS)
LDFLAGS_ALL = $(SANFLAGS_$(SAN)) -Wl,-z,relro,-z,now -Wl,--as-needed -pthread $(LDFLAGS)

# name of the archive -> its sources; main.c stays out
DIRS := lib vmm agent images priv net fs api cli
$(foreach d,$(DIRS),$(eval SRC_$(d) := $(wildcard $(d)/*.c $(d)/*/*.c)))
SRC_testlib := $(wildcard tests/unit/lib/*.c)
objs = $(patsubst %.c,$(O)/%.o,$(1))
ARCH_OBJS = $(call objs,$(filter-out %/main.c,$(SRC_$(1))))
ALL_ARCHIVES := $(foreach d,$(DIRS) testlib,$(O)/$(d).a)

# program -> the archives it may link (the layering rule of docs/ARCHITECTURE.md), its libraries
LIBS_mayfly-vmm := -luring -lseccomp -lfdt -lcrypto
LIBS_mayfly-priv := -lseccomp
LIBS_mayfly-broker := -lseccomp
LIBS_mayfly-net := -lslirp -lseccomp
LIBS_mayfly-image := -lseccomp -larchive -lcurl -lext2fs -lcom_err -lcjson -lcrypto -lzstd -lz
LIBS_mayfly-fs := -lseccomp
LIBS_mayflyd := -lseccomp -lmicrohttpd -lwslay -lcjson -lsqlite3 -larchive -lcurl -lext2fs -lcom_err -lcrypto -lzstd -lz
LIBS_mayfly := -lcjson -lcurl -lwslay -lcrypto -larchive -lext2fs -lcom_err -lzstd -lz -lseccomp
LIBS_TEST := -luring -lslirp -lseccomp -lfdt -lmicrohttpd -lwslay -lcjson -lsqlite3 -larchive -lcurl -lext2fs -lcom_err -lcrypto -lzstd -lz

# one in each line, so that two changes do not conflict
HOST_PROGS := \
	mayfly-vmm \
	mayfly-priv \
	mayfly-image \
	mayfly-broker \
	mayfly-net \
	mayfly-fs \
	mayflyd \
	mayfly
PROGS := $(HOST_PROGS) mayfly-machine-init mayfly-agent
TOOLS := $(patsubst tests/tools/%.c,%,$(wildcard tests/tools/*.c))
UNIT := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/*.c))
# what must be tried on a real kernel, as root (else skipped). Not under a sanitizer: its runtime needs what a jail takes away
PLATFORM := $(if $(SAN),,$(patsubst tests/platform/%.c,%,$(wildcard tests/platform/*.c)))
UNIT_BINS := $(UNIT:%=$(B)/unit/%) $(PLATFORM:%=$(B)/platform/%)

.PHONY: all unit clean help kernel kernels deps tools warnings up down quickstart test test-bins e2e stress hardware check asan tsan tidy cppcheck format fuzz-all \
	fuzz-replay replay-bins coverage bench bench-deps bench-bins install package layering headers
.SECONDARY:
all: $(PROGS:%=$(BIN)/%) $(TOOLS:%=$(B)/tools/%) bench-bins $(B)/testinit.cpio $(B)/initramfs.cpio

$(O)/%.o: %.c | tools
	@mkdir -p $(@D)
	$(if $(Q),@echo "  CC    $<")
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -fPIE -c -o $@ $<
define archive_rule
$(O)/$(1).a: $$(call ARCH_OBJS,$(1))
	$(Q)rm -f $$@; $(AR) rcs $$@ $$^
endef
$(foreach d,$(DIRS) testlib,$(eval $(call archive_rule,$(d))))

link = $(if $(Q),@echo "  LD    $@";) mkdir -p $(@D); $(CC) $(LDFLAGS_ALL) $(2) -o $@ -Wl,--start-group $(1) -Wl,--end-group $(3) -lm
$(BIN)/mayfly-vmm: $(O)/vmm/main.o $(O)/vmm.a $(O)/lib.a
$(BIN)/mayfly-priv: $(O)/priv/main.o $(O)/priv.a $(O)/lib.a
$(BIN)/mayfly-image: $(O)/images/job/main.o $(O)/images.a $(O)/lib.a
$(BIN)/mayfly-net: $(O)/net/stack/main.o $(O)/net.a $(O)/lib.a
$(BIN)/mayfly-broker: $(O)/net/broker/main.o $(O)/net.a $(O)/lib.a
$(BIN)/mayfly-fs: $(O)/fs/main.o $(O)/fs.a $(O)/lib.a
$(BIN)/mayflyd: $(O)/api/start/main.o $(O)/api.a $(O)/images.a $(O)/lib.a
$(BIN)/mayfly: $(O)/cli/main.o $(O)/cli.a $(O)/images.a $(O)/lib.a
$(HOST_PROGS:%=$(BIN)/%):
	$(Q)$(call link,$^,$(if $(filter %-vmm,$@),$(NOPIE),-pie),$(LIBS_$(@F)))

# the guest's init: static against musl, so that it does not need the image's libc
MUSL_CC := musl-gcc
MUSL_FLAGS := -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu -static -Os -fno-pie -no-pie
MUSL_OBJS = $(patsubst %.c,$(B)/musl/%.o,$(SRC_agent) $(AGENT_LIB))
AGENT_LIB := lib/base.c lib/err.c lib/buf.c lib/loop.c lib/log.c lib/fdpass.c
$(B)/musl/%.o: %.c | tools
	@mkdir -p $(@D)
	$(Q)$(MUSL_CC) $(CPPFLAGS) $(CFLAGS_BASE) $(MUSL_FLAGS) -c -o $@ $<
$(BIN)/mayfly-agent: $(MUSL_OBJS)
$(BIN)/mayfly-machine-init: $(patsubst %.c,$(B)/musl/%.o,$(wildcard guest/appliance/*.c) $(AGENT_LIB) lib/machine_chan.c)
$(BIN)/mayfly-agent $(BIN)/mayfly-machine-init:
	@mkdir -p $(@D); $(if $(Q),echo "  LD    $@")
	$(Q)$(MUSL_CC) -static -no-pie -s -Wl,-z,relro,-z,now -o $@ $^

# what a guest starts from: the agent, or a test's init, as PID 1
CPIO_BASE := dir:/dev dir:/proc dir:/sys nod:/dev/console=c,5,1,600 nod:/dev/null=c,1,3,666 nod:/dev/kmsg=c,1,11,600
$(B)/mkcpio: $(O)/guest/initramfs/mkcpio.o $(O)/lib.a
	$(Q)$(call link,$^,-pie,)
$(B)/testinit: $(patsubst %.c,$(B)/musl/%.o,$(wildcard guest/initramfs/testinit*.c) lib/base.c)
	$(Q)$(MUSL_CC) -static -no-pie -s -o $@ $^
$(B)/testinit.cpio: $(B)/testinit $(B)/mkcpio
	$(Q)$(B)/mkcpio $@ $(CPIO_BASE) file:/init=$<
$(B)/vmguest: $(B)/musl/tests/vm/guest.o $(B)/musl/lib/base.o
	$(Q)$(MUSL_CC) -static -no-pie -s -pthread -o $@ $^
$(B)/vmguest.cpio: $(B)/vmguest $(B)/mkcpio
	$(Q)$(B)/mkcpio $@ $(CPIO_BASE) file:/init=$<
$(BIN)/vm-drive: $(call objs,$(filter-out %/guest.c,$(wildcard tests/vm/*.c))) $(O)/lib.a
	$(Q)$(call link,$^,,-lcrypto -lseccomp)
$(B)/initramfs.cpio: $(BIN)/mayfly-agent $(B)/mkcpio
	$(Q)$(B)/mkcpio $@ $(CPIO_BASE) file:/init=$<

# programs that tests run beside the real ones
LIBS_tool-ext4list := -lext2fs -lcom_err -lcrypto
LIBS_tool-deny := -lseccomp
$(B)/tools/%: $(O)/tests/tools/%.o $(O)/agent.a $(O)/lib.a
	$(Q)$(call link,$^,,$(LIBS_tool-$*))
# guestflood runs in guests
$(B)/tools/guestflood: $(B)/musl/tests/tools/guestflood.o
	$(Q)mkdir -p $(@D); $(MUSL_CC) -static -no-pie -s -o $@ $^

# unit tests: one program a file, linked with the real objects
$(B)/unit/%: $(O)/tests/unit/%.o $(ALL_ARCHIVES)
	$(Q)$(call link,$^,,$(LIBS_TEST))
$(B)/platform/%: $(O)/tests/platform/%.o $(ALL_ARCHIVES)
	$(Q)$(call link,$^,,$(LIBS_TEST))
unit: $(UNIT_BINS)
	$(Q)BUILD=$(B) tests/run unit

# fuzz targets: libFuzzer under clang (make fuzz-NAME SECS=60); gcc's sanitizers replay what was ever found
FUZZ := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*.c))
SECS ?= 60
$(B)/fuzz/%: $(O)/tests/fuzz/%.o $(ALL_ARCHIVES)
	$(Q)$(call link,$^,-fsanitize=fuzzer,$(LIBS_TEST))
$(B)/replay/%: $(O)/tests/fuzz/%.o $(O)/tests/fuzz/lib/replay.o $(ALL_ARCHIVES)
	$(Q)$(call link,$^,,$(LIBS_TEST))
fuzz-bin-%:
	$(Q)$(MAKE) -s SAN=fuzz CC=$(CLANG) build/fuzz/fuzz/$*
$(FUZZ:%=fuzz-%): fuzz-%: fuzz-bin-%
	$(Q)mkdir -p build/fuzz/new/$* tests/fuzz/regression/$*; build/fuzz/fuzz/$* -max_total_time=$(SECS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 \
		-artifact_prefix=$(CURDIR)/tests/fuzz/regression/$*/ build/fuzz/new/$* $(wildcard tests/fuzz/corpus/$* tests/fuzz/regression/$*)
fuzz-all: $(FUZZ:%=fuzz-%)
replay-bins:
	$(Q)$(MAKE) -s SAN=asan $(FUZZ:%=build/asan/replay/%) build/asan/bin/mayfly-vmm
fuzz-replay: replay-bins ; $(Q)tests/run fuzz

# everything that must hold; the kernels are built side by side with what does not need them
test:
	$(Q).ci/deps run appliance test
	$(Q)$(MAKE) -s -j2 kernels test-bins
	$(Q)tests/run
# what end-to-end tests ask make for: built before them, because two sides may ask at once
E2E_BINS := $(BIN)/vm-drive $(B)/vmguest.cpio $(PLATFORM:%=$(B)/platform/%) $(patsubst %,$(B)/unit/%,agent_exec agent_terminal agent_isolated agent_freeze agent_soak api_execd)
test-bins: all $(UNIT_BINS) $(E2E_BINS) replay-bins
e2e: all kernels $(E2E_BINS)
	$(Q)tests/run e2e
stress: all kernels $(E2E_BINS)
	$(Q)tests/run stress
# what only a machine with KVM can answer: build/hardware/report.html
hardware: all kernels $(E2E_BINS)
	$(Q)tests/hardware
asan tsan:
	$(Q)$(MAKE) -s SAN=$@ unit
coverage:
	$(Q)$(MAKE) -s SAN=cov unit && gcov -n -r $$(find build/cov -name '*.gcda') 2>/dev/null | tests/check/coverage

# what a commit must pass, in under 3 minutes
check: all
	$(Q)tests/check/format && CC=$(CC) tests/check/headers && tests/check/layering && tests/check/scripts && tests/check/prose
	$(Q)$(MAKE) -s unit asan && $(MAKE) -s warnings cppcheck tidy FILES="$$(tests/check/changed | grep '\.c$$' | tr '\n' ' ')"
layering headers:
	$(Q)CC=$(CC) tests/check/$@
FILES ?= $(shell git ls-files '*.c')
format:
	$(Q)git ls-files -z -co --exclude-standard -- '*.c' '*.h' | xargs -0 clang-format -i
cppcheck:
	$(Q)[ -z "$(strip $(FILES))" ] || tests/check/cppcheck $(FILES)
# the compiler's warnings as errors, in these files
warnings:
	$(Q)for f in $(FILES); do $(CC) $(CPPFLAGS:-M%=) $(CFLAGS_ALL) -Werror -fPIE -c -o /dev/null $$f || exit; done
tidy:
	$(Q)[ -z "$(strip $(FILES))" ] || printf '%s\n' $(FILES) | xargs -P 2 -n 4 tests/check/tidy

# cold starts, restores and what follows, compared with other monitors in one run (docs/benchmarks.md); on this host, or in an appliance where it has no KVM
WRAP := -Wl,--wrap=arch_vm_load
BENCH_BINS := $(B)/bench/bench-floor $(B)/bench/bench-krun $(B)/bench/delay/mayfly-vmm
$(B)/bench/bench-floor: $(O)/bench/floor.o $(O)/vmm.a $(O)/lib.a
$(B)/bench/bench-krun: $(O)/bench/krun.o
$(B)/bench/delay/mayfly-vmm: $(O)/vmm/main.o $(O)/bench/delay.o $(O)/vmm.a $(O)/lib.a
$(BENCH_BINS):
	$(Q)$(call link,$^,$(if $(findstring delay,$@),$(WRAP)),$(LIBS_mayfly-vmm))
$(B)/bench/forkexec $(B)/bench/netload $(B)/bench/wayload: $(B)/bench/%: $(B)/musl/bench/%.o
	$(Q)mkdir -p $(@D); $(MUSL_CC) -static -no-pie -s -o $@ $^
# the daemon alone, with monitors that do nothing (bench/daemon-scale)
$(B)/bench/scale-monitor: $(B)/musl/bench/scale/monitor.o
	$(Q)mkdir -p $(@D); $(MUSL_CC) -static -no-pie -s -o $@ $^
$(B)/bench/scale-load: $(O)/bench/scale/load.o
	$(Q)$(call link,$^,,-pthread)
bench-bins: $(BENCH_BINS) $(B)/bench/forkexec $(B)/bench/netload $(B)/bench/wayload $(B)/bench/scale-monitor $(B)/bench/scale-load
bench: all kernels
	$(Q)bench/all $(BENCH)
bench-deps: ; $(Q)bench/deps $(B)/bench

# the kernels that this host needs, or both, from the cache if they were ever built (guest/kernel/build says how)
# APPLIANCE=6.1: also the appliance's kernel from Linux 6.1, an older host kernel to test on (E2E_KERNEL=appliance-6.1 make e2e T=name)
kernel: ; $(Q)guest/kernel/build guest $$(guest/here || echo appliance) $(APPLIANCE:%=appliance-%)
kernels: ; $(Q)guest/kernel/build guest appliance
deps: ; $(Q).ci/deps $(SETS)
tools: ; $(Q)CC="$(CC)" .ci/$@ $(AR) $(MUSL_CC)
up: all kernel ; $(Q)guest/up
down: ; $(Q)guest/down
quickstart: ; +$(Q)MAKE="$(MAKE)" guest/quickstart

# install into PREFIX, or make packages of that: a tar file, and two .deb for this machine's release
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^.define MAYFLY_VERSION "\(.*\)"/\1/p' lib/version.h)
install: all kernel ; $(Q).ci/install "$(DESTDIR)" "$(PREFIX)"
package: all kernel ; $(Q).ci/install --package $(VERSION) && .ci/deb $(VERSION)

help: ; @sed 's/^	//' tests/check/help.txt
clean: ; rm -rf build

-include $(shell find build -name '*.d' -type f 2>/dev/null)
