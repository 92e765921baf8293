-- maintenance: each duty as a step, and all of them by run_maintenance
-- In a database of its own: the duties look at all jobs, those of other cases too.
CREATE DATABASE regress_ratchet_maintenance TEMPLATE template0;
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/test/lib/cases.sql'
SELECT current_database() AS before \gset
\c regress_ratchet_maintenance
\set ECHO none
\i :helpers
\set ECHO all
CREATE EXTENSION ratchet;

-- A row as a restore would bring it, with what is given on top of what it needs.
CREATE FUNCTION pg_temp.put(wanted text, given jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    base jsonb := jsonb_build_object('created_at', now(), 'queue', 'q', 'kind', 'k', 'payload', '{}'::jsonb, 'enqueued_by', 'me', 'max_attempts', 3, 'scheduled_at', now(),
        'priority', 0, 'waiting_on', 0, 'attempt', 0, 'crashes', 0, 'version', 1);
BEGIN
    INSERT INTO named VALUES (wanted, pg_temp.own_id(now(), hashtext(wanted)));
    base := base || jsonb_build_object('id', pg_temp.job(wanted));
    IF given->>'state' = 'running' THEN
        base := base || jsonb_build_object('attempt', 1, 'token', gen_random_uuid(), 'picked_by', 'w', 'picked_at', now() - interval '1 h', 'started_at', now() - interval '1 h',
            'lease_expires_at', now() + interval '1 h');
    ELSIF given->>'state' <> 'pending' AND NOT given ? 'paused_from' THEN
        base := base || jsonb_build_object('finished_at', now());
    END IF;
    INSERT INTO ratchet.job SELECT * FROM jsonb_populate_record(NULL::ratchet.job, base || given);
    RETURN (SELECT state FROM ratchet.job WHERE id = pg_temp.job(wanted));
END $$;
CREATE FUNCTION pg_temp.ago(length interval) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(now() - length) $$;

-- nothing to do
SELECT duty, ratchet.maintenance_step(duty) FROM unnest('{guard,recover,timeout,expire,archive,partitions,purge,keys}'::text[]) WITH ORDINALITY AS t (duty, n) ORDER BY n;
SELECT left(pg_temp.try('SELECT ratchet.maintenance_step(''recover '')'), 33), left(pg_temp.try('SELECT ratchet.maintenance_step(NULL)'), 5);
-- no partition is made for an empty archive
CALL ratchet.run_maintenance();
SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'ratchet.job_archive'::regclass;

-- recover: the run does not count, but as a crash; the first one keeps the place
INSERT INTO named VALUES ('poison', ratchet.enqueue('k', queue => 'rec', run_at => '2024-01-01', backoff => 'exponential', backoff_base => '5 s', jitter => false, business_key => 'b')),
    ('healthy', ratchet.enqueue('k', queue => 'rec2'));
SELECT count(*) FROM ratchet.claim('rec2', 'w');
CREATE TEMP TABLE claimed AS SELECT * FROM ratchet.claim('rec', 'worker 1', lease => '1 us');
SELECT ratchet.maintenance_step('recover');
SELECT name, state, attempt, crashes, last_error, token IS NULL AS no_token, lease_expires_at IS NULL AS no_lease, picked_by FROM named JOIN ratchet.job USING (id) ORDER BY name;
SELECT scheduled_at, ready_at = scheduled_at AS ready, left_at FROM ratchet.job WHERE id = pg_temp.job('poison');
SELECT ratchet.complete(id, token) AS too_late, ratchet.fail(id, token, 'e') FROM claimed;
SELECT ratchet.maintenance_step('recover') AS nothing_left;
-- ... later ones delay it by the backoff of the crash count, the fifth fails it
CREATE TEMP TABLE crash (n int, recovered bigint, state ratchet.job_state, attempt int, crashes int, delay interval, last_error text);
DO $$ BEGIN
    FOR i IN 2..5 LOOP
        IF i > 2 THEN PERFORM ratchet.reschedule(pg_temp.job('poison'), '2024-01-01'); END IF;
        PERFORM ratchet.claim('rec', 'worker ' || i, lease => '1 us');
        INSERT INTO crash SELECT i, ratchet.maintenance_step('recover');
        UPDATE crash SET (state, attempt, crashes, delay, last_error) = (SELECT j.state, j.attempt, j.crashes,
            CASE WHEN j.state = 'pending' THEN j.scheduled_at - (SELECT max(at) FROM ratchet.job_error WHERE job_id = j.id) END, j.last_error
            FROM ratchet.job j WHERE id = pg_temp.job('poison')) WHERE n = i;
    END LOOP;
END $$;
SELECT * FROM crash ORDER BY n;
SELECT attempt, worker, error FROM ratchet.job_error WHERE job_id = pg_temp.job('poison') ORDER BY at;
SELECT finished_at IS NOT NULL AS finished FROM ratchet.job WHERE id = pg_temp.job('poison');
SELECT ratchet.enqueue('k', queue => 'rec', business_key => 'b') IS NOT NULL AS key_is_free;
-- ... the attempt given back is the one that was lost
SELECT pg_temp.put('third run', jsonb_build_object('state', 'running', 'queue', 'rec3', 'attempt', 3, 'lease_expires_at', now()));
SELECT ratchet.maintenance_step('recover');
SELECT state, attempt, crashes FROM ratchet.job WHERE id = pg_temp.job('third run');
SET ratchet.max_crashes = 1;
SELECT pg_temp.put('one crash', jsonb_build_object('state', 'running', 'lease_expires_at', now()));
SELECT ratchet.maintenance_step('recover');
SELECT state, attempt, crashes, last_error FROM ratchet.job WHERE id = pg_temp.job('one crash');
RESET ratchet.max_crashes;
-- ... no lease outlives its length: picked in the future is a clock that went back
SELECT pg_temp.put('clock', jsonb_build_object('state', 'running', 'picked_at', now() + interval '1 day', 'lease_expires_at', now() + interval '1 day 5 min')),
       pg_temp.put('not clock', jsonb_build_object('state', 'running', 'picked_at', now() - interval '1 day', 'lease_expires_at', now() + interval '1 min'));
SELECT ratchet.maintenance_step('recover');
SELECT name, state, crashes FROM named JOIN ratchet.job USING (id) WHERE name LIKE '%clock' ORDER BY name;

-- timeout: since picked_at, heartbeats notwithstanding; it uses up the attempt
SELECT pg_temp.put('slow', '{"state": "running", "timeout": "10 min", "backoff": "fixed", "backoff_base": "30 s", "jitter": false}'),
       pg_temp.put('last run', '{"state": "running", "timeout": "1 h", "attempt": 3, "business_key": "t"}'),
       pg_temp.put('in time', '{"state": "running", "timeout": "2 h"}'), pg_temp.put('no limit', '{"state": "running"}'),
       pg_temp.put('queue limit', '{"state": "running", "queue": "slow", "max_attempts": 1}');
SELECT ratchet.configure_queue('slow', timeout => '90 s');
SELECT status FROM ratchet.heartbeat(ARRAY[pg_temp.job('slow')], (SELECT ARRAY[token] FROM ratchet.job WHERE id = pg_temp.job('slow')));
SELECT ratchet.maintenance_step('recover') AS leases_are_fine, ratchet.maintenance_step('timeout') AS timed_out;
SELECT name, state, attempt, crashes, last_error, finished_at IS NOT NULL AS finished FROM named JOIN ratchet.job USING (id)
 WHERE name IN ('slow', 'last run', 'in time', 'no limit', 'queue limit') ORDER BY name;
SELECT name, e.attempt, worker, error, CASE WHEN state = 'pending' THEN scheduled_at - at END AS delay
  FROM named JOIN ratchet.job USING (id) JOIN ratchet.job_error e ON job_id = id WHERE error LIKE 'timed%' ORDER BY name;
SELECT ratchet.enqueue('k', queue => 'q', business_key => 't') IS NOT NULL AS key_is_free;
SELECT ratchet.maintenance_step('timeout') AS nothing_left;

-- expire: pending ones past their time
SELECT pg_temp.put('over', jsonb_build_object('state', 'pending', 'expires_at', now(), 'business_key', 'e')),
       pg_temp.put('not yet', jsonb_build_object('state', 'pending', 'expires_at', now() + interval '1 h')),
       pg_temp.put('held', jsonb_build_object('state', 'paused', 'paused_from', 'pending', 'expires_at', now())),
       pg_temp.put('runs', jsonb_build_object('state', 'running', 'expires_at', now())),
       pg_temp.put('not due', jsonb_build_object('state', 'pending', 'expires_at', now(), 'scheduled_at', now() + interval '1 h'));
SELECT ratchet.maintenance_step('expire');
SELECT name, state, finished_at IS NOT NULL AS finished FROM named JOIN ratchet.job USING (id) WHERE expires_at IS NOT NULL ORDER BY name;
SELECT ratchet.enqueue('k', queue => 'q', business_key => 'e') IS NOT NULL AS key_is_free;
-- ... bounded
SELECT count(*) FROM ratchet.enqueue_many('k', array_fill('1'::jsonb, '{1500}'), 'many', run_at => '2024-01-01', expires_in => '1 s');
SELECT ratchet.maintenance_step('expire') < 1500 AS a_batch;
CALL ratchet.run_maintenance();
SELECT state, count(*) FROM ratchet.job WHERE queue = 'many' GROUP BY state;

-- keys: rows of keys that nobody holds
SELECT count(*) FROM ratchet.business_key WHERE owner IS NULL;
INSERT INTO named VALUES ('key owner', ratchet.enqueue('k', queue => 'keys', business_key => 'held')), ('key free', ratchet.enqueue('k', queue => 'keys', business_key => 'free'));
SELECT ratchet.cancel(pg_temp.job('key free'));
SELECT ratchet.maintenance_step('keys'), ratchet.maintenance_step('keys') AS again;
SELECT key FROM ratchet.business_key WHERE queue = 'keys';
SELECT left(pg_temp.try($$SELECT ratchet.enqueue('k', queue => 'keys', business_key => 'held')$$), 5) AS held,
       pg_temp.try($$SELECT ratchet.enqueue('k', queue => 'keys', business_key => 'free') IS NOT NULL$$) AS free;

-- archive: finished longer ago than archive_after, failed ones than failed_keep
SELECT ratchet.configure_queue('long', archive_after => '1 day');
SELECT pg_temp.put('succeeded 61', jsonb_build_object('state', 'succeeded', 'finished_at', pg_temp.ago('61 min'), 'result', 7)),
       pg_temp.put('succeeded 59', jsonb_build_object('state', 'succeeded', 'finished_at', pg_temp.ago('59 min'))),
       pg_temp.put('canceled 61', jsonb_build_object('state', 'canceled', 'finished_at', pg_temp.ago('61 min'))),
       pg_temp.put('skipped 61', jsonb_build_object('state', 'skipped', 'finished_at', pg_temp.ago('61 min'))),
       pg_temp.put('expired 61', jsonb_build_object('state', 'expired', 'finished_at', pg_temp.ago('61 min'))),
       pg_temp.put('long 61', jsonb_build_object('state', 'succeeded', 'queue', 'long', 'finished_at', pg_temp.ago('61 min'))),
       pg_temp.put('long 1441', jsonb_build_object('state', 'succeeded', 'queue', 'long', 'finished_at', pg_temp.ago('1441 min'))),
       pg_temp.put('failed 29 d', jsonb_build_object('state', 'failed', 'finished_at', pg_temp.ago('29 days'))),
       pg_temp.put('failed 31 d', jsonb_build_object('state', 'failed', 'finished_at', pg_temp.ago('31 days'))),
       pg_temp.put('shelved 31 d', jsonb_build_object('state', 'paused', 'paused_from', 'failed', 'finished_at', pg_temp.ago('31 days')));
SELECT ratchet.maintenance_step('archive');
SELECT name, archived, state FROM named JOIN ratchet.jobs USING (id) WHERE name ~ '\d( d)?$' ORDER BY name;
SELECT ratchet.maintenance_step('archive') AS nothing_left;
SELECT count(*) AS in_both FROM ratchet.job JOIN ratchet.job_archive USING (id);
SELECT ratchet.retry(pg_temp.job('failed 31 d')) AS archived, ratchet.retry(pg_temp.job('failed 29 d')) AS live;
-- ... nothing of the job is lost but its token
SELECT pg_temp.put('whole', jsonb_build_object('state', 'succeeded', 'queue', 'whole', 'payload', '{"p": [1]}'::jsonb, 'priority', 9, 'attempt', 2, 'max_attempts', 4, 'crashes', 1,
    'version', 12, 'picked_by', 'w', 'picked_at', pg_temp.ago('3 h'), 'node', 'n', 'lease', '1 min', 'timeout', '2 min', 'expires_at', pg_temp.ago('4 h'), 'expires_in', '1 h',
    'keep_until', pg_temp.ago('-1 h'), 'backoff', 'linear', 'backoff_base', '1 s', 'backoff_max', '2 s', 'jitter', true, 'idempotency_key', 'i', 'business_key', 'b',
    'concurrency_key', 'c', 'resource', 'r', 'circuit', 'o', 'batch_id', gen_random_uuid(), 'result', '[2]'::jsonb, 'last_error', 'e', 'progress', 0.5, 'progress_message', 'half',
    'tags', '["t"]'::jsonb, 'meta', '{"m": 1}'::jsonb, 'started_at', pg_temp.ago('5 h'), 'finished_at', pg_temp.ago('2 h')));
CREATE TEMP TABLE before AS SELECT * FROM ratchet.jobs WHERE queue = 'whole';
SELECT ratchet.maintenance_step('archive');
SELECT j.archived, (to_jsonb(j) - 'archived') = (to_jsonb(b) - 'archived') AS same FROM ratchet.jobs j, before b WHERE j.queue = 'whole';
SELECT archived_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS archived_now FROM ratchet.job_archive WHERE queue = 'whole';
SELECT attname FROM pg_attribute WHERE attrelid = 'ratchet.job_archive'::regclass AND attname IN ('token', 'lease_us');
-- ... 0 is at once, for succeeded and skipped jobs
SELECT ratchet.configure_queue('once', archive_after => '0');
SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "complete", "queue": "once"}, {"kind": "skip", "queue": "once"}, {"kind": "many", "queue": "once"}, {"kind": "next", "queue": "once"},
    {"kind": "fail", "queue": "once"}, {"kind": "cancel", "queue": "once"}, {"kind": "retry", "queue": "once"}]');
