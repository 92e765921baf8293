/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Settings of queues, rights of roles and draining nodes, cached in the
 *	  backend.
 *
 * These tables are small and read at every call, so each backend keeps them whole
 * and reads them again after a change. A statement trigger on the table sends
 * the relcache invalidation, whoever writes it: it reaches every backend at the
 * commit, this one at the end of the command, and takes back what this one
 * cached if the transaction aborts. Rows are read with a snapshot of their own,
 * because what is cached outlives the transaction's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "ratchet.h"

#define DEFAULT_MAX_ATTEMPTS	3
#define DEFAULT_BACKOFF_BASE_US (5 * USECS_PER_SEC)
#define DEFAULT_BACKOFF_MAX_US	(24 * USECS_PER_HOUR)

typedef struct QueueEntry
{
	char		queue[RATCHET_QUEUE_MAX + 1];	/* hash key */
	RatchetQueue settings;
} QueueEntry;

typedef struct Right
{
	NameData	role;
	RatchetAccess access;
	char		queue[RATCHET_QUEUE_MAX + 1];	/* empty: all */
} Right;

/* A table as this backend last read it. */
typedef struct Cache
{
	MemoryContext context;		/* of what was read; reset at each reading */
	Oid			relid;
	bool		valid;
	uint32		generation;		/* of the settings when it was read */
} Cache;

static Cache queue_cache;
static HTAB *queues = NULL;
static Cache access_cache;
static List *rights = NIL;		/* of Right */
static Cache draining_cache;
static List *draining = NIL;	/* of node names; "" for all */

PG_FUNCTION_INFO_V1(ratchet_settings_changed);

static void refresh(Cache *cache, Oid relid, const char *name,
					void (*begin) (void), void (*each) (TupleTableSlot *, void *));
static void forget(Datum arg, Oid relid);
static void begin_queues(void);
static void read_queue(TupleTableSlot *slot, void *arg);
static void begin_rights(void);
static void read_right(TupleTableSlot *slot, void *arg);
static void begin_draining(void);
static void read_draining(TupleTableSlot *slot, void *arg);
static bool right_counts(const Right *right, Oid role);

static const RatchetQueue defaults = {
	.priority = 0,
	.max_attempts = DEFAULT_MAX_ATTEMPTS,
	.backoff = RATCHET_BACKOFF_EXPONENTIAL,
	.backoff_base_us = DEFAULT_BACKOFF_BASE_US,
	.backoff_max_us = DEFAULT_BACKOFF_MAX_US,
	.jitter = true,
	.timeout_us = -1,
	.lease_us = -1,
	.expires_in_us = -1,
	.keep_for_us = -1,
	.archive_after_us = -1,
};

RatchetQueue
ratchet_queue_settings(text *queue)
{
	char		name[RATCHET_QUEUE_MAX + 1];
	QueueEntry *entry;

	refresh(&queue_cache, ratchet_catalog()->queue, "ratchet queues", begin_queues, read_queue);
	text_to_cstring_buffer(queue, name, sizeof(name));
	entry = hash_search(queues, name, HASH_FIND, NULL);
	return entry != NULL ? entry->settings : defaults;
}

int64
ratchet_queue_archive_after_us(const RatchetQueue *queue)
{
	return queue->archive_after_us >= 0 ? queue->archive_after_us :
		(int64) ratchet_archive_after * USECS_PER_SEC;
}

/* The superusers, the extension's owner, and whoever has its privileges. */
bool
ratchet_access_everything(Oid role)
{
	return has_privs_of_role(role, ratchet_catalog()->owner);
}

/* Whether the role has this access to at least one queue. */
bool
ratchet_access_any(Oid role, RatchetAccess access)
{
	return ratchet_access_to(role, access, NULL);
}

