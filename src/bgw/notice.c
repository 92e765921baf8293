/*-------------------------------------------------------------------------
 *
 * notice.c
 *	  What a commit tells the launcher and the worker: times at which something
 *	  is due, an extension that came or went, databases that changed.
 *
 * Everything is remembered in this backend and reported when the transaction has
 * committed, never before and never after a rollback. What a rolled-back
 * savepoint left behind is reported too: somebody then looks in vain, once.
 * COMMIT PREPARED runs no callback of the transaction it commits; the backend
 * that gives the command tells the worker to look.
 *
 * Some commands fail while anybody is connected to a database, and our worker
 * must not be the one. It is told to look, and lets go if it finds the database
 * locked (bgw/worker.c): so a command that lacks permission stops nobody.
 *
 * Only under preload; the callback must not throw.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"

#include "bgw/bgw.h"

/* What the present transaction has to tell. */
static struct
{
	bool		any;			/* anything but nothing */
	bool		times;			/* something in due */
	bool		extension_created;	/* some extension, at first */
	bool		extension_dropped;
	bool		settings;
	bool		databases;
	TimestampTz due[RATCHET_DUTY_COUNT];
}			news;

static object_access_hook_type previous_object_access = NULL;
static ProcessUtility_hook_type previous_process_utility = NULL;

static void at_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg);
static void at_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
					   ProcessUtilityContext context, ParamListInfo params,
					   QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc);
static void before_command(Node *command);
static void after_command(Node *command);
static void look_by_name(const char *database);
static void at_transaction_event(XactEvent event, void *arg);
static void tell(void);

/* From _PG_init, while shared_preload_libraries is processed: once per backend. */
void
ratchet_notice_init(void)
{
	RegisterXactCallback(at_transaction_event, NULL);
	previous_object_access = object_access_hook;
	object_access_hook = at_object_access;
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = at_utility;
}

/* The guard has passed this row: when will somebody have to look at it again? */
void
ratchet_notice_row(const RatchetRow *row, TimestampTz now)
{
	RatchetState state;
	RatchetQueue queue;

	if (!ratchet_shmem_available())
		return;
	state = ratchet_row_state(row);
	if (state == RATCHET_PENDING)
	{
		if (!row->isnull[RC_EXPIRES_AT])
			ratchet_notice_due(RATCHET_DUTY_EXPIRE, RC_TIMESTAMP(row, RC_EXPIRES_AT));
		return;
	}
	if (state == RATCHET_PAUSED)
		return;

	queue = ratchet_queue_settings(RC_TEXT(row, RC_QUEUE));
	if (state == RATCHET_RUNNING)
	{
		int64		timeout_us = ratchet_row_interval_us(row, RC_TIMEOUT, queue.timeout_us);

		ratchet_notice_due(RATCHET_DUTY_RECOVER, RC_TIMESTAMP(row, RC_LEASE_EXPIRES_AT));
		if (timeout_us >= 0)
			ratchet_notice_due(RATCHET_DUTY_TIMEOUT, RC_TIMESTAMP(row, RC_PICKED_AT) + timeout_us);
	}
	else if (state == RATCHET_FAILED)
		ratchet_notice_due(RATCHET_DUTY_ARCHIVE, now + (int64) ratchet_failed_keep * USECS_PER_SEC);
	else
		ratchet_notice_due(RATCHET_DUTY_ARCHIVE, now + ratchet_queue_archive_after_us(&queue));
}

/* Settings of queues have changed, and with them what is due when. */
void
ratchet_notice_settings(void)
{
	news.any = news.settings = true;
}

/* This transaction brings something that is due then. */
void
ratchet_notice_due(RatchetDutyId duty, TimestampTz at)
{
	if (!ratchet_shmem_available())
		return;
	if (!news.times)
	{
		for (int i = 0; i < RATCHET_DUTY_COUNT; i++)
			news.due[i] = DT_NOEND;
		news.any = news.times = true;
	}
	news.due[duty] = Min(news.due[duty], at);
}

