/*-------------------------------------------------------------------------
 *
 * figures.c
 *	  What ratchet.worker_stat shows: the registry, as rows.
 *
 * The slots are copied under the lock and turned into rows without it. Workers
 * of other databases are shown to members of pg_read_all_stats only: their
 * errors may quote what is none of the caller's business.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "bgw/bgw.h"

#define COLUMNS 13

/* A row of the answer, column by column. */
typedef struct Row
{
	Datum		value[COLUMNS];
	bool		isnull[COLUMNS];
	int			next;
} Row;

PG_FUNCTION_INFO_V1(ratchet_worker_figures);

static void add(Row *row, Datum value);
static void add_null(Row *row);
static void add_text(Row *row, const char *value);
static void add_time(Row *row, TimestampTz at);
static void put_launcher(ReturnSetInfo *rsinfo, const RatchetRegistry *registry);
static void put_worker(ReturnSetInfo *rsinfo, const RatchetSlot *slot);
static const char *state_name(const RatchetSlot *slot);
static Datum changed_rows(const RatchetSlot *slot);

Datum
ratchet_worker_figures(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	RatchetRegistry *copy;
	Size		size;
	bool		sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);

	if (!ratchet_access_any(GetUserId(), RATCHET_OBSERVE))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: role \"%s\" has no \"observe\" access to any queue",
						GetUserNameFromId(GetUserId(), false)),
				 errhint("A superuser can grant it with ratchet.grant_access().")));
	InitMaterializedSRF(fcinfo, 0);
	if (!ratchet_shmem_available())
		return (Datum) 0;

	size = offsetof(RatchetRegistry, slots) + ratchet_registry->nslots * sizeof(RatchetSlot);
	copy = palloc(size);
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_SHARED);
	memcpy(copy, ratchet_registry, size);
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));

	put_launcher(rsinfo, copy);
	for (int i = 0; i < copy->nslots; i++)
		if (copy->slots[i].state != RATCHET_SLOT_FREE &&
			(sees_all || copy->slots[i].database == MyDatabaseId))
			put_worker(rsinfo, &copy->slots[i]);
	return (Datum) 0;
}

static void
put_launcher(ReturnSetInfo *rsinfo, const RatchetRegistry *registry)
{
	Row			row = {.next = 0};
	bool		runs = registry->launcher_pid != 0;

	add_text(&row, "launcher");
	add_null(&row);				/* database */
	if (runs)
		add(&row, Int32GetDatum(registry->launcher_pid));
	else
		add_null(&row);
	add_text(&row, !runs ? "stopped" : registry->out_of_workers ? "out of workers" :
			 registry->databases > 0 ? "out of slots" : "running");
	add_null(&row);				/* polling */
	add_time(&row, runs ? registry->launcher_since : 0);
	add_time(&row, registry->last_scan);
	add_time(&row, registry->next_start);
	add(&row, Int64GetDatum(registry->starts));
	add_null(&row);				/* changed */
	add_null(&row);				/* failures */
	add_text(&row, registry->last_error_at != 0 ? registry->last_error : NULL);
	add_time(&row, registry->last_error_at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.value, row.isnull);
}

static void
put_worker(ReturnSetInfo *rsinfo, const RatchetSlot *slot)
{
	Row			row = {.next = 0};
	bool		runs = slot->state == RATCHET_SLOT_RUNNING;
	char	   *name = get_database_name(slot->database);
	NameData	database;

	add_text(&row, "worker");
	if (name != NULL)
	{
		namestrcpy(&database, name);
		add(&row, NameGetDatum(&database));
	}
	else
		add_null(&row);
	if (runs)
		add(&row, Int32GetDatum(slot->pid));
	else
		add_null(&row);
	add_text(&row, state_name(slot));
	add_text(&row, slot->passes > 0 ? ratchet_poll_mode_name(slot->mode) : NULL);
	add_time(&row, slot->since);
	add_time(&row, slot->last_pass);
	add_time(&row, runs ? slot->next_pass : slot->next_start);
	add(&row, Int64GetDatum(slot->passes));
	add(&row, changed_rows(slot));
	add(&row, Int32GetDatum(slot->failures));
	add_text(&row, slot->last_error_at != 0 ? slot->last_error : NULL);
	add_time(&row, slot->last_error_at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.value, row.isnull);
}

static void
add(Row *row, Datum value)
{
	row->isnull[row->next] = false;
	row->value[row->next++] = value;
}

static void
add_null(Row *row)
{
	row->isnull[row->next] = true;
	row->value[row->next++] = (Datum) 0;
}

static void
add_text(Row *row, const char *value)
{
	if (value != NULL)
		add(row, CStringGetTextDatum(value));
	else
		add_null(row);
}

static void
add_time(Row *row, TimestampTz at)
{
	if (at != 0)
		add(row, TimestampTzGetDatum(at));
	else
		add_null(row);
}

static const char *
state_name(const RatchetSlot *slot)
{
	switch (slot->state)
	{
		case RATCHET_SLOT_FREE:
			return "free";
		case RATCHET_SLOT_WANTED:
			return "wanted";
		case RATCHET_SLOT_STARTING:
			return "starting";
		case RATCHET_SLOT_RUNNING:
			return !slot->confirmed ? "probing" : slot->idle ? "idle" : "working";
	}
	return "";					/* keep compiler quiet */
}

static Datum
changed_rows(const RatchetSlot *slot)
{
	StringInfoData json;

	initStringInfo(&json);
	for (int duty = 0; duty < RATCHET_DUTY_COUNT; duty++)
		appendStringInfo(&json, "%s\"%s\": " INT64_FORMAT, duty == 0 ? "{" : ", ",
						 ratchet_duties[duty].name, slot->rows[duty]);
	appendStringInfoChar(&json, '}');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}
