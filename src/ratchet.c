/*-------------------------------------------------------------------------
 *
 * ratchet.c
 *	  The module: what happens when the library is loaded.
 *
 * Nothing here depends on being preloaded. Without shared_preload_libraries the
 * library is loaded by the first call of one of its functions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "ratchet.h"

RATCHET_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	ratchet_guc_define();
	ratchet_xact_init();
}
