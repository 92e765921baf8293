/*-------------------------------------------------------------------------
 *
 * changes.c
 *	  What the present transaction does that others wait for, and telling them
 *	  when it ends.
 *
 * Every written row is noted here (ratchet_wakeup_note_row), for our own writes
 * once the row is in place, for all others by the guard's trigger. The notes
 * have a fixed size, so that there is nothing to allocate and nothing to fail:
 * jobs are counted by queue and kind, finished ones kept as a set of hashes, and
 * what does not fit wakes everybody.
 *
 * COMMIT tells what is ready, what is due later, and what is finished. ROLLBACK
 * tells of one thing only: the ready jobs that the transaction had in its hands
 * are free again, and waiters have looked past them meanwhile. Rolled-back
 * savepoints are not tracked; once there was one, a commit tells of both.
 * PREPARE forgets everything, and the end of a prepared transaction wakes all
 * waiters of the database.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"

#include "ratchet.h"

#define CHANGES_MAX		32		/* (queue, kind) pairs noted per transaction */

/* What the present transaction did to the jobs of one kind in one queue. */
typedef struct Change
{
	uint32		queue;
	uint32		kind;
	int			ready;			/* made ready, due already */
	int			later;			/* made ready, due later */
	TimestampTz due_at;			/* the nearest of those */
	int			held;			/* were ready; free again if we roll back */
} Change;

/* Of the present transaction. */
static struct
{
	bool		any;			/* else all below is zero */
	int			nchanges;
	bool		everything;		/* too many changes to tell */
	bool		settings;		/* ratchet.queue was changed */
	bool		savepoint_lost; /* something noted may be undone again */
	bool		finished;
	Change		change[CHANGES_MAX];
	uint32		finished_bits[RATCHET_FINISHED_BITS / 32];
}			noted;

static ProcessUtility_hook_type previous_utility_hook = NULL;

static void at_transaction_event(XactEvent event, void *arg);
static void at_subtransaction_event(SubXactEvent event, SubTransactionId mine,
									SubTransactionId parent, void *arg);
static void utility(PlannedStmt *pstmt, const char *query, bool readOnlyTree,
					ProcessUtilityContext context, ParamListInfo params,
					QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion);
static void publish(bool committed);
static Change *change_of(const RatchetRow *row);

/* Once, from _PG_init under shared_preload_libraries; every backend inherits it. */
void
ratchet_wakeup_init(void)
{
	RegisterXactCallback(at_transaction_event, NULL);
	RegisterSubXactCallback(at_subtransaction_event, NULL);
	previous_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility;
}

/* A row has been written, or is about to be: remember what it means to waiters. */
void
ratchet_wakeup_note_row(const RatchetRow *old, const RatchetRow *fresh, TimestampTz now)
{
	bool		was_ready = old != NULL && !old->isnull[RC_READY_AT];
	bool		is_ready = !fresh->isnull[RC_READY_AT];
	Change	   *change;

	if (!ratchet_shmem_available())
		return;
	if (ratchet_state_finished(ratchet_row_state(fresh)) &&
		(old == NULL || !ratchet_state_finished(ratchet_row_state(old))))
	{
		uint32		bit = hash_bytes(RC_UUID(fresh, RC_ID)->data, UUID_LEN) % RATCHET_FINISHED_BITS;

		noted.any = noted.finished = true;
		noted.finished_bits[bit / 32] |= (uint32) 1 << (bit % 32);
	}
	if ((!was_ready && !is_ready) || (change = change_of(fresh)) == NULL)
		return;
	if (was_ready)
		change->held++;
	if (!is_ready)
		return;
	if (RC_TIMESTAMP(fresh, RC_READY_AT) <= now)
		change->ready++;
	else
	{
		change->due_at = change->later == 0 ? RC_TIMESTAMP(fresh, RC_READY_AT) :
			Min(change->due_at, RC_TIMESTAMP(fresh, RC_READY_AT));
		change->later++;
	}
}

