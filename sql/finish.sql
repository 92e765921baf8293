-- what a worker says about its job: complete, fail, skip, release, heartbeat, progress
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/test/lib/cases.sql'
\set ECHO none
\i :helpers
\set ECHO all

-- One job, claimed: what follows names it and its token.
CREATE TEMP TABLE held (name text PRIMARY KEY, id uuid, token uuid);
CREATE FUNCTION pg_temp.run(wanted text, args text DEFAULT '') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO named VALUES (%L, ratchet.enqueue(kind => ''a'', queue => %L, payload => ''1'' %s))', wanted, 'fi ' || wanted, args);
    INSERT INTO held SELECT wanted, id, token FROM ratchet.claim('fi ' || wanted, 'worker');
END $$;
CREATE FUNCTION pg_temp.again(wanted text) RETURNS int LANGUAGE sql AS $$
    DELETE FROM held WHERE name = wanted;
    INSERT INTO held SELECT wanted, id, token FROM ratchet.claim('fi ' || wanted, 'worker');
    SELECT count(*)::int FROM held WHERE name = wanted;
$$;
CREATE FUNCTION pg_temp.token(wanted text) RETURNS uuid LANGUAGE sql AS 'SELECT token FROM held WHERE name = wanted';
\set other '00000000-0000-4000-8000-000000000000'

-- complete
SELECT pg_temp.run('c1', ', timeout => ''1 h''');
SELECT ratchet.complete(pg_temp.job('c1'), :'other') AS wrong_token;
SELECT ratchet.complete(:'other', pg_temp.token('c1')) AS unknown_job;
SELECT state, version FROM ratchet.jobs WHERE id = pg_temp.job('c1');
SELECT ratchet.complete(pg_temp.job('c1'), pg_temp.token('c1'), '{"n": [1, 2]}');
SELECT state, result, attempt, version, picked_by, node, picked_at < finished_at AS in_time, lease_expires_at, token, ready_at,
       left_at = picked_at AS stays, last_error
  FROM ratchet.job WHERE id = pg_temp.job('c1');
SELECT ratchet.complete(pg_temp.job('c1'), pg_temp.token('c1'), '2') AS twice;
SELECT result, version FROM ratchet.jobs WHERE id = pg_temp.job('c1');
-- ... a result of any JSON type
SELECT pg_temp.run('r' || n) FROM generate_series(1, 7) AS n;
SELECT n, ratchet.complete(pg_temp.job('r' || n), pg_temp.token('r' || n), result)
  FROM unnest('{null,"null",true,1e100,"\"text\"","[]","{}"}'::jsonb[]) WITH ORDINALITY AS t (result, n) ORDER BY n;
