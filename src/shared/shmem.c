/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: who gets some, and the locks that protect it.
 *
 * Correctness never depends on it. It exists only when the library is preloaded
 * (shared_preload_libraries), a crash restart zeroes it, and every area has a
 * fixed size from a setting: what does not fit degrades to polling. Each area is
 * laid out and explained in its own file; this one reserves and initialises
 * them in a fixed order.
 *
 * Locking: one LWLock per area (RatchetLock), all of the tranche "ratchet". No
 * code holds two of them at once, and none is held across anything that can
 * wait, throw or run SQL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "bgw/bgw.h"

typedef struct Area
{
	const char *name;
	Size		(*size) (void);
	void		(*attach) (void *area, bool found); /* initialises unless found */
} Area;

static const Area areas[] = {
	{"ratchet waiters", ratchet_wakeup_size, ratchet_wakeup_attach},
	{"ratchet workers", ratchet_registry_size, ratchet_registry_attach},
	{NULL, NULL, NULL}
};

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;
static LWLockPadded *locks = NULL;	/* NULL: not preloaded */

static void request(void);
static void startup(void);

/* From _PG_init, while shared_preload_libraries is processed. */
void
ratchet_shmem_init(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}

bool
ratchet_shmem_available(void)
{
	return locks != NULL;
}

LWLock *
ratchet_lock(RatchetLock lock)
{
	return &locks[lock].lock;
}

static void
request(void)
{
	if (previous_request_hook)
		previous_request_hook();
	for (const Area *area = areas; area->name != NULL; area++)
		RequestAddinShmemSpace(area->size());
	RequestNamedLWLockTranche("ratchet", RATCHET_LOCK_COUNT);
}

/* Also run again after a crash restart, when nothing of the old state is left. */
static void
startup(void)
{
	if (previous_startup_hook)
		previous_startup_hook();
	locks = NULL;
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (const Area *area = areas; area->name != NULL; area++)
	{
		bool		found;
		void	   *start = ShmemInitStruct(area->name, area->size(), &found);

		area->attach(start, found);
	}
	locks = GetNamedLWLockTranche("ratchet");
	LWLockRelease(AddinShmemInitLock);
}
