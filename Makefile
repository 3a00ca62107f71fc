# SPDX-License-Identifier: Apache-2.0
# One non-recursive Makefile. Every folder is one trust domain; its main.c makes the program, the rest an archive that tests link too.
CC ?= gcc
CLANG ?= clang
AR ?= ar
SAN ?=
V ?=
Q := $(if $(V),,@)
B := build$(if $(SAN),/$(SAN))
O := $(B)/obj
BIN := $(B)/bin
T ?=

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wundef -Wpointer-arith -Wcast-qual \
	-Wwrite-strings -Wvla -Wimplicit-fallthrough -Wswitch-enum -Wno-unused-parameter -Werror
CPPFLAGS += -D_GNU_SOURCE -I. -MMD -MP
CFLAGS_BASE := -std=gnu11 -g -O2 $(WARN) -fno-strict-aliasing
SANFLAGS_asan := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1
SANFLAGS_tsan := -fsanitize=thread -O1
SANFLAGS_cov := --coverage -O0
HARDEN := $(if $(SAN),,-D_FORTIFY_SOURCE=2 -fstack-protector-strong)
CFLAGS_ALL = $(CFLAGS_BASE) $(HARDEN) $(SANFLAGS_$(SAN)) $(CFLAGS)
LDFLAGS_ALL = $(SANFLAGS_$(SAN)) -Wl,-z,relro,-z,now -Wl,--as-needed -pthread $(LDFLAGS)

