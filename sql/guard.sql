-- The guard: what no writer of ratchet.job can do, whoever it is and whichever
-- statement it uses.

SET client_min_messages = warning;
CREATE SCHEMA guard_test;
CREATE ROLE regress_guard_writer;
CREATE ROLE regress_guard_owner;

-- Fixed ids, so that messages can be printed.
CREATE FUNCTION guard_test.id(n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS
$$ SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid $$;

-- A consistent row in a given shape: a state, or "paused/failed". By default a
-- paused job was paused from pending.
CREATE FUNCTION guard_test.row(n int, shape text, other jsonb = '{}') RETURNS ratchet.job LANGUAGE sql AS
$$
SELECT jsonb_populate_record(NULL::ratchet.job, jsonb_build_object(
    'id', guard_test.id(n), 'created_at', '2024-01-01 00:00Z', 'queue', 'guard', 'kind', 'k', 'payload', '{"a": 1}'::jsonb,
    'enqueued_by', 'somebody', 'max_attempts', 3, 'scheduled_at', '2024-01-01 00:00Z', 'priority', 0, 'waiting_on', 0,
    'state', split_part(shape, '/', 1), 'attempt', 0, 'crashes', 0, 'version', 1)
    || CASE split_part(shape, '/', 1)
       WHEN 'running' THEN jsonb_build_object('attempt', 1, 'token', guard_test.id(999), 'picked_by', 'w',
            'picked_at', '2024-01-02 00:00Z', 'lease_expires_at', '2024-01-02 01:00Z')
       WHEN 'paused' THEN CASE WHEN shape = 'paused/failed'
            THEN '{"paused_from": "failed", "finished_at": "2024-01-03 00:00Z"}'::jsonb
            ELSE '{"paused_from": "pending"}' END
       WHEN 'pending' THEN '{}'
       ELSE '{"finished_at": "2024-01-03 00:00Z"}' END
    || other)
$$;

-- What a statement raises: SQLSTATE, message, detail and hint; or "ok".
CREATE FUNCTION guard_test.try(statement text) RETURNS text LANGUAGE plpgsql AS
$$
DECLARE
    message text;
    detail text;
    hint text;
BEGIN
    EXECUTE statement;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(E'\n', SQLSTATE || ': ' || message, nullif(detail, ''), nullif(hint, ''));
END
$$;

-- Puts a row into one shape, writes over it in another, undoes both. The answer
-- is "ok" or an SQLSTATE; a refusal must name job, from and to, and say more.
CREATE FUNCTION guard_test.attempt(way text, from_shape text, to_shape text) RETURNS text LANGUAGE plpgsql AS
$$
DECLARE
    target ratchet.job := guard_test.row(1, to_shape);
    set_list text := 'state = t.state, paused_from = t.paused_from, token = t.token, picked_by = t.picked_by,
        picked_at = t.picked_at, lease_expires_at = t.lease_expires_at, finished_at = t.finished_at';
    made boolean := false;
    message text;
    detail text;
    hint text;
BEGIN
    INSERT INTO ratchet.job SELECT (guard_test.row(1, from_shape)).*;
    made := true;
    CASE way
    WHEN 'update' THEN
        EXECUTE 'UPDATE ratchet.job j SET ' || set_list || ' FROM (SELECT ($1).*) t WHERE j.id = t.id' USING target;
    WHEN 'on conflict' THEN
        EXECUTE 'INSERT INTO ratchet.job SELECT ($1).* ON CONFLICT (id) DO UPDATE SET '
            || replace(set_list, 't.', 'excluded.') USING target;
    WHEN 'merge' THEN
        EXECUTE 'MERGE INTO ratchet.job j USING (SELECT ($1).*) t ON j.id = t.id WHEN MATCHED THEN UPDATE SET ' || set_list
            USING target;
    END CASE;
    RAISE SQLSTATE 'ZZ000';
EXCEPTION
    WHEN SQLSTATE 'ZZ000' THEN
        RETURN 'ok';
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        IF NOT made OR detail = '' OR hint = '' OR message NOT LIKE format('job %s cannot go from %s to %s', guard_test.id(1),
                split_part(from_shape, '/', 1), split_part(to_shape, '/', 1)) THEN
            RETURN SQLSTATE || ' ' || message;
        END IF;
        RETURN SQLSTATE;
END
$$;

CREATE TABLE guard_test.shape (position int PRIMARY KEY, shape text);
INSERT INTO guard_test.shape
SELECT row_number() OVER (), s FROM unnest('{pending,running,succeeded,failed,paused,paused/failed,canceled,skipped,expired}'::text[]) s;

-- What ratchet.transition allows; a paused job goes only where it came from.
CREATE VIEW guard_test.allowed AS
SELECT f.shape AS from_shape, t.shape AS to_shape
  FROM ratchet.transition
  JOIN guard_test.shape f ON split_part(f.shape, '/', 1) = from_state::text
  JOIN guard_test.shape t ON split_part(t.shape, '/', 1) = to_state::text
 WHERE NOT (from_state = 'paused' AND to_state = 'pending' AND f.shape = 'paused/failed')
   AND NOT (from_state = 'paused' AND to_state = 'failed' AND f.shape = 'paused')
   AND NOT (to_state = 'paused' AND (t.shape = 'paused/failed') <> (from_state = 'failed'));

CREATE TABLE guard_test.result AS
SELECT ''::text AS role, way, f.shape AS from_shape, t.shape AS to_shape, ''::text AS got
  FROM unnest('{update,on conflict,merge}'::text[]) way, guard_test.shape f, guard_test.shape t
 LIMIT 0;

-------------------------------------------------------------------------------
-- Every state against every other, by every statement that can update
-------------------------------------------------------------------------------

INSERT INTO guard_test.result
SELECT 'origin', way, f.shape, t.shape, guard_test.attempt(way, f.shape, t.shape)
  FROM unnest('{update,on conflict,merge}'::text[]) way, guard_test.shape f, guard_test.shape t;
SET session_replication_role = replica;
INSERT INTO guard_test.result
SELECT 'replica', way, f.shape, t.shape, guard_test.attempt(way, f.shape, t.shape)
  FROM unnest('{update,on conflict,merge}'::text[]) way, guard_test.shape f, guard_test.shape t;
RESET session_replication_role;

SELECT role, way, count(*), count(*) FILTER (WHERE got = 'ok') AS allowed FROM guard_test.result GROUP BY 1, 2 ORDER BY 1, 2;
-- Nothing may differ from ratchet.transition.
SELECT r.*
  FROM guard_test.result r
  LEFT JOIN guard_test.allowed a USING (from_shape, to_shape)
 WHERE r.got IS DISTINCT FROM CASE WHEN a.from_shape IS NULL THEN 'RT001' ELSE 'ok' END
 ORDER BY 1, 2, 3, 4;
-- The matrix; all ways agree on it.
SELECT from_shape AS "from \ to",
       max(got) FILTER (WHERE to_shape = 'pending') AS pending, max(got) FILTER (WHERE to_shape = 'running') AS running,
       max(got) FILTER (WHERE to_shape = 'succeeded') AS succeeded, max(got) FILTER (WHERE to_shape = 'failed') AS failed,
       max(got) FILTER (WHERE to_shape = 'paused') AS paused, max(got) FILTER (WHERE to_shape = 'paused/failed') AS "paused/failed",
       max(got) FILTER (WHERE to_shape = 'canceled') AS canceled, max(got) FILTER (WHERE to_shape = 'skipped') AS skipped,
       max(got) FILTER (WHERE to_shape = 'expired') AS expired
  FROM guard_test.result
  JOIN guard_test.shape ON shape = from_shape
 GROUP BY position, from_shape
 ORDER BY position;
SELECT from_shape, to_shape FROM guard_test.result GROUP BY 1, 2 HAVING count(DISTINCT got) > 1;
-- The attempts left nothing behind.
SELECT count(*) FROM ratchet.job WHERE queue = 'guard';

-------------------------------------------------------------------------------
-- What a refusal says
-------------------------------------------------------------------------------

BEGIN;
INSERT INTO ratchet.job SELECT (guard_test.row(position, shape)).* FROM guard_test.shape;
SELECT shape, to_state, guard_test.try(format('UPDATE ratchet.job SET state = %L WHERE id = %L', to_state, guard_test.id(position)))
  FROM guard_test.shape
  JOIN (VALUES ('pending', 'succeeded'), ('pending', 'failed'), ('running', 'paused'), ('running', 'expired'),
               ('succeeded', 'pending'), ('failed', 'running'), ('failed', 'failed'), ('paused', 'failed'),
               ('paused/failed', 'pending'), ('paused', 'running'), ('expired', 'canceled'), ('canceled', 'skipped')) v(shape, to_state)
 USING (shape)
 ORDER BY position, to_state;
-- A terminal or failed row is not even rewritten as it is.
SELECT shape, guard_test.try(format('UPDATE ratchet.job SET priority = priority WHERE id = %L', guard_test.id(position)))
  FROM guard_test.shape
 WHERE shape IN ('succeeded', 'failed', 'canceled', 'skipped', 'expired')
 ORDER BY position;
-- paused_from tells where it was paused, from the first write on.
SELECT v, guard_test.try(format('UPDATE ratchet.job SET state = ''paused'', paused_from = %L WHERE id = %L', v, guard_test.id(1)))
  FROM unnest('{failed,running,NULL}'::text[]) v;
SELECT guard_test.try(format('UPDATE ratchet.job SET state = NULL WHERE id = %L', guard_test.id(1)));
ROLLBACK;

-------------------------------------------------------------------------------
-- Identity, version, and what may change while a job is running
-------------------------------------------------------------------------------

BEGIN;
INSERT INTO ratchet.job SELECT (guard_test.row(position, shape)).* FROM guard_test.shape;
-- One column at a time, in an update that is otherwise allowed.
SELECT col, shape, split_part(guard_test.try(format('UPDATE ratchet.job SET %I = %s%s WHERE id = %L', col, value, also, guard_test.id(position))), E'\n', 1) AS error
  FROM (VALUES ('id', '''00000000-0000-7000-8000-000000000077'''), ('kind', '''k2'''), ('payload', '''{"a": 2}'''),
               ('queue', '''guard2'''), ('created_at', 'created_at + interval ''1 us'''), ('idempotency_key', '''i'''),
               ('enqueued_by', '''somebody else''')) c(col, value)
 CROSS JOIN (VALUES ('pending', ''), ('running', ''), ('running', ', state = ''pending'', token = NULL'),
               ('failed', ', state = ''pending'', finished_at = NULL'), ('paused', ', state = ''pending'', paused_from = NULL')) f(shape, also)
  JOIN guard_test.shape USING (shape)
 ORDER BY col, position, also;
-- The same payload written anew is no change; another spelling of a number is one.
SELECT guard_test.try(format('UPDATE ratchet.job SET payload = %L WHERE id = %L', v, guard_test.id(1)))
  FROM unnest('{"{\"a\" : 1}","{\"a\": 1.0}","null"}'::text[]) v;
ROLLBACK;

-- A payload out of line: rewritten as it is, rewritten equal, changed in one byte.
BEGIN;
INSERT INTO ratchet.job
SELECT (guard_test.row(1, 'pending', jsonb_build_object('payload', jsonb_build_object('a', string_agg(md5(g::text), '' ORDER BY g))))).*
  FROM generate_series(1, 400) g;
SELECT pg_column_size(payload) > 2000 AS out_of_line FROM ratchet.job WHERE id = guard_test.id(1);
SELECT guard_test.try(format('UPDATE ratchet.job SET priority = 1 WHERE id = %L', guard_test.id(1)));
SELECT guard_test.try(format('UPDATE ratchet.job SET payload = payload::text::jsonb WHERE id = %L', guard_test.id(1)));
SELECT guard_test.try(format('UPDATE ratchet.job SET payload = replace(payload::text, ''c4ca4238'', ''c4ca4239'')::jsonb WHERE id = %L', guard_test.id(1)));
SELECT version, priority FROM ratchet.job WHERE id = guard_test.id(1);
ROLLBACK;

-- The version is counted by the guard, whatever is written.
BEGIN;
INSERT INTO ratchet.job SELECT (guard_test.row(1, 'pending', '{"version": 41}')).*;
UPDATE ratchet.job SET version = 1000 WHERE id = guard_test.id(1) RETURNING version;
UPDATE ratchet.job SET version = NULL WHERE id = guard_test.id(1) RETURNING version;
UPDATE ratchet.job SET version = -5, priority = 7 WHERE id = guard_test.id(1) RETURNING version, priority;
ROLLBACK;

-- While a job stays running: every column of the table, one at a time.
BEGIN;
INSERT INTO ratchet.job SELECT (guard_test.row(1, 'running')).*;
SELECT split_part(guard_test.try(format('UPDATE ratchet.job SET %I = %L WHERE id = %L', attname,
           CASE typname WHEN 'timestamptz' THEN '2030-01-01 00:00Z' WHEN 'jsonb' THEN '{"other": 1}' WHEN 'int4' THEN '42'
                        WHEN 'int8' THEN '42' WHEN 'uuid' THEN guard_test.id(42)::text WHEN 'interval' THEN '42 min'
                        WHEN 'bool' THEN 'true' WHEN 'float8' THEN '0.42' WHEN '_text' THEN '{other}'
                        WHEN 'job_state' THEN 'failed' ELSE 'other' END,
           guard_test.id(1))), ':', 1) AS result,
       string_agg(attname, ', ' ORDER BY attname) AS columns
  FROM pg_attribute
  JOIN pg_type t ON t.oid = atttypid
 WHERE attrelid = 'ratchet.job'::regclass AND attnum > 0 AND NOT attisdropped
 GROUP BY 1
 ORDER BY 1;
SELECT progress, progress_message, lease_expires_at AT TIME ZONE 'UTC' AS lease_expires_at, version, ready_at, left_at AT TIME ZONE 'UTC' AS left_at, lease_us <> 42 AS lease_us_derived
  FROM ratchet.job WHERE id = guard_test.id(1);
SELECT col, guard_test.try(format('UPDATE ratchet.job SET %I = %s WHERE id = %L', col, value, guard_test.id(1)))
  FROM (VALUES ('token', 'NULL'), ('attempt', '2'), ('picked_at', 'picked_at + interval ''1 us'''), ('picked_by', '''v'''),
               ('lease_expires_at', 'NULL'), ('lease_expires_at', '''infinity'''), ('lease_expires_at', '''-infinity''')) v(col, value)
 ORDER BY col, value;
ROLLBACK;

-------------------------------------------------------------------------------
-- Rows that come in, and rows that go
-------------------------------------------------------------------------------

GRANT USAGE ON SCHEMA ratchet, guard_test TO regress_guard_writer, regress_guard_owner;
GRANT USAGE ON TYPE ratchet.job_state TO regress_guard_writer, regress_guard_owner;
GRANT SELECT ON ALL TABLES IN SCHEMA guard_test TO regress_guard_writer, regress_guard_owner;
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ratchet.job TO regress_guard_writer;

BEGIN;
-- Restoring is for the owner and for superusers.
SELECT shape, guard_test.try(format('INSERT INTO ratchet.job SELECT (guard_test.row(%s, %L)).*', position, shape)) AS superuser
  FROM guard_test.shape ORDER BY position;
SET LOCAL ROLE regress_guard_writer;
SELECT shape, guard_test.try(format('INSERT INTO ratchet.job SELECT (guard_test.row(%s, %L)).*', 20 + position, shape)) AS writer
  FROM guard_test.shape ORDER BY position;
SELECT v, guard_test.try(format('INSERT INTO ratchet.job SELECT (guard_test.row(31, ''pending'', %L)).*', v)) AS writer
  FROM unnest('{"{\"attempt\": 1}","{\"attempt\": -1}","{\"attempt\": null}"}'::jsonb[]) v;
-- Nobody deletes what is live; a writer without ownership deletes nothing.
SELECT shape, guard_test.try(format('DELETE FROM ratchet.job WHERE id = %L', guard_test.id(position))) AS writer
  FROM guard_test.shape ORDER BY position;
SELECT guard_test.try('TRUNCATE ratchet.job') AS writer;
RESET ROLE;
SELECT shape, guard_test.try(format('DELETE FROM ratchet.job WHERE id = %L', guard_test.id(position))) AS superuser
  FROM guard_test.shape ORDER BY position;
SELECT statement, guard_test.try(statement) AS superuser
  FROM unnest('{"TRUNCATE ratchet.job","TRUNCATE ONLY ratchet.job CASCADE","TRUNCATE ratchet.queue, ratchet.job"}'::text[]) statement;
SET LOCAL session_replication_role = replica;
SELECT shape, split_part(guard_test.try(format('DELETE FROM ratchet.job WHERE id = %L', guard_test.id(position))), ':', 1) AS replica
  FROM guard_test.shape WHERE shape IN ('pending', 'running', 'paused', 'paused/failed') ORDER BY position;
SELECT split_part(guard_test.try('TRUNCATE ratchet.job'), ':', 1) AS replica;
SELECT split_part(guard_test.try(format(
    'MERGE INTO ratchet.job j USING (SELECT %L::uuid AS id) t ON j.id = t.id WHEN MATCHED THEN DELETE', guard_test.id(1))), ':', 1) AS merge;
ROLLBACK;

-- An owner who is no superuser may restore and archive, and no more.
BEGIN;
ALTER TABLE ratchet.job OWNER TO regress_guard_owner;
SET LOCAL ROLE regress_guard_owner;
SELECT shape, split_part(guard_test.try(format('INSERT INTO ratchet.job SELECT (guard_test.row(%s, %L)).*', position, shape)), ':', 1) AS inserted,
       split_part(guard_test.try(format('DELETE FROM ratchet.job WHERE id = %L', guard_test.id(position))), ':', 1) AS deleted
  FROM guard_test.shape ORDER BY position;
SELECT split_part(guard_test.try('TRUNCATE ratchet.job'), ':', 1) AS truncated;
ROLLBACK;

-- COPY, in every state: derived columns are set whatever comes in.
BEGIN;
COPY ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state, paused_from,
    attempt, token, picked_by, picked_at, lease_expires_at, finished_at, ready_at, left_at, lease_us) FROM stdin;
