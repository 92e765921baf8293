-- enqueue and enqueue_many: arguments, ids, keys, all or nothing
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/test/lib/cases.sql'
\set ECHO none
\i :helpers
\set ECHO all

-- defaults
INSERT INTO named VALUES ('plain', ratchet.enqueue('mail'));
\x on
SELECT queue, kind, payload, state, priority, scheduled_at = created_at AS due_at_once,
       created_at BETWEEN now() - interval '1 minute' AND clock_timestamp() AS just_now,
       attempt, max_attempts, crashes, version, picked_by, picked_at, node, lease, lease_expires_at, timeout,
       expires_at, keep_until, paused_from, backoff, backoff_base, backoff_max, jitter, idempotency_key,
       business_key, concurrency_key, resource, circuit, batch_id, waiting_on, result, last_error, progress,
       progress_message, tags, meta, enqueued_by = current_user AS mine, started_at, finished_at, archived
  FROM ratchet.jobs WHERE id = pg_temp.job('plain');

-- NULL means the default, everywhere but for the kind
INSERT INTO named VALUES ('nulls', ratchet.enqueue('mail', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL));
SELECT queue, payload, state, priority, max_attempts, tags, meta, expires_at, keep_until
  FROM ratchet.jobs WHERE id = pg_temp.job('nulls');

-- every argument
INSERT INTO named VALUES ('full', ratchet.enqueue(
    kind => 'report', payload => '[1, null]', queue => 'eq full', priority => -100, run_at => '2031-02-03 04:05:06.789+00',
    max_attempts => 7, backoff => 'linear', backoff_base => '1 day 1 us', backoff_max => '3660 days', jitter => false,
    timeout => '1 microsecond', lease => '90 minutes', expires_in => '36 hours', keep_for => '2 days',
    idempotency_key => 'i', business_key => 'b', run_when => 'success', tags => '{x,"y z"}', meta => '{"m": 1}',
    hold => false, id => pg_temp.own_id(now())));
SELECT queue, kind, payload, state, priority, scheduled_at, max_attempts, backoff, backoff_base, backoff_max, jitter,
       timeout, lease, expires_at - scheduled_at AS valid, keep_until - created_at AS kept, idempotency_key, business_key,
       tags, meta, paused_from
  FROM ratchet.jobs WHERE id = pg_temp.job('full');
\x off

-- hold
INSERT INTO named VALUES ('held', ratchet.enqueue('mail', queue => 'eq_hold', hold => true));
SELECT state, paused_from, finished_at IS NULL AS unfinished, version FROM ratchet.jobs WHERE id = pg_temp.job('held');
SELECT count(*) FROM ratchet.claim('eq_hold', 'w');
SELECT ratchet.resume(pg_temp.job('held'));
SELECT id = pg_temp.job('held') AS claimed FROM ratchet.claim('eq_hold', 'w');

-- run_at: the past is taken as given
INSERT INTO named VALUES
    ('past', ratchet.enqueue('a', queue => 'eq_at', run_at => '2001-02-03 04:05:06+00')),
    ('epoch', ratchet.enqueue('a', queue => 'eq_at', run_at => '2000-01-01 00:00:00+00')),
    ('future', ratchet.enqueue('a', queue => 'eq_at', run_at => '2099-01-01 00:00:00+00'));
SELECT name, scheduled_at FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'eq_at' ORDER BY name;
SELECT run_at, pg_temp.try(format('SELECT ratchet.enqueue(%L, run_at => %L)', 'a', run_at))
  FROM unnest('{infinity,-infinity,1999-12-31 23:59:59.999999+00,4713-01-01 00:00:00+00 BC,294276-01-01 00:00:00+00}'::timestamptz[])
    AS run_at ORDER BY run_at;

