-- claim: which jobs, in which order, under which lease
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/test/lib/cases.sql'
\set ECHO none
\i :helpers
\set ECHO all

-- what a claim hands out: columns, types, and their order
SELECT attname, format_type(atttypid, NULL) AS type FROM pg_attribute
 WHERE attrelid = 'ratchet.claimed'::regclass AND attnum > 0 ORDER BY attnum;
INSERT INTO named VALUES ('full', ratchet.enqueue('k', '{"p": 1}', 'cl_one', priority => 4, max_attempts => 5, timeout => '7 min',
    lease => '2 min', tags => '{a,b}', meta => '{"m": 2}', run_at => '2024-01-01 00:00:00+00'));
SELECT clock_timestamp() AS before \gset
CREATE TEMP TABLE held AS SELECT * FROM ratchet.claim('cl_one', 'worker 1');
SELECT name, c.kind, c.payload, c.attempt, c.max_attempts, c.queue, c.priority, c.timeout, c.meta, c.scheduled_at, c.tags,
       c.created_at = j.created_at AS created, c.lease_expires_at = j.lease_expires_at AS lease, c.token = j.token AS token
  FROM held c JOIN named USING (id) JOIN ratchet.job j USING (id);
-- ... and what it leaves in the row
SELECT state, attempt, version, picked_by, node, lease_expires_at - picked_at AS lease, started_at = picked_at AS first_run,
       picked_at BETWEEN :'before' AND clock_timestamp() AS now, finished_at, progress, left_at = picked_at AS left_ready_index, ready_at
  FROM ratchet.job WHERE id = pg_temp.job('full');
SELECT count(*) AS again FROM ratchet.claim('cl_one', 'worker 2');
-- ... attempts count, the first start stays, the picker changes
SELECT ratchet.fail(id, token, 'e', retry_in => '0') FROM held;
SELECT attempt FROM ratchet.claim('cl_one', 'worker 2', node => 'host 9');
SELECT attempt, picked_by, node, started_at < picked_at AS later, version FROM ratchet.jobs WHERE id = pg_temp.job('full');

-- order: against plain SQL, over several priorities, ages and ties, in batches of several sizes
SHOW ratchet.priority_boost_interval;
SELECT setseed(0.42);
DO $$
BEGIN
    FOR i IN 1..1500 LOOP
        PERFORM ratchet.enqueue((ARRAY['red', 'green', 'blue'])[1 + floor(random() * 3)::int], to_jsonb(i), 'cl_order',
            priority => floor(random() * 9)::int - 4 + CASE WHEN random() < 0.1 THEN 40 ELSE 0 END,
            run_at => CASE WHEN random() < 0.3 THEN date_trunc('hour', now()) - floor(random() * 12) * interval '15 minutes' - interval '450 seconds'
                           ELSE now() - floor(random() * 40000) * interval '1 second' - interval '0.5 second' END);
    END LOOP;
END $$;
-- Jobs within a minute of their next boost, which could fall between claim and comparison, are made older.
SELECT ratchet.reschedule(id, scheduled_at - interval '2 minutes') IS NULL AS never FROM ratchet.jobs
 WHERE queue = 'cl_order' AND extract(epoch FROM now() - scheduled_at)::numeric % 900 > 840 GROUP BY 1;
CREATE TEMP TABLE backlog AS
    SELECT id, kind, priority, scheduled_at FROM ratchet.jobs WHERE queue = 'cl_order';
CREATE TEMP TABLE got (n int GENERATED ALWAYS AS IDENTITY, batch int, id uuid, token uuid);
DO $$
DECLARE
    size int;
BEGIN
    FOREACH size IN ARRAY '{1,1,2,3,10,1,100,7,500,1}'::int[] LOOP
        INSERT INTO got (batch, id, token) SELECT size, id, token FROM ratchet.claim('cl_order', 'w', size);
    END LOOP;
END $$;
CREATE TEMP VIEW wanted AS
    SELECT row_number() OVER (ORDER BY priority + floor(extract(epoch FROM now() - scheduled_at) / 900) DESC, scheduled_at, id) AS n, id
      FROM backlog;
SELECT count(*) AS claimed, count(DISTINCT got.id) AS different, count(DISTINCT token) AS tokens,
       count(*) FILTER (WHERE wanted.id IS DISTINCT FROM got.id) AS out_of_place
  FROM got LEFT JOIN wanted USING (n);
