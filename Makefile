# ratchet: a job queue inside PostgreSQL. "make help" lists the targets.

EXTENSION  = ratchet
MODULE_big = ratchet

# Where this Makefile is: "./" or, in a VPATH build, the checkout. The wildcards are expanded before PGXS sets srcdir.
top := $(dir $(lastword $(MAKEFILE_LIST)))
sources = $(patsubst $(top)%,%,$(sort $(wildcard $(addprefix $(top),$(1)))))

OBJS = $(patsubst %.c,%.o,$(call sources,src/*.c src/*/*.c))
DATA = $(call sources,sql/ratchet--*.sql)
PG_CPPFLAGS = -I$(srcdir)/src

# Test lists are explicit and in the order they run; "make lint" fails on a file that is missing here.
# Both runners create the extension in their database before the first case.
REGRESS = states guard triggers node access bad_input enqueue claim finish operate queue maintenance
REGRESS_OPTS = --load-extension=ratchet
ISOLATION = claim-claim claim-batch claim-rollback claim-repeatable-read claim-serializable complete-and-claim \
	complete-cancel complete-heartbeat complete-many-order complete-recover complete-savepoint complete-timeout \
	strict-complete heartbeat-heartbeat fail-retry pause-claim pause-queue-claim cancel-claim reschedule-claim \
	expire-claim lock-claim foreign-trigger reindex-claim enqueue-rollback enqueue-own-id enqueue-idempotency-key \
	enqueue-idempotency-key-snapshot enqueue-business-key enqueue-many-order business-key-finish retry-many-business-key \
	prepare-transaction recover-recover archive-at-once archive-retry forget-retry
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --load-extension=ratchet
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
server_headers := $(wildcard $(shell $(PG_CONFIG) --includedir-server 2>/dev/null)/postgres.h)

all:

ifneq ($(and $(wildcard $(PGXS)),$(server_headers)),)

include $(PGXS)
PROVE_FLAGS += -I test/lib

# PGXS tracks no dependencies here; the headers are few, so every object depends on all of them.
$(OBJS) $(OBJS:.o=.bc): $(wildcard $(srcdir)/src/*.h $(srcdir)/src/*/*.h)

ifneq ($(VPATH),)
$(shell mkdir -p $(sort $(dir $(OBJS))))
endif

else

# Without the server's build files "make demo" and "make test" still work: they install what they need.
all install installcheck uninstall clean:
	@echo 'ratchet needs the build files of a PostgreSQL server (15 or later), and "$(PG_CONFIG)" finds none.' >&2
	@echo 'On Debian:  apt-get install gcc make postgresql-server-dev-15' >&2
	@echo 'Elsewhere:  make PG_CONFIG=/path/to/bin/pg_config' >&2
	@false

endif

demo:
	@$(top)test/demo

test:
	@$(top)test/run $(SUITES)

lint:
	@$(top)test/run lint

help:
	@echo 'make                build the extension (PG_CONFIG=... chooses the server)'
	@echo 'make install        install it into that server (DESTDIR=... elsewhere)'
	@echo 'make installcheck   run its tests against an installed, running server (PGHOST, PGPORT, ...)'
	@echo 'make demo           show it at work in a private server; installs what is missing (Debian)'
	@echo 'make test           run every suite in private servers; SUITES="regress tap" or "regress:CASE" runs some'
	@echo 'make lint           check the rules of the house only'

# For test/: "make print-REGRESS" says what a variable holds.
print-%:
	@echo '$($*)'

.PHONY: all install installcheck uninstall clean demo test lint help