/* Whether the role has this access to the queue (NULL: to any). */
bool
ratchet_access_to(Oid role, RatchetAccess access, text *queue)
{
	ListCell   *lc;

	if (ratchet_access_everything(role))
		return true;
	refresh(&access_cache, ratchet_catalog()->access, "ratchet rights", begin_rights, read_right);
	foreach(lc, rights)
	{
		const Right *right = lfirst(lc);

		if (right->access == access &&
			(queue == NULL || right->queue[0] == '\0' ||
			 (strlen(right->queue) == VARSIZE_ANY_EXHDR(queue) &&
			  memcmp(right->queue, VARDATA_ANY(queue), VARSIZE_ANY_EXHDR(queue)) == 0)) &&
			right_counts(right, role))
			return true;
	}
	return false;
}

/* The queues that the role has this access to; NULL for all. */
ArrayType *
ratchet_access_queues(Oid role, RatchetAccess access)
{
	Datum	   *queues_of_role;
	int			count = 0;
	ListCell   *lc;

	if (ratchet_access_everything(role))
		return NULL;
	(void) ratchet_access_any(role, access);	/* refreshes */
	queues_of_role = palloc(Max(list_length(rights), 1) * sizeof(Datum));
	foreach(lc, rights)
	{
		const Right *right = lfirst(lc);

		if (right->access != access || !right_counts(right, role))
			continue;
		if (right->queue[0] == '\0')
			return NULL;
		queues_of_role[count++] = CStringGetTextDatum(right->queue);
	}
	return construct_array(queues_of_role, count, TEXTOID, -1, false, TYPALIGN_INT);
}

/* Whether a node, or every node, is told to claim nothing. */
bool
ratchet_node_draining(text *node)
{
	ListCell   *lc;

	refresh(&draining_cache, ratchet_catalog()->draining, "ratchet draining", begin_draining, read_draining);
	foreach(lc, draining)
	{
		const char *name = lfirst(lc);

		if (name[0] == '\0' || strcmp(name, text_to_cstring(node)) == 0)
			return true;
	}
	return false;
}

/* AFTER statement trigger of the tables. */
Datum
ratchet_settings_changed(PG_FUNCTION_ARGS)
{
	Relation	changed;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("this function can be called only as a trigger")));
	changed = ((TriggerData *) fcinfo->context)->tg_relation;
	CacheInvalidateRelcache(changed);
	/* A queue that is resumed or a node that is undrained has work for waiters. */
	if (RelationGetRelid(changed) != ratchet_catalog()->access)
		ratchet_wakeup_note_settings();
	ratchet_notice_settings();
	return PointerGetDatum(NULL);
}

/*
 * Read a table again if it has changed. An invalidation that arrives while we
 * read makes us read once more: "valid" is set before, and cleared by forget().
 */
static void
refresh(Cache *cache, Oid relid, const char *name,
		void (*begin) (void), void (*each) (TupleTableSlot *, void *))
{
	static bool registered = false;

	/* In a long transaction nothing else might: all its locks are held already. */
	AcceptInvalidationMessages();
	if (cache->valid && cache->relid == relid && cache->generation == ratchet_wakeup_settings())
		return;
	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget, (Datum) 0);
		registered = true;
	}
	do
	{
		MemoryContext before;

		if (cache->context == NULL)
			cache->context = AllocSetContextCreate(CacheMemoryContext, "ratchet settings",
												   ALLOCSET_SMALL_SIZES);
		else
			MemoryContextReset(cache->context);
		MemoryContextSetIdentifier(cache->context, name);
		cache->relid = relid;
		cache->valid = true;
		cache->generation = ratchet_wakeup_settings();	/* before the table is read */
		before = MemoryContextSwitchTo(cache->context);
		PG_TRY();
		{
			begin();
			ratchet_table_read(relid, each, NULL);
		}
		PG_CATCH();
		{
			cache->valid = false;	/* half read */
			PG_RE_THROW();
		}
		PG_END_TRY();
		MemoryContextSwitchTo(before);
	} while (!cache->valid);
}