-- kind, queue and keys: bytes, not characters, and no control characters
SELECT what, pg_temp.try(format('SELECT ratchet.enqueue(kind => %L, queue => %L, idempotency_key => %L, business_key => %L) IS NOT NULL',
                         kind, queue, idempotency_key, business_key))
  FROM (VALUES
    (1, 'no kind', NULL, 'eq', NULL, NULL),
    (2, 'empty kind', '', 'eq', NULL, NULL),
    (3, 'kind of 255 bytes', repeat('k', 255), 'eq', NULL, NULL),
    (4, 'kind of 256 bytes', repeat('k', 256), 'eq', NULL, NULL),
    (5, 'kind of 128 characters, 256 bytes', repeat(chr(233), 128), 'eq', NULL, NULL),
    (6, 'kind with a newline', E'a\nb', 'eq', NULL, NULL),
    (7, 'empty queue', 'a', '', NULL, NULL),
    (8, 'queue of 128 bytes', 'a', repeat('q', 128), NULL, NULL),
    (9, 'queue of 129 bytes', 'a', repeat('q', 129), NULL, NULL),
    (10, 'queue with DEL', 'a', E'q\x7F', NULL, NULL),
    (11, 'queue like an array', 'a', '{a,b}', NULL, NULL),
    (12, 'brace inside', 'a', 'q{a}', NULL, NULL),
    (13, 'blanks only', ' ', ' ', ' ', ' '),
    (14, 'empty idempotency key', 'a', 'eq', '', NULL),
    (15, 'long idempotency key', 'a', 'eq', repeat('i', 256), NULL),
    (16, 'tab in idempotency key', 'a', 'eq', E'\t', NULL),
    (17, 'empty business key', 'a', 'eq', NULL, ''),
    (18, 'long business key', 'a', 'eq', NULL, repeat('b', 256)),
    (19, 'escape in business key', 'a', 'eq', NULL, E'\x1b'),
    (20, 'keys of 255 bytes', 'a', 'eq', repeat('i', 255), repeat('b', 255))
  ) AS t (n, what, kind, queue, idempotency_key, business_key) ORDER BY n;

-- numbers and words
SELECT arg, pg_temp.try(format('SELECT ratchet.enqueue(%L, queue => %L, %s) IS NOT NULL', 'a', 'eq', arg))
  FROM unnest(ARRAY['priority => -101', 'priority => 101', 'priority => 100', 'priority => 2147483647',
    'max_attempts => 0', 'max_attempts => -1', 'max_attempts => 2147483647',
    'backoff => ''quadratic''', 'backoff => ''Fixed''', 'backoff => ''''',
    'meta => ''[]''', 'meta => ''1''', 'meta => ''null''', 'meta => ''{}''',
    'tags => ''{}''', 'tags => ''{a,NULL}''', 'tags => ''{a,""}''', 'tags => ARRAY[repeat(''t'', 256)]',
    'tags => array_fill(''t''::text, ''{64}'')', 'tags => array_fill(''t''::text, ''{65}'')',
    'meta => jsonb_build_object(''m'', repeat(''m'', 65536))']) WITH ORDINALITY AS t (arg, n) ORDER BY n;

-- intervals: positive, finite, no months, at most 3660 days
SELECT arg, pg_temp.try(format('SELECT ratchet.enqueue(%L, queue => %L, %s => %L) IS NOT NULL', 'a', 'eq', arg, value)) = 'true' AS ok, value
  FROM unnest('{backoff_base,backoff_max,timeout,lease,expires_in,keep_for}'::text[]) AS arg,
       unnest('{1 us,3660 days,0,-1 s,1 month,-1 month 40 days,1 year,3660 days 1 us,2147483647 days}'::text[]) WITH ORDINALITY AS v (value, n)
 WHERE arg = 'timeout' OR n IN (1, 3, 5, 8) ORDER BY arg, n;
SELECT value, pg_temp.try(format('SELECT ratchet.enqueue(%L, expires_in => %L)', 'a', value))
  FROM unnest('{0,-1 s,1 month,3660 days 1 us}'::text[]) WITH ORDINALITY AS v (value, n) ORDER BY n;