SELECT count(DISTINCT priority) > 10 AS priorities, count(*) - count(DISTINCT (priority, scheduled_at)) > 50 AS ties,
       count(DISTINCT floor(extract(epoch FROM now() - scheduled_at) / 900)) > 20 AS boosts FROM backlog;
-- ... a kind that skips others keeps the order among its own
DELETE FROM backlog USING got WHERE backlog.id = got.id;
TRUNCATE got RESTART IDENTITY;
INSERT INTO got (id) SELECT id FROM ratchet.claim('cl_order', 'w', 50, kinds => '{green,red}');
DELETE FROM backlog WHERE kind = 'blue';
SELECT count(*) AS claimed, count(*) FILTER (WHERE wanted.id IS DISTINCT FROM got.id) AS out_of_place FROM got LEFT JOIN wanted USING (n);
-- ... and the rest in one go
INSERT INTO got (id) SELECT id FROM ratchet.claim('cl_order', 'w', 10000);
SELECT count(*) AS left_over FROM ratchet.jobs WHERE queue = 'cl_order' AND state = 'pending';
-- ... ties in the time go by id
SELECT ratchet.enqueue_many('a', '{1,2,3,4,5}', 'cl_tie', run_at => '2024-01-01') IS NULL AS never GROUP BY 1;
SELECT payload FROM ratchet.claim('cl_tie', 'w', 5);

-- kinds are exact
SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "a", "queue": "cl_kind"}, {"kind": "A", "queue": "cl_kind"}, {"kind": "ab", "queue": "cl_kind"},
    {"kind": "b", "queue": "cl_kind"}]');
SELECT kind FROM ratchet.claim('cl_kind', 'w', 9, kinds => '{b,a,b}');
SELECT kind FROM ratchet.claim('cl_kind', 'w', 9, kinds => '{}');
SELECT kind FROM ratchet.claim('cl_kind', 'w', 9, kinds => '{c}');
SELECT kind FROM ratchet.claim('cl_kind', 'w', 9, kinds => NULL);

-- several queues: strictly left to right, whatever the priority; a name counts once
SELECT count(*) FROM ratchet.enqueue_many('[
    {"kind": "a", "queue": "cl_l", "payload": 1, "priority": -100}, {"kind": "a", "queue": "cl_l", "payload": 2, "priority": -99},
    {"kind": "a", "queue": "cl_r", "payload": 3, "priority": 100}, {"kind": "a", "queue": "cl_r", "payload": 4, "run_at": "2024-01-01"},
    {"kind": "a", "queue": "cl_m", "payload": 5}]');
SELECT queue, payload FROM ratchet.claim('{cl_l,cl_empty,cl_l,cl_r,cl_l,cl_m}'::text[], 'w', 4);
SELECT queue, payload FROM ratchet.claim(ARRAY['cl_l', 'cl_m', 'cl_r'], 'w', 4);
SELECT queue, payload FROM ratchet.claim('{}'::text[], 'w', 4);
SELECT pg_temp.try($$SELECT count(*) FROM ratchet.claim('{cl_l,NULL}'::text[], 'w')$$);
SELECT pg_temp.try($$SELECT count(*) FROM ratchet.claim(NULL::text[], 'w')$$);
SELECT pg_temp.try($$SELECT count(*) FROM ratchet.claim('{cl_l,cl_r}', 'w')$$);

-- arguments
SELECT args, pg_temp.try(format('SELECT count(*) FROM ratchet.claim(%s)', args))
  FROM unnest(ARRAY['NULL::text, ''w''', '''cl_none'', NULL', '''cl_none'', ''''', '''cl_none'', repeat(''w'', 255)', '''cl_none'', repeat(''w'', 256)',
    '''cl_none'', ''w'', 0', '''cl_none'', ''w'', -1', '''cl_none'', ''w'', 10000', '''cl_none'', ''w'', 10001', '''cl_none'', ''w'', NULL',
    '''cl_none'', ''w'', lease => ''0''', '''cl_none'', ''w'', lease => ''-1 s''', '''cl_none'', ''w'', lease => ''1 month''',
    '''cl_none'', ''w'', lease => ''3661 days''', '''cl_none'', ''w'', kinds => ''{a,NULL}''', '''cl_none'', ''w'', kinds => ''{""}''',
    '''cl_none'', ''w'', node => ''''', '''cl_none'', E''w\n''', '''cl_none'', ''w'', session => false', '''cl_none'', ''w'', session => true',
    '''cl_none'', ''w'', wait => ''0''', '''cl_none'', ''w'', wait => ''1 s''']) WITH ORDINALITY AS t (args, n) ORDER BY n;

