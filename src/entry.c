/*-------------------------------------------------------------------------
 *
 * entry.c
 *	  What every SQL function does first, and how it steps into the owner's
 *	  shoes.
 *
 * All functions are SECURITY INVOKER: the caller is whoever GetUserId() says, so
 * that a SECURITY DEFINER wrapper counts as its owner. Rights are checked before
 * anything is looked up. Heap access from C checks neither privileges nor
 * read-only mode nor recovery; therefore it is all checked here.
 *
 * SQL then runs as the owner of the tables, with a pinned search_path, and
 * SECURITY_LOCAL_USERID_CHANGE keeps it from changing roles. An error puts the
 * identity back when the (sub)transaction aborts; no PG_TRY is needed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "ratchet.h"

/* The one clock: sampled once per call and passed down. */
TimestampTz
ratchet_now(void)
{
	return GetCurrentTimestamp();
}

/* For a function that needs this access to at least one queue, and writes. */
void
ratchet_enter(RatchetAccess access)
{
	if (!ratchet_access_any(GetUserId(), access))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: role \"%s\" has no \"%s\" access to any queue",
						GetUserNameFromId(GetUserId(), false), ratchet_access_name(access)),
				 errhint("A superuser can grant it with ratchet.grant_access().")));
	ratchet_require_writable();
}

void
ratchet_require_writable(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot change jobs during recovery"),
				 errhint("This server is a standby; connect to the primary.")));
	if (XactReadOnly)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot change jobs in a read-only transaction")));
	if (IsInParallelMode())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot change jobs during a parallel operation")));
}

void
ratchet_become_owner(RatchetIdentity *before)
{
	GetUserIdAndSecContext(&before->user, &before->sec_context);
	SetUserIdAndSecContext(ratchet_catalog()->owner,
						   before->sec_context | SECURITY_LOCAL_USERID_CHANGE);
	before->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

void
ratchet_become_caller(const RatchetIdentity *before)
{
	AtEOXact_GUC(false, before->guc_level);
	SetUserIdAndSecContext(before->user, before->sec_context);
}