-- own ids
SELECT what, pg_temp.try(format('SELECT ratchet.enqueue(%L, queue => %L, id => %L) = %L', 'a', 'eq_own', id, id))
  FROM (VALUES
    (1, 'now', pg_temp.own_id(now(), 1)),
    (2, '23 hours ago', pg_temp.own_id(now() - interval '23 hours', 2)),
    (3, 'in 23 hours', pg_temp.own_id(now() + interval '23 hours', 3)),
    (4, '25 hours ago', pg_temp.own_id(now() - interval '25 hours', 4)),
    (5, 'in 25 hours', pg_temp.own_id(now() + interval '25 hours', 5)),
    (6, 'random', 'a9fa38f1-2f4c-4c0e-8b55-0a4a4c2d9d3e'),
    (7, 'zero', '00000000-0000-0000-0000-000000000000'),
    (8, 'ones', 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
    (9, 'version 7, not the variant', overlay(pg_temp.own_id(now(), 9)::text placing 'c' from 20)::uuid),
    (10, 'version 6', overlay(pg_temp.own_id(now(), 10)::text placing '6' from 15)::uuid)
  ) AS t (n, what, id) ORDER BY n;
-- ... a duplicate is refused, live, finished or archived
INSERT INTO named VALUES ('own', ratchet.enqueue('a', queue => 'eq_dup', id => pg_temp.own_id(now(), 20)));
SELECT pg_temp.try('SELECT ratchet.enqueue(''b'', queue => ''eq_other'', id => pg_temp.job(''own''))');
SELECT ratchet.cancel(pg_temp.job('own'));
SELECT pg_temp.try('SELECT ratchet.enqueue(''b'', queue => ''eq_other'', id => pg_temp.job(''own''))');
SELECT ratchet.configure_queue('eq_once', archive_after => '0');
INSERT INTO named VALUES ('archived', ratchet.enqueue('a', queue => 'eq_once', id => pg_temp.own_id(now(), 21)));
SELECT ratchet.complete(id, token) FROM ratchet.claim('eq_once', 'w');
SELECT archived FROM ratchet.jobs WHERE id = pg_temp.job('archived');
SELECT pg_temp.try('SELECT ratchet.enqueue(''b'', queue => ''eq_other'', id => pg_temp.job(''archived''))');
SELECT count(*) AS nothing_left FROM ratchet.jobs WHERE queue = 'eq_other';
-- ... and two of one call
SELECT pg_temp.try(format('SELECT ratchet.enqueue_many(jsonb_build_array(%1$L::jsonb, %1$L::jsonb))',
                          json_build_object('kind', 'a', 'queue', 'eq_other', 'id', pg_temp.own_id(now(), 22)))) LIKE '23505: %' AS refused;

-- generated ids: version 7, variant 2, the time in front, strictly rising within a backend
SELECT clock_timestamp() AS before \gset
CREATE TEMP TABLE made (n int GENERATED ALWAYS AS IDENTITY, id uuid);
DO $$ BEGIN FOR i IN 1..2000 LOOP INSERT INTO made (id) VALUES (ratchet.enqueue('a', queue => 'eq_ids', hold => true)); END LOOP; END $$;
INSERT INTO made (id) SELECT * FROM ratchet.enqueue_many('a', array_fill('{}'::jsonb, '{5000}'), 'eq_ids', hold => true);
INSERT INTO made (id) SELECT ratchet.enqueue('a', queue => 'eq_ids', hold => true) FROM generate_series(1, 2000);
SELECT count(*), count(DISTINCT id) AS different, bool_and(id::text ~ '^.{14}7.{4}[89ab]') AS version_and_variant,
       count(DISTINCT right(id::text, 15)) > 8990 AS random_tail,
       bool_and(at BETWEEN :'before'::timestamptz - interval '1 ms' AND clock_timestamp() + interval '1 s') AS time_in_front
  FROM made, to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) AS at;
SELECT count(*) AS out_of_order FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM made) AS t WHERE id <= before;

-- size of the payload: of the value, before compression
SET ratchet.max_payload_size = 1024;
SELECT n, pg_temp.try(format('SELECT ratchet.enqueue(%L, to_jsonb(repeat(%L, %s)), %L) IS NOT NULL', 'a', 'x', n, 'eq'))
  FROM unnest('{1012,1013,100000}'::int[]) AS n;
SELECT pg_temp.try($$SELECT ratchet.enqueue_many('a', ARRAY['1', to_jsonb(repeat('x', 1013))], 'eq_none')$$);
SELECT pg_temp.try($$SELECT ratchet.enqueue_many(jsonb_build_array('{"kind": "a", "queue": "eq_none"}'::jsonb,
    jsonb_build_object('kind', 'a', 'queue', 'eq_none', 'payload', repeat('x', 1013))))$$);
SELECT count(*) FROM ratchet.jobs WHERE queue = 'eq_none';
RESET ratchet.max_payload_size;
SELECT pg_temp.try(format('SELECT ratchet.enqueue(%L, to_jsonb(repeat(%L, %s)), %L) IS NOT NULL', 'a', 'x', 1048576 - 12, 'eq'));
SELECT pg_temp.try(format('SELECT ratchet.enqueue(%L, to_jsonb(repeat(%L, %s)), %L) IS NOT NULL', 'a', 'x', 1048576 - 11, 'eq'));