-- the lease: the call's, the job's, the queue's, the server's
SELECT ratchet.configure_queue('cl_lease', lease => '3 min');
SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "own", "queue": "cl_lease", "lease": "2 min"}, {"kind": "queue", "queue": "cl_lease"},
    {"kind": "call", "queue": "cl_lease", "lease": "2 min"}, {"kind": "server", "queue": "cl_lease2"}, {"kind": "set", "queue": "cl_lease2"}]');
SELECT count(*) FROM ratchet.claim('cl_lease', 'w', 2);
SELECT count(*) FROM ratchet.claim('cl_lease', 'w', lease => '1 min 0.000001 s');
SELECT count(*) FROM ratchet.claim('cl_lease2', 'w');
SET ratchet.default_lease = '250ms';
SELECT count(*) FROM ratchet.claim('cl_lease2', 'w');
RESET ratchet.default_lease;
SELECT kind, lease_expires_at - picked_at AS lease FROM ratchet.jobs WHERE queue LIKE 'cl\_lease%' ORDER BY kind;
-- ... likewise the timeout that the worker is told
SELECT ratchet.configure_queue('cl_timeout', timeout => '8 min');
SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "a", "queue": "cl_timeout"}, {"kind": "b", "queue": "cl_timeout", "timeout": "9 min"},
    {"kind": "c", "queue": "cl_timeout2"}]');
SELECT kind, timeout FROM ratchet.claim('{cl_timeout,cl_timeout2}'::text[], 'w', 3);

-- not due, not handed out
SELECT count(*) FROM ratchet.enqueue_many('later', '{1,2}', 'cl_later', run_at => clock_timestamp() + interval '1 day');
SELECT count(*) FROM ratchet.claim('cl_later', 'w', 9);

-- a paused queue takes jobs and hands out none; what runs finishes
SELECT ratchet.enqueue('a', queue => 'cl_paused') IS NOT NULL AS made;
SELECT id, token FROM ratchet.claim('cl_paused', 'w') \gset
SELECT ratchet.pause_queue('cl_paused');
SELECT ratchet.enqueue('a', queue => 'cl_paused') IS NOT NULL AS made;
SELECT count(*) FROM ratchet.claim('cl_paused', 'w');
SELECT count(*) FROM ratchet.claim('{cl_none,cl_paused}'::text[], 'w');
SELECT status FROM ratchet.heartbeat(ARRAY[:'id'::uuid], ARRAY[:'token'::uuid]);
SELECT ratchet.complete(:'id', :'token');
SELECT ratchet.resume_queue('cl_paused');
SELECT count(*) FROM ratchet.claim('cl_paused', 'w');

-- overdue jobs are never handed out; a call turns at most a hundred of them
SELECT count(*) FROM ratchet.enqueue_many('old', array_fill('1'::jsonb, '{250}'), 'cl_old', 5, '2024-01-01', expires_in => '1 min');
SELECT ratchet.enqueue('fresh', queue => 'cl_old', expires_in => '1 day') IS NOT NULL AS made;
SELECT kind FROM ratchet.claim('cl_old', 'w', 1000);
SELECT state, count(*) FROM ratchet.jobs WHERE queue = 'cl_old' AND kind = 'old' GROUP BY state ORDER BY state;
SELECT kind FROM ratchet.claim('{cl_old,cl_old}'::text[], 'w', 1000);
SELECT state, count(*) FROM ratchet.jobs WHERE queue = 'cl_old' AND kind = 'old' GROUP BY state ORDER BY state;
SELECT count(*) FROM ratchet.claim('cl_old', 'w', 1000, kinds => '{other}');
SELECT state, count(*), bool_and(finished_at IS NOT NULL AND attempt = 0 AND picked_by IS NULL) AS as_it_should
  FROM ratchet.jobs WHERE queue = 'cl_old' AND kind = 'old' GROUP BY state;
-- ... a running one does not expire; back to pending it does
INSERT INTO named VALUES ('late', pg_temp.own_id(now()));
INSERT INTO ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, expires_at, priority, state,
                         attempt, token, picked_by, picked_at, lease_expires_at)
    VALUES (pg_temp.job('late'), '2024-01-01', 'cl_late', 'a', '1', 'me', 3, '2024-01-01', '2024-01-02', 0, 'running',
            1, '00000000-0000-4000-8000-000000000001', 'w', now(), now() + interval '1 hour');
