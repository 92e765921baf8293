/*-------------------------------------------------------------------------
 *
 * ratchet.c
 *	  The module: what happens when the library is loaded.
 *
 * Nothing here depends on being preloaded. Without shared_preload_libraries the
 * library is loaded by the first call of one of its functions; with it there is
 * shared memory and there are workers, but not under pg_upgrade.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "bgw/bgw.h"

RATCHET_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	ratchet_guc_define();
	ratchet_xact_init();
	if (process_shared_preload_libraries_in_progress && !IsBinaryUpgrade)
	{
		ratchet_shmem_init();
		ratchet_wakeup_init();
		ratchet_notice_init();
		ratchet_launcher_register();
	}
}