-- a rollback leaves nothing, a savepoint's neither
BEGIN;
SELECT ratchet.enqueue('a', queue => 'eq_back', idempotency_key => 'i', business_key => 'b') IS NOT NULL AS made;
ROLLBACK;
BEGIN;
INSERT INTO named VALUES ('kept', ratchet.enqueue('a', queue => 'eq_back'));
SAVEPOINT s;
SELECT ratchet.enqueue('b', queue => 'eq_back', idempotency_key => 'i', business_key => 'b') IS NOT NULL AS made;
ROLLBACK TO s;
COMMIT;
SELECT kind FROM ratchet.jobs WHERE queue = 'eq_back';
SELECT count(*) FROM ratchet.idempotency_key WHERE queue = 'eq_back';
SELECT count(*) FROM ratchet.business_key WHERE queue = 'eq_back' AND owner IS NOT NULL;
SELECT ratchet.enqueue('c', queue => 'eq_back', idempotency_key => 'i', business_key => 'b') IS NOT NULL AS keys_are_free;

-- enqueue_many, one kind: ids in the order of the payloads
CREATE TEMP TABLE answer AS
    SELECT * FROM ratchet.enqueue_many('bulk', '{10,"null","\"x\"",40}', 'eq_many', 5, '2030-01-01 00:00:00+00', 2, 'fixed', '1 s',
        '2 s', true, '3 s', '4 s', '5 s', '6 s', tags => '{t}', meta => '{"m": 1}', hold => true) WITH ORDINALITY AS t (id, n);
SELECT n, payload, kind, priority, scheduled_at, max_attempts, backoff, backoff_base, backoff_max, jitter, timeout, lease,
       expires_at - scheduled_at AS valid, keep_until - created_at AS kept, tags, meta, state
  FROM answer JOIN ratchet.jobs USING (id) ORDER BY n;