SELECT count(*) FROM ratchet.claim('cl_late', 'w');
SELECT state FROM ratchet.jobs WHERE id = pg_temp.job('late');
SELECT ratchet.release(id, token) FROM ratchet.job WHERE id = pg_temp.job('late');
SELECT count(*) FROM ratchet.claim('cl_late', 'w');
SELECT state FROM ratchet.jobs WHERE id = pg_temp.job('late');

-- one token per call, random, in no view
SELECT count(*) FROM ratchet.enqueue_many('a', array_fill('1'::jsonb, '{6}'), 'cl_token');
CREATE TEMP TABLE tokens AS SELECT 1 AS call, token FROM ratchet.claim('cl_token', 'w', 3);
INSERT INTO tokens SELECT 2, token FROM ratchet.claim('cl_token', 'w', 3);
SELECT call, count(*), count(DISTINCT token) AS tokens, bool_and(token::text ~ '^.{14}4.{4}[89ab]') AS random FROM tokens GROUP BY call ORDER BY call;
SELECT count(DISTINCT token) FROM tokens;
SELECT table_name FROM information_schema.columns c JOIN information_schema.views v USING (table_schema, table_name)
 WHERE table_schema = 'ratchet' AND column_name = 'token';

-- claim and complete in one statement
SELECT count(*) FROM ratchet.enqueue_many('a', '{1,2,3}', 'cl_both');
SELECT payload, ratchet.complete(id, token) FROM ratchet.claim('cl_both', 'w', 2);
SELECT payload, ratchet.complete(id, token) FROM ratchet.claim('cl_both', 'w', 2);
SELECT payload, state, version FROM ratchet.jobs WHERE queue = 'cl_both' ORDER BY payload;

-- LIMIT does not make the batch smaller
SELECT count(*) FROM ratchet.enqueue_many('a', '{1,2,3}', 'cl_limit');
SELECT payload FROM ratchet.claim('cl_limit', 'w', 10) LIMIT 1;
SELECT state, count(*) FROM ratchet.jobs WHERE queue = 'cl_limit' GROUP BY state;

-- this transaction's own jobs, also those of a savepoint; a rollback gives them back
BEGIN;
SELECT ratchet.enqueue('own', '1', 'cl_own') IS NOT NULL AS made;
SAVEPOINT s;
SELECT ratchet.enqueue('own', '2', 'cl_own') IS NOT NULL AS made;
SELECT payload FROM ratchet.claim('cl_own', 'w', 9);
ROLLBACK TO s;
SELECT payload, attempt FROM ratchet.claim('cl_own', 'w', 9);
COMMIT;
SELECT payload, state, attempt FROM ratchet.jobs WHERE queue = 'cl_own';
SELECT ratchet.release(id, token) FROM ratchet.job WHERE queue = 'cl_own';
BEGIN;
SELECT payload, attempt FROM ratchet.claim('cl_own', 'w', 9);
ROLLBACK;
SELECT state, attempt, picked_by, token IS NULL AS no_token FROM ratchet.job WHERE queue = 'cl_own';
-- ... complete and claim again in one transaction
BEGIN;
SELECT ratchet.fail(id, token, 'e', retry_in => '0') FROM ratchet.claim('cl_own', 'w');
SELECT ratchet.fail(id, token, 'e', retry_in => '0') FROM ratchet.claim('cl_own', 'w');
SELECT attempt, ratchet.complete(id, token) FROM ratchet.claim('cl_own', 'w');
COMMIT;
SELECT state, attempt FROM ratchet.jobs WHERE queue = 'cl_own';

-- the newest version counts in every isolation level
SELECT ratchet.enqueue('a', queue => 'cl_iso') IS NOT NULL AS made;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT ratchet.complete(id, token) FROM ratchet.claim('cl_iso', 'w');
COMMIT;
SELECT state FROM ratchet.jobs WHERE queue = 'cl_iso';
-- nothing is written in a read-only transaction
BEGIN READ ONLY;
SELECT pg_temp.try($$SELECT count(*) FROM ratchet.claim('cl_iso', 'w')$$);
ROLLBACK;

-- a claim must be committed at once
SELECT ratchet.enqueue('a', queue => 'cl_prepare') IS NOT NULL AS made;
BEGIN;
SELECT count(*) FROM ratchet.claim('cl_prepare', 'w');
\set VERBOSITY sqlstate
PREPARE TRANSACTION 'regress_ratchet_claim';
\set VERBOSITY default
SELECT state FROM ratchet.jobs WHERE queue = 'cl_prepare';
