-- queues: settings, when they apply, pause and resume
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/test/lib/cases.sql'
\set ECHO none
\i :helpers
\set ECHO all

-- a queue needs no row
SELECT ratchet.enqueue('a', queue => 'qu plain') IS NOT NULL AS made;
SELECT count(*) FROM ratchet.queues WHERE queue = 'qu plain';

-- all settings, then some: NULL leaves what is there
SELECT ratchet.configure_queue('qu all', priority => 3, max_attempts => 4, backoff => 'fixed', backoff_base => '1 day', backoff_max => '2 days', jitter => false,
    timeout => '5 s', lease => '6 s', expires_in => '7 s', keep_for => '8 s', archive_after => '0', fair => false, events => 'off');
\x on
SELECT * FROM ratchet.queues WHERE queue = 'qu all';
SELECT ratchet.configure_queue('qu all', priority => -3, jitter => true, archive_after => '1 h');
SELECT * FROM ratchet.queues WHERE queue = 'qu all';
SELECT ratchet.configure_queue('qu all');
SELECT ratchet.configure_queue('qu all', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT * FROM ratchet.queues WHERE queue = 'qu all';
\x off

-- what jobs get: the queue's, unless they bring their own
INSERT INTO named VALUES ('default', ratchet.enqueue('a', queue => 'qu all')),
    ('own', ratchet.enqueue('a', queue => 'qu all', priority => 9, max_attempts => 1, expires_in => '1 h', keep_for => '2 h'));
SELECT name, priority, max_attempts, expires_at - scheduled_at AS valid, keep_until - created_at AS kept, backoff, backoff_base, jitter, timeout, lease
  FROM named JOIN ratchet.jobs USING (id) WHERE queue = 'qu all' ORDER BY name;
SELECT count(*) FROM ratchet.enqueue_many('b', '{1,2}', 'qu all');
SELECT count(*) FROM ratchet.enqueue_many('[{"kind": "b", "queue": "qu all"}]');
SELECT count(*), bool_and(priority = -3 AND max_attempts = 4) AS alike FROM ratchet.jobs WHERE queue = 'qu all' AND kind = 'b';

-- arguments
SELECT args, pg_temp.try(format('SELECT ratchet.configure_queue(%s)', args)) FROM unnest(ARRAY['NULL', '''''', '''{a}''', 'repeat(''q'', 129)',
    '''qu bad'', priority => 101', '''qu bad'', priority => -101', '''qu bad'', max_attempts => 0', '''qu bad'', backoff => ''random''',
    '''qu bad'', backoff_base => ''0''', '''qu bad'', backoff_max => ''-1 s''', '''qu bad'', timeout => ''0''', '''qu bad'', timeout => ''1 month''', '''qu bad'', lease => ''0''',
    '''qu bad'', lease => ''3661 days''', '''qu bad'', expires_in => ''0''', '''qu bad'', keep_for => ''0''', '''qu bad'', archive_after => ''-1 s''',
    '''qu bad'', archive_after => ''1 year''', '''qu bad'', priority => 1, lease => ''0''',
    '''qu bad'', max_running => 1', '''qu bad'', max_per_key => 1', '''qu bad'', rate_limit => 1', '''qu bad'', rate_period => ''1 s''', '''qu bad'', fair => true',
    '''qu bad'', events => ''log''', '''qu bad'', events => ''notify''']) WITH ORDINALITY AS t (args, n) ORDER BY n;
SELECT count(*) AS nothing_stored FROM ratchet.queues WHERE queue = 'qu bad';

-- a change is seen at once, and not at all after a rollback
CREATE FUNCTION pg_temp.priority_of(id uuid) RETURNS int LANGUAGE sql AS 'SELECT priority FROM ratchet.job WHERE job.id = $1';
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS before;
BEGIN;
SELECT ratchet.configure_queue('qu seen', priority => 7);
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS in_the_transaction;
SAVEPOINT s;
SELECT ratchet.configure_queue('qu seen', priority => 8);
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS in_the_savepoint;
ROLLBACK TO s;
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS after_the_savepoint;
ROLLBACK;
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS after_rollback;
SELECT count(*) FROM ratchet.queues WHERE queue = 'qu seen';
SELECT ratchet.configure_queue('qu seen', priority => 9);
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS after_commit;
-- ... whoever writes the table
UPDATE ratchet.queue SET priority = 11 WHERE queue = 'qu seen';
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS after_update;
DELETE FROM ratchet.queue WHERE queue = 'qu seen';
SELECT pg_temp.priority_of(ratchet.enqueue('a', queue => 'qu seen')) AS after_delete;
-- ... in another session too
SELECT ratchet.configure_queue('qu session', priority => 5);
\c -
SELECT ratchet.enqueue('a', queue => 'qu session') IS NOT NULL AS made;
SELECT priority FROM ratchet.jobs WHERE queue = 'qu session';

-- pause_queue is true always, resume_queue when the queue was paused
SELECT ratchet.pause_queue('qu pause') AS paused, ratchet.pause_queue('qu pause') AS again;
SELECT paused, priority FROM ratchet.queues WHERE queue = 'qu pause';
SELECT ratchet.configure_queue('qu pause', priority => 2);
SELECT paused, priority FROM ratchet.queues WHERE queue = 'qu pause';
SELECT ratchet.enqueue('a', queue => 'qu pause') IS NOT NULL AS made;
SELECT count(*) FROM ratchet.claim('qu pause', 'w');
BEGIN;
SELECT ratchet.resume_queue('qu pause');
ROLLBACK;
SELECT count(*) FROM ratchet.claim('qu pause', 'w');
SELECT ratchet.resume_queue('qu pause') AS resumed, ratchet.resume_queue('qu pause') AS again, ratchet.resume_queue('qu never') AS never;
SELECT paused, priority FROM ratchet.queues WHERE queue = 'qu pause';
SELECT count(*) FROM ratchet.claim('qu pause', 'w');
BEGIN;
SELECT ratchet.enqueue('a', queue => 'qu pause') IS NOT NULL AS made;
SELECT ratchet.pause_queue('qu pause');
SELECT count(*) FROM ratchet.claim('qu pause', 'w');
ROLLBACK;
SELECT paused FROM ratchet.queues WHERE queue = 'qu pause';
\set VERBOSITY sqlstate
SELECT ratchet.pause_queue(NULL);
SELECT ratchet.pause_queue('');
SELECT ratchet.pause_queue('{a}');
SELECT ratchet.resume_queue(NULL);
SELECT ratchet.resume_queue('{a}');