SELECT count(*) FROM ratchet.enqueue_many('bulk', '{}', 'eq_many');
SELECT count(*) FROM ratchet.enqueue_many('[]');
SELECT pg_temp.try(format('SELECT count(*) FROM ratchet.enqueue_many(%s)', args))
  FROM unnest(ARRAY['NULL, ''{1}''', '''a'', NULL', '''a'', ''{1,NULL}''', '''a'', ''{1}'', priority => 101', 'NULL::jsonb'])
    WITH ORDINALITY AS t (args, n) ORDER BY n;

-- enqueue_many, each its own
TRUNCATE answer;
SELECT pg_temp.own_id(now(), 30) AS own \gset
INSERT INTO answer SELECT * FROM ratchet.enqueue_many(format('[
    {"kind": "one", "queue": "eq_json"},
    {"kind": "two", "queue": "eq_json", "payload": {"a": [1]}, "priority": -3, "run_at": "2031-02-03T04:05:06Z", "max_attempts": 9,
     "backoff": "none", "backoff_base": "1 s", "backoff_max": "1 min", "jitter": false, "timeout": "2 min", "lease": "3 min",
     "expires_in": "1 day", "keep_for": "2 days", "idempotency_key": "i", "business_key": "b", "run_when": "success",
     "tags": ["x", "y"], "meta": {"m": null}, "hold": true, "id": %s},
    {"kind": "three", "queue": "eq_json", "payload": null, "priority": null, "run_at": null, "max_attempts": null, "backoff": null,
     "backoff_base": null, "jitter": null, "timeout": null, "idempotency_key": null, "business_key": null, "concurrency_key": null,
     "resource": null, "circuit": null, "depends_on": null, "run_when": null, "tags": null, "meta": null, "hold": null, "id": null},
    {"kind": "four", "queue": "eq_json", "payload": "text", "tags": [], "priority": 1e1}
    ]', to_json(:'own'::text))::jsonb) WITH ORDINALITY;
SELECT n, kind, payload, state, priority, CASE WHEN n = 2 THEN scheduled_at END AS scheduled_at, max_attempts, backoff, backoff_base,
       backoff_max, jitter, timeout, lease, expires_at - scheduled_at AS valid, keep_until - created_at AS kept, idempotency_key,
       business_key, tags, meta, id = :'own' AS own
  FROM answer JOIN ratchet.jobs USING (id) ORDER BY n;
-- ... wrong types, unknown keys: an error, and nothing made
SELECT job, pg_temp.try(format('SELECT count(*) FROM ratchet.enqueue_many(%L)', '[{"kind": "a", "queue": "eq_none"}, ' || job || ']'))
  FROM unnest(ARRAY['{}', '{"kind": null}', '{"kind": 1}', '{"kind": ""}', '{"kind": "a", "prioritty": 1}', '{"kind": "a", "": 1}',
    '{"kind": "a", "Priority": 1}', '{"kind": "a", "payloads": [1]}', '{"kind": "a", "priority": "1"}', '{"kind": "a", "priority": 1.5}',
    '{"kind": "a", "priority": 101}', '{"kind": "a", "max_attempts": true}', '{"kind": "a", "jitter": "yes"}', '{"kind": "a", "hold": 1}', '{"kind": "a", "timeout": 5}',
    '{"kind": "a", "timeout": "1 month"}', '{"kind": "a", "run_at": 0}', '{"kind": "a", "run_at": "infinity"}', '{"kind": "a", "tags": "x"}',
    '{"kind": "a", "tags": ["x", null]}', '{"kind": "a", "tags": [1]}', '{"kind": "a", "tags": {"x": 1}}', '{"kind": "a", "meta": []}',
    '{"kind": "a", "queue": "{b}"}', '{"kind": "a", "id": 1}', '{"kind": "a", "idempotency_key": ["i"]}', '[]', '1', 'null', '"a"'])
    WITH ORDINALITY AS t (job, n) ORDER BY n;
SELECT jobs, pg_temp.try(format('SELECT count(*) FROM ratchet.enqueue_many(%L::jsonb)', jobs))
  FROM unnest('{"{\"kind\": \"a\"}","\"a\"",1,"null",true}'::text[]) AS jobs ORDER BY jobs;
SELECT job, left(pg_temp.try(format('SELECT count(*) FROM ratchet.enqueue_many(%L)', '[{"kind": "a", "queue": "eq_none"}, ' || job || ']')), 5)
  FROM unnest(ARRAY['{"kind": "a", "priority": 99999999999}', '{"kind": "a", "max_attempts": 1e40}']) AS job ORDER BY job;
SELECT count(*) AS nothing_made FROM ratchet.jobs WHERE queue = 'eq_none';
-- ... malformed values of the right JSON type
\set VERBOSITY sqlstate
SELECT ratchet.enqueue_many('[{"kind": "a", "timeout": "soon"}]');
SELECT ratchet.enqueue_many('[{"kind": "a", "run_at": "soon"}]');
SELECT ratchet.enqueue_many('[{"kind": "a", "id": "soon"}]');
\set VERBOSITY default

-- idempotency keys: the same id back, and nothing changed
INSERT INTO named VALUES ('first', ratchet.enqueue('pay', '{"n": 1}', 'eq_idem', idempotency_key => 'order 1'));
SELECT ratchet.enqueue('pay', '{"n": 2}', 'eq_idem', priority => 9, run_at => '2030-01-01', idempotency_key => 'order 1',
    business_key => 'b', id => pg_temp.own_id(now(), 40)) = pg_temp.job('first') AS same;
SELECT payload, priority, business_key, version FROM ratchet.jobs WHERE queue = 'eq_idem';
SELECT count(*) AS takes_no_business_key FROM ratchet.business_key WHERE queue = 'eq_idem';
-- ... bad arguments are an error all the same
SELECT pg_temp.try('SELECT ratchet.enqueue(''pay'', queue => ''eq_idem'', priority => 101, idempotency_key => ''order 1'')');
-- ... another kind
SELECT pg_temp.try('SELECT ratchet.enqueue(''refund'', queue => ''eq_idem'', idempotency_key => ''order 1'')');
-- ... per queue, byte by byte
SELECT ratchet.enqueue('pay', queue => 'eq_idem2', idempotency_key => 'order 1') = pg_temp.job('first') AS same;
SELECT ratchet.enqueue('refund', queue => 'eq_idem', idempotency_key => 'Order 1') = pg_temp.job('first') AS same;
SELECT ratchet.enqueue('refund', queue => 'eq_idem', idempotency_key => 'order 1 ') = pg_temp.job('first') AS same;
-- ... for ever: finished, archived
SELECT ratchet.cancel(pg_temp.job('first'));
SELECT ratchet.enqueue('pay', queue => 'eq_idem', idempotency_key => 'order 1') = pg_temp.job('first') AS same;
INSERT INTO named VALUES ('gone', ratchet.enqueue('pay', queue => 'eq_once', idempotency_key => 'order 2'));
SELECT ratchet.complete(id, token) FROM ratchet.claim('eq_once', 'w');
SELECT archived FROM ratchet.jobs WHERE id = pg_temp.job('gone');
SELECT ratchet.enqueue('pay', queue => 'eq_once', idempotency_key => 'order 2') = pg_temp.job('gone') AS same;
SELECT pg_temp.try('SELECT ratchet.enqueue(''refund'', queue => ''eq_once'', idempotency_key => ''order 2'')');
SELECT count(*) FROM ratchet.jobs WHERE queue = 'eq_once' AND NOT archived;
-- ... a rollback frees it
BEGIN;
INSERT INTO named VALUES ('undone', ratchet.enqueue('pay', queue => 'eq_idem', idempotency_key => 'order 3'));
SELECT ratchet.enqueue('pay', queue => 'eq_idem', idempotency_key => 'order 3') = pg_temp.job('undone') AS same;
SELECT pg_temp.job('undone') AS undone \gset
ROLLBACK;
SELECT ratchet.enqueue('refund', queue => 'eq_idem', idempotency_key => 'order 3') = :'undone' AS same;
-- ... within one call: one job, its id for each
TRUNCATE answer;
INSERT INTO answer SELECT * FROM ratchet.enqueue_many('[
    {"kind": "pay", "queue": "eq_idem3", "payload": 1, "idempotency_key": "z"},
    {"kind": "pay", "queue": "eq_idem3", "payload": 2, "idempotency_key": "a"},
    {"kind": "pay", "queue": "eq_idem3", "payload": 3, "idempotency_key": "z"},
    {"kind": "pay", "queue": "eq_idem3", "payload": 4},
    {"kind": "pay", "queue": "eq_idem", "payload": 5, "idempotency_key": "order 1"}]') WITH ORDINALITY;
SELECT n, dense_rank() OVER (ORDER BY id) AS job, payload, id = pg_temp.job('first') AS first
  FROM answer JOIN ratchet.jobs USING (id) ORDER BY n;
SELECT payload FROM ratchet.jobs WHERE queue = 'eq_idem3' ORDER BY payload;
SELECT pg_temp.try('SELECT ratchet.enqueue_many(''[{"kind": "pay", "queue": "eq_idem4", "idempotency_key": "z"},
    {"kind": "refund", "queue": "eq_idem4", "idempotency_key": "z"}]'')');
SELECT count(*) FROM ratchet.idempotency_key WHERE queue = 'eq_idem4';

-- business keys: one live owner, released by each way to finish
CREATE FUNCTION pg_temp.second() RETURNS text LANGUAGE sql AS
    $$ SELECT pg_temp.try('SELECT ratchet.enqueue(''b'', queue => ''eq_key'', business_key => ''account 7'')') $$;
CREATE FUNCTION pg_temp.owner(wanted text, VARIADIC more text[] DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO named VALUES (%L, ratchet.enqueue(%s))', wanted,
        array_to_string(ARRAY['''a''', 'queue => ''eq_key''', 'business_key => ''account 7'''] || more, ', '));
    RETURN (SELECT state FROM ratchet.jobs WHERE id = pg_temp.job(wanted));
END $$;
SELECT pg_temp.owner('completed');
SELECT pg_temp.second() AS while_pending;
SELECT id, token FROM ratchet.claim('eq_key', 'w') \gset
SELECT pg_temp.second() LIKE 'RT002: %<completed>%' AS while_running;
SELECT ratchet.complete(:'id', :'token');
SELECT pg_temp.owner('given up', 'max_attempts => 2', 'backoff => ''none''');
SELECT ratchet.fail(id, token, 'e') FROM ratchet.claim('eq_key', 'w');
SELECT pg_temp.second() LIKE 'RT002: %<given up>%' AS while_waiting_to_retry;
SELECT ratchet.fail(id, token, 'e') FROM ratchet.claim('eq_key', 'w');
SELECT pg_temp.owner('skipped');
SELECT ratchet.skip(id, token) FROM ratchet.claim('eq_key', 'w');
SELECT pg_temp.owner('canceled');
SELECT ratchet.cancel(pg_temp.job('canceled'));
SELECT pg_temp.owner('canceled running');
SELECT count(*) FROM ratchet.claim('eq_key', 'w');
SELECT ratchet.cancel(pg_temp.job('canceled running'));
SELECT pg_temp.owner('canceled paused');
SELECT ratchet.pause(pg_temp.job('canceled paused'));
SELECT pg_temp.second() LIKE 'RT002: %<canceled paused>%' AS while_paused;
SELECT ratchet.cancel(pg_temp.job('canceled paused'));
SELECT pg_temp.owner('on hold', 'hold => true');
SELECT pg_temp.second() LIKE 'RT002: %<on hold>%' AS while_on_hold;
SELECT ratchet.cancel_many('eq_key');
SELECT pg_temp.owner('expired by claim', 'run_at => ''2020-01-01''', 'expires_in => ''1 s''');
SELECT count(*) FROM ratchet.claim('eq_key', 'w');
SELECT pg_temp.owner('expired by resume', 'run_at => ''2020-01-01''', 'expires_in => ''1 s''', 'hold => true');
SELECT ratchet.resume(pg_temp.job('expired by resume'));
SELECT pg_temp.owner('released');
SELECT ratchet.release(id, token) FROM ratchet.claim('eq_key', 'w');
SELECT pg_temp.second() LIKE 'RT002: %<released>%' AS after_release;
SELECT name, state FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'eq_key' ORDER BY id;

-- ... retry takes it again
SELECT pg_temp.try('SELECT ratchet.retry(pg_temp.job(''given up''))');
SELECT state, attempt, version FROM ratchet.jobs WHERE id = pg_temp.job('given up');
-- ... paused from failed holds none, and neither pause nor resume conflicts
SELECT ratchet.pause(pg_temp.job('given up'));
SELECT state, paused_from FROM ratchet.jobs WHERE id = pg_temp.job('given up');
SELECT ratchet.cancel(pg_temp.job('released'));
SELECT pg_temp.owner('while the other is paused');
SELECT ratchet.resume(pg_temp.job('given up'));
SELECT state FROM ratchet.jobs WHERE id = pg_temp.job('given up');
SELECT pg_temp.second() LIKE 'RT002: %<while the other is paused>%' AS still_taken;
-- ... retry_many leaves out the jobs whose key is taken: by a live one, or by one it has just retried
SELECT ratchet.fail(id, token, 'e', retryable => false) FROM ratchet.claim('eq_key', 'w');
INSERT INTO named VALUES ('without key', ratchet.enqueue('b', queue => 'eq_key'));
SELECT ratchet.fail(id, token, 'e', retryable => false) FROM ratchet.claim('eq_key', 'w');
SELECT ratchet.retry_many('eq_key');
SELECT name, state FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'eq_key' AND state IN ('failed', 'pending') ORDER BY name;
SELECT pg_temp.second() LIKE 'RT002: %<given up>%' AS taken;
SELECT ratchet.retry_many('eq_key');
SELECT ratchet.cancel(pg_temp.job('given up'));
SELECT ratchet.retry(pg_temp.job('while the other is paused'));
SELECT pg_temp.second() LIKE 'RT002: %<while the other is paused>%' AS taken;

-- ... per queue
SELECT ratchet.enqueue('a', queue => 'eq_key2', business_key => 'account 7') IS NOT NULL AS made;
SELECT pg_temp.try('SELECT ratchet.enqueue_many(''[{"kind": "a", "queue": "eq_key3", "business_key": "x"},
    {"kind": "a", "queue": "eq_key3"}, {"kind": "a", "queue": "eq_key3", "business_key": "x"}]'')');
SELECT count(*) FROM ratchet.jobs WHERE queue = 'eq_key3';
SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "a", "queue": "eq_key3", "business_key": "y"},
    {"kind": "a", "queue": "eq_key3", "business_key": "x"}, {"kind": "a", "queue": "eq_key4", "business_key": "x"}]');

