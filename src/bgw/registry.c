/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  The shared-memory area "ratchet workers": one slot for each database that
 *	  has, or may have, a worker; and the launcher's own entry.
 *
 * Locking protocol. RATCHET_LOCK_WORKERS protects every field but the atomics.
 * It is held for a few instructions, never across anything that waits, throws or
 * allocates. A slot belongs to a database from ratchet_slot_want until
 * ratchet_slot_free; its life is WANTED (by a backend that created the extension,
 * or by the launcher) -> STARTING (by the launcher, which registers a worker and
 * gives it the slot's number and generation) -> RUNNING (by the worker, if the
 * generation is still that one) -> WANTED or free (by the worker's exit
 * callback). So no database ever has two workers. A worker that never reports is
 * noticed by the launcher, which counts the generation up.
 *
 * The atomics are written without the lock, from commit callbacks that must be
 * cheap: procno is the worker's process number, by which its latch is set (that
 * memory is always valid, an outdated number is only a needless wake-up); due[]
 * is, for each duty, the time at which it is next due. A commit lowers it, and
 * sets the latch if it did. The worker takes it out (exchange with infinity)
 * *before* it performs the duty and puts back what the duty answered: what is
 * committed before the exchange is seen by the duty, what comes after it is kept.
 * A backend that finds a slot without the lock may see one that just changed
 * hands; then somebody looks once in vain.
 *
 * A crash restart zeroes all of this: the launcher finds the databases again,
 * and each worker the times in its tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "bgw/bgw.h"

#define NOBODY PG_UINT32_MAX
#define GAVE_WAY_US		(1 * USECS_PER_SEC) /* until a worker comes back that gave way */
#define LOOK_US			(2 * USECS_PER_SEC)
#define LONG_LIFE_US	(60 * USECS_PER_SEC)	/* a worker that lived so long starts anew */

RatchetRegistry *ratchet_registry = NULL;

static RatchetSlot *find_unlocked(Oid database);

Size
ratchet_registry_size(void)
{
	return add_size(offsetof(RatchetRegistry, slots),
					mul_size(ratchet_max_databases, sizeof(RatchetSlot)));
}

void
ratchet_registry_attach(void *area, bool found)
{
	ratchet_registry = area;
	if (found)
		return;
	memset(area, 0, ratchet_registry_size());
	ratchet_registry->nslots = ratchet_max_databases;
	pg_atomic_init_u32(&ratchet_registry->launcher_procno, NOBODY);
	pg_atomic_init_u32(&ratchet_registry->rescan, 0);
	pg_atomic_init_u32(&ratchet_registry->probe_all, 0);
	for (int i = 0; i < ratchet_registry->nslots; i++)
	{
		RatchetSlot *slot = &ratchet_registry->slots[i];

		pg_atomic_init_u32(&slot->procno, NOBODY);
		pg_atomic_init_u32(&slot->poked, 0);
		for (int duty = 0; duty < RATCHET_DUTY_COUNT; duty++)
			pg_atomic_init_u64(&slot->due[duty], (uint64) DT_NOEND);
	}
}

/* The extension has come into being: start a worker, or have it look again. */
void
ratchet_registry_want(Oid database)
{
	RatchetSlot *slot;

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	slot = ratchet_slot_want(database);
	if (slot != NULL)
	{
		slot->requested = true;
		slot->failures = 0;
		if (slot->state == RATCHET_SLOT_WANTED)
			slot->next_start = 0;
	}
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	if (slot == NULL)
		pg_atomic_write_u32(&ratchet_registry->probe_all, 1);
	else
		(void) ratchet_registry_poke(database);
	ratchet_registry_rescan();
}

/* Somebody is about to want the database for himself: its worker looks whether. */
void
ratchet_registry_look(Oid database)
{
	RatchetSlot *slot;

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	slot = ratchet_slot_find(database);
	if (slot != NULL)
		slot->look_until = ratchet_now() + LOOK_US;
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	if (slot != NULL)
		ratchet_latch_set(&slot->procno);
}

/* Something has changed that no due time says. False: no worker is known there. */
bool
ratchet_registry_poke(Oid database)
{
	RatchetSlot *slot = find_unlocked(database);

	if (slot == NULL)
		return false;
	pg_atomic_write_u32(&slot->poked, 1);
	ratchet_latch_set(&slot->procno);
	return slot->confirmed;
}

/* pg_database has changed: the launcher reads it again. */
void
ratchet_registry_rescan(void)
{
	pg_atomic_write_u32(&ratchet_registry->rescan, 1);
	ratchet_latch_set(&ratchet_registry->launcher_procno);
}