SELECT name, result, result IS NULL AS none FROM named JOIN ratchet.jobs USING (id) WHERE name ~ '^r\d' ORDER BY name;
-- ... too large: the job keeps running
SELECT pg_temp.run('large');
SET ratchet.max_result_size = 1024;
SELECT pg_temp.try($$SELECT ratchet.complete(pg_temp.job('large'), pg_temp.token('large'), to_jsonb(repeat('x', 1013)))$$);
SELECT state, version FROM ratchet.jobs WHERE id = pg_temp.job('large');
SELECT pg_temp.try($$SELECT ratchet.complete(pg_temp.job('large'), pg_temp.token('large'), to_jsonb(repeat('x', 1012)))$$);
RESET ratchet.max_result_size;
-- ... strict
SELECT pg_temp.run('s1');
SELECT pg_temp.try($$SELECT ratchet.complete(pg_temp.job('s1'), '00000000-0000-4000-8000-000000000000', strict => true)$$);
SELECT pg_temp.try($$SELECT ratchet.complete('00000000-0000-4000-8000-000000000000', pg_temp.token('s1'), strict => true)$$);
SELECT pg_temp.try($$SELECT ratchet.complete(pg_temp.job('s1'), pg_temp.token('s1'), strict => true)$$);
SELECT pg_temp.try($$SELECT ratchet.complete(pg_temp.job('s1'), pg_temp.token('s1'), strict => true)$$);
SELECT pg_temp.try($$SELECT ratchet.complete(pg_temp.job('s1'), pg_temp.token('s1'), strict => NULL)$$);
-- ... the effects commit if and only if this lease completes the job
SELECT pg_temp.run('s2');
SELECT ratchet.cancel(pg_temp.job('s2'));
CREATE TEMP TABLE effect (n int);
BEGIN;
INSERT INTO effect VALUES (1);
\set VERBOSITY sqlstate
SELECT ratchet.complete(pg_temp.job('s2'), pg_temp.token('s2'), strict => true);
\set VERBOSITY default
COMMIT;
SELECT count(*) FROM effect;
-- ... nulls
SELECT call, pg_temp.try('SELECT ratchet.' || call) FROM unnest(ARRAY['complete(NULL, pg_temp.token(''s1''))', 'complete(pg_temp.job(''s1''), NULL)',
    'fail(NULL, pg_temp.token(''s1''), ''e'')', 'fail(pg_temp.job(''s1''), pg_temp.token(''s1''), NULL)', 'skip(NULL, NULL)', 'release(NULL, NULL)',
    'progress(NULL, NULL, 0)', 'heartbeat(NULL, ''{}'')', 'heartbeat(''{}'', NULL)', 'heartbeat(''{NULL}'', ''{NULL}'')',
    'complete_many(NULL, ''{}'')', 'complete_many(ARRAY[pg_temp.job(''s1'')], ''{NULL}'')']) WITH ORDINALITY AS t (call, n) ORDER BY n;

-- complete_many: those completed now, in the order given
SELECT count(*) FROM ratchet.enqueue_many('m', '{1,2,3,4,5,6}', 'fi_many');
INSERT INTO held SELECT 'm' || payload::text, id, token FROM ratchet.claim('fi_many', 'w', 3);
INSERT INTO held SELECT 'm' || payload::text, id, token FROM ratchet.claim('fi_many', 'w', 3);
INSERT INTO named SELECT name, id FROM held WHERE name ~ '^m\d';
CREATE FUNCTION pg_temp.ids(VARIADIC names text[]) RETURNS uuid[] LANGUAGE sql AS
    'SELECT array_agg(pg_temp.job(name) ORDER BY n) FROM unnest(names) WITH ORDINALITY AS t (name, n)';
CREATE FUNCTION pg_temp.tokens(VARIADIC names text[]) RETURNS uuid[] LANGUAGE sql AS
    'SELECT array_agg(pg_temp.token(name) ORDER BY n) FROM unnest(names) WITH ORDINALITY AS t (name, n)';
-- one token for all: m4 has another
SELECT name FROM ratchet.complete_many(pg_temp.ids('m3', 'm4', 'm1'), pg_temp.tokens('m2'), '{3,4,1}') WITH ORDINALITY AS c (id, n)
  JOIN named USING (id) ORDER BY n;
SELECT name, state, result FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'fi_many' ORDER BY name;
-- one per id; m1 is done, m5 is named twice
SET statement_timeout = '10s';
SELECT name FROM ratchet.complete_many(pg_temp.ids('m5', 'm1', 'm2', 'm5'), pg_temp.tokens('m5', 'm1', 'm2', 'm5'), '{5,11,NULL,55}')
  WITH ORDINALITY AS c (id, n) JOIN named USING (id) ORDER BY n;
