/*-------------------------------------------------------------------------
 *
 * access.c
 *	  grant_access, revoke_access, has_access: who may do what in which queue.
 *
 * A right has two halves. PostgreSQL's own privileges (USAGE on the schema,
 * EXECUTE on the functions, SELECT on the views) say what a role can call at
 * all; they make DROP ROLE refuse while rights remain, and pg_dump keeps them.
 * The rows of ratchet.access say in which queues; the C code asks them at every
 * call. Roles are recorded by name, and a row whose role is gone counts for
 * nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "ratchet.h"

#define ENQUEUE (1 << RATCHET_ENQUEUE)
#define WORK	(1 << RATCHET_WORK)
#define OPERATE (1 << RATCHET_OPERATE)
#define OBSERVE (1 << RATCHET_OBSERVE)
#define ALL		(ENQUEUE | WORK | OPERATE | OBSERVE)

/* Which access lets a role call a function; all overloads alike. */
static const struct
{
	const char *name;
	int			for_access;
}			functions[] =
{
	{"enqueue", ENQUEUE},
	{"enqueue_many", ENQUEUE},
	{"claim", WORK},
	{"complete", WORK},
	{"complete_many", WORK},
	{"complete_and_claim", WORK},
	{"fail", WORK},
	{"skip", WORK},
	{"release", WORK},
	{"heartbeat", WORK},
	{"progress", WORK},
	{"node_heartbeat", WORK},
	{"try_lock", WORK},
	{"renew_lock", WORK},
	{"unlock", WORK},
	{"wait", WORK},
	{"await", ALL},
	{"cancel", ENQUEUE | OPERATE},
	{"cancel_many", OPERATE},
	{"retry", OPERATE},
	{"retry_many", OPERATE},
	{"pause", OPERATE},
	{"resume", OPERATE},
	{"rerun", OPERATE},
	{"reschedule", OPERATE},
	{"forget", OPERATE},
	{"configure_queue", OPERATE},
	{"pause_queue", OPERATE},
	{"resume_queue", OPERATE},
	{"drain", OPERATE},
	{"undrain", OPERATE},
	{"maintenance_step", OPERATE},
	{"run_maintenance", OPERATE},
	{"waiter_figures", OBSERVE},
	{"worker_figures", OBSERVE},
	{"has_access", ALL},
	{"is_terminal", ALL},
	{"is_successful", ALL},
	{"was_executed", ALL},
	{"terminal_states", ALL},
	{"transitions", ALL},
};

static const struct
{
	const char *name;
	int			for_access;
}			views[] =
{
	{"ratchet.jobs", OBSERVE},
	{"ratchet.job_errors", OBSERVE},
	{"ratchet.queues", OBSERVE},
	{"ratchet.node", OBSERVE},
	{"ratchet.waiter_stat", OBSERVE},
	{"ratchet.worker_stat", OBSERVE},
	{"ratchet.transition", ALL},
};

static const char *const access_names[RATCHET_ACCESS_COUNT] = {
	"enqueue", "work", "operate", "observe"
};

PG_FUNCTION_INFO_V1(ratchet_grant_access);
PG_FUNCTION_INFO_V1(ratchet_revoke_access);
PG_FUNCTION_INFO_V1(ratchet_has_access);

static RatchetAccess arg_access(FunctionCallInfo fcinfo, int arg);
static char *begin_change(FunctionCallInfo fcinfo, Datum args[3], bool nulls[3]);
static int	accesses_of(const char *role);
static void set_privileges(const char *role, int accesses);
static void grant_or_revoke(const char *role, bool grant, const char *privilege, const char *object);

const char *
ratchet_access_name(RatchetAccess access)
{
	return access_names[access];
}

bool
ratchet_access_parse(const char *name, RatchetAccess *access)
{
	for (int i = 0; i < RATCHET_ACCESS_COUNT; i++)
		if (strcmp(name, access_names[i]) == 0)
		{
			*access = (RatchetAccess) i;
			return true;
		}
	return false;
}

/* For a call that names a queue: 42501 without the right to it. */
void
ratchet_access_require(RatchetAccess access, text *queue)
{
	if (!ratchet_access_to(GetUserId(), access, queue))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: role \"%s\" has no \"%s\" access to queue \"%s\"",
						GetUserNameFromId(GetUserId(), false), ratchet_access_name(access),
						text_to_cstring(queue)),
				 errhint("A superuser can grant it with ratchet.grant_access().")));
}

/* Whether the role may enqueue in the queue, and the job is its own. */
bool
ratchet_access_as_producer(Oid role, text *queue, const char *producer)
{
	Oid			producer_oid = get_role_oid(producer, true);

	return OidIsValid(producer_oid) && has_privs_of_role(role, producer_oid) &&
		ratchet_access_to(role, RATCHET_ENQUEUE, queue);
}