/* A commit has brought something that is due then. */
void
ratchet_registry_due(Oid database, RatchetDutyId duty, TimestampTz at)
{
	RatchetSlot *slot = find_unlocked(database);

	if (slot != NULL)
		ratchet_slot_due(slot, duty, at);
}

void
ratchet_slot_due(RatchetSlot *slot, RatchetDutyId duty, TimestampTz at)
{
	uint64		known = pg_atomic_read_u64(&slot->due[duty]);

	while (at < (TimestampTz) known)
		if (pg_atomic_compare_exchange_u64(&slot->due[duty], &known, (uint64) at))
		{
			ratchet_latch_set(&slot->procno);
			return;
		}
}

/* With the lock held. NULL: no slot. */
RatchetSlot *
ratchet_slot_find(Oid database)
{
	return find_unlocked(database);
}

/* With the lock held exclusively: the database's slot, a new one if need be. NULL: all are taken. */
RatchetSlot *
ratchet_slot_want(Oid database)
{
	RatchetSlot *slot = find_unlocked(database);

	for (int i = 0; slot == NULL && i < ratchet_registry->nslots; i++)
		if (ratchet_registry->slots[i].state == RATCHET_SLOT_FREE)
		{
			slot = &ratchet_registry->slots[i];
			slot->database = database;
			slot->state = RATCHET_SLOT_WANTED;
			slot->since = ratchet_now();
			slot->next_start = 0;
		}
	return slot;
}

/* With the lock held exclusively. The generation goes on: an old worker must not take it for its own. */
void
ratchet_slot_free(RatchetSlot *slot)
{
	slot->database = InvalidOid;
	slot->state = RATCHET_SLOT_FREE;
	slot->generation++;
	slot->pid = 0;
	slot->confirmed = slot->requested = slot->leave = false;
	slot->look_until = slot->next_start = slot->last_pass = slot->next_pass = 0;
	slot->failures = 0;
	slot->passes = 0;
	memset(slot->rows, 0, sizeof(slot->rows));
	slot->last_error_at = 0;
	slot->last_error[0] = '\0';
	pg_atomic_write_u32(&slot->procno, NOBODY);
	pg_atomic_write_u32(&slot->poked, 0);
	for (int duty = 0; duty < RATCHET_DUTY_COUNT; duty++)
		pg_atomic_write_u64(&slot->due[duty], (uint64) DT_NOEND);
}

/* With the lock held exclusively: the slot's worker is no more, or never came. */
void
ratchet_slot_end(RatchetSlot *slot, RatchetEnd reason, TimestampTz now)
{
	bool		requested = slot->requested;

	pg_atomic_write_u32(&slot->procno, NOBODY);
	if (reason == RATCHET_END_UNWANTED || (reason == RATCHET_END_ABSENT && !requested))
	{
		ratchet_slot_free(slot);
		return;
	}
	if (reason == RATCHET_END_FAILED)
	{
		slot->failures = slot->state == RATCHET_SLOT_RUNNING && now - slot->since > LONG_LIFE_US ?
			1 : slot->failures + 1;
		slot->next_start = now + ratchet_loop_backoff_ms(slot->failures) * 1000;
	}
	else
		slot->next_start = reason == RATCHET_END_GAVE_WAY ? now + GAVE_WAY_US : now;
	slot->state = RATCHET_SLOT_WANTED;
	slot->since = now;
	slot->pid = 0;
	slot->leave = false;
}

/*
 * By process number: the latches of all processes are always there. One's own
 * needs no setting: a step looks at everything before it waits.
 */
void
ratchet_latch_set(pg_atomic_uint32 *procno)
{
	uint32		number = pg_atomic_read_u32(procno);

	if (number != NOBODY && number != RATCHET_MY_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(number)->procLatch);
}

/*
 * With the lock held exclusively. It is read in databases of any encoding, and
 * cut wherever it is too long: only ASCII stays.
 */
void
ratchet_error_note(char *last_error, TimestampTz *at, const char *message)
{
	strlcpy(last_error, message, RATCHET_LAST_ERROR_MAX);
	for (char *c = last_error; *c != '\0'; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	*at = ratchet_now();
}

static RatchetSlot *
find_unlocked(Oid database)
{
	static int	hint = 0;		/* where this backend last found its own */

	if (hint < ratchet_registry->nslots && ratchet_registry->slots[hint].database == database)
		return &ratchet_registry->slots[hint];
	for (int i = 0; i < ratchet_registry->nslots; i++)
		if (ratchet_registry->slots[i].database == database)
		{
			hint = i;
			return &ratchet_registry->slots[i];
		}
	return NULL;
}