SELECT name, state, result, version FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'fi_many' ORDER BY name;
RESET statement_timeout;
SELECT count(*) FROM ratchet.complete_many('{}', '{}');
SELECT count(*) FROM ratchet.complete_many('{}', ARRAY[:'other'::uuid]);
-- strict: one lost lease and nothing is done
SELECT pg_temp.try($$SELECT ratchet.complete_many(pg_temp.ids('m4', 'm1'), pg_temp.tokens('m4', 'm1'), strict => true)$$);
SELECT state FROM ratchet.jobs WHERE id = pg_temp.job('m4');
-- counts
SELECT call, pg_temp.try('SELECT count(*) FROM ratchet.' || call) FROM unnest(ARRAY[
    'complete_many(pg_temp.ids(''m4'', ''m6'', ''m1''), pg_temp.tokens(''m4'', ''m6''))', 'complete_many(pg_temp.ids(''m4''), ''{}'')',
    'complete_many(pg_temp.ids(''m4'', ''m6''), pg_temp.tokens(''m4''), ''{1}'')', 'complete_many(pg_temp.ids(''m4''), pg_temp.tokens(''m4''), ''{1,2}'')',
    'heartbeat(pg_temp.ids(''m4'', ''m6'', ''m1''), pg_temp.tokens(''m4'', ''m6''))',
    'complete_and_claim(pg_temp.ids(''m4''), pg_temp.tokens(''m4'', ''m6''), ''fi_many'', ''w'')',
    'complete_and_claim(pg_temp.ids(''m4''), pg_temp.tokens(''m4''), ''fi_many'', ''w'', 0)',
    'complete_and_claim(pg_temp.ids(''m4''), pg_temp.tokens(''m4''), ''fi_many'', ''w'', lease => ''0'')',
    'complete_and_claim(pg_temp.ids(''m4''), pg_temp.tokens(''m4''), ''fi_many'', NULL)']) WITH ORDINALITY AS t (call, n) ORDER BY n;
SELECT state FROM ratchet.jobs WHERE id = pg_temp.job('m4');

-- complete_and_claim: finishes, then claims, also what the finish made claimable
SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "x", "queue": "fi_next", "payload": 1}, {"kind": "y", "queue": "fi_next", "payload": 2},
    {"kind": "x", "queue": "fi_next", "payload": 3}]');
SELECT kind, payload, attempt, token NOT IN (SELECT token FROM held) AS new_token
  FROM ratchet.complete_and_claim(pg_temp.ids('m4', 'm1'), pg_temp.tokens('m4', 'm1'), 'fi_next', 'w2', 5, '{"\"four\"",1}', false, '9 min', '{x}', 'node 2');
SELECT payload, state, lease_expires_at - picked_at AS lease, picked_by, node FROM ratchet.jobs WHERE queue = 'fi_next' ORDER BY payload;
SELECT state, result FROM ratchet.jobs WHERE id = pg_temp.job('m4');
SELECT payload FROM ratchet.complete_and_claim('{}', '{}', 'fi_next', 'w2');
SELECT pg_temp.try($$SELECT count(*) FROM ratchet.complete_and_claim(pg_temp.ids('m6', 'm1'), pg_temp.tokens('m6', 'm1'), 'fi_next', 'w2', strict => true)$$);
SELECT state FROM ratchet.jobs WHERE id = pg_temp.job('m6');

-- fail: attempts left, then none
SELECT pg_temp.run('f1', ', max_attempts => 2, backoff => ''fixed'', backoff_base => ''0.25 s'', jitter => false');
SELECT ratchet.fail(pg_temp.job('f1'), :'other', 'e') AS wrong_token, ratchet.fail(:'other', pg_temp.token('f1'), 'e') AS unknown_job;
SELECT count(*) FROM ratchet.job_errors WHERE job_id = pg_temp.job('f1');
SELECT ratchet.fail(pg_temp.job('f1'), pg_temp.token('f1'), 'java.io.IOException: first', detail => '{"code": 7}');
SELECT state, attempt, last_error, finished_at, lease_expires_at, token, picked_by, ready_at = scheduled_at AS ready, left_at
  FROM ratchet.job WHERE id = pg_temp.job('f1');
