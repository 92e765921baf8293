/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  OIDs and column numbers of ratchet's own objects, looked up by name once
 *	  per backend and again after anything about them has changed.
 *
 * Columns are never addressed by a hard-coded position, so that a later version
 * may add or reorder columns while an older library is still loaded.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "ratchet.h"

static const char *const column_names[RC_COUNT] = {
#define X(upper, lower) #lower,
	RATCHET_JOB_COLUMNS(X)
#undef X
};

static RatchetCatalog cached;	/* lives as long as the backend */
static bool cached_valid = false;

static void load(RatchetCatalog *catalog);
static Oid	relation_oid(const RatchetCatalog *catalog, const char *name);
static Oid	trigger_function_oid(const char *name);
static void forget(Datum arg, Oid relid);

const RatchetCatalog *
ratchet_catalog(void)
{
	static bool registered = false;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget, (Datum) 0);
		registered = true;
	}
	if (!cached_valid)
	{
		RatchetCatalog fresh = {0};

		load(&fresh);
		cached = fresh;
		cached_valid = true;
	}
	return &cached;
}

const char *
ratchet_column_name(RatchetColumn column)
{
	return column_names[column];
}

RatchetState
ratchet_state_from_oid(Oid label)
{
	const RatchetCatalog *catalog = ratchet_catalog();

	for (int state = 0; state < RATCHET_STATE_COUNT; state++)
		if (catalog->state_label[state] == label)
			return (RatchetState) state;
	elog(ERROR, "unknown job state %u", label);
	return RATCHET_PENDING;		/* keep compiler quiet */
}

Datum
ratchet_state_datum(RatchetState state)
{
	return ObjectIdGetDatum(ratchet_catalog()->state_label[state]);
}

static void
load(RatchetCatalog *catalog)
{
	HeapTuple	tuple;

	catalog->schema = get_namespace_oid("ratchet", false);
	catalog->job = relation_oid(catalog, "job");
	catalog->job_pkey = relation_oid(catalog, "job_pkey");
	catalog->job_ready = relation_oid(catalog, "job_ready");
	catalog->job_left = relation_oid(catalog, "job_left");
	catalog->job_expires = relation_oid(catalog, "job_expires");
	catalog->business_key = relation_oid(catalog, "business_key");
	catalog->business_key_pkey = relation_oid(catalog, "business_key_pkey");
	catalog->idempotency_key = relation_oid(catalog, "idempotency_key");
	catalog->idempotency_key_pkey = relation_oid(catalog, "idempotency_key_pkey");
	catalog->queue = relation_oid(catalog, "queue");
	catalog->access = relation_oid(catalog, "access");
	catalog->draining = relation_oid(catalog, "draining");
	catalog->job_archive = relation_oid(catalog, "job_archive");
	catalog->job_archive_default = relation_oid(catalog, "job_archive_default");

	catalog->guard = trigger_function_oid("guard");
	catalog->guard_keys = trigger_function_oid("guard_keys");

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(catalog->job));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", catalog->job);
	catalog->owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);

	for (int i = 0; i < RC_COUNT; i++)
	{
		catalog->column[i] = get_attnum(catalog->job, column_names[i]);
		if (catalog->column[i] == InvalidAttrNumber)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of table ratchet.job does not exist", column_names[i]),
					 errhint("The library is %s; run ALTER EXTENSION ratchet UPDATE.",
							 RATCHET_VERSION)));
		get_typlenbyval(get_atttype(catalog->job, catalog->column[i]),
						&catalog->column_len[i], &catalog->column_byval[i]);
	}

	catalog->state_type = get_atttype(catalog->job, catalog->column[RC_STATE]);
	for (int state = 0; state < RATCHET_STATE_COUNT; state++)
	{
		catalog->state_label[state] =
			GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
							ObjectIdGetDatum(catalog->state_type),
							CStringGetDatum(ratchet_state_name((RatchetState) state)));
		if (!OidIsValid(catalog->state_label[state]))
			elog(ERROR, "type ratchet.job_state has no label \"%s\"",
				 ratchet_state_name((RatchetState) state));
	}
}

static Oid
relation_oid(const RatchetCatalog *catalog, const char *name)
{
	Oid			relid = get_relname_relid(name, catalog->schema);

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation ratchet.%s does not exist", name),
				 errhint("The extension's objects have been changed by hand; reinstall it.")));
	return relid;
}

static Oid
trigger_function_oid(const char *name)
{
	return LookupFuncName(list_make2(makeString("ratchet"), makeString(pstrdup(name))),
						  0, NULL, false);
}

/* InvalidOid: everything may have changed. A dropped table invalidates itself. */
static void
forget(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == cached.job || relid == cached.business_key ||
		relid == cached.idempotency_key || relid == cached.queue || relid == cached.access ||
		relid == cached.draining ||
		relid == cached.job_archive || relid == cached.job_archive_default)
		cached_valid = false;
}