Datum
ratchet_grant_access(PG_FUNCTION_ARGS)
{
	RatchetIdentity before;
	Datum		args[3];
	bool		nulls[3];
	char	   *role = begin_change(fcinfo, args, nulls);

	ratchet_spi_begin(&before);
	(void) ratchet_query(RQ_ACCESS_ADD, args, nulls);
	set_privileges(role, accesses_of(role));
	ratchet_spi_end(&before);
	PG_RETURN_VOID();
}

Datum
ratchet_revoke_access(PG_FUNCTION_ARGS)
{
	RatchetIdentity before;
	Datum		args[3];
	bool		nulls[3];
	char	   *role = begin_change(fcinfo, args, nulls);

	ratchet_spi_begin(&before);
	(void) ratchet_query(RQ_ACCESS_REMOVE, args, nulls);
	set_privileges(role, accesses_of(role));
	ratchet_spi_end(&before);
	PG_RETURN_VOID();
}

/* Of the current role; a NULL queue asks for any queue. */
Datum
ratchet_has_access(PG_FUNCTION_ARGS)
{
	RatchetAccess access = arg_access(fcinfo, 1);

	PG_RETURN_BOOL(ratchet_access_to(GetUserId(), access,
									 PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0)));
}

static RatchetAccess
arg_access(FunctionCallInfo fcinfo, int arg)
{
	RatchetAccess access;
	char	   *name;

	if (PG_ARGISNULL(arg))
		ratchet_null_argument("access");
	name = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	if (!ratchet_access_parse(name, &access))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown access \"%s\"", ratchet_shorten(name)),
				 errhint("It is one of enqueue, work, operate, observe.")));
	return access;
}

/* Checks of grant_access and revoke_access; the arguments for their query. */
static char *
begin_change(FunctionCallInfo fcinfo, Datum args[3], bool nulls[3])
{
	char	   *role;
	NameData   *name = palloc0(sizeof(NameData));

	if (!ratchet_access_everything(GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change access to queues"),
				 errhint("Only a superuser or the owner of the extension can do this.")));
	ratchet_require_writable();
	if (PG_ARGISNULL(0))
		ratchet_null_argument("role");
	role = GetUserNameFromId(PG_GETARG_OID(0), true);
	if (role == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role with OID %u does not exist", PG_GETARG_OID(0))));
	namestrcpy(name, role);
	args[0] = NameGetDatum(name);
	args[1] = CStringGetTextDatum(ratchet_access_name(arg_access(fcinfo, 1)));
	args[2] = (Datum) 0;
	nulls[0] = nulls[1] = false;
	nulls[2] = PG_ARGISNULL(2);
	if (!nulls[2])
		args[2] = PointerGetDatum(ratchet_arg_queue(fcinfo, 2));
	return role;
}

/* The accesses that the role has in some queue, as bits. */
static int
accesses_of(const char *role)
{
	NameData	name;
	Datum		args[1] = {NameGetDatum(&name)};
	int			accesses = 0;
	uint64		rows;

	namestrcpy(&name, role);
	rows = ratchet_query(RQ_ACCESS_OF_ROLE, args, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		RatchetAccess access;

		if (ratchet_access_parse(SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1), &access))
			accesses |= 1 << access;
	}
	return accesses;
}

/*
 * Give the role exactly the privileges its accesses need: REVOKE what it is not
 * to have, GRANT what it is. Privileges given by hand to other roles stay.
 */
static void
set_privileges(const char *role, int accesses)
{
	grant_or_revoke(role, accesses != 0, "USAGE", "SCHEMA ratchet");
	grant_or_revoke(role, accesses != 0, "USAGE", "TYPE ratchet.job_state");
	grant_or_revoke(role, accesses != 0, "USAGE", "TYPE ratchet.claimed");
	for (int i = 0; i < lengthof(views); i++)
		grant_or_revoke(role, (accesses & views[i].for_access) != 0, "SELECT",
						psprintf("TABLE %s", views[i].name));
	for (int i = 0; i < lengthof(functions); i++)
	{
		Datum		name = CStringGetTextDatum(functions[i].name);
		Datum		args[1] = {PointerGetDatum(construct_array(&name, 1, TEXTOID, -1, false, TYPALIGN_INT))};
		uint64		rows = ratchet_query(RQ_ACCESS_FUNCTIONS, args, NULL);
		SPITupleTable *found = SPI_tuptable;

		for (uint64 j = 0; j < rows; j++)
			grant_or_revoke(role, (accesses & functions[i].for_access) != 0, "EXECUTE",
							psprintf("ROUTINE %s", SPI_getvalue(found->vals[j], found->tupdesc, 1)));
	}
}

/* The objects come from the catalogs or from above, quoted; the role is quoted here. */
static void
grant_or_revoke(const char *role, bool grant, const char *privilege, const char *object)
{
	(void) ratchet_command(psprintf("%s %s ON %s %s %s", grant ? "GRANT" : "REVOKE", privilege,
									object, grant ? "TO" : "FROM", quote_identifier(role)));
}