CREATE TEMP TABLE once AS SELECT * FROM ratchet.claim('once', 'w', 9);
SELECT ratchet.complete(id, token, '1') FROM once WHERE kind = 'complete';
SELECT ratchet.skip(id, token) FROM once WHERE kind = 'skip';
SELECT count(*) FROM once, ratchet.complete_many(ARRAY[once.id], ARRAY[token], '{2}') WHERE kind = 'many';
SELECT count(*) FROM once, ratchet.complete_and_claim(ARRAY[once.id], ARRAY[once.token], 'none', 'w', 1, '{3}') AS next WHERE once.kind = 'next';
SELECT ratchet.fail(id, token, 'e', retryable => kind = 'retry') FROM once WHERE kind IN ('fail', 'retry') ORDER BY kind;
SELECT ratchet.cancel(id) FROM once WHERE kind = 'cancel';
SELECT kind, state, archived, version, result FROM ratchet.jobs WHERE queue = 'once' ORDER BY kind;
SELECT ratchet.maintenance_step('archive');
SELECT kind, archived FROM ratchet.jobs WHERE queue = 'once' AND kind IN ('fail', 'cancel') ORDER BY kind;
-- ... the server's setting likewise
SET ratchet.archive_after = 0;
SELECT ratchet.enqueue('k', queue => 'server') IS NOT NULL AS made;
SELECT ratchet.complete(id, token) FROM ratchet.claim('server', 'w');
SELECT archived FROM ratchet.jobs WHERE queue = 'server';
RESET ratchet.archive_after;