/* Settings of queues have changed: what was held back may be ready. */
void
ratchet_wakeup_note_settings(void)
{
	if (ratchet_shmem_available())
		noted.any = noted.settings = true;
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	if (!noted.any)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			publish(true);
			break;
		case XACT_EVENT_ABORT:
			publish(false);
			break;
		case XACT_EVENT_PREPARE:
			break;
		default:
			return;
	}
	memset(&noted, 0, sizeof(noted));
}

static void
at_subtransaction_event(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB && noted.any)
		noted.savepoint_lost = true;
}

static void
utility(PlannedStmt *pstmt, const char *query, bool readOnlyTree, ProcessUtilityContext context,
		ParamListInfo params, QueryEnvironment *environment, DestReceiver *dest,
		QueryCompletion *completion)
{
	/* The statement may be gone when it has run. */
	bool		ends_prepared = IsA(pstmt->utilityStmt, TransactionStmt) &&
		(((TransactionStmt *) pstmt->utilityStmt)->kind == TRANS_STMT_COMMIT_PREPARED ||
		 ((TransactionStmt *) pstmt->utilityStmt)->kind == TRANS_STMT_ROLLBACK_PREPARED);

	if (previous_utility_hook != NULL)
		previous_utility_hook(pstmt, query, readOnlyTree, context, params, environment, dest, completion);
	else
		standard_ProcessUtility(pstmt, query, readOnlyTree, context, params, environment, dest, completion);

	if (ends_prepared && ratchet_shmem_available())
	{
		/* It may have changed settings, too. */
		ratchet_wakeup_settings_changed();
		if (ratchet_wakeup_begin(true, true))
		{
			ratchet_wakeup_everybody();
			ratchet_wakeup_end();
		}
	}
}

/*
 * The transaction is over and its rows are visible, or gone. Most often nobody
 * has to be told: the commit of a claim brings no work, and few await a job.
 */
static void
publish(bool committed)
{
	TimestampTz now = ratchet_now();
	bool		everybody = noted.everything || (committed && noted.settings);
	bool		finished = committed && noted.finished;
	bool		work = everybody;

	for (int i = 0; i < noted.nchanges; i++)
	{
		Change	   *change = &noted.change[i];

		if (!committed)
			change->ready = change->later = 0;
		if (committed && !noted.savepoint_lost)
			change->held = 0;
		if (change->later > 0 && change->due_at <= now)
		{
			change->ready += change->later;
			change->later = 0;
		}
		change->ready += change->held;
		work |= (change->ready > 0 || change->later > 0) && ratchet_wakeup_wanted(change->queue);
	}
	if (committed && noted.settings)
		ratchet_wakeup_settings_changed();
	if (!ratchet_wakeup_begin(work, finished || everybody))
		return;
	if (everybody)
		ratchet_wakeup_everybody();
	for (int i = 0; i < noted.nchanges; i++)
	{
		const Change *change = &noted.change[i];

		if (change->ready > 0)
			ratchet_wakeup_ready(change->queue, change->kind, change->ready);
		if (change->later > 0)
			ratchet_wakeup_later(change->queue, change->kind, change->due_at);
	}
	if (finished)
		ratchet_wakeup_finished(noted.finished_bits);
	ratchet_wakeup_end();
}

static Change *
change_of(const RatchetRow *row)
{
	uint32		queue = ratchet_wakeup_hash(row->value[RC_QUEUE]);
	uint32		kind = ratchet_wakeup_hash(row->value[RC_KIND]);

	noted.any = true;
	for (int i = 0; i < noted.nchanges; i++)
		if (noted.change[i].queue == queue && noted.change[i].kind == kind)
			return &noted.change[i];
	if (noted.nchanges == CHANGES_MAX)
	{
		noted.everything = true;
		return NULL;
	}
	noted.change[noted.nchanges].queue = queue;
	noted.change[noted.nchanges].kind = kind;
	return &noted.change[noted.nchanges++];
}