00000000-0000-7000-8000-000000000001	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	pending	\N	0	\N	\N	\N	\N	\N	2001-01-01	2001-01-01	1
00000000-0000-7000-8000-000000000002	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	running	\N	1	00000000-0000-4000-8000-000000000001	w	2024-01-02 00:00Z	2024-01-02 01:00Z	\N	2001-01-01	2001-01-01	\N
00000000-0000-7000-8000-000000000003	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	succeeded	\N	1	\N	w	2024-01-02 00:00Z	\N	2024-01-03 00:00Z	2001-01-01	2001-01-01	1
00000000-0000-7000-8000-000000000004	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	failed	\N	3	\N	w	2024-01-02 00:00Z	\N	2024-01-03 00:00Z	2001-01-01	2001-01-01	1
00000000-0000-7000-8000-000000000005	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	paused	pending	0	\N	\N	\N	\N	\N	2001-01-01	2001-01-01	1
00000000-0000-7000-8000-000000000006	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	paused	failed	3	\N	w	2024-01-02 00:00Z	\N	2024-01-03 00:00Z	2001-01-01	2001-01-01	1
00000000-0000-7000-8000-000000000007	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	canceled	\N	0	\N	\N	\N	\N	2024-01-03 00:00Z	2001-01-01	2001-01-01	1
00000000-0000-7000-8000-000000000008	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	skipped	\N	0	\N	\N	\N	\N	2024-01-03 00:00Z	2001-01-01	2001-01-01	1
00000000-0000-7000-8000-000000000009	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	expired	\N	0	\N	\N	\N	\N	2024-01-03 00:00Z	2001-01-01	2001-01-01	1
\.
SELECT state, paused_from, ready_at AT TIME ZONE 'UTC' AS ready_at, left_at AT TIME ZONE 'UTC' AS left_at, lease_us, version
  FROM ratchet.job WHERE queue = 'guard' ORDER BY id;