-- partitions: one per week (UTC) that has rows, whatever the session's time zone
SELECT pg_temp.put('week 3', jsonb_build_object('state', 'succeeded', 'queue', 'old', 'finished_at', pg_temp.ago('21 days'))),
       pg_temp.put('week 3 kept', jsonb_build_object('state', 'succeeded', 'queue', 'old', 'finished_at', pg_temp.ago('21 days'), 'keep_until', now() + interval '1 day',
           'idempotency_key', 'i')),
       pg_temp.put('week 3 past', jsonb_build_object('state', 'succeeded', 'queue', 'old', 'finished_at', pg_temp.ago('21 days'), 'keep_until', pg_temp.ago('1 day'))),
       pg_temp.put('monday', jsonb_build_object('state', 'succeeded', 'queue', 'old', 'finished_at', date_trunc('week', now() - interval '35 days'))),
       pg_temp.put('sunday', jsonb_build_object('state', 'succeeded', 'queue', 'old', 'finished_at', date_trunc('week', now() - interval '35 days') - interval '1 us')),
       pg_temp.put('week 20', jsonb_build_object('state', 'succeeded', 'queue', 'old', 'finished_at', pg_temp.ago('140 days')));
SELECT ratchet.maintenance_step('archive');
SELECT count(DISTINCT tableoid) AS tables, min(tableoid::regclass::text) FROM ratchet.job_archive;
SELECT count(DISTINCT date_trunc('week', finished_at)) AS weeks FROM ratchet.job_archive WHERE finished_at > now() - interval '90 days' \gset
SET timezone = 'America/New_York';
SELECT ratchet.maintenance_step('partitions') = :weeks AS one_for_each;
SET timezone = 'UTC';
SELECT ratchet.maintenance_step('partitions') AS nothing_left;
SELECT name AS in_default FROM named JOIN ratchet.job_archive_default USING (id);
SELECT count(*) AS in_the_wrong_one FROM ratchet.job_archive
 WHERE tableoid <> 'ratchet.job_archive_default'::regclass
   AND tableoid::regclass::text IS DISTINCT FROM 'ratchet.job_archive_' || to_char(date_trunc('week', finished_at), 'YYYYMMDD');