SELECT ratchet.fail(pg_temp.job('f1'), pg_temp.token('f1'), 'e') AS token_is_used_up;
SELECT ratchet.reschedule(pg_temp.job('f1'), '2024-01-01');
SELECT pg_temp.again('f1');
SELECT ratchet.fail(pg_temp.job('f1'), pg_temp.token('f1'), 'second');
SELECT state, attempt, last_error, finished_at IS NOT NULL AS finished, ready_at FROM ratchet.job WHERE id = pg_temp.job('f1');
SELECT ratchet.fail(pg_temp.job('f1'), pg_temp.token('f1'), 'e') AS finished;
SELECT job_id = pg_temp.job('f1') AS job, queue, attempt, worker, error, detail FROM ratchet.job_errors WHERE queue = 'fi f1' ORDER BY at;
-- ... max_attempts n means n runs
SELECT pg_temp.run('f2', ', max_attempts => 1');
SELECT ratchet.fail(pg_temp.job('f2'), pg_temp.token('f2'), 'only one');
SELECT pg_temp.run('f3', ', max_attempts => 5, backoff => ''none''');
CREATE TEMP TABLE runs (n int, state ratchet.job_state);
DO $$ BEGIN
    FOR i IN 1..9 LOOP
        INSERT INTO runs VALUES (i, ratchet.fail(pg_temp.job('f3'), pg_temp.token('f3'), 'run ' || i));
        EXIT WHEN pg_temp.again('f3') = 0;
    END LOOP;
END $$;
SELECT * FROM runs ORDER BY n;
SELECT attempt, error FROM ratchet.job_errors WHERE job_id = pg_temp.job('f3') ORDER BY at;
-- ... not retryable
SELECT pg_temp.run('f4');
SELECT ratchet.fail(pg_temp.job('f4'), pg_temp.token('f4'), 'never', retryable => false, retry_in => '1 s');
SELECT state, attempt, max_attempts FROM ratchet.jobs WHERE id = pg_temp.job('f4');
-- ... retry_in instead of the backoff, also above its cap
SELECT pg_temp.run('f5', ', backoff_max => ''1 min''');
SELECT ratchet.fail(pg_temp.job('f5'), pg_temp.token('f5'), 'later', retry_in => '2 days');
SELECT scheduled_at - at AS delay FROM ratchet.jobs JOIN ratchet.job_errors ON job_id = id WHERE id = pg_temp.job('f5');
SELECT pg_temp.run('f6');
SELECT value, pg_temp.try(format('SELECT ratchet.fail(pg_temp.job(%L), pg_temp.token(%L), %L, retry_in => %L)', 'f6', 'f6', 'e', value))
  FROM unnest('{-1 us,1 month,3661 days,0}'::text[]) WITH ORDINALITY AS t (value, n) ORDER BY n;
SELECT count(*) FROM ratchet.job_errors WHERE job_id = pg_temp.job('f6');

-- backoff: base, base*n, base*2^(n-1), then the cap; exact without jitter
CREATE FUNCTION pg_temp.delay(attempt int, settings text, queue text DEFAULT 'fi_delay') RETURNS interval LANGUAGE plpgsql AS $$
DECLARE
    this uuid := pg_temp.own_id(clock_timestamp(), floor(random() * 2000000000)::int);
    secret uuid := gen_random_uuid();
BEGIN
    EXECUTE format('INSERT INTO ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state, attempt,
            token, picked_by, picked_at, lease_expires_at, backoff, backoff_base, backoff_max, jitter)
        VALUES ($1, now(), %L, ''a'', ''1'', ''me'', 2147483647, now(), 0, ''running'', $2, $3, ''w'', now(), now() + interval ''1 hour'', %s)', queue, settings)
        USING this, attempt, secret;
    IF ratchet.fail(this, secret, 'e') IS DISTINCT FROM 'pending' THEN
        RAISE EXCEPTION 'not pending';
    END IF;
    RETURN (SELECT scheduled_at - at FROM ratchet.job JOIN ratchet.job_error ON job_id = id WHERE id = this);
END $$;
SELECT attempt, pg_temp.delay(attempt, $$'none', '10 s', '1 h', false$$) AS none,
       pg_temp.delay(attempt, $$'fixed', '10 s', '1 h', false$$) AS fixed,
       pg_temp.delay(attempt, $$'linear', '10 s', '1 h', false$$) AS linear,
       pg_temp.delay(attempt, $$'exponential', '10 s', '1 h', false$$) AS exponential,
       pg_temp.delay(attempt, $$NULL, NULL, NULL, false$$) AS "default"
  FROM unnest('{1,2,3,4,9,10,14,15,16,32,33,64,65,1000,1100,2000000000}'::int[]) AS attempt ORDER BY attempt;
