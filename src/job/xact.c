/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  What the present transaction has done to jobs, for its end.
 *
 * Only one thing so far: the jobs it has made running. A prepared transaction
 * would hide such a job from claim and from recovery for as long as it likes,
 * also over a crash, so PREPARE TRANSACTION is refused while one is left. What a
 * rolled-back savepoint claimed, or what was claimed and finished again, is not
 * tracked here: the rows are looked at when it matters.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "ratchet.h"

/* Of the present transaction: in TopTransactionContext, NULL between two. */
static pg_uuid_t *made_running = NULL;
static int	n_made_running = 0;
static int	max_made_running = 0;

static void at_transaction_event(XactEvent event, void *arg);
static void refuse_open_claims(void);

/* Once per backend, from _PG_init. */
void
ratchet_xact_init(void)
{
	RegisterXactCallback(at_transaction_event, NULL);
}

void
ratchet_xact_note_running(const pg_uuid_t *id)
{
	if (n_made_running == max_made_running)
	{
		max_made_running = max_made_running == 0 ? 64 : max_made_running * 2;
		if (made_running == NULL)
			made_running = MemoryContextAlloc(TopTransactionContext,
											  max_made_running * sizeof(pg_uuid_t));
		else
			made_running = repalloc_huge(made_running, max_made_running * sizeof(pg_uuid_t));
	}
	made_running[n_made_running++] = *id;
}

/* Must not throw but for PRE_PREPARE, where the transaction can still abort. */
static void
at_transaction_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			refuse_open_claims();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			made_running = NULL;	/* freed with its context */
			n_made_running = max_made_running = 0;
			break;
		default:
			break;
	}
}

static void
refuse_open_claims(void)
{
	RatchetStore *store;
	RatchetRow	row;

	if (n_made_running == 0)
		return;
	store = ratchet_job_open();
	for (int i = 0; i < n_made_running; i++)
	{
		TransactionId writer;
		bool		isnull;

		if (!ratchet_job_find(store, &made_running[i], &row) ||
			ratchet_row_state(&row) != RATCHET_RUNNING)
			continue;
		writer = DatumGetTransactionId(slot_getsysattr(store->found,
													   MinTransactionIdAttributeNumber, &isnull));
		if (TransactionIdIsCurrentTransactionId(writer))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has claimed a job"),
					 errdetail("Job %s would be neither claimable nor recoverable until the transaction is committed.",
							   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&made_running[i])))),
					 errhint("Commit a claim at once, and prepare the transaction that completes the job.")));
	}
	ratchet_store_close(store);
}