SELECT a.tableoid = b.tableoid AS same_week FROM ratchet.job_archive a, ratchet.job_archive b WHERE a.id = pg_temp.job('monday') AND b.id = pg_temp.job('sunday');
-- ... ordinary tables with an index of their own, none on the parent; the default one is the extension's
SELECT c.relname ~ '^job_archive_\d{8}$' AS weekly, d.objid IS NOT NULL AS member, (SELECT count(*) FROM pg_index WHERE indrelid = c.oid) AS indexes, count(*) > 0 AS there_are
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid LEFT JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
 WHERE i.inhparent = 'ratchet.job_archive'::regclass GROUP BY 1, 2, 3 ORDER BY 1;
SELECT count(*) AS indexes_of_the_parent FROM pg_index WHERE indrelid = 'ratchet.job_archive'::regclass;
-- ... what comes next goes straight there
SELECT pg_temp.put('week 3 too', jsonb_build_object('state', 'succeeded', 'queue', 'old', 'finished_at', pg_temp.ago('21 days')));
SELECT ratchet.maintenance_step('archive');
SELECT tableoid::regclass::text = 'ratchet.job_archive_' || to_char(date_trunc('week', finished_at), 'YYYYMMDD') AS in_its_week
  FROM ratchet.job_archive WHERE id = pg_temp.job('week 3 too');