SELECT pg_temp.delay(1, $$'fixed', '2 h', '1 h', false$$) AS base_above_cap, pg_temp.delay(1, $$'fixed', '1 us', '1 h', false$$) AS tiny,
       pg_temp.delay(2000000000, $$'exponential', '1 us', '3660 days', false$$) AS longest,
       pg_temp.delay(2000000000, $$'linear', '3660 days', '3660 days', false$$) AS longest_linear,
       pg_temp.delay(2000000000, $$'exponential', '3660 days', '1 us', false$$) AS shortest,
       pg_temp.delay(40, $$'exponential', '1 us', '3660 days', false$$) AS doubled_39_times;
-- ... what a superuser wrote by hand is clamped
SELECT pg_temp.delay(3, $$'fixed', '-1 day', '1 h', false$$) AS negative, pg_temp.delay(3, $$'fixed', '200000000 days', '2000000 days', false$$) AS absurd,
       pg_temp.delay(3, $$'linear', '1 s', '-1 s', false$$) AS negative_cap;
-- ... jitter: 0.5 to 1.5 times, and the cap holds
CREATE TEMP TABLE jitter AS
    SELECT pg_temp.delay(3, $$'exponential', '10 s', '1 day', true$$) AS d, pg_temp.delay(3, $$'exponential', '10 s', '41 s', NULL$$) AS capped,
           pg_temp.delay(1, $$NULL, NULL, NULL, NULL$$) AS plain, pg_temp.delay(9000, $$'linear', '1 day', '3660 days', true$$) AS longest
      FROM generate_series(1, 200);
SELECT bool_and(d BETWEEN '20 s' AND '60 s') AS within, min(d) < '27 s' AS low, max(d) > '53 s' AS high, count(DISTINCT d) > 190 AS spread,
       bool_and(capped BETWEEN '20 s' AND '41 s') AS capped, max(capped) = '41 s' AS at_the_cap,
       bool_and(plain BETWEEN '2.5 s' AND '7.5 s') AS default_jitter, count(DISTINCT plain) > 190 AS on_by_default,
       bool_and(longest BETWEEN '1830 days' AND '3660 days') AS longest FROM jitter;
-- ... the queue's settings, as they are when the run fails
SELECT ratchet.configure_queue('fi_backoff', backoff => 'linear', backoff_base => '7 s', backoff_max => '20 s', jitter => false);
SELECT pg_temp.delay(2, 'NULL, NULL, NULL, NULL', 'fi_backoff') AS queue, pg_temp.delay(9, 'NULL, NULL, NULL, NULL', 'fi_backoff') AS queue_cap,
       pg_temp.delay(2, $$'fixed', NULL, NULL, NULL$$, 'fi_backoff') AS own_kind, pg_temp.delay(2, $$NULL, '3 s', NULL, NULL$$, 'fi_backoff') AS own_base,
       pg_temp.delay(2, $$NULL, NULL, '1 s', NULL$$, 'fi_backoff') AS own_cap;