-- ... for every writer
CREATE FUNCTION pg_temp.direct(wanted text, key text, queue text DEFAULT 'eq_direct') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO named VALUES (wanted, pg_temp.own_id(clock_timestamp(), hashtext(wanted)));
    INSERT INTO ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, business_key, scheduled_at, priority, state)
        VALUES (pg_temp.job(wanted), now(), queue, 'direct', '1', 'me', 1, key, now(), 0, 'pending');
    RETURN 'inserted';
END $$;
SELECT pg_temp.direct('d1', 'x');
SELECT pg_temp.try($$SELECT pg_temp.direct('d2', 'x')$$);
SELECT pg_temp.try($$SELECT ratchet.enqueue('a', queue => 'eq_direct', business_key => 'x')$$);
SET session_replication_role = replica;
SELECT pg_temp.try($$SELECT pg_temp.direct('d2', 'x')$$) LIKE 'RT002: %<d1>%' AS as_replica;
RESET session_replication_role;
SELECT pg_temp.direct('d2', 'y');
SELECT pg_temp.try($$UPDATE ratchet.job SET business_key = 'x' WHERE id = pg_temp.job('d2') RETURNING 1$$);
UPDATE ratchet.job SET business_key = 'z' WHERE id = pg_temp.job('d2');
SELECT pg_temp.direct('d3', 'y');
SELECT pg_temp.try($$SELECT pg_temp.direct('d4', 'z')$$) LIKE 'RT002: %<d2>%' AS follows_the_column;
UPDATE ratchet.job SET state = 'canceled', finished_at = now() WHERE id = pg_temp.job('d1');
SELECT pg_temp.direct('d4', 'x');
UPDATE ratchet.job SET business_key = NULL WHERE id = pg_temp.job('d4');
SELECT pg_temp.direct('d5', 'x');
-- an insert that ON CONFLICT drops takes nothing
INSERT INTO ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, business_key, scheduled_at, priority, state)
    VALUES (pg_temp.job('d5'), now(), 'eq_direct', 'direct', '1', 'me', 1, 'dropped', now(), 0, 'pending') ON CONFLICT DO NOTHING;