ROLLBACK;
COPY ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state) FROM stdin;
00000000-0000-7000-8000-000000000001	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	pending
00000000-0000-7000-8000-000000000002	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	succeeded
\.
SET session_replication_role = replica;
COPY ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state) FROM stdin;
00000000-0000-7000-8000-000000000001	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	running
\.
RESET session_replication_role;
SET ROLE regress_guard_writer;
COPY ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state, finished_at) FROM stdin;
00000000-0000-7000-8000-000000000001	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	canceled	2024-01-03 00:00Z
\.
RESET ROLE;
SELECT count(*) FROM ratchet.job WHERE queue = 'guard';

-------------------------------------------------------------------------------
-- Consistency, and the order of the checks
-------------------------------------------------------------------------------

-- Each rule, by INSERT and by an UPDATE from a state that leads there.
BEGIN;
CREATE TABLE guard_test.broken AS
SELECT row_number() OVER () AS n, shape, other::jsonb
  FROM (VALUES ('running', '{"token": null}'), ('running', '{"picked_by": null}'), ('running', '{"picked_at": null}'),
               ('running', '{"lease_expires_at": null}'), ('running', '{"lease_expires_at": "infinity"}'),
               ('running', '{"picked_at": "-infinity"}'), ('running', '{"finished_at": "2024-01-01"}'),
               ('running', '{"paused_from": "pending"}'),
               ('pending', '{"token": "00000000-0000-4000-8000-000000000001"}'), ('pending', '{"finished_at": "2024-01-01"}'),
               ('pending', '{"paused_from": "pending"}'), ('pending', '{"attempt": -1}'),
               ('paused', '{"token": "00000000-0000-4000-8000-000000000001"}'), ('paused', '{"paused_from": null}'),
               ('paused', '{"finished_at": "2024-01-01"}'), ('paused/failed', '{"finished_at": null}'),
               ('paused', '{"paused_from": "running"}'), ('paused', '{"paused_from": "canceled"}'),
               ('succeeded', '{"token": "00000000-0000-4000-8000-000000000001"}'), ('succeeded', '{"finished_at": null}'),
               ('succeeded', '{"paused_from": "failed"}'), ('failed', '{"finished_at": null}'), ('canceled', '{"finished_at": null}'),
               ('skipped', '{"finished_at": null}'), ('expired', '{"finished_at": null}'), ('pending', '{"version": 0}'),
               ('pending', '{"attempt": null}'), ('pending', '{"version": null}')) v(shape, other);