-- what is not for everybody's eyes: R19
CREATE FUNCTION pg_temp.sanitised(message text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    this uuid := ratchet.enqueue('a', queue => 'fi_sane', max_attempts => 1);
BEGIN
    PERFORM ratchet.fail(id, token, message) FROM ratchet.claim('fi_sane', 'w');
    IF (SELECT last_error FROM ratchet.jobs WHERE id = this) IS DISTINCT FROM (SELECT error FROM ratchet.job_errors WHERE job_id = this) THEN
        RAISE EXCEPTION 'job and history differ';
    END IF;
    RETURN (SELECT last_error FROM ratchet.jobs WHERE id = this);
END $$;
SELECT message, pg_temp.sanitised(message) FROM unnest(ARRAY[
    'java.lang.IllegalStateException: no secret here', '', 'two
lines', 'login password=hunter2 failed', 'PASSWORD = hunter2', 'passwd:hunter2;pwd=hunter3,secret:"two words" end', 'token: abc.def-ghi and more',
    'apikey=1 api_key=2 access_key=3 private_key=4 credential=5', '{"password": "hunter2", "user": "bob"}', '?user=bob&token=abc&x=1',
    'get https://bob:hunter2@example.com/path failed', 'postgresql://bob:hunter2@db.example.com:5432/app', 'https://example.com/path?x=1 is fine',
    'jdbc:postgresql://db/app?user=bob&password=hunter2 refused', 'jdbc:oracle:thin:scott/tiger@//db:1521/x', 'mail to Bob.Smith+tag@mail.example.com bounced',
    'passwordless login', 'the token was bad', 'a@b']) WITH ORDINALITY AS t (message, n) ORDER BY n;
SET ratchet.redact_emails = off;
SELECT pg_temp.sanitised('bob@example.com password=x https://u:p@example.com');
RESET ratchet.redact_emails;
-- ... clipped at 8 kB, between two characters, whatever its length
SELECT n, length(s) AS characters, octet_length(s) AS bytes, s = repeat(chr(233), length(s)) AS whole
  FROM unnest('{4096,4097,100000}'::int[]) AS n, pg_temp.sanitised(repeat(chr(233), n)) AS s ORDER BY n;
SELECT octet_length(s) AS bytes, length(s) AS characters, right(s, 1) = chr(8364) AS whole FROM pg_temp.sanitised('x' || repeat(chr(8364), 5000)) AS s;
SELECT octet_length(pg_temp.sanitised(repeat('x', 8192))) AS full_length, octet_length(pg_temp.sanitised(repeat('x', 8193))) AS clipped,
       octet_length(pg_temp.sanitised(repeat('x', 3000000))) AS huge;
SELECT pg_temp.sanitised(repeat('x', 8180) || ' password=hunter2') LIKE '%hunter%' AS leaks;
-- ... the reasons of skip, release and cancel, and what progress says, too
SELECT pg_temp.run('reason1'), pg_temp.run('reason2'), pg_temp.run('reason3'), pg_temp.run('reason4');
SELECT ratchet.skip(pg_temp.job('reason1'), pg_temp.token('reason1'), 'password=x'), ratchet.release(pg_temp.job('reason2'), pg_temp.token('reason2'),
       reason => 'password=x'), ratchet.cancel(pg_temp.job('reason3'), 'password=x'),
       ratchet.progress(pg_temp.job('reason4'), pg_temp.token('reason4'), 0, 'password=x');
SELECT name, last_error, progress_message FROM named JOIN ratchet.jobs USING (id) WHERE name ~ '^reason' ORDER BY name;

-- skip
SELECT pg_temp.run('k1'), pg_temp.run('k2');
SELECT ratchet.skip(pg_temp.job('k1'), :'other') AS wrong_token, ratchet.skip(:'other', pg_temp.token('k1')) AS unknown_job,
       ratchet.skip(pg_temp.job('k1'), pg_temp.token('k1')) AS skipped, ratchet.skip(pg_temp.job('k1'), pg_temp.token('k1')) AS twice;
SELECT ratchet.skip(pg_temp.job('k2'), pg_temp.token('k2'), 'nothing to do');
SELECT name, state, attempt, last_error, result, finished_at IS NOT NULL AS finished FROM named JOIN ratchet.jobs USING (id) WHERE name ~ '^k\d' ORDER BY name;
SELECT count(*) AS errors FROM ratchet.job_errors JOIN named ON job_id = id WHERE name ~ '^k\d';

-- release: the attempt comes back, the place stays
SELECT pg_temp.run('l1', ', run_at => ''2024-01-01''');
SELECT ratchet.release(pg_temp.job('l1'), :'other') AS wrong_token, ratchet.release(:'other', pg_temp.token('l1')) AS unknown_job,
       ratchet.release(pg_temp.job('l1'), pg_temp.token('l1')) AS released, ratchet.release(pg_temp.job('l1'), pg_temp.token('l1')) AS twice;
SELECT state, attempt, crashes, scheduled_at, picked_by, token, lease_expires_at, ready_at = scheduled_at AS ready, left_at, last_error
  FROM ratchet.job WHERE id = pg_temp.job('l1');
SELECT pg_temp.again('l1');
SELECT clock_timestamp() AS before \gset
SELECT ratchet.release(pg_temp.job('l1'), pg_temp.token('l1'), '2 h', 'too busy');
SELECT state, attempt, last_error, scheduled_at BETWEEN :'before'::timestamptz + interval '2 h' AND clock_timestamp() + interval '2 h' AS delayed
  FROM ratchet.jobs WHERE id = pg_temp.job('l1');
SELECT pg_temp.run('l2');
SELECT pg_temp.try(format('SELECT ratchet.release(pg_temp.job(%L), pg_temp.token(%L), %L)', 'l2', 'l2', value))
  FROM unnest('{-1 s,1 month,3661 days,0}'::text[]) WITH ORDINALITY AS t (value, n) ORDER BY n;
SELECT count(*) AS errors FROM ratchet.job_errors JOIN named ON job_id = id WHERE name ~ '^l\d';

-- heartbeat
SELECT pg_temp.run('h1', ', lease => ''1 min'''), pg_temp.run('h2'), pg_temp.run('h3'), pg_temp.run('h4');
SELECT ratchet.cancel(pg_temp.job('h2')), ratchet.complete(pg_temp.job('h3'), pg_temp.token('h3'));
SELECT coalesce(name, '(unknown)') AS name, status
  FROM ratchet.heartbeat(pg_temp.ids('h4', 'h1', 'h2', 'h3') || :'other'::uuid, pg_temp.tokens('h1', 'h1', 'h1', 'h3', 'h1')) WITH ORDINALITY AS h (id, status, n)
  LEFT JOIN named USING (id) ORDER BY n;
SELECT status FROM ratchet.heartbeat(pg_temp.ids('h1', 'h4'), pg_temp.tokens('h4')) WITH ORDINALITY ORDER BY ordinality;
SELECT count(*) FROM ratchet.heartbeat('{}', '{}');
-- ... extends by the length that was granted, or the one it is given; nothing else changes
SELECT lease_expires_at AS before, version, clock_timestamp() AS t0 FROM ratchet.jobs WHERE id = pg_temp.job('h1') \gset
SELECT status FROM ratchet.heartbeat(pg_temp.ids('h1'), pg_temp.tokens('h1'));
SELECT lease_expires_at > :'before' AS longer, lease_expires_at BETWEEN :'t0'::timestamptz + interval '1 min' AND clock_timestamp() + interval '1 min' AS a_minute,
       version - :version AS versions, attempt, state FROM ratchet.jobs WHERE id = pg_temp.job('h1');
SELECT clock_timestamp() AS t0 \gset
SELECT status FROM ratchet.heartbeat(pg_temp.ids('h1'), pg_temp.tokens('h1'), '1 h');
SELECT lease_expires_at BETWEEN :'t0'::timestamptz + interval '1 h' AND clock_timestamp() + interval '1 h' AS an_hour FROM ratchet.jobs WHERE id = pg_temp.job('h1');
SELECT pg_temp.try(format('SELECT status FROM ratchet.heartbeat(pg_temp.ids(%L), pg_temp.tokens(%L), %L)', 'h1', 'h1', value))
  FROM unnest('{0,-1 s,1 month,3661 days}'::text[]) WITH ORDINALITY AS t (value, n) ORDER BY n;
-- ... the same job twice: each entry is judged by its own token
SELECT status FROM ratchet.heartbeat(pg_temp.ids('h1', 'h1'), pg_temp.tokens('h1', 'h1')) WITH ORDINALITY ORDER BY ordinality;
SELECT status FROM ratchet.heartbeat(pg_temp.ids('h1', 'h1'), ARRAY[pg_temp.token('h1'), :'other']) WITH ORDINALITY ORDER BY ordinality;
SELECT status FROM ratchet.heartbeat(pg_temp.ids('h1', 'h1'), ARRAY[:'other', pg_temp.token('h1')]) WITH ORDINALITY ORDER BY ordinality;
-- ... a lease that has run out but was not recovered is extended
SELECT pg_temp.run('h5', ', lease => ''1 us''');
SELECT lease_expires_at < clock_timestamp() AS over FROM ratchet.jobs WHERE id = pg_temp.job('h5');
SELECT status FROM ratchet.heartbeat(pg_temp.ids('h5'), pg_temp.tokens('h5'), '1 h');
SELECT ratchet.complete(pg_temp.job('h5'), pg_temp.token('h5'));
-- ... canceled is said to any token, also when the job has been archived
SET ratchet.archive_after = 0;
BEGIN;
DO $$ BEGIN WHILE ratchet.maintenance_step('archive') > 0 LOOP END LOOP; END $$;
SELECT name, status, archived FROM ratchet.heartbeat(pg_temp.ids('h2', 'h3'), pg_temp.tokens('h1')) h JOIN named USING (id) JOIN ratchet.jobs USING (id) ORDER BY name;
SELECT ratchet.complete(pg_temp.job('h3'), pg_temp.token('h3')), ratchet.fail(pg_temp.job('h3'), pg_temp.token('h3'), 'e'),
       ratchet.skip(pg_temp.job('h3'), pg_temp.token('h3')), ratchet.release(pg_temp.job('h3'), pg_temp.token('h3'));
ROLLBACK;
RESET ratchet.archive_after;

-- progress
SELECT pg_temp.run('p1'), pg_temp.run('p2');
SELECT ratchet.progress(pg_temp.job('p1'), :'other', 0.5) AS wrong_token, ratchet.progress(:'other', pg_temp.token('p1'), 0.5) AS unknown_job;
SELECT ratchet.progress(pg_temp.job('p1'), pg_temp.token('p1'), 0.25, 'a quarter');
SELECT progress, progress_message, state, attempt FROM ratchet.jobs WHERE id = pg_temp.job('p1');
SELECT ratchet.progress(pg_temp.job('p1'), pg_temp.token('p1'), 0.5);
SELECT progress, progress_message FROM ratchet.jobs WHERE id = pg_temp.job('p1');
SELECT value, pg_temp.try(format('SELECT ratchet.progress(pg_temp.job(%L), pg_temp.token(%L), %L)', 'p1', 'p1', value))
  FROM unnest('{NaN,-0.1,1.1,Infinity,-Infinity,0,1}'::text[]) WITH ORDINALITY AS t (value, n) ORDER BY n;
SELECT pg_temp.try('SELECT ratchet.progress(pg_temp.job(''p1''), pg_temp.token(''p1''), NULL)');
SELECT ratchet.release(pg_temp.job('p1'), pg_temp.token('p1'));
SELECT ratchet.progress(pg_temp.job('p1'), pg_temp.token('p1'), 0.75) AS lost;
-- ... a new run begins without
SELECT pg_temp.again('p1');
SELECT progress, progress_message FROM ratchet.jobs WHERE id = pg_temp.job('p1');

-- a canceled job: its worker can change nothing
SELECT pg_temp.run('x1');
SELECT ratchet.cancel(pg_temp.job('x1'), 'not wanted');
SELECT ratchet.complete(pg_temp.job('x1'), pg_temp.token('x1')), ratchet.fail(pg_temp.job('x1'), pg_temp.token('x1'), 'e'),
       ratchet.skip(pg_temp.job('x1'), pg_temp.token('x1')), ratchet.release(pg_temp.job('x1'), pg_temp.token('x1')),
       ratchet.progress(pg_temp.job('x1'), pg_temp.token('x1'), 0.1);
SELECT state, version, last_error, picked_by FROM ratchet.jobs WHERE id = pg_temp.job('x1');

-- completion clears the error of the run before, and a complete report of progress ends at 1
SELECT pg_temp.run('z1', ', backoff => ''none''');
SELECT ratchet.fail(pg_temp.job('z1'), pg_temp.token('z1'), 'once');
SELECT pg_temp.again('z1');
SELECT last_error FROM ratchet.jobs WHERE id = pg_temp.job('z1');
SELECT ratchet.progress(pg_temp.job('z1'), pg_temp.token('z1'), 0.9), ratchet.complete(pg_temp.job('z1'), pg_temp.token('z1'));
SELECT state, last_error, progress FROM ratchet.jobs WHERE id = pg_temp.job('z1');
