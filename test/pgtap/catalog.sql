-- The contract as the catalogs show it: every name, signature, default and type that clients bind to. What is expected is
-- written as the contract writes it.
\set ON_ERROR_STOP on
BEGIN;
SELECT no_plan();

-------------------------------------------------------------------------------
-- Functions
-------------------------------------------------------------------------------

-- "name type = default, ..." as the catalogs have it.
CREATE FUNCTION pg_temp.arguments(spec text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    item text;
    part text[];
    type text;
    value text;
    items text[] = '{}';
BEGIN
    FOREACH item IN ARRAY regexp_split_to_array(regexp_replace(spec, '\s+', ' ', 'g'), ' ?, ')
    LOOP
        part := regexp_match(item, '^(\w+) ([\w.]+(?:\[\])?)(?: = (.*))?$');
        IF part IS NULL THEN
            CONTINUE WHEN item = '';
            RAISE EXCEPTION 'what is "%"?', item;
        END IF;
        type := format_type(part[2]::regtype, NULL);
        value := part[3];
        IF value = 'NULL' THEN
            value := 'NULL::' || type;
        ELSIF value LIKE '''%' THEN
            EXECUTE format('SELECT %s::%s::text', value, type) INTO value;
            value := quote_literal(value) || '::' || type;
        END IF;
        items := items || (part[1] || ' ' || type || coalesce(' DEFAULT ' || value, ''));
    END LOOP;
    RETURN array_to_string(items, ', ');
END $$;

CREATE TEMP TABLE contract (name text, arguments text, result text, volatility "char" DEFAULT 'v', kind "char" DEFAULT 'f');
INSERT INTO contract (name, arguments, result) VALUES
    ('enqueue', 'kind text, payload jsonb = ''{}'', queue text = ''default'', priority int = NULL, run_at timestamptz = NULL,
        max_attempts int = NULL, backoff text = NULL, backoff_base interval = NULL, backoff_max interval = NULL, jitter boolean = NULL,
        timeout interval = NULL, lease interval = NULL, expires_in interval = NULL, keep_for interval = NULL,
        idempotency_key text = NULL, business_key text = NULL, concurrency_key text = NULL, resource text = NULL, circuit text = NULL,
        depends_on uuid[] = NULL, run_when text = ''success'', tags text[] = NULL, meta jsonb = NULL, hold boolean = false, id uuid = NULL',
        'uuid'),
    ('enqueue_many', 'kind text, payloads jsonb[], queue text = ''default'', priority int = NULL, run_at timestamptz = NULL,
        max_attempts int = NULL, backoff text = NULL, backoff_base interval = NULL, backoff_max interval = NULL, jitter boolean = NULL,
        timeout interval = NULL, lease interval = NULL, expires_in interval = NULL, keep_for interval = NULL,
        concurrency_key text = NULL, resource text = NULL, circuit text = NULL,
        depends_on uuid[] = NULL, run_when text = ''success'', tags text[] = NULL, meta jsonb = NULL, hold boolean = false',
        'SETOF uuid'),
    ('enqueue_many', 'jobs jsonb', 'SETOF uuid'),
    ('claim', 'queue text, worker text, batch int = 1, lease interval = NULL, kinds text[] = NULL, wait interval = NULL,
        node text = NULL, session boolean = false', 'SETOF ratchet.claimed'),
    ('claim', 'queues text[], worker text, batch int = 1, lease interval = NULL, kinds text[] = NULL, wait interval = NULL,
        node text = NULL, session boolean = false', 'SETOF ratchet.claimed'),
    ('complete', 'id uuid, token uuid, result jsonb = NULL, strict boolean = false', 'boolean'),
    ('complete_many', 'ids uuid[], tokens uuid[], results jsonb[] = NULL, strict boolean = false', 'SETOF uuid'),
    ('complete_and_claim', 'ids uuid[], tokens uuid[], queue text, worker text, batch int = 1, results jsonb[] = NULL,
        strict boolean = false, lease interval = NULL, kinds text[] = NULL, node text = NULL', 'SETOF ratchet.claimed'),
    ('fail', 'id uuid, token uuid, error text, retryable boolean = true, retry_in interval = NULL, detail jsonb = NULL', 'ratchet.job_state'),
    ('skip', 'id uuid, token uuid, reason text = NULL', 'boolean'),
    ('release', 'id uuid, token uuid, delay interval = ''0'', reason text = NULL', 'boolean'),
    ('heartbeat', 'ids uuid[], tokens uuid[], lease interval = NULL', 'id uuid, status text'),
    ('progress', 'id uuid, token uuid, fraction float8, message text = NULL', 'boolean'),
    ('retry', 'id uuid', 'boolean'),
    ('retry_many', 'queue text = NULL, kind text = NULL, tag text = NULL, max int = 1000', 'integer'),
    ('pause', 'id uuid', 'boolean'),
    ('resume', 'id uuid', 'boolean'),
    ('cancel', 'id uuid, reason text = NULL', 'boolean'),
    ('cancel_many', 'queue text = NULL, kind text = NULL, tag text = NULL, max int = 1000', 'integer'),
    ('rerun', 'id uuid', 'uuid'),
    ('reschedule', 'id uuid, run_at timestamptz = NULL, priority int = NULL', 'boolean'),
    ('configure_queue', 'queue text, priority int = NULL, max_attempts int = NULL, backoff text = NULL, backoff_base interval = NULL,
        backoff_max interval = NULL, jitter boolean = NULL, timeout interval = NULL, lease interval = NULL, expires_in interval = NULL,
        keep_for interval = NULL, archive_after interval = NULL, max_running int = NULL, max_per_key int = NULL, rate_limit int = NULL,
        rate_period interval = NULL, fair boolean = NULL, events text = NULL', 'void'),
    ('pause_queue', 'queue text', 'boolean'),
    ('resume_queue', 'queue text', 'boolean'),
    ('forget', 'id uuid', 'boolean'),
    ('node_heartbeat', 'node text, info jsonb = NULL', 'void'),
    ('drain', 'node text = NULL', 'boolean'),
    ('undrain', 'node text = NULL', 'boolean'),
    ('try_lock', 'name text, owner text, ttl interval', 'boolean'),
    ('renew_lock', 'name text, owner text, ttl interval', 'boolean'),
    ('unlock', 'name text, owner text', 'boolean'),
    ('maintenance_step', 'duty text', 'bigint'),
    ('grant_access', 'role regrole, access text, queue text = NULL', 'void'),
    ('revoke_access', 'role regrole, access text, queue text = NULL', 'void');
INSERT INTO contract (name, arguments, result, volatility) VALUES
    ('has_access', 'queue text, access text', 'boolean', 's'),
    ('is_terminal', 'state ratchet.job_state', 'boolean', 'i'),
    ('is_successful', 'state ratchet.job_state', 'boolean', 'i'),
    ('was_executed', 'state ratchet.job_state', 'boolean', 'i'),
    ('terminal_states', '', 'ratchet.job_state[]', 'i');
INSERT INTO contract (name, arguments, result, kind) VALUES
    ('run_maintenance', '', NULL, 'p'),
    ('wait', 'queues text[], timeout interval, kinds text[] = NULL, ready boolean = NULL', NULL, 'p'),
    ('await', 'id uuid, timeout interval, state ratchet.job_state = NULL, result jsonb = NULL', NULL, 'p');

-- What there is, in the same form, without the modes that procedures show; result columns of a function that has some stand for its result.
CREATE TEMP VIEW found AS
SELECT p.oid, p.proname::text AS name,
       regexp_replace(regexp_replace(regexp_replace(pg_get_function_arguments(p.oid), '(, |^)IN(OUT)? ', '\1', 'g'), '(, |^)OUT .*$', ''), '(, |^)TABLE\(.*$', '') AS arguments,
       coalesce((SELECT string_agg(p.proargnames[n] || ' ' || format_type(p.proallargtypes[n], NULL), ', ' ORDER BY n)
                   FROM generate_subscripts(p.proargmodes, 1) n WHERE p.proargmodes[n] IN ('o', 't')),
                pg_get_function_result(p.oid)) AS result,
       p.provolatile AS volatility, p.prokind AS kind
  FROM pg_proc p
 WHERE p.pronamespace = 'ratchet'::regnamespace;

SELECT is(f.arguments, pg_temp.arguments(c.arguments), format('arguments of %s(%s)', c.name, left(c.arguments, 20)))
  FROM contract c LEFT JOIN found f ON f.name = c.name AND split_part(f.arguments, ' ', 2) = split_part(pg_temp.arguments(c.arguments), ' ', 2)
   AND split_part(f.arguments, ',', 1) = split_part(pg_temp.arguments(c.arguments), ',', 1)
 ORDER BY c.name, c.arguments;
SELECT results_eq(
    'SELECT format(''%s %s(%s) %s %s'', kind, name, arguments, result, volatility) COLLATE "C" FROM found
      WHERE name NOT IN (''guard'', ''guard_keys'', ''settings_changed'', ''transitions'', ''worker_figures'', ''waiter_figures'') ORDER BY 1',
    'SELECT format(''%s %s(%s) %s %s'', kind, name, pg_temp.arguments(arguments), result, volatility) COLLATE "C" FROM contract ORDER BY 1',
    'every function of the contract is there, none beside it, each with its result and volatility');
SELECT is_empty('SELECT name FROM found WHERE name IN (''guard'', ''guard_keys'', ''settings_changed'') AND result <> ''trigger''',
    'the others are trigger functions');