CREATE FUNCTION guard_test.break(way text, shape text, other jsonb) RETURNS text LANGUAGE plpgsql AS
$$
DECLARE
    target ratchet.job := guard_test.row(1, shape, other);
    result text;
BEGIN
    IF way = 'insert' THEN
        INSERT INTO ratchet.job SELECT (target).*;
        RAISE SQLSTATE 'ZZ000';
    END IF;
    INSERT INTO ratchet.job
    SELECT (guard_test.row(1, CASE shape WHEN 'succeeded' THEN 'running' WHEN 'failed' THEN 'running' WHEN 'paused/failed' THEN 'failed'
                                         ELSE 'pending' END)).*;
    UPDATE ratchet.job j
       SET state = t.state, paused_from = t.paused_from, token = t.token, picked_by = t.picked_by, picked_at = t.picked_at,
           lease_expires_at = t.lease_expires_at, finished_at = t.finished_at, attempt = t.attempt
      FROM (SELECT (target).*) t WHERE j.id = t.id;
    RAISE SQLSTATE 'ZZ000';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS result = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ': ' || result;
END
$$;
SELECT way, shape, other, guard_test.break(way, shape, other)
  FROM guard_test.broken, unnest('{insert,update}'::text[]) way
 WHERE way = 'insert' OR NOT other ? 'version'     -- an update's version is the guard's own
 ORDER BY way, n;