# name of the archive -> its sources; main.c stays out
DIRS := lib vmm agent images priv api
SRC_lib := $(wildcard lib/*.c)
SRC_vmm := $(wildcard vmm/*.c vmm/x86_64/*.c)
SRC_agent := $(wildcard agent/*.c)
SRC_images := $(wildcard images/*.c)
SRC_priv := $(wildcard priv/*.c)
SRC_api := $(wildcard api/*.c)
SRC_cli := $(wildcard api/cli/*.c)
SRC_testlib := $(wildcard tests/unit/lib/*.c)
objs = $(patsubst %.c,$(O)/%.o,$(1))
ARCH_OBJS = $(call objs,$(filter-out %/main.c,$(SRC_$(1))))
ALL_ARCHIVES := $(foreach d,$(DIRS) cli testlib,$(O)/$(d).a)

# program -> the archives it may link (the layering rule of docs/ARCHITECTURE.md), its libraries
LIBS_mayfly-vmm := -luring -lseccomp -lfdt -lcrypto
LIBS_mayfly-priv := -lseccomp
LIBS_mayfly-image := -lseccomp -larchive -lcurl -lext2fs -lcom_err -lcjson -lcrypto -lzstd -lz
LIBS_mayflyd := -lseccomp -lmicrohttpd -lcjson -lsqlite3 -larchive -lcurl -lext2fs -lcom_err -lcrypto -lzstd -lz
LIBS_mayfly := -lcjson -lcurl -lcrypto -larchive -lext2fs -lcom_err -lzstd -lz -lseccomp
LIBS_TEST := -luring -lseccomp -lfdt -lmicrohttpd -lcjson -lsqlite3 -larchive -lcurl -lext2fs -lcom_err -lcrypto -lzstd -lz

PROGS := $(if $(wildcard vmm/main.c),mayfly-vmm) $(if $(wildcard priv/main.c),mayfly-priv) \
	$(if $(wildcard images/main.c),mayfly-image) $(if $(wildcard api/main.c),mayflyd) \
	$(if $(wildcard api/cli/main.c),mayfly) mayfly-machine-init $(if $(wildcard agent/main.c),mayfly-agent)
UNIT := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/*.c))
# what must be tried on a real kernel, as root (else skipped): not under a sanitizer, whose runtime wants what a jail takes away
PLATFORM := $(if $(SAN),,$(patsubst tests/platform/%.c,%,$(wildcard tests/platform/*.c)))
UNIT_BINS := $(UNIT:%=$(B)/unit/%) $(PLATFORM:%=$(B)/platform/%)

.PHONY: all unit clean help kernel
.SECONDARY:
all: $(PROGS:%=$(BIN)/%) $(B)/testinit.cpio $(if $(wildcard agent/main.c),$(B)/initramfs.cpio)

$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  CC    $<")
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -fPIE -c -o $@ $<
define archive_rule
$(O)/$(1).a: $$(call ARCH_OBJS,$(1))
	$(Q)rm -f $$@; $(AR) rcs $$@ $$^
endef
$(foreach d,$(DIRS) cli testlib,$(eval $(call archive_rule,$(d))))

link = $(if $(Q),@echo "  LD    $@";) mkdir -p $(@D); $(CC) $(LDFLAGS_ALL) $(2) -o $@ -Wl,--start-group $(1) -Wl,--end-group $(3)
$(BIN)/mayfly-vmm: $(O)/vmm/main.o $(O)/vmm.a $(O)/lib.a
	$(Q)$(call link,$^,$(NOPIE),$(LIBS_mayfly-vmm))
$(BIN)/mayfly-priv: $(O)/priv/main.o $(O)/priv.a $(O)/lib.a
	$(Q)$(call link,$^,-pie,$(LIBS_mayfly-priv))
$(BIN)/mayfly-image: $(O)/images/main.o $(O)/images.a $(O)/lib.a
	$(Q)$(call link,$^,-pie,$(LIBS_mayfly-image))
$(BIN)/mayflyd: $(O)/api/main.o $(O)/api.a $(O)/images.a $(O)/lib.a
	$(Q)$(call link,$^,-pie,$(LIBS_mayflyd))
$(BIN)/mayfly: $(O)/api/cli/main.o $(O)/cli.a $(O)/images.a $(O)/lib.a
	$(Q)$(call link,$^,-pie,$(LIBS_mayfly))

# the guest's init: static against musl, so that it owes nothing to the image's libc
MUSL_CC := musl-gcc
MUSL_FLAGS := -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu -static -Os -fno-pie -no-pie
MUSL_OBJS = $(patsubst %.c,$(B)/musl/%.o,$(SRC_agent) $(AGENT_LIB))
AGENT_LIB := lib/base.c lib/err.c lib/buf.c lib/loop.c lib/log.c lib/fdpass.c
$(B)/musl/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(MUSL_CC) $(CPPFLAGS) $(CFLAGS_BASE) $(MUSL_FLAGS) -c -o $@ $<
$(BIN)/mayfly-agent: $(MUSL_OBJS)
$(BIN)/mayfly-machine-init: $(patsubst %.c,$(B)/musl/%.o,$(wildcard guest/appliance/*.c) $(AGENT_LIB) lib/machine_chan.c)
$(BIN)/mayfly-agent $(BIN)/mayfly-machine-init:
	@mkdir -p $(@D); $(if $(Q),echo "  LD    $@")
	$(Q)$(MUSL_CC) -static -no-pie -s -Wl,-z,relro,-z,now -o $@ $^

# what a guest starts from: the agent, or a test's init, as PID 1
CPIO_BASE := dir:/dev dir:/proc dir:/sys nod:/dev/console=c,5,1,600 nod:/dev/null=c,1,3,666
$(B)/mkcpio: $(O)/guest/initramfs/mkcpio.o $(O)/lib.a
	$(Q)$(call link,$^,-pie,)
$(B)/testinit: $(B)/musl/guest/initramfs/testinit.o $(B)/musl/lib/base.o
	$(Q)$(MUSL_CC) -static -no-pie -s -o $@ $^
$(B)/testinit.cpio: $(B)/testinit $(B)/mkcpio
	$(Q)$(B)/mkcpio $@ $(CPIO_BASE) file:/init=$<
$(B)/initramfs.cpio: $(BIN)/mayfly-agent $(B)/mkcpio
	$(Q)$(B)/mkcpio $@ $(CPIO_BASE) file:/init=$<

# unit tests: one program a file, linked with the real objects
$(B)/unit/%: $(O)/tests/unit/%.o $(ALL_ARCHIVES)
	$(Q)$(call link,$^,,$(LIBS_TEST))
$(B)/platform/%: $(O)/tests/platform/%.o $(ALL_ARCHIVES)
	$(Q)$(call link,$^,,$(LIBS_TEST))
unit: $(UNIT_BINS)
	$(Q)fail=0; n=0; for t in $(filter $(B)/unit/$(or $(T),%) $(B)/platform/$(or $(T),%),$(UNIT_BINS)); do n=$$((n+1)); \
		timeout 60 $$t > $$t.log 2>&1; rc=$$?; case $$rc in 0) echo "  ok    $${t##*/}";; 77) echo "  skip  $${t##*/}: $$(tail -1 $$t.log)";; \
		*) echo "  FAIL  $${t##*/} ($$rc)"; tail -30 $$t.log; fail=1;; esac; done; exit $$fail

# both kernels, from the cache if they were ever built (guest/kernel/build says how)
kernel:
	$(Q)guest/kernel/build guest appliance

clean:
	rm -rf build

-include $(shell find build -name '*.d' 2>/dev/null)