SELECT is_empty($$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND prosecdef$$,
    'no function is SECURITY DEFINER');
SELECT is_empty($$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND proparallel <> 'u'$$,
    'every function is PARALLEL UNSAFE');
SELECT is_empty($$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace
    AND prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c')$$, 'every function is written in C');
SELECT is_empty($$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND proleakproof$$,
    'no function claims to be leakproof');
SELECT is_empty($$SELECT name FROM found WHERE volatility = 'v' AND oid IN (SELECT oid FROM pg_proc WHERE proisstrict)$$,
    'no function that writes is STRICT: a NULL is an answer or an error, never silence');

-------------------------------------------------------------------------------
-- Types
-------------------------------------------------------------------------------

SELECT is(enum_range(NULL::ratchet.job_state)::text, '{pending,running,succeeded,failed,paused,canceled,skipped,expired}',
    'the eight states, in their order');
SELECT is((SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
             FROM pg_attribute WHERE attrelid = 'ratchet.claimed'::regclass AND attnum > 0),
    'id uuid, kind text, payload jsonb, attempt integer, max_attempts integer, token uuid, queue text, priority integer, '
    'lease_expires_at timestamp with time zone, timeout interval, meta jsonb, scheduled_at timestamp with time zone, '
    'created_at timestamp with time zone, tags text[]', 'columns of ratchet.claimed, in their order');

-------------------------------------------------------------------------------
-- Tables and views
-------------------------------------------------------------------------------

SELECT tables_are('ratchet', ARRAY['job', 'queue', 'idempotency_key', 'business_key', 'job_error', 'access', 'job_archive', 'job_archive_default',
    'node_heartbeats', 'draining', 'lock']);
SELECT views_are('ratchet', ARRAY['jobs', 'job_errors', 'queues', 'node', 'worker_stat', 'waiter_stat', 'transition']);
SELECT is_partitioned('ratchet', 'job_archive', 'the archive is partitioned');
SELECT columns_are('ratchet', 'node', ARRAY['node_id', 'heartbeat_at', 'started_at', 'info', 'draining', 'running']);
SELECT columns_are('ratchet', 'lock', ARRAY['name', 'owner', 'locked_at', 'expires_at']);
SELECT columns_are('ratchet', 'transition', ARRAY['from_state', 'to_state', 'done_by']);
SELECT is_empty($$SELECT unnest(ARRAY['job_id', 'attempt', 'at', 'worker', 'error', 'detail'])
    EXCEPT SELECT attname::text FROM pg_attribute WHERE attrelid = 'ratchet.job_error'::regclass AND attnum > 0$$,
    'ratchet.job_error has the columns of the contract');

CREATE TEMP TABLE job_columns (name text PRIMARY KEY, type text);
INSERT INTO job_columns VALUES
    ('id', 'uuid'), ('queue', 'text'), ('kind', 'text'), ('payload', 'jsonb'), ('state', 'ratchet.job_state'), ('priority', 'integer'),
    ('scheduled_at', 'timestamp with time zone'), ('created_at', 'timestamp with time zone'), ('attempt', 'integer'),
    ('max_attempts', 'integer'), ('crashes', 'integer'), ('version', 'integer'), ('picked_by', 'text'),
    ('picked_at', 'timestamp with time zone'), ('node', 'text'), ('lease', 'interval'), ('lease_expires_at', 'timestamp with time zone'),
    ('timeout', 'interval'), ('expires_at', 'timestamp with time zone'), ('keep_until', 'timestamp with time zone'),
    ('paused_from', 'ratchet.job_state'), ('backoff', 'text'), ('backoff_base', 'interval'), ('backoff_max', 'interval'),
    ('jitter', 'boolean'), ('idempotency_key', 'text'), ('business_key', 'text'), ('concurrency_key', 'text'), ('resource', 'text'),
    ('circuit', 'text'), ('batch_id', 'uuid'), ('waiting_on', 'integer'), ('result', 'jsonb'), ('last_error', 'text'),
    ('progress', 'double precision'), ('progress_message', 'text'), ('tags', 'text[]'), ('meta', 'jsonb'), ('enqueued_by', 'text'),
    ('started_at', 'timestamp with time zone'), ('finished_at', 'timestamp with time zone');
SELECT is((SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = rel::regclass AND attname = name), type,
          format('%s.%s', rel, name))
  FROM job_columns, unnest(ARRAY['ratchet.job', 'ratchet.jobs']) rel ORDER BY rel, name;

SELECT is_empty($$SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    WHERE relnamespace = 'ratchet'::regnamespace AND relkind = 'v' AND attname ~ 'token'$$, 'no view has a token');
SELECT hasnt_column('ratchet', 'job_archive', 'token', 'the archive keeps no tokens');
SELECT is_empty($$SELECT oid::regclass FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind = 'v'
    AND relname <> 'transition' AND NOT coalesce(reloptions, '{}') @> '{security_barrier=true}'$$, 'every view that reads a table is a barrier');
SELECT is_empty($$SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p') AND attcollation <> 0 AND attcollation <> 'pg_catalog."C"'::regcollation
    AND attname IN ('queue', 'kind', 'key', 'idempotency_key', 'business_key', 'concurrency_key')$$, 'queue, kind and keys are COLLATE "C"');
SELECT is_empty($$SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0
    AND atttypid IN (SELECT oid FROM pg_type WHERE typname LIKE 'reg%' AND typnamespace = 'pg_catalog'::regnamespace)$$,
    'no table stores a reg* type: pg_upgrade refuses them');
SELECT is_empty($$SELECT conrelid::regclass FROM pg_constraint WHERE contype = 'f' AND confrelid = 'ratchet.job'::regclass$$,
    'no foreign key references ratchet.job');
SELECT is_empty($$SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'ratchet.job_archive'::regclass$$,
    'the archive''s parent carries no index: pg_restore would fail');
SELECT isnt_empty($$SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'ratchet.job_archive_default'::regclass$$,
    'its partition does');
SELECT is_empty($$SELECT indexrelid::regclass, attname FROM pg_index, unnest(indkey) k JOIN pg_attribute ON attnum = k
    WHERE attrelid = indrelid AND indrelid = 'ratchet.job'::regclass AND attname IN ('state', 'finished_at', 'lease_expires_at', 'progress')$$,
    'no index mentions what a heartbeat or a completion changes');

-------------------------------------------------------------------------------
-- The guard
-------------------------------------------------------------------------------

SELECT is_empty($$SELECT tgrelid::regclass, tgname, tgenabled FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
    WHERE relnamespace = 'ratchet'::regnamespace AND tgenabled <> 'A'$$, 'every trigger is ENABLE ALWAYS');
-- bits of tgtype: 1 row, 2 before, 4 insert, 8 delete, 16 update, 32 truncate
SELECT results_eq($$SELECT bool_or(tgtype & 7 = 7), bool_or(tgtype & 11 = 11), bool_or(tgtype & 19 = 19), bool_or(tgtype & 34 = 34)
    FROM pg_trigger WHERE tgrelid = 'ratchet.job'::regclass AND tgfoid = 'ratchet.guard'::regproc$$,
    'VALUES (true, true, true, true)', 'the guard stands before INSERT, DELETE, UPDATE and TRUNCATE');

SELECT results_eq('SELECT coalesce(from_state::text, ''(new)''), to_state::text FROM ratchet.transition GROUP BY 1, 2 ORDER BY 1, 2',
    $$SELECT * FROM (VALUES ('(new)', 'pending'), ('(new)', 'paused'),
        ('pending', 'running'), ('pending', 'paused'), ('pending', 'canceled'), ('pending', 'expired'), ('pending', 'skipped'), ('pending', 'pending'),
        ('running', 'succeeded'), ('running', 'skipped'), ('running', 'failed'), ('running', 'pending'), ('running', 'canceled'), ('running', 'running'),
        ('failed', 'pending'), ('failed', 'paused'),
        ('paused', 'pending'), ('paused', 'failed'), ('paused', 'canceled')) t(a, b) ORDER BY 1, 2$$,
    'ratchet.transition is the contract''s table');
SELECT results_eq('SELECT s, ratchet.is_terminal(s), ratchet.is_successful(s), ratchet.was_executed(s), s = ANY (ratchet.terminal_states())
      FROM unnest(enum_range(NULL::ratchet.job_state)) s ORDER BY s',
    $$SELECT s::ratchet.job_state, t, ok, ran, t FROM (VALUES ('pending', false, false, false), ('running', false, false, true),
        ('succeeded', true, true, true), ('failed', true, false, true), ('paused', false, false, false), ('canceled', true, false, false),
        ('skipped', true, true, false), ('expired', true, false, false)) v(s, t, ok, ran) ORDER BY 1$$,
    'what the helpers say about each state');

-------------------------------------------------------------------------------
-- Comments
-------------------------------------------------------------------------------

SELECT is_empty($$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace
    AND obj_description(oid, 'pg_proc') IS NULL$$, 'every function has a comment');
SELECT is_empty($$SELECT oid::regclass FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p', 'v')
    AND obj_description(oid, 'pg_class') IS NULL$$, 'every table and view has a comment');
SELECT is_empty($$SELECT attname FROM pg_attribute WHERE attrelid = 'ratchet.job'::regclass AND attnum > 0
    AND col_description(attrelid, attnum) IS NULL$$, 'every column of ratchet.job has a comment');
SELECT is_empty($$SELECT t FROM unnest(ARRAY['ratchet.job_state', 'ratchet.claimed']::regtype[]) t
    WHERE coalesce(obj_description(t::oid, 'pg_type'), '') = ''$$, 'both types have a comment');

-------------------------------------------------------------------------------
-- The extension
-------------------------------------------------------------------------------

CREATE TEMP VIEW members AS
SELECT classid, objid FROM pg_depend
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratchet');
SELECT is_empty($$SELECT classid::regclass, pg_describe_object(classid, objid, 0) FROM members
    WHERE pg_describe_object(classid, objid, 0) !~ '(^| )"?ratchet[."]|schema ratchet$'$$, 'all objects of the extension are in its schema');
SELECT is_empty($$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'ratchet'::regnamespace AND oid NOT IN (SELECT objid FROM members)$$,
    'all functions there are members');
SELECT is_empty($$SELECT oid::regclass FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relkind IN ('r', 'p', 'v')
    AND oid NOT IN (SELECT objid FROM members)$$, 'all tables and views too, as long as no partition was made');
SELECT set_eq($$SELECT c::regclass::text FROM pg_extension, unnest(extconfig) c WHERE extname = 'ratchet'$$,
    ARRAY['ratchet.job', 'ratchet.job_archive_default', 'ratchet.job_error', 'ratchet.queue', 'ratchet.idempotency_key', 'ratchet.access',
          'ratchet.draining'],
    'the tables that are dumped: all but the one that the guard fills, and who is alive');
SELECT is((SELECT extrelocatable FROM pg_extension WHERE extname = 'ratchet'), false, 'the extension is not relocatable');

-------------------------------------------------------------------------------
-- Settings
-------------------------------------------------------------------------------

-- They exist once the library is loaded, which a call does.
SELECT ok(ratchet.has_access(NULL, 'observe'), 'a superuser has access');
SELECT results_eq($$SELECT name, current_setting(name), context FROM pg_settings WHERE name LIKE 'ratchet.%' ORDER BY name$$,
    $$VALUES ('ratchet.archive_after', '1h', 'superuser'), ('ratchet.archive_keep', '90d', 'superuser'),
        ('ratchet.databases', '*', 'sighup'), ('ratchet.default_lease', '5min', 'superuser'), ('ratchet.failed_keep', '30d', 'superuser'),
        ('ratchet.max_claim_wait', '5s', 'superuser'), ('ratchet.max_crashes', '5', 'superuser'), ('ratchet.max_payload_size', '1MB', 'superuser'),
        ('ratchet.max_result_size', '1MB', 'superuser'), ('ratchet.node_timeout', '1min', 'superuser'),
        ('ratchet.priority_boost_interval', '15min', 'sighup'),
        ('ratchet.redact_emails', 'on', 'superuser')$$, 'settings, their defaults and who may change them');
SELECT throws_ok('SET ratchet.no_such_setting = 1', '42602', NULL, 'no other name with the prefix is accepted');

SELECT * FROM finish();
ROLLBACK;