/* Extensions come and go also by CASCADE and DROP OWNED: no statement says so. */
static void
at_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (previous_object_access)
		previous_object_access(access, classId, objectId, subId, arg);
	if (classId == ExtensionRelationId && access == OAT_POST_CREATE)
		news.any = news.extension_created = true;
	else if (classId == ExtensionRelationId && access == OAT_DROP)
	{
		char	   *name = get_extension_name(objectId);

		if (name != NULL && strcmp(name, "ratchet") == 0)
			news.any = news.extension_dropped = true;
	}
	else if (classId == DatabaseRelationId && access == OAT_DROP && ratchet_registry != NULL)
		ratchet_registry_look(objectId);
}

static void
at_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
		   ProcessUtilityContext context, ParamListInfo params,
		   QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *command = pstmt->utilityStmt;
	bool		ours = ratchet_registry != NULL &&
		(IsA(command, RenameStmt) || IsA(command, AlterDatabaseStmt) || IsA(command, CreatedbStmt) ||
		 IsA(command, DropdbStmt) || IsA(command, TransactionStmt));

	/* The command's own tree may be gone afterwards: COMMIT frees it. */
	if (ours)
	{
		before_command(command);
		command = IsA(command, TransactionStmt) &&
			((TransactionStmt *) command)->kind != TRANS_STMT_COMMIT_PREPARED ? NULL : command;
	}
	if (previous_process_utility)
		previous_process_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	if (ours && command != NULL)
		after_command(command);
}

/* Commands that cannot do with anybody connected. */
static void
before_command(Node *command)
{
	ListCell   *lc;

	if (IsA(command, RenameStmt) && ((RenameStmt *) command)->renameType == OBJECT_DATABASE)
		look_by_name(((RenameStmt *) command)->subname);
	else if (IsA(command, AlterDatabaseStmt))
	{
		foreach(lc, ((AlterDatabaseStmt *) command)->options)
			if (strcmp(((DefElem *) lfirst(lc))->defname, "tablespace") == 0)
				look_by_name(((AlterDatabaseStmt *) command)->dbname);
	}
	else if (IsA(command, CreatedbStmt))
	{
		foreach(lc, ((CreatedbStmt *) command)->options)
		{
			DefElem    *option = lfirst(lc);

			if (strcmp(option->defname, "template") == 0 && option->arg != NULL)
				look_by_name(defGetString(option));
		}
	}
}

static void
after_command(Node *command)
{
	if (IsA(command, TransactionStmt))
	{
		/* It may have brought the extension, or jobs. */
		if (!ratchet_registry_poke(MyDatabaseId) && OidIsValid(get_extension_oid("ratchet", true)))
			ratchet_registry_want(MyDatabaseId);
	}
	else if (!IsA(command, RenameStmt) || ((RenameStmt *) command)->renameType == OBJECT_DATABASE)
		news.any = news.databases = true;
}

static void
look_by_name(const char *database)
{
	Oid			oid = get_database_oid(database, true);

	if (OidIsValid(oid))
		ratchet_registry_look(oid);
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	if (!news.any)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			/* The last moment to ask the catalogs which extension it was. */
			if (news.extension_created)
				news.extension_created = OidIsValid(get_extension_oid("ratchet", true));
			break;
		case XACT_EVENT_COMMIT:
			if (ratchet_registry != NULL)
				tell();
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			memset(&news, 0, sizeof(news));
			break;
		default:
			break;
	}
}

static void
tell(void)
{
	if (news.times)
		for (int i = 0; i < RATCHET_DUTY_COUNT; i++)
			if (news.due[i] != DT_NOEND)
				ratchet_registry_due(MyDatabaseId, (RatchetDutyId) i, news.due[i]);
	if (news.extension_created)
		ratchet_registry_want(MyDatabaseId);
	if (news.extension_dropped || news.settings)
		(void) ratchet_registry_poke(MyDatabaseId);
	if (news.databases)
		ratchet_registry_rescan();
}