SELECT guard_test.try('INSERT INTO ratchet.job SELECT (guard_test.row(1, ''running'', ''{"token": null}'')).*');
SELECT guard_test.try('INSERT INTO ratchet.job SELECT (guard_test.row(1, NULL)).*');
ROLLBACK;

-- Transition before identity before consistency.
BEGIN;
INSERT INTO ratchet.job SELECT (guard_test.row(1, 'pending')).*;
SELECT guard_test.try(format('UPDATE ratchet.job SET kind = ''k2'', state = ''succeeded'', token = id WHERE id = %L', guard_test.id(1)));
SELECT guard_test.try(format('UPDATE ratchet.job SET kind = ''k2'', state = ''canceled'', token = id WHERE id = %L', guard_test.id(1)));
SELECT guard_test.try(format('UPDATE ratchet.job SET state = ''canceled'', token = id WHERE id = %L', guard_test.id(1)));
ROLLBACK;

-------------------------------------------------------------------------------
-- Derived columns along a life
-------------------------------------------------------------------------------

BEGIN;
CREATE FUNCTION guard_test.derived() RETURNS TABLE (state ratchet.job_state, ready boolean, "left" text, lease_us text) LANGUAGE sql AS
$$
SELECT state, ready_at = scheduled_at,
       CASE WHEN left_at IS NULL THEN 'null' WHEN left_at = '2001-01-01' THEN 'as written'
            WHEN left_at BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp() THEN 'now' ELSE (left_at AT TIME ZONE 'UTC')::text END,
       CASE WHEN lease_us IS NULL THEN 'null' WHEN lease_us = 1 THEN 'as written'
            WHEN lease_us BETWEEN 0.9 * 3600e6 AND 3600e6 THEN 'about an hour'
            WHEN lease_us BETWEEN 1.9 * 3600e6 AND 7200e6 THEN 'about two hours' ELSE lease_us::text END
  FROM ratchet.job WHERE id = guard_test.id(1)