SELECT ratchet.enqueue('a', queue => 'eq_direct', business_key => 'dropped') IS NOT NULL AS free;

-- ... and savepoints
BEGIN;
INSERT INTO named VALUES ('s1', ratchet.enqueue('a', queue => 'eq_save', business_key => 'x'));
SAVEPOINT s;
SELECT ratchet.cancel(pg_temp.job('s1'));
INSERT INTO named VALUES ('s2', ratchet.enqueue('a', queue => 'eq_save', business_key => 'x'));
SELECT pg_temp.try($$SELECT ratchet.enqueue('a', queue => 'eq_save', business_key => 'x')$$) LIKE 'RT002: %<s2>%' AS taken;
ROLLBACK TO s;
SELECT pg_temp.try($$SELECT ratchet.enqueue('a', queue => 'eq_save', business_key => 'x')$$) LIKE 'RT002: %<s1>%' AS taken;
SAVEPOINT s;
SELECT ratchet.cancel(pg_temp.job('s1'));
ROLLBACK TO s;
COMMIT;
SELECT pg_temp.try($$SELECT ratchet.enqueue('a', queue => 'eq_save', business_key => 'x')$$) LIKE 'RT002: %<s1>%' AS taken;
BEGIN;
SELECT ratchet.cancel(pg_temp.job('s1'));
SELECT ratchet.enqueue('a', queue => 'eq_save', business_key => 'x') IS NOT NULL AS made;
ROLLBACK;
SELECT pg_temp.try($$SELECT ratchet.enqueue('a', queue => 'eq_save', business_key => 'x')$$) LIKE 'RT002: %<s1>%' AS taken;