-- purge: whole weeks past archive_keep, but keep_for is a minimum
INSERT INTO ratchet.idempotency_key VALUES ('old', 'i', pg_temp.job('week 3 kept'), 'k');
INSERT INTO ratchet.job_error (job_id, queue, attempt, at, error) VALUES (pg_temp.job('week 3'), 'old', 1, now() - interval '21 days', 'recent'),
    (pg_temp.job('week 3'), 'old', 1, now() - interval '60 days', 'gone'), (pg_temp.job('week 3 kept'), 'old', 1, now() - interval '60 days', 'stays');
SELECT ratchet.maintenance_step('purge') AS week_20;
SELECT count(*) FROM ratchet.job_archive WHERE id = pg_temp.job('week 20');
SET ratchet.archive_keep = '14d';
SELECT ratchet.maintenance_step('purge') > 0 AS purged;
SELECT name, a.tableoid::regclass FROM named JOIN ratchet.job_archive a USING (id) WHERE queue = 'old' ORDER BY name;
SELECT count(*) AS old_partitions FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
 WHERE inhparent = 'ratchet.job_archive'::regclass AND relname < 'job_archive_' || to_char(now() - interval '21 days', 'YYYYMMDD');
SELECT count(*) AS dropped_tables_left FROM pg_class WHERE relname = 'job_archive_' || to_char(date_trunc('week', now() - interval '21 days'), 'YYYYMMDD');
SELECT ratchet.maintenance_step('partitions') AS made_again;
SELECT ratchet.maintenance_step('purge') AS nothing_left;
SELECT error FROM ratchet.job_error WHERE queue = 'old' ORDER BY error;
-- ... past both
UPDATE ratchet.job_archive SET keep_until = now() - interval '1 min' WHERE id = pg_temp.job('week 3 kept');
SELECT ratchet.maintenance_step('purge') > 0 AS purged;
SELECT count(*) FROM ratchet.job_archive WHERE queue = 'old';
RESET ratchet.archive_keep;
-- ... the idempotency key is for ever
SELECT ratchet.enqueue('k', queue => 'old', idempotency_key => 'i') = pg_temp.job('week 3 kept') AS same;
SELECT left(pg_temp.try($$SELECT ratchet.enqueue('other', queue => 'old', idempotency_key => 'i')$$), 5);
-- ... jobs of this week stay
SELECT count(*) > 0 AS kept FROM ratchet.job_archive WHERE finished_at > now() - interval '2 days';