$$;
INSERT INTO ratchet.job SELECT (guard_test.row(1, 'pending', '{"waiting_on": 1, "ready_at": "2001-01-01", "left_at": "2001-01-01", "lease_us": 1}')).*;
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET waiting_on = 0, ready_at = NULL, left_at = '2001-01-01', lease_us = 1 WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET scheduled_at = '2024-05-05 00:00Z', ready_at = '2001-01-01' WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET state = 'running', token = guard_test.id(9), picked_by = 'w', picked_at = now(), attempt = 1,
       lease_expires_at = clock_timestamp() + interval '1 hour', ready_at = '2001-01-01', left_at = '2001-01-01', lease_us = 1
 WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
SELECT left_at FROM ratchet.job WHERE id = guard_test.id(1) \gset
UPDATE ratchet.job SET lease_us = 1 WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET lease_expires_at = clock_timestamp() + interval '2 hours', lease_us = 1 WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET state = 'failed', finished_at = now(), token = NULL, lease_us = 1, left_at = '2001-01-01' WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET state = 'paused', paused_from = 'failed', left_at = '2001-01-01' WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
SELECT left_at = :'left_at' AS never_moved FROM ratchet.job WHERE id = guard_test.id(1);
UPDATE ratchet.job SET state = 'failed', paused_from = NULL WHERE id = guard_test.id(1);
UPDATE ratchet.job SET state = 'pending', finished_at = NULL, left_at = '2001-01-01' WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET state = 'paused', paused_from = 'pending', ready_at = '2001-01-01', left_at = '2001-01-01' WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
UPDATE ratchet.job SET state = 'canceled', paused_from = NULL, finished_at = now(), left_at = '2001-01-01' WHERE id = guard_test.id(1);
SELECT * FROM guard_test.derived();
ROLLBACK;