static void
forget(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == queue_cache.relid)
		queue_cache.valid = false;
	if (relid == InvalidOid || relid == access_cache.relid)
		access_cache.valid = false;
	if (relid == InvalidOid || relid == draining_cache.relid)
		draining_cache.valid = false;
}

static void
begin_queues(void)
{
	HASHCTL		ctl = {0};

	ctl.keysize = RATCHET_QUEUE_MAX + 1;
	ctl.entrysize = sizeof(QueueEntry);
	ctl.hcxt = queue_cache.context;
	queues = hash_create("ratchet queues", 64, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

static Datum
column(TupleTableSlot *slot, const char *name, bool *isnull)
{
	AttrNumber	attnum = get_attnum(slot->tts_tableOid, name);

	if (attnum == InvalidAttrNumber)
	{
		*isnull = true;			/* a table of an older version */
		return (Datum) 0;
	}
	return slot_getattr(slot, attnum, isnull);
}

static void
read_us(TupleTableSlot *slot, const char *name, int64 *us)
{
	bool		isnull;
	Datum		value = column(slot, name, &isnull);

	if (!isnull)
		*us = ratchet_interval_us(DatumGetIntervalP(value));
}

static void
read_int(TupleTableSlot *slot, const char *name, int *number)
{
	bool		isnull;
	Datum		value = column(slot, name, &isnull);

	if (!isnull)
		*number = DatumGetInt32(value);
}

static void
read_queue(TupleTableSlot *slot, void *arg)
{
	bool		isnull;
	char		name[RATCHET_QUEUE_MAX + 1];
	RatchetQueue *settings;
	Datum		value;

	text_to_cstring_buffer(DatumGetTextPP(column(slot, "queue", &isnull)), name, sizeof(name));
	settings = &((QueueEntry *) hash_search(queues, name, HASH_ENTER, NULL))->settings;
	*settings = defaults;
	value = column(slot, "paused", &isnull);
	settings->paused = !isnull && DatumGetBool(value);
	read_int(slot, "priority", &settings->priority);
	read_int(slot, "max_attempts", &settings->max_attempts);
	value = column(slot, "backoff", &isnull);
	if (!isnull)
		(void) ratchet_backoff_parse(TextDatumGetCString(value), &settings->backoff);
	read_us(slot, "backoff_base", &settings->backoff_base_us);
	read_us(slot, "backoff_max", &settings->backoff_max_us);
	value = column(slot, "jitter", &isnull);
	if (!isnull)
		settings->jitter = DatumGetBool(value);
	read_us(slot, "timeout", &settings->timeout_us);
	read_us(slot, "lease", &settings->lease_us);
	read_us(slot, "expires_in", &settings->expires_in_us);
	read_us(slot, "keep_for", &settings->keep_for_us);
	read_us(slot, "archive_after", &settings->archive_after_us);
}

static void
begin_rights(void)
{
	rights = NIL;
}

static void
read_right(TupleTableSlot *slot, void *arg)
{
	Right	   *right = palloc0(sizeof(Right));
	bool		isnull;
	Datum		queue;

	right->role = *DatumGetName(column(slot, "role_name", &isnull));
	if (!ratchet_access_parse(TextDatumGetCString(column(slot, "access", &isnull)), &right->access))
		return;					/* of a newer version */
	queue = column(slot, "queue", &isnull);
	if (!isnull)
		text_to_cstring_buffer(DatumGetTextPP(queue), right->queue, sizeof(right->queue));
	rights = lappend(rights, right);
}

static void
begin_draining(void)
{
	draining = NIL;
}

static void
read_draining(TupleTableSlot *slot, void *arg)
{
	bool		isnull;
	Datum		node = column(slot, "node", &isnull);

	draining = lappend(draining, isnull ? pstrdup("") : TextDatumGetCString(node));
}

/* A right whose role is gone counts for nothing. */
static bool
right_counts(const Right *right, Oid role)
{
	Oid			granted = get_role_oid(NameStr(right->role), true);

	return OidIsValid(granted) && has_privs_of_role(role, granted);
}