-- guard: found switched to an ordinary trigger, or off
CREATE FUNCTION pg_temp.guard() RETURNS TABLE (enabled "char") LANGUAGE sql AS
    $$ SELECT DISTINCT tgenabled FROM pg_trigger WHERE tgrelid = 'ratchet.job'::regclass AND NOT tgisinternal $$;
SELECT * FROM pg_temp.guard();
ALTER TABLE ratchet.job ENABLE TRIGGER ALL;
SELECT * FROM pg_temp.guard();
SELECT ratchet.maintenance_step('guard') > 0 AS repaired, ratchet.maintenance_step('guard') AS again;
SELECT * FROM pg_temp.guard();
ALTER TABLE ratchet.job DISABLE TRIGGER ALL;
SELECT pg_temp.put('unguarded', '{"state": "pending", "queue": "un", "business_key": "u", "ready_at": "2024-01-01"}');
ALTER TABLE ratchet.job ENABLE TRIGGER ALL;
CALL ratchet.run_maintenance();
SELECT * FROM pg_temp.guard();
SELECT pg_temp.try($$UPDATE ratchet.job SET state = 'succeeded' WHERE id = pg_temp.job('unguarded') RETURNING 1$$) LIKE 'RT001: %' AS guarded;
SELECT pg_temp.try($$SELECT ratchet.enqueue('k', queue => 'un', business_key => 'u')$$) LIKE 'RT002: %<unguarded>%' AS key_taken;

-- run_maintenance: every duty, committed as it goes, or as part of the caller's transaction
SELECT pg_temp.put('m recover', jsonb_build_object('state', 'running', 'queue', 'all', 'lease_expires_at', now())),
       pg_temp.put('m timeout', '{"state": "running", "queue": "all", "timeout": "1 s", "attempt": 3}'),
       pg_temp.put('m expire', jsonb_build_object('state', 'pending', 'queue', 'all', 'expires_at', now())),
       pg_temp.put('m archive', jsonb_build_object('state', 'succeeded', 'queue', 'all', 'finished_at', pg_temp.ago('2 h')));
BEGIN;
CALL ratchet.run_maintenance();
SELECT name, state, archived FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'all' ORDER BY name;
ROLLBACK;
SELECT name, state, archived FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'all' ORDER BY name;
SET default_transaction_isolation = 'serializable';
CALL ratchet.run_maintenance();
RESET default_transaction_isolation;
SELECT name, state, archived FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'all' ORDER BY name;
DO $$ BEGIN CALL ratchet.run_maintenance(); END $$;
BEGIN READ ONLY;
SELECT left(pg_temp.try('SELECT ratchet.maintenance_step(''recover'')'), 5);
ROLLBACK;

\c :before
DROP DATABASE regress_ratchet_maintenance;