-------------------------------------------------------------------------------
-- Every running row can be recovered, however it came about
-------------------------------------------------------------------------------

BEGIN;
INSERT INTO ratchet.job SELECT (guard_test.row(1, 'running')).*;
INSERT INTO ratchet.job SELECT (guard_test.row(2, 'running', '{"left_at": null, "lease_us": 1000000, "attempt": 0}')).*;
INSERT INTO ratchet.job SELECT (guard_test.row(3, 'pending')).*;
UPDATE ratchet.job SET state = 'running', token = id, picked_by = 'w', picked_at = now(), attempt = 1,
       lease_expires_at = clock_timestamp() - interval '1 s', left_at = NULL WHERE id = guard_test.id(3);
COPY ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state, attempt,
    token, picked_by, picked_at, lease_expires_at) FROM stdin;
00000000-0000-7000-8000-000000000004	2024-01-01 00:00Z	guard	k	{}	s	3	2024-01-01 00:00Z	0	running	1	00000000-0000-4000-8000-000000000001	w	2024-01-02 00:00Z	2024-01-02 01:00Z
\.
-- A lease longer than its own length, as after a clock that was set back; and absurd times.
INSERT INTO ratchet.job SELECT (guard_test.row(5, 'running', '{"picked_at": "2200-01-01 00:00Z", "lease_expires_at": "2200-01-02 00:00Z"}')).*;
INSERT INTO ratchet.job SELECT (guard_test.row(6, 'running', '{"picked_at": "2300-01-01 00:00Z", "lease_expires_at": "2200-01-02 00:00Z"}')).*;
INSERT INTO ratchet.job SELECT (guard_test.row(7, 'running', '{"picked_at": "4714-11-24 00:00Z BC", "lease_expires_at": "2024-01-02 00:00Z"}')).*;
SET session_replication_role = replica;
INSERT INTO ratchet.job SELECT (guard_test.row(8, 'running')).*;
RESET session_replication_role;
-- This one's lease has not ended.
INSERT INTO ratchet.job SELECT (guard_test.row(9, 'running')).*;
UPDATE ratchet.job SET lease_expires_at = clock_timestamp() + interval '1 hour' WHERE id = guard_test.id(9);
SELECT ratchet.maintenance_step('recover') >= 8 AS recovered;
SELECT right(id::text, 2) AS job, state, attempt, crashes, token, picked_by, last_error, ready_at = scheduled_at AS ready, left_at IS NULL AS back,
       (SELECT string_agg(format('%s %s %s', e.attempt, worker, error), ', ') FROM ratchet.job_error e WHERE job_id = id) AS history
  FROM ratchet.job WHERE queue = 'guard' ORDER BY id;
-- When it has, it is recovered like the others.
UPDATE ratchet.job SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE id = guard_test.id(9);
SELECT ratchet.maintenance_step('recover') >= 1 AS recovered;
SELECT state, count(*) FROM ratchet.job WHERE queue = 'guard' GROUP BY 1;
ROLLBACK;

-------------------------------------------------------------------------------
-- The guard's functions, called otherwise
-------------------------------------------------------------------------------

