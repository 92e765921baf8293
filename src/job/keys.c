/*-------------------------------------------------------------------------
 *
 * keys.c
 *	  Idempotency keys and business keys: who has a key, decided by a unique row
 *	  and never by looking first and inserting afterwards.
 *
 * An idempotency key's row is written once and stays for ever. A business key's
 * row is kept and updated in place: its owner changes, the row does not move
 * (HOT), and a key that is reused thousands of times leaves no dead index
 * entries behind. The row is written in the transaction that takes or releases
 * the key, so that an abort gives it back by itself. Whoever takes a key that
 * another open transaction is taking waits for it; a key whose release is not
 * committed yet counts as held.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "ratchet.h"

/* Attribute numbers of the two tables, fixed by the install script. */
#define KEY_QUEUE		1
#define KEY_KEY			2
#define KEY_OWNER		3		/* business_key.owner, idempotency_key.job_id */
#define KEY_KIND		4		/* idempotency_key.kind */

static void make_scan_keys(ScanKeyData keys[2], text *queue, text *key);
static void fill(TupleTableSlot *slot, text *queue, text *key, const pg_uuid_t *owner);
static bool has_owner(TupleTableSlot *slot, pg_uuid_t **owner);
static void check_first_job(RatchetStore *store, RatchetJobSpec *spec);

/*
 * Take a business key for a job: true if the job has it now (or had it before).
 * If another live job has it: RT002, or false if the caller wants no error.
 */
bool
ratchet_business_key_take(text *queue, text *key, const pg_uuid_t *job, bool raise)
{
	const RatchetCatalog *catalog = ratchet_catalog();
	RatchetStore *store = ratchet_store_open(catalog->business_key, true);
	ScanKeyData keys[2];
	bool		taken = false;

	make_scan_keys(keys, queue, key);
	for (;;)
	{
		pg_uuid_t  *owner;

		fill(store->fresh, queue, key, job);
		taken = ratchet_store_insert_or_find(store, catalog->business_key_pkey, keys, 2);
		if (taken)
			break;
		if (has_owner(store->found, &owner))
		{
			taken = memcmp(owner, job, UUID_LEN) == 0;
			if (!taken && raise)
				ereport(ERROR,
						(errcode(RATCHET_ERRCODE_KEY_TAKEN),
						 errmsg("business key \"%s\" of queue \"%s\" is taken",
								text_to_cstring(key), text_to_cstring(queue)),
						 errdetail("Job %s holds it until it finishes.",
								   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(owner)))),
						 errhint("Wait for that job, or cancel it with ratchet.cancel().")));
			break;
		}
		/* Free when we looked. Waits for another taker; if it won, look again. */
		if (ratchet_store_update(store, store->found, true) == TM_Ok)
		{
			taken = true;
			break;
		}
	}
	ratchet_store_close(store);
	return taken;
}

/* Release a business key if the job holds it. */
void
ratchet_business_key_release(text *queue, text *key, const pg_uuid_t *job)
{
	const RatchetCatalog *catalog = ratchet_catalog();
	RatchetStore *store = ratchet_store_open(catalog->business_key, false);
	ScanKeyData keys[2];
	pg_uuid_t  *owner;

	make_scan_keys(keys, queue, key);
	while (ratchet_store_find(store, catalog->business_key_pkey, keys, 2) &&
		   has_owner(store->found, &owner) && memcmp(owner, job, UUID_LEN) == 0)
	{
		fill(store->fresh, queue, key, NULL);
		if (ratchet_store_update(store, store->found, true) == TM_Ok)
			break;
	}
	ratchet_store_close(store);
}

/*
 * Take an idempotency key for spec->job_id. False if an earlier job has it: its
 * id is then in spec->job_id. Waits for a transaction that is enqueuing with the
 * same key (lock_timeout applies); if that one aborts the key is ours.
 */
bool
ratchet_idempotency_key_take(RatchetJobSpec *spec)
{
	const RatchetCatalog *catalog = ratchet_catalog();
	RatchetStore *store = ratchet_store_open(catalog->idempotency_key, true);
	ScanKeyData keys[2];
	bool		taken;

	make_scan_keys(keys, spec->queue, spec->idempotency_key);
	fill(store->fresh, spec->queue, spec->idempotency_key, &spec->job_id);
	store->fresh->tts_values[KEY_KIND - 1] = PointerGetDatum(spec->kind);
	store->fresh->tts_isnull[KEY_KIND - 1] = false;
	taken = ratchet_store_insert_or_find(store, catalog->idempotency_key_pkey, keys, 2);
	if (!taken)
		check_first_job(store, spec);
	ratchet_store_close(store);
	return taken;
}

/* The key has a job already: it must be of the same kind, and ours to see. */
static void
check_first_job(RatchetStore *store, RatchetJobSpec *spec)
{
	bool		isnull;
	text	   *kind = DatumGetTextPP(slot_getattr(store->found, KEY_KIND, &isnull));
	pg_uuid_t  *owner;

	/*
	 * A transaction with a fixed snapshot must not act on a job that it cannot
	 * see: its later statements would not find it.
	 */
	if (IsolationUsesXactSnapshot() &&
		!table_tuple_satisfies_snapshot(store->rel, store->found, GetTransactionSnapshot()))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent enqueue"),
				 errdetail("Another transaction has enqueued a job with idempotency key \"%s\" since this one's snapshot.",
						   text_to_cstring(spec->idempotency_key)),
				 errhint("Retry the transaction.")));

	if (VARSIZE_ANY_EXHDR(kind) != VARSIZE_ANY_EXHDR(spec->kind) ||
		memcmp(VARDATA_ANY(kind), VARDATA_ANY(spec->kind), VARSIZE_ANY_EXHDR(kind)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("idempotency key \"%s\" of queue \"%s\" belongs to a job of another kind",
						text_to_cstring(spec->idempotency_key), text_to_cstring(spec->queue)),
				 errdetail("It was used for kind \"%s\", now for kind \"%s\".",
						   text_to_cstring(kind), text_to_cstring(spec->kind)),
				 errhint("Make the kind part of the key.")));
	if (has_owner(store->found, &owner))
		spec->job_id = *owner;
}

static void
make_scan_keys(ScanKeyData keys[2], text *queue, text *key)
{
	ScanKeyEntryInitialize(&keys[0], 0, KEY_QUEUE, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(queue));
	ScanKeyEntryInitialize(&keys[1], 0, KEY_KEY, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(key));
}

static void
fill(TupleTableSlot *slot, text *queue, text *key, const pg_uuid_t *owner)
{
	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts * sizeof(bool));
	slot->tts_values[KEY_QUEUE - 1] = PointerGetDatum(queue);
	slot->tts_isnull[KEY_QUEUE - 1] = false;
	slot->tts_values[KEY_KEY - 1] = PointerGetDatum(key);
	slot->tts_isnull[KEY_KEY - 1] = false;
	if (owner != NULL)
	{
		slot->tts_values[KEY_OWNER - 1] = UUIDPGetDatum(owner);
		slot->tts_isnull[KEY_OWNER - 1] = false;
	}
	ExecStoreVirtualTuple(slot);
}

static bool
has_owner(TupleTableSlot *slot, pg_uuid_t **owner)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, KEY_OWNER, &isnull);

	*owner = isnull ? NULL : DatumGetUUIDP(value);
	return !isnull;
}
