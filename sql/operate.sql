-- what an operator does: retry, pause, resume, cancel, reschedule, rerun, forget, and many at once
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/test/lib/cases.sql'
\set ECHO none
\i :helpers
\set ECHO all

-- One job in each state, and an archived one.
SELECT ratchet.configure_queue('op archived', archive_after => '0');
CREATE FUNCTION pg_temp.make(state text, suffix text DEFAULT '', args text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    place text := 'op ' || state || suffix;
    this uuid;
BEGIN
    EXECUTE format('INSERT INTO named VALUES (%L, ratchet.enqueue(kind => ''k'', queue => %L %s)) RETURNING id', state || suffix, place, args) INTO this;
    CASE state
        WHEN 'pending' THEN NULL;
        WHEN 'running' THEN PERFORM ratchet.claim(place, 'w');
        WHEN 'succeeded', 'archived' THEN PERFORM ratchet.complete(id, token, '{"r": 1}') FROM ratchet.claim(place, 'w');
        WHEN 'failed' THEN PERFORM ratchet.fail(id, token, 'e', retryable => false) FROM ratchet.claim(place, 'w');
        WHEN 'paused' THEN PERFORM ratchet.pause(this);
        WHEN 'shelved' THEN PERFORM ratchet.fail(id, token, 'e', retryable => false) FROM ratchet.claim(place, 'w'); PERFORM ratchet.pause(this);
        WHEN 'canceled' THEN PERFORM ratchet.cancel(this);
        WHEN 'skipped' THEN PERFORM ratchet.skip(id, token) FROM ratchet.claim(place, 'w');
        WHEN 'expired' THEN PERFORM ratchet.reschedule(this, '2024-01-01'); PERFORM ratchet.claim(place, 'w');
    END CASE;
    RETURN (SELECT coalesce(paused_from || ' -> ', '') || j.state || CASE WHEN archived THEN ' (archived)' ELSE '' END FROM ratchet.jobs j WHERE id = this);
END $$;
CREATE TEMP TABLE states (n serial, state text);
INSERT INTO states (state) VALUES ('pending'), ('running'), ('succeeded'), ('failed'), ('paused'), ('shelved'), ('canceled'), ('skipped'), ('expired'), ('archived');
-- What a call answers for each state, what state the job is in then, and how many versions that took.
CREATE FUNCTION pg_temp.every(call text) RETURNS TABLE (state text, answer text, then_state text, versions int) LANGUAGE plpgsql AS $$
DECLARE
    one record;
    before int;
    suffix text := ' ' || call;
BEGIN
    FOR one IN SELECT * FROM states ORDER BY n LOOP
        state := one.state;
        IF one.state = 'archived' THEN
            INSERT INTO named VALUES (one.state || suffix, ratchet.enqueue('k', queue => 'op archived'));
            PERFORM ratchet.complete(id, token) FROM ratchet.claim('op archived', 'w', 100);
        ELSE
            PERFORM pg_temp.make(one.state, suffix, CASE one.state WHEN 'expired' THEN ', expires_in => ''1 h''' ELSE '' END);
        END IF;
        SELECT version INTO before FROM ratchet.jobs WHERE id = pg_temp.job(one.state || suffix);
        answer := pg_temp.try(format('SELECT ratchet.%s(%L) ', call, pg_temp.job(one.state || suffix)));
        SELECT j.state, version - before INTO then_state, versions FROM ratchet.jobs j WHERE id = pg_temp.job(one.state || suffix);
        RETURN NEXT;
    END LOOP;
    state := 'unknown'; then_state := NULL; versions := NULL;
    answer := pg_temp.try(format('SELECT ratchet.%s(%L) ', call, '00000000-0000-4000-8000-000000000000'));
    RETURN NEXT;
    state := 'NULL';
    answer := pg_temp.try(format('SELECT ratchet.%s(NULL) ', call));
    RETURN NEXT;
END $$;
SELECT * FROM pg_temp.every('retry');
SELECT * FROM pg_temp.every('pause');
SELECT * FROM pg_temp.every('resume');
SELECT * FROM pg_temp.every('cancel');
SELECT * FROM pg_temp.every('reschedule');
SELECT * FROM pg_temp.every('rerun');
SELECT * FROM pg_temp.every('forget');

-- retry: attempts, crashes and error start anew, and so does the validity
SELECT pg_temp.make('failed', ' r', ', run_at => ''2024-01-01'', expires_in => ''3660 days'', backoff => ''none''');
SELECT clock_timestamp() AS before \gset
SELECT ratchet.retry(pg_temp.job('failed r'));
SELECT state, attempt, crashes, last_error, finished_at, expires_at - scheduled_at AS valid,
       scheduled_at BETWEEN :'before' AND clock_timestamp() AS waits_since_now, picked_by, ready_at = scheduled_at AS ready, left_at
  FROM ratchet.job WHERE id = pg_temp.job('failed r');
SELECT count(*) AS history_stays FROM ratchet.job_errors WHERE job_id = pg_temp.job('failed r');
SELECT attempt FROM ratchet.claim('op failed r', 'w');
-- ... a time to come stays
INSERT INTO named VALUES ('to come', pg_temp.own_id(now(), 1));
INSERT INTO ratchet.job (id, created_at, queue, kind, payload, enqueued_by, max_attempts, scheduled_at, priority, state, attempt, crashes, last_error, finished_at)
    VALUES (pg_temp.job('to come'), now(), 'op come', 'k', '1', 'me', 3, '2099-01-01', 0, 'failed', 3, 4, 'e', now());
SELECT ratchet.retry(pg_temp.job('to come'));
SELECT state, attempt, crashes, scheduled_at FROM ratchet.jobs WHERE id = pg_temp.job('to come');

-- pause and resume: back to where it was; time spent held is not waiting time
SELECT pg_temp.make('paused', ' p', ', run_at => ''2024-01-01''');
SELECT paused_from, scheduled_at, ready_at, left_at, finished_at FROM ratchet.job WHERE id = pg_temp.job('paused p');
SELECT count(*) FROM ratchet.claim('op paused p', 'w');
SELECT clock_timestamp() AS before \gset
SELECT ratchet.resume(pg_temp.job('paused p'));
SELECT state, paused_from, scheduled_at BETWEEN :'before' AND clock_timestamp() AS waits_since_now FROM ratchet.jobs WHERE id = pg_temp.job('paused p');
SELECT pg_temp.make('paused', ' q', ', run_at => ''2099-01-01''');
SELECT ratchet.resume(pg_temp.job('paused q'));
SELECT state, scheduled_at FROM ratchet.jobs WHERE id = pg_temp.job('paused q');
SELECT pg_temp.make('shelved', ' s');
SELECT finished_at AS finished FROM ratchet.jobs WHERE id = pg_temp.job('shelved s') \gset
SELECT ratchet.resume(pg_temp.job('shelved s'));
SELECT state, attempt, last_error, finished_at = :'finished' AS finished_then FROM ratchet.jobs WHERE id = pg_temp.job('shelved s');
-- ... a paused job past its time stays paused, and expires when it is resumed
SELECT pg_temp.make('paused', ' e', ', run_at => ''2024-01-01'', expires_in => ''1 h''');
SELECT ratchet.maintenance_step('expire') >= 0 AS done;
SELECT state FROM ratchet.jobs WHERE id = pg_temp.job('paused e');
SELECT ratchet.resume(pg_temp.job('paused e'));
SELECT state, finished_at IS NOT NULL AS finished FROM ratchet.jobs WHERE id = pg_temp.job('paused e');

-- cancel: the reason is kept, the token ends
SELECT pg_temp.make('running', ' c');
SELECT ratchet.cancel(pg_temp.job('running c'), 'not wanted');
SELECT state, last_error, token, lease_expires_at, picked_by, finished_at IS NOT NULL AS finished FROM ratchet.job WHERE id = pg_temp.job('running c');
SELECT ratchet.cancel(pg_temp.job('running c'), 'again') AS twice;
SELECT last_error FROM ratchet.jobs WHERE id = pg_temp.job('running c');

-- reschedule: time, priority, or both; the validity moves along
SELECT pg_temp.make('pending', ' t', ', expires_in => ''2 h''');
SELECT ratchet.reschedule(pg_temp.job('pending t'), '2030-01-01');
SELECT scheduled_at, priority, expires_at, version FROM ratchet.jobs WHERE id = pg_temp.job('pending t');
SELECT ratchet.reschedule(pg_temp.job('pending t'), priority => -7);
SELECT ratchet.reschedule(pg_temp.job('pending t'), '2031-01-01', 8);
SELECT scheduled_at, priority, expires_at, version FROM ratchet.jobs WHERE id = pg_temp.job('pending t');
SELECT ratchet.reschedule(pg_temp.job('pending t')) AS nothing_to_do;
SELECT version FROM ratchet.jobs WHERE id = pg_temp.job('pending t');
SELECT args, pg_temp.try(format('SELECT ratchet.reschedule(pg_temp.job(%L), %s)', 'pending t', args)) FROM unnest(ARRAY['''infinity''', '''1999-12-31''', '''294276-01-01''',
    'priority => 101', 'priority => -101', '''2040-01-01'', 101']) WITH ORDINALITY AS t (args, n) ORDER BY n;
SELECT scheduled_at, priority, version FROM ratchet.jobs WHERE id = pg_temp.job('pending t');
-- ... also for the order of claims
SELECT count(*) FROM ratchet.enqueue_many('k', '{1,2,3}', 'op order');
SELECT ratchet.reschedule(id, priority => 1) FROM ratchet.jobs WHERE queue = 'op order' AND payload = '3';
SELECT ratchet.reschedule(id, clock_timestamp() + interval '1 day') FROM ratchet.jobs WHERE queue = 'op order' AND payload = '1';
SELECT payload FROM ratchet.claim('op order', 'w', 9);

-- rerun: a new job like the old one, live or archived, in the caller's name
SELECT pg_temp.make('succeeded', ' x', ', payload => ''{"p": 1}'', priority => 5, run_at => ''2024-01-01'', max_attempts => 6, backoff => ''linear'', backoff_base => ''2 s'',
    backoff_max => ''3 s'', jitter => false, timeout => ''4 s'', lease => ''5 s'', expires_in => ''3000 days'', keep_for => ''7 days'', idempotency_key => ''i'',
    business_key => ''b'', tags => ''{t,u}'', meta => ''{"m": 1}''');
INSERT INTO named VALUES ('rerun 1', ratchet.rerun(pg_temp.job('succeeded x')));
SELECT ratchet.cancel(pg_temp.job('rerun 1'));
SET ratchet.archive_after = 0;
BEGIN;
DO $$ BEGIN WHILE ratchet.maintenance_step('archive') > 0 LOOP END LOOP; END $$;
SELECT archived FROM ratchet.jobs WHERE id = pg_temp.job('succeeded x');
INSERT INTO named VALUES ('rerun 2', ratchet.rerun(pg_temp.job('succeeded x')));
SELECT name, state, payload, priority, scheduled_at = created_at AS due_now, attempt, max_attempts, backoff, backoff_base, backoff_max, jitter, timeout, lease,
       expires_at - scheduled_at AS valid, keep_until - created_at AS kept, idempotency_key, business_key, tags, meta, result, enqueued_by = current_user AS mine
  FROM named JOIN ratchet.jobs USING (id) WHERE name IN ('rerun 1', 'rerun 2') ORDER BY name;
ROLLBACK;
RESET ratchet.archive_after;
SELECT state, version, result FROM ratchet.jobs WHERE id = pg_temp.job('succeeded x');
-- ... the business key is taken like any other's
SELECT ratchet.enqueue('k', queue => 'op succeeded x', business_key => 'b') IS NOT NULL AS made;
SELECT left(pg_temp.try('SELECT ratchet.rerun(pg_temp.job(''succeeded x''))'), 5);

-- forget: job, keys and errors are gone, and the idempotency key is free
SELECT pg_temp.make('failed', ' f', ', idempotency_key => ''i'', business_key => ''b''');
SELECT ratchet.enqueue('k', queue => 'op failed f', idempotency_key => 'i') = pg_temp.job('failed f') AS same;
SELECT ratchet.forget(pg_temp.job('failed f'));
SELECT count(*) FROM ratchet.jobs WHERE id = pg_temp.job('failed f');
SELECT count(*) FROM ratchet.job_errors WHERE job_id = pg_temp.job('failed f');
SELECT count(*) FROM ratchet.idempotency_key WHERE queue = 'op failed f';
SELECT ratchet.forget(pg_temp.job('failed f')) AS twice;
SELECT ratchet.enqueue('other', queue => 'op failed f', idempotency_key => 'i', business_key => 'b') = pg_temp.job('failed f') AS same;
-- ... archived
INSERT INTO named VALUES ('old', ratchet.enqueue('k', queue => 'op archived', idempotency_key => 'i', backoff => 'none'));
SELECT ratchet.fail(id, token, 'e') FROM ratchet.claim('op archived', 'w');
SELECT ratchet.complete(id, token) FROM ratchet.claim('op archived', 'w');
SELECT archived, state FROM ratchet.jobs WHERE id = pg_temp.job('old');
SELECT ratchet.forget(pg_temp.job('old'));
SELECT (SELECT count(*) FROM ratchet.jobs WHERE id = pg_temp.job('old')) + (SELECT count(*) FROM ratchet.job_errors WHERE job_id = pg_temp.job('old'))
     + (SELECT count(*) FROM ratchet.idempotency_key WHERE queue = 'op archived') AS left_over;
-- ... a rerun's key is not the first job's to take along
SELECT pg_temp.make('succeeded', ' g', ', idempotency_key => ''i''');
SELECT ratchet.rerun(pg_temp.job('succeeded g')) IS NOT NULL AS made;
SELECT ratchet.enqueue('k', queue => 'op succeeded g', idempotency_key => 'i') = pg_temp.job('succeeded g') AS still_the_first;

-- many at once: filters, maximum, what they answer
CREATE FUNCTION pg_temp.fill(prefix text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    place text;
BEGIN
    FOREACH place IN ARRAY '{one,two}'::text[] LOOP
        PERFORM ratchet.enqueue_many(jsonb_agg(jsonb_build_object('kind', prefix || CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END, 'queue', prefix || place,
                'payload', i, 'tags', CASE WHEN i < 3 THEN '["low", "x"]'::jsonb WHEN i < 5 THEN '["x"]' ELSE 'null' END)))
            FROM generate_series(1, 6) AS i;
    END LOOP;
    RETURN prefix;
END $$;
CREATE FUNCTION pg_temp.left_in(wanted text, prefix text) RETURNS TABLE (queue text, payloads text) LANGUAGE sql AS
    $$ SELECT queue, string_agg(payload::text, ' ' ORDER BY payload) FROM ratchet.jobs j WHERE starts_with(queue, prefix) AND state::text = wanted GROUP BY queue ORDER BY queue $$;
SELECT pg_temp.fill('oc ');
SELECT ratchet.cancel_many('oc one', 'oc even') AS queue_and_kind;
SELECT * FROM pg_temp.left_in('pending', 'oc ');
SELECT ratchet.cancel_many('oc one', tag => 'low') AS queue_and_tag;
SELECT ratchet.cancel_many(kind => 'oc odd', max => 1) AS oldest_of_a_kind;
SELECT * FROM pg_temp.left_in('pending', 'oc ');
SELECT ratchet.cancel_many(kind => 'oc even', tag => 'x') AS kind_and_tag;
SELECT ratchet.cancel_many('oc nothing') AS no_such_queue;
SELECT ratchet.cancel_many('oc two', max => 2);
SELECT * FROM pg_temp.left_in('pending', 'oc ');
-- ... pending, running and paused ones
SELECT pg_temp.fill('od ');
SELECT count(*) FROM ratchet.claim('od one', 'w', 2);
SELECT ratchet.pause(id) FROM ratchet.jobs WHERE queue = 'od one' AND payload = '3';
SELECT ratchet.cancel_many('od one');
SELECT ratchet.cancel_many('od one') AS again;
SELECT * FROM pg_temp.left_in('canceled', 'od ');
-- ... retry
SELECT count(ratchet.fail(id, token, 'e', retryable => false)) FROM ratchet.claim('od two', 'w', 10);
SELECT ratchet.retry_many('od two', tag => 'low');
SELECT * FROM pg_temp.left_in('pending', 'od ');
SELECT ratchet.retry_many(kind => 'od odd');
SELECT * FROM pg_temp.left_in('pending', 'od ');
SELECT ratchet.retry_many('od two', max => 1);
SELECT * FROM pg_temp.left_in('failed', 'od ');
SELECT bool_and(attempt = 0 AND last_error IS NULL) AS anew FROM ratchet.jobs WHERE queue = 'od two' AND state = 'pending';
-- ... arguments
SELECT call, pg_temp.try('SELECT ratchet.' || call) FROM unnest(ARRAY['retry_many()', 'cancel_many()', 'cancel_many(NULL, NULL, NULL, 5)', 'retry_many(''op none'', max => 0)',
    'retry_many(''op none'', max => -1)', 'cancel_many('''')', 'cancel_many(''{a}'')', 'cancel_many(kind => '''')', 'cancel_many(tag => '''')',
    'cancel_many(''op none'', max => NULL)']) WITH ORDINALITY AS t (call, n) ORDER BY n;