SELECT f, guard_test.try(format('SELECT ratchet.%s()', f)) FROM unnest('{guard,guard_keys,settings_changed}'::text[]) f;
CREATE TABLE guard_test.lookalike (LIKE ratchet.job INCLUDING ALL);
CREATE TABLE guard_test.little (id int);
CREATE VIEW guard_test.view AS SELECT * FROM guard_test.little;
SELECT f, tab, fires, each, guard_test.try(format('CREATE TRIGGER t %s ON guard_test.%s FOR EACH %s EXECUTE FUNCTION ratchet.%s(); %s; DROP TRIGGER t ON guard_test.%s',
           fires, tab, each, f, CASE WHEN fires LIKE '% TRUNCATE' THEN 'TRUNCATE guard_test.' || tab
                                     ELSE format('INSERT INTO guard_test.%s SELECT (%s).*', tab, CASE tab WHEN 'lookalike' THEN 'guard_test.row(1, ''pending'')' ELSE 'ROW(1)::guard_test.little' END) END, tab))
  FROM (VALUES ('lookalike', 'BEFORE INSERT', 'ROW'), ('lookalike', 'AFTER INSERT', 'ROW'), ('lookalike', 'BEFORE INSERT', 'STATEMENT'),
               ('lookalike', 'BEFORE TRUNCATE', 'STATEMENT'), ('little', 'BEFORE INSERT', 'ROW'),
               ('little', 'AFTER INSERT', 'ROW'), ('view', 'INSTEAD OF INSERT', 'ROW')) v(tab, fires, each)
 CROSS JOIN unnest('{guard,guard_keys}'::text[]) f
 ORDER BY f, tab, fires, each;
BEGIN;
CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON ratchet.job FOR EACH ROW EXECUTE FUNCTION ratchet.guard();
SELECT guard_test.try('INSERT INTO ratchet.job SELECT (guard_test.row(1, ''pending'')).*');
ROLLBACK;
BEGIN;
CREATE TRIGGER t BEFORE INSERT ON ratchet.job FOR EACH STATEMENT EXECUTE FUNCTION ratchet.guard();
SELECT guard_test.try('INSERT INTO ratchet.job SELECT (guard_test.row(1, ''pending'')).*');
ROLLBACK;
BEGIN;
CREATE TRIGGER t BEFORE INSERT ON ratchet.job FOR EACH ROW EXECUTE FUNCTION ratchet.guard_keys();
SELECT guard_test.try('INSERT INTO ratchet.job SELECT (guard_test.row(1, ''pending'')).*');
ROLLBACK;

-------------------------------------------------------------------------------
-- Business keys hold for every writer
-------------------------------------------------------------------------------

BEGIN;
INSERT INTO ratchet.job SELECT (guard_test.row(1, 'pending', '{"business_key": "b"}')).*;
SELECT v, guard_test.try(format('INSERT INTO ratchet.job SELECT (guard_test.row(2, %L, ''{"business_key": "b"}'')).*', v))
  FROM unnest('{pending,running,paused}'::text[]) v;
SELECT guard_test.try('SELECT ratchet.enqueue(''k'', queue => ''guard'', business_key => ''b'')');
-- What is finished, or paused from failed, holds none.
SELECT shape, guard_test.try(format('INSERT INTO ratchet.job SELECT (guard_test.row(%s, %L, ''{"business_key": "b"}'')).*', 10 + position, shape))
  FROM guard_test.shape WHERE shape NOT IN ('pending', 'running', 'paused') ORDER BY position;
SET LOCAL session_replication_role = replica;
SELECT guard_test.try('INSERT INTO ratchet.job SELECT (guard_test.row(2, ''pending'', ''{"business_key": "b"}'')).*');
RESET session_replication_role;
-- The row says who has it; the key follows the row.
SELECT key, owner = guard_test.id(1) AS first FROM ratchet.business_key WHERE queue = 'guard' ORDER BY key;
UPDATE ratchet.job SET business_key = 'c' WHERE id = guard_test.id(1);
SELECT key, owner = guard_test.id(1) AS first FROM ratchet.business_key WHERE queue = 'guard' ORDER BY key;
INSERT INTO ratchet.job SELECT (guard_test.row(2, 'pending', '{"business_key": "b"}')).*;
SELECT guard_test.try(format('UPDATE ratchet.job SET business_key = ''b'' WHERE id = %L', guard_test.id(1)));
UPDATE ratchet.job SET state = 'canceled', finished_at = now() WHERE id = guard_test.id(2);
SELECT guard_test.try(format('UPDATE ratchet.job SET business_key = ''b'' WHERE id = %L', guard_test.id(1)));
-- An INSERT that ON CONFLICT drops takes no key.
INSERT INTO ratchet.job SELECT (guard_test.row(2, 'pending', '{"business_key": "d"}')).* ON CONFLICT DO NOTHING;
SELECT key, owner = guard_test.id(1) AS first FROM ratchet.business_key WHERE queue = 'guard' ORDER BY key;
ROLLBACK;

DROP SCHEMA guard_test CASCADE;
DROP OWNED BY regress_guard_writer, regress_guard_owner;
DROP ROLE regress_guard_writer, regress_guard_owner;