-- one key used again and again
DO $$ BEGIN
    FOR i IN 1..500 LOOP PERFORM ratchet.cancel(ratchet.enqueue('a', queue => 'eq_again', business_key => 'x')); END LOOP;
END $$;
SELECT count(*) FROM ratchet.business_key WHERE queue = 'eq_again';

-- what is not there yet
SELECT arg, pg_temp.try(format('SELECT ratchet.enqueue(%L, queue => %L, %s)', 'a', 'eq_later', arg))
  FROM unnest(ARRAY['concurrency_key => ''c''', 'resource => ''r''', 'circuit => ''c''', 'depends_on => ARRAY[pg_temp.job(''plain'')]',
    'depends_on => ''{}''', 'run_when => ''failure''', 'run_when => ''finished''', 'run_when => ''$.ok == true''']) WITH ORDINALITY AS t (arg, n)
 ORDER BY n;
SELECT arg, left(pg_temp.try(format('SELECT ratchet.enqueue_many(%L, %L, %s)', 'a', '{1}', arg)), 5)
  FROM unnest(ARRAY['concurrency_key => ''c''', 'resource => ''r''', 'circuit => ''c''', 'depends_on => ARRAY[pg_temp.job(''plain'')]',
    'run_when => ''failure''']) WITH ORDINALITY AS t (arg, n) ORDER BY n;
SELECT arg, left(pg_temp.try(format('SELECT ratchet.enqueue_many(%L)', '[{"kind": "a", ' || arg || '}]')), 5)
  FROM unnest(ARRAY['"concurrency_key": "c"', '"resource": "r"', '"circuit": "c"', '"depends_on": []', '"run_when": "failure"'])
    WITH ORDINALITY AS t (arg, n) ORDER BY n;
SELECT count(*) FROM ratchet.jobs WHERE queue = 'eq_later';
